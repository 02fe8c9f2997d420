"""Whitening by the singular value decomposition of all centred rows, never by a covariance."""

import numpy as np

from tests.reference.retrieval_neighbours import unit


def whitened(training, rows, power, dim):
    """The whitened rows; the sign of each column is that of its component's largest entry."""
    training = np.array([unit(row) for row in training])
    mean = training.sum(0) / len(training)
    _, lengths, components = np.linalg.svd(training - mean)
    result = []
    for row in rows:
        centred = np.array(unit(row)) - mean
        columns = []
        for component, length in list(zip(components, lengths, strict=False))[:dim]:
            sign = 1 if max(component, key=abs) > 0 else -1
            variance = length**2 / len(training)
            columns.append(sign * float(component @ centred) / variance**power)
        result.append(unit(columns))
    return np.array(result)
