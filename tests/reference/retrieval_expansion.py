"""alpha query expansion, one query and one neighbour at a time."""

from tests.reference.retrieval_neighbours import nearest, unit


def expanded(queries, gallery, k, alpha, own=False):
    moved = []
    for query, near in zip(queries, nearest(queries, gallery, k, own), strict=True):
        vectors = [unit(query)]
        for score, j in near:
            if score > 0:
                vectors.append([score**alpha * x for x in unit(gallery[j])])
        moved.append(unit([sum(column) / len(vectors) for column in zip(*vectors, strict=True)]))
    return moved
