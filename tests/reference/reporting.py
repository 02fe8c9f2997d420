"""What a report shows, from the definitions: one list, one pair at a time."""

import math
from fractions import Fraction


def average_precision(right):
    """The mean over the positives of the share of positives down to each; a list of right or wrong, first to last."""
    precisions = [Fraction(sum(right[: place + 1]), place + 1) for place in range(len(right)) if right[place]]
    return sum(precisions) / len(precisions)


def cost(right, place):
    """What a wrong item at a place (from 0) takes from AP: of what each positive after it loses, an equal part.

    A positive loses 1 minus its precision, and the wrong items before it share that loss.
    """
    after = [r for r in range(place + 1, len(right)) if right[r]]
    losses = [(1 - Fraction(sum(right[: r + 1]), r + 1)) / (r - sum(right[:r])) for r in after]
    return sum(losses, Fraction(0)) / sum(right)


def interpolated_precisions(right):
    """At recall 0/100 ... 100/100 the highest precision of a beginning of the list that holds so many positives."""
    points = [(sum(right[:k]) * 100, Fraction(sum(right[:k]), k)) for k in range(1, len(right) + 1)]
    return [max(precision for found, precision in points if found >= level * sum(right)) for level in range(101)]


def mean_interpolated_precision(lists):
    """At each level of recall, over the lists that have a positive."""
    curves = [[float(each) for each in interpolated_precisions(right)] for right in lists if any(right)]
    return [math.fsum(level) / len(curves) for level in zip(*curves, strict=True)]


def in_order(scores, right):
    """The indices of a list, best first; of equal scores the wrong ones first, then by index."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], right[i], i))


def cosine(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


def pair_scores(queries, gallery, labels, gallery_labels):
    """The cosines of all positive pairs and of all negative ones; without a gallery every two queries are a pair."""
    found = ([], [])
    for i, row in enumerate(queries):
        others = [(queries[j], labels[j]) for j in range(i)] if gallery is None else zip(gallery, gallery_labels)  # noqa: B905
        for other, label in others:
            found[int(label != labels[i])].append(cosine(row, other))
    return found
