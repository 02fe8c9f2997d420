"""FastAP (CVPR 2019)."""

import torch


def fastap(one, bins, distance="squared"):
    """1 - FastAP = 1 - (1 / N+) sum over j of H+_j h+_j / H_j (Eq. 14)."""
    furthest = 4 if distance == "squared" else 2
    width = furthest / bins
    n = len(one.positive)
    cumulated_positive, cumulated_all, total = 0, 0, 0
    for j in range(bins + 1):
        h_positive = _in_bin(one.positive, j * width, width, distance)
        h_all = h_positive + _in_bin(one.negative, j * width, width, distance)
        cumulated_positive = cumulated_positive + h_positive
        cumulated_all = cumulated_all + h_all
        if cumulated_all > 0:
            total = total + cumulated_positive * h_positive / cumulated_all
    return 1 - total / n


def of_bins(one, bins, of_pair):
    """(1 / N+) sum over j of h+_j of_pair(H+_j - 1, H-_j): Eq. 14 with another metric than precision."""
    width = 4 / bins
    positive, negative, total = 0, 0, 0
    for j in range(bins + 1):
        in_bin = _in_bin(one.positive, j * width, width, "squared")
        positive = positive + in_bin
        negative = negative + _in_bin(one.negative, j * width, width, "squared")
        if in_bin > 0:
            total = total + in_bin * of_pair(positive - 1, negative)
    return total / len(one.positive)


def _in_bin(scores, centre, width, distance):
    """Soft count of a bin: each distance is shared between the two nearest centres (Sec. 4)."""
    z = 2 - 2 * scores if distance == "squared" else torch.sqrt(2 - 2 * scores)
    return torch.clamp(1 - torch.abs(z - centre) / width, min=0).sum()
