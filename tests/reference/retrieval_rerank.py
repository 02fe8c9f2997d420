"""k-reciprocal re-ranking (Zhong et al., CVPR 2017) with sets and dense rows, equation by equation."""

import math

from tests.reference.retrieval_neighbours import cosine


def near(order, i, k):  # Eq. 2, with i itself
    return order[i][: k + 1]


def reciprocal(order, i, k):  # Eq. 3
    return {j for j in near(order, i, k) if i in near(order, j, k)}


def expanded(order, i, k):  # Eq. 4
    start = reciprocal(order, i, k)
    result = set(start)
    for j in start:
        half = reciprocal(order, j, round(k / 2))
        if len(start & half) * 3 >= len(half) * 2:
            result |= half
    return result


def reranked(queries, gallery, k1, k2, lam):
    """Scores of each query and item of the gallery; gallery None: the queries themselves, a query's own is -inf."""
    items = [*queries, *(gallery or [])]
    first = len(queries) if gallery else 0
    n = range(len(items))
    distance = [[1 - cosine(items[i], items[j]) for j in n] for i in n]
    order = [[i, *sorted((j for j in n if j != i), key=lambda j: (distance[i][j], j))] for i in n]

    encoded = []  # Eq. 7
    for i in n:
        members = expanded(order, i, k1)
        encoded.append([math.exp(-distance[i][j]) if j in members else 0.0 for j in n])
    means = []  # Eq. 11
    for i in n:
        some = near(order, i, k2 - 1)
        means.append([sum(encoded[j][c] for j in some) / len(some) for c in n])

    scores = []
    for i in range(len(queries)):
        row = []
        for j in range(first, len(items)):
            shared = sum(min(means[i][c], means[j][c]) for c in n)
            together = sum(max(means[i][c], means[j][c]) for c in n)
            final = (1 - lam) * (1 - shared / together) + lam * distance[i][j]  # Eq. 10, 12
            row.append(-math.inf if not gallery and i == j else 1 - final)
        scores.append(row)
    return scores
