"""Evaluation from the definitions: sort one query's list, then walk down it.

Cosines are compared in whole numbers, without any rounding, so two items are tied exactly if their cosines are equal.
Of equal scores the negatives come first.
"""

import math
from fractions import Fraction

import numpy as np

NAMES = ("R@1", "R@2", "R@10", "P@1", "P@3", "P@1000", "mAP", "mAP@R", "R-precision", "MRR")


def whole_numbers(row):
    """Numbers that are to each other as those of the row, without a fraction."""
    pairs = [float(x).as_integer_ratio() for x in row]
    common = max(below for _, below in pairs)  # all are powers of two
    return [above * (common // below) for above, below in pairs]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def cosine_key(a, b):
    """The square of the cosine of two rows with the sign of the cosine: in the same order as the cosine."""
    product = dot(a, b)
    return Fraction(product * abs(product), dot(a, a) * dot(b, b))


def cosine(a, b):
    key = cosine_key(whole_numbers(a), whole_numbers(b))
    return math.copysign(math.sqrt(abs(key)), key)


def cosine_keys(queries, gallery):
    """For each query the keys of all items."""
    rows, items = ([whole_numbers(row) for row in of] for of in (queries, gallery))
    return [[cosine_key(row, item) for item in items] for row in rows]


def same_label(labels, gallery_labels=None):
    """For each query the set of items with its label; the query itself is not one if there is no other gallery."""
    own = gallery_labels is None
    items = labels if own else gallery_labels
    return [{j for j, label in enumerate(items) if label == of and not (own and j == q)} for q, of in enumerate(labels)]


def in_order(scores, relevant, out=()):
    """Is it relevant? For each item of the list from the first to the last place."""
    listed = [j for j in range(len(scores)) if j not in out]
    listed.sort(key=lambda j: (-scores[j], j in relevant))
    return [j in relevant for j in listed]


def ranked_lists(queries, gallery, relevant, ignored=None):
    """The list of each query; without a gallery the queries are searched, and a query is not in its own list."""
    keys = cosine_keys(queries, queries if gallery is None else gallery)
    own = [{q} if gallery is None else set() for q in range(len(queries))]
    out = own if ignored is None else [a | set(b) for a, b in zip(own, ignored, strict=True)]
    return [in_order(*of) for of in zip(keys, relevant, out, strict=True)]


def ranks(found):
    """(positives before, negatives before) of each positive, from the first to the last."""
    places = [place for place, is_positive in enumerate(found) if is_positive]
    return [(sum(found[:place]), place - sum(found[:place])) for place in places]


def precision(found, k):
    return sum(found[:k]) / k


def value(name, found):
    """A metric of one list; NaN if it is not defined without a positive."""
    count = sum(found)
    if name.startswith("R@"):
        return float(any(found[: int(name[2:])]))
    if name.startswith("P@"):
        return precision(found, int(name[2:]))
    if name == "MRR":
        return 1 / (1 + found.index(True)) if count else 0.0
    if not count:
        return math.nan
    if name == "R-precision":
        return precision(found, count)
    last = count if name == "mAP@R" else len(found)
    return sum(precision(found, k + 1) for k in range(last) if found[k]) / count


def values(lists, names=NAMES):
    """Each metric for each list."""
    return {name: np.array([value(name, found) for found in lists]) for name in names}


def trapezoid_average_precision(found):
    """The area under straight lines between the points (recall, precision) after each item; it starts at (0, 1)."""
    area, recall, height = 0.0, 0.0, 1.0
    for k in range(1, len(found) + 1):
        next_recall, next_height = sum(found[:k]) / sum(found), precision(found, k)
        area += (next_recall - recall) * (height + next_height) / 2
        recall, height = next_recall, next_height
    return area


def normalized_mutual_information(first, second):
    """2 I(A; B) / (H(A) + H(B)) from counts of items, and 1 if both have one part only."""

    def share(condition):
        return sum(condition(a, b) for a, b in zip(first, second, strict=True)) / len(first)

    parts, others = sorted(set(first)), sorted(set(second))
    p = {c: share(lambda a, b, c=c: a == c) for c in parts}
    q = {c: share(lambda a, b, c=c: b == c) for c in others}
    mutual = 0.0
    for c in parts:
        for d in others:
            both = share(lambda a, b, c=c, d=d: a == c and b == d)
            if both:
                mutual += both * math.log(both / (p[c] * q[d]))
    entropies = sum(-x * math.log(x) for of in (p, q) for x in of.values())
    return 2 * mutual / entropies if entropies else 1.0


def class_distances(rows, labels):
    """(dists@intra, dists@inter) by pairs: of items of a class, and of class means; None where there are no pairs."""
    intra, means = [], []
    for c in sorted(set(labels)):
        members = [row for row, label in zip(rows, labels, strict=True) if label == c]
        pairs = [1 - cosine(a, b) for i, a in enumerate(members) for b in members[:i]]
        if pairs:
            intra.append(sum(pairs) / len(pairs))
        units = [[float(x) / math.hypot(*map(float, row)) for x in row] for row in members]
        means.append([sum(column) / len(units) for column in zip(*units, strict=True)])
    inter = [1 - cosine(a, b) for i, a in enumerate(means) for b in means[:i]]
    return tuple(sum(of) / len(of) if of else None for of in (intra, inter))
