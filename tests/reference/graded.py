"""Losses of graded relevance and of later papers, one list at a time: Recall@k, SupAP, NDCG, hierarchical AP, margins.

`before(x)` is the relaxed step [x > 0] of a score difference x, `exact` the step itself.
"""

import math

import torch

from tests.reference.sigmoid_ranks import g


def sigmoid_step(temperature):
    return lambda x: g(x, temperature)


def rising_step(temperature, rho, delta):
    """H of SupRank (roadmap Eq. 5)."""

    def step(x):
        if x <= 0:
            return g(x, temperature)
        if x <= delta:
            return 0.5 + g(x, temperature)
        return rho * (x - delta) + 0.5 + g(torch.tensor(delta, dtype=x.dtype), temperature)

    return step


def exact(x):
    return (x > 0).to(x.dtype)


def places(one, of_negative, of_positive):
    """The place of each positive: 1 + what stands before it."""
    return [
        1
        + sum(of_positive(other - own) for j, other in enumerate(one.positive) if j != i)
        + sum(of_negative(other - own) for other in one.negative)
        for i, own in enumerate(one.positive)
    ]


def recall_at_k(one, ks, temperature, rank_temperature):
    """1 - mean over k of min(k, sum of sigmoid((k - r_i) / t2)) / min(k, |P|)."""
    step = sigmoid_step(temperature)
    ranks = places(one, step, step)
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
        r_p = sum(exact(other - own).detach() for j, other in enumerate(one.positive) if j != i)
        r_n = sum(step(other - own) for other in one.negative)
        total = total + (1 + r_p) / (1 + r_p + r_n)
    return 1 - total / len(one.positive)


def ndcg(one, temperature):
    """1 - NDCG with gains 2^grade - 1."""
    step = sigmoid_step(temperature)
    gains = [2 ** float(grade) - 1 for grade in one.grades]
    dcg = sum(gain / torch.log2(1 + place) for gain, place in zip(gains, places(one, step, step), strict=True))
    ideal = sum(gain / math.log2(2 + i) for i, gain in enumerate(sorted(gains, reverse=True)))
    return 1 - dcg / ideal


def hierarchical_ap(one, temperature, alpha=1.0):
    """1 - sum of Hrank_i / r_i / sum of rel_i (happier Eq. 3, 4, 7)."""
    step = sigmoid_step(temperature)
    grades = [float(grade) for grade in one.grades]
    rel = [grade**alpha / grades.count(grade) for grade in grades]
    total = 0
    for i, (own, place) in enumerate(zip(one.positive, places(one, step, step), strict=True)):
        rank = rel[i]
        for j, other in enumerate(one.positive):
            if j != i:
                rank = rank + min(rel[i], rel[j]) * step(other - own)
        total = total + rank / place
    return 1 - total / sum(rel)


def map_at_r(one, temperature):
    """1 - AP in which only positives among the first |P| places count."""
    step = sigmoid_step(temperature)
    total = 0
    for i, (own, place) in enumerate(zip(one.positive, places(one, step, step), strict=True)):
        r_p = sum(step(other - own) for j, other in enumerate(one.positive) if j != i)
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
