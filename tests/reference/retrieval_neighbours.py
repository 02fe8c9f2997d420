"""The nearest items by sorting all of them."""

import math


def cosine(a, b):
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return dot / (math.sqrt(math.fsum(x * x for x in a)) * math.sqrt(math.fsum(y * y for y in b)))


def unit(a):
    length = math.sqrt(math.fsum(x * x for x in a))
    return [x / length for x in a]


def nearest(queries, gallery, k, own=False):
    """[(cosine, index) of the k nearest items] of each query; of equal cosines the lower index first."""
    lists = []
    for i, query in enumerate(queries):
        scored = [(cosine(query, item), j) for j, item in enumerate(gallery) if not (own and i == j)]
        lists.append(sorted(scored, key=lambda pair: (-pair[0], pair[1]))[:k])
    return lists
