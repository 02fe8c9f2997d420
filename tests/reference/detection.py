"""Average precision of detections by slow loops: as the devkit of Pascal VOC has it, and as COCO has it.

A scene is (objects, detections): objects are (box, label, ignored), detections (box, label, score). Boxes are left,
top, right, bottom; right and bottom are exclusive, so that a side is right - left.
"""


def overlap(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)


def outcomes(scenes, label, threshold=0.5):
    """The devkit's True (right) and False (wrong) for each detection of a class, best first, and how many objects.

    Each detection looks at the object it overlaps most, whether that is taken or not; an ignored one it passes over.
    """
    ranked = sorted(
        ((score, row, box) for row, (_, found) in enumerate(scenes) for box, own, score in found if own == label),
        key=lambda each: -each[0],
    )
    objects = [[(box, ignored) for box, own, ignored in there if own == label] for there, _ in scenes]
    taken = set()
    found = []
    for _, row, box in ranked:
        best, place = -1.0, None
        for number, (other, _) in enumerate(objects[row]):
            if overlap(box, other) > best:
                best, place = overlap(box, other), number
        if best < threshold:
            found.append(False)
        elif objects[row][place][1]:
            continue
        elif (row, place) in taken:
            found.append(False)
        else:
            taken.add((row, place))
            found.append(True)
    return found, sum(not ignored for there in objects for _, ignored in there)


def points(found, objects):
    """Recall and precision after each detection."""
    right, recalls, precisions = 0, [], []
    for count, hit in enumerate(found, start=1):
        right += hit
        recalls.append(right / objects)
        precisions.append(right / count)
    return recalls, precisions


def best_from(recalls, precisions, recall):
    """The best precision at this recall or a greater one."""
    return max((p for r, p in zip(recalls, precisions, strict=True) if r >= recall), default=0.0)


def ap_all_points(scenes, label, threshold=0.5):
    """VOC 2010: the area under the precision that is made to fall monotonically."""
    found, objects = outcomes(scenes, label, threshold)
    recalls, precisions = points(found, objects)
    edges = [0.0, *recalls, 1.0]
    heights = [0.0, *precisions, 0.0]
    for place in range(len(heights) - 2, -1, -1):
        heights[place] = max(heights[place], heights[place + 1])
    return sum((edges[place + 1] - edges[place]) * heights[place + 1] for place in range(len(edges) - 1))


def ap_eleven_points(scenes, label):
    """VOC 2007: the mean of the best precisions from the recalls 0, 0.1, ..., 1 on."""
    found, objects = outcomes(scenes, label)
    recalls, precisions = points(found, objects)
    return sum(best_from(recalls, precisions, tenth / 10) for tenth in range(11)) / 11


def ap_coco(scenes, label, thresholds, recalls):
    """COCO: the same at its recalls, the mean over its thresholds."""
    total = 0.0
    for threshold in thresholds:
        seen, precisions = points(*outcomes(scenes, label, threshold))
        total += sum(best_from(seen, precisions, recall) for recall in recalls) / len(recalls)
    return total / len(thresholds)
