"""Losses of graded relevance and of later papers, one list at a time: Recall@k, SupAP, NDCG, hierarchical AP, margins.

A step is the relaxed [x > 0] of score differences x, `exact` the step itself.
"""

import math

import torch

from tests.reference.sigmoid_ranks import g


def sigmoid_step(temperature):
    return lambda x: g(x, temperature)


def rising_step(temperature, rho, delta):
    """H of SupRank (roadmap Eq. 5)."""

    def step(x):
        near = torch.where(x <= 0, g(x, temperature), 0.5 + g(x, temperature))
        far = rho * (x - delta) + 0.5 + g(torch.tensor(delta, dtype=x.dtype), temperature)
        return torch.where(x <= delta, near, far)

    return step


def exact(x):
    return (x > 0).to(x.dtype)


def others(one, i):
    """The scores of the positives but the one of index i."""
    return torch.cat([one.positive[:i], one.positive[i + 1 :]])


def places(one, step):
    """The place of each positive: 1 + what stands before it."""
    return [1 + step(others(one, i) - own).sum() + step(one.negative - own).sum() for i, own in enumerate(one.positive)]


def recall_at_k(one, ks, temperature, rank_temperature):
    """1 - mean over k of min(k, sum of sigmoid((k - r_i) / t2)) / min(k, |P|)."""
    step = sigmoid_step(temperature)
    ranks = places(one, step)
    total = 0
    for k in ks:
        inside = sum(g(k - rank, rank_temperature) for rank in ranks)
        total = total + torch.clamp(inside, max=k) / min(k, len(ranks))
    return 1 - total / len(ks)


def sup_ap(one, temperature, rho, delta):
    """1 - AP with counted positives and negatives bounded from above."""
    step = rising_step(temperature, rho, delta)
    total = 0
    for i, own in enumerate(one.positive):
        r_p = exact(others(one, i) - own).sum()
        r_n = step(one.negative - own).sum()
        total = total + (1 + r_p) / (1 + r_p + r_n)
    return 1 - total / len(one.positive)


def ndcg(one, temperature):
    """1 - NDCG with gains 2^grade - 1."""
    step = sigmoid_step(temperature)
    gains = [2 ** float(grade) - 1 for grade in one.grades]
    dcg = sum(gain / torch.log2(1 + place) for gain, place in zip(gains, places(one, step), strict=True))
    ideal = sum(gain / math.log2(2 + i) for i, gain in enumerate(sorted(gains, reverse=True)))
    return 1 - dcg / ideal


def hierarchical_ap(one, temperature, alpha=1.0):
    """1 - sum of Hrank_i / r_i / sum of rel_i (happier Eq. 3, 4, 7)."""
    step = sigmoid_step(temperature)
    grades = [float(grade) for grade in one.grades]
    rel = torch.tensor([grade**alpha / grades.count(grade) for grade in grades], dtype=one.positive.dtype)
    total = 0
    for i, (own, place) in enumerate(zip(one.positive, places(one, step), strict=True)):
        shared = torch.cat([rel[:i], rel[i + 1 :]]).clamp(max=rel[i])  # min(rel_i, rel_j)
        total = total + (rel[i] + (shared * step(others(one, i) - own)).sum()) / place
    return 1 - total / rel.sum()


def map_at_r(one, temperature):
    """1 - AP in which only positives among the first |P| places count."""
    step = sigmoid_step(temperature)
    total = 0
    for i, (own, place) in enumerate(zip(one.positive, places(one, step), strict=True)):
        r_p = step(others(one, i) - own).sum()
        if place < len(one.positive) + 0.5:
            total = total + (1 + r_p) / place
    return 1 - total / len(one.positive)


def pair_margin(one, positive, negative):
    """Mean of [positive - s]_+ over positives plus mean of [s - negative]_+ over negatives (roadmap Eq. 7)."""
    loss = torch.clamp(positive - one.positive, min=0).mean()
    return loss + torch.clamp(one.negative - negative, min=0).mean() if len(one.negative) else loss


def roadmap(one):
    """0.9 SupAP + 0.1 margins, with the authors' settings (roadmap Eq. 8)."""
    return 0.9 * sup_ap(one, 0.01, 100.0, 0.05) + 0.1 * pair_margin(one, 0.9, 0.6)
