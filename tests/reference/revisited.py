"""The evaluation of Revisited Oxford and Paris from its definition: one query, one place at a time.

Numbers are exact fractions, so two cosines are equal only where they truly are. Of equal ones the positives come last.
"""

from fractions import Fraction

RELEVANT_AND_TAKEN_OUT = {
    "easy": (["easy"], ["hard", "junk"]),
    "medium": (["easy", "hard"], ["junk"]),
    "hard": (["hard"], ["easy", "junk"]),
}


def nearness(query, item):
    """cosine * |cosine|, times the squared length of the query: the same order as the cosine, without a root."""
    dot = sum(Fraction(a) * Fraction(b) for a, b in zip(query, item, strict=True))
    return dot * abs(dot) / sum(Fraction(b) ** 2 for b in item)


def places_of_positives(query, gallery, entry, setup):
    """The places of the positives, from 0, in the ranking without what is taken out."""
    relevant, taken_out = RELEVANT_AND_TAKEN_OUT[setup]
    positives = [int(i) for kind in relevant for i in entry[kind]]
    removed = [int(i) for kind in taken_out for i in entry[kind]]
    ranked = [i for i in range(len(gallery)) if i not in removed]
    ranked.sort(key=lambda i: (-nearness(query, gallery[i]), i in positives))
    return [place for place, i in enumerate(ranked) if i in positives]


def average_precision(places):
    """Mean over the positives of the mean of the precision just before and at their place."""
    total = Fraction(0)
    for found, place in enumerate(places):
        before = Fraction(found, place) if place > 0 else Fraction(1)
        at = Fraction(found + 1, place + 1)
        total += (before + at) / 2
    return float(total / len(places))


def precision_at(places, k):
    """Share of positives among the first k places, or down to the last positive if that comes first."""
    depth = min(max(places) + 1, k)
    return len([place for place in places if place < depth]) / depth


def evaluate(queries, gallery, ground_truth, setup):
    """Per query {metric: value}, None for a query without a positive."""
    found = []
    for query, entry in zip(queries, ground_truth, strict=True):
        places = places_of_positives(query, gallery, entry, setup)
        values = {"mAP": average_precision(places)} if places else None
        if places:
            values |= {f"mP@{k}": precision_at(places, k) for k in (1, 5, 10)}
        found.append(values)
    return found
