"""Losses on sigmoid ranks: Smooth-AP (ECCV 2020), PNP (AAAI 2022), and RaMBO's recall losses on the same ranks."""

import torch


def g(x, temperature):
    """The sigmoid that stands for [x > 0] (smooth_ap Eq. 6, pnp Eq. 3)."""
    return 1 / (1 + torch.exp(-x / temperature))


def negatives_before(one, i, temperature):
    """R_N(i): sum over negatives j of G(s_j - s_i) (pnp Eq. 2, relaxed)."""
    return g(one.negative - one.positive[i], temperature).sum()


def positives_before(one, i, temperature):
    """R_P(i): the same over the other positives (smooth_ap Eq. 7, j != i)."""
    others = torch.cat([one.positive[:i], one.positive[i + 1 :]])
    return g(others - one.positive[i], temperature).sum()


def smooth_ap(one, temperature):
    """1 - AP_q (smooth_ap Eq. 7)."""
    total = 0
    for i in range(len(one.positive)):
        r_p, r_n = positives_before(one, i, temperature), negatives_before(one, i, temperature)
        total = total + (1 + r_p) / (1 + r_p + r_n)
    return 1 - total / len(one.positive)


def pnp_f(r, variant, alpha=4.0, b=2.0):
    """f(R) of pnp Eq. 5, 7, 9, 12, 13."""
    return {
        "O": lambda: r,
        "I_u": lambda: (1 + r) * torch.log(1 + r),
        "I_b": lambda: (b * r - torch.log(1 + b * r)) / b**2,
        "D_s": lambda: torch.log(1 + r),
        "D_q": lambda: 1 - (1 + r) ** -alpha,
    }[variant]()


def pnp(one, variant, temperature, alpha=4.0, b=2.0):
    """Mean over positives of f(R)."""
    total = 0
    for i in range(len(one.positive)):
        total = total + pnp_f(negatives_before(one, i, temperature), variant, alpha, b)
    return total / len(one.positive)


def recall(one, weighting, temperature):
    """Mean over positives of l(R) or l(l(R)), l(x) = log(1 + x) (rambo Eq. 20)."""
    total = 0
    for i in range(len(one.positive)):
        loss = torch.log(1 + negatives_before(one, i, temperature))
        total = total + (torch.log(1 + loss) if weighting == "loglog" else loss)
    return total / len(one.positive)
