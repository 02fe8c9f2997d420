"""AP_Q (ICCV 2019)."""

import torch


def quantized_ap(one, bins, tie_aware=False):
    """1 - AP_Q (Eq. 11), or 1 - AP_T with the precision of Eq. 13."""
    width = 2 / (bins - 1)
    n = len(one.positive)
    before_positive, before_all, total = 0, 0, 0
    for m in range(1, bins + 1):
        centre = 1 - (m - 1) * width
        c_positive = _in_bin(one.positive, centre, width)
        c_all = c_positive + _in_bin(one.negative, centre, width)
        if tie_aware:
            precision = (1 + c_positive + 2 * before_positive) / (1 + c_all + 2 * before_all)  # Eq. 13
            total = total + precision * c_positive / n
        elif before_all + c_all > 0:
            total = total + (before_positive + c_positive) / (before_all + c_all) * c_positive / n  # Eq. 9, 10
        before_positive, before_all = before_positive + c_positive, before_all + c_all
    return 1 - total


def _in_bin(scores, centre, width):
    """Sum of delta(s, m) = max(1 - |s - b_m| / width, 0) (Eq. 7), scores saturating at -1 and 1."""
    return torch.clamp(1 - torch.abs(torch.clamp(scores, -1, 1) - centre) / width, min=0).sum()
