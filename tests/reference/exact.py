"""Exact ranks and metrics by sorting one list; of equal scores the negatives come first."""


def sorted_list(scores, relevant):
    """Relevance of the items from the first to the last place."""
    order = sorted(range(len(scores)), key=lambda i: (-float(scores[i]), bool(relevant[i])))
    return [bool(relevant[i]) for i in order]


def ranks_of_positives(scores, relevant):
    """(positives before, negatives before) for each positive, best first."""
    in_order = sorted_list(scores, relevant)
    return [
        (sum(in_order[:place]), place - sum(in_order[:place]))
        for place, is_positive in enumerate(in_order)
        if is_positive
    ]


def average_precision(scores, relevant):
    in_order = sorted_list(scores, relevant)
    precisions = [sum(in_order[: k + 1]) / (k + 1) for k, is_positive in enumerate(in_order) if is_positive]
    return sum(precisions) / len(precisions)


def recall_at(scores, relevant, k):
    return float(any(sorted_list(scores, relevant)[:k]))


def r_precision(scores, relevant):
    r = int(sum(bool(x) for x in relevant))
    return sum(sorted_list(scores, relevant)[:r]) / r


def map_at_r(scores, relevant):
    in_order = sorted_list(scores, relevant)
    r = sum(in_order)
    return sum(sum(in_order[: k + 1]) / (k + 1) for k in range(r) if in_order[k]) / r
