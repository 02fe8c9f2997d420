"""SceneTable: pictures, and the boxes and names of the objects in them; what every reader gives and all else takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frontrank.data.image_table import shown
from frontrank.errors import InputError

Boxes = NDArray[np.float32]
Labels = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SceneTable:
    """Pictures with the objects in them.

    name:    of the data set, or of its folder
    classes: label c of an object is classes[c - 1]; 0 is the background and never the label of an object
    files:   the pictures
    sizes:   [picture, 2]: width and height
    boxes:   per picture float32 [object, 4]: left, top, right, bottom in pixels from 0; right and bottom are exclusive
    labels:  per picture int64 [object], from 1 to the number of classes
    ignored: per picture bool [object]: "difficult" of Pascal VOC, "iscrowd" of COCO. Such an object is not trained on,
             and finding it is neither right nor wrong
    crowds:  the ignored are crowds, as of COCO: whatever is found within one is neither right nor wrong

    >>> boxes = np.array([[1, 2, 30, 40], [5, 5, 9, 9]], dtype=np.float32)
    >>> labels, ignored = np.array([2, 1]), np.array([False, True])
    >>> table = SceneTable("two", ("cat", "dog"), ("a.jpg",), np.array([[64, 48]]), (boxes,), (labels,), (ignored,))
    >>> print(table.describe())
    two: 1 picture, 1 object of 2 classes, 1 ignored
    class  objects  ignored  pictures
    cat          0        1         1
    dog          1        0         1
    """

    name: str
    classes: tuple[str, ...]
    files: tuple[str, ...]
    sizes: NDArray[np.int64]
    boxes: tuple[Boxes, ...]
    labels: tuple[Labels, ...]
    ignored: tuple[Flags, ...]
    crowds: bool = False

    def __post_init__(self) -> None:
        """Refuse a table that does not fit together: readers and users build it alike."""
        count, most = len(self.files), len(self.classes)
        for name in ("sizes", "boxes", "labels", "ignored"):
            if len(getattr(self, name)) != count:
                raise InputError(f"{name} has {len(getattr(self, name))} rows, files has {count}; give one per picture")
        if count and np.shape(self.sizes) != (count, 2):
            raise InputError(f"sizes must be [{count}, 2] (width, height), got {list(np.shape(self.sizes))}")
        for file, boxes, labels, ignored in zip(self.files, self.boxes, self.labels, self.ignored, strict=True):
            if boxes.shape != (len(labels), 4) or ignored.shape != labels.shape:
                shapes = f"boxes {list(boxes.shape)}, labels {list(labels.shape)}, ignored {list(ignored.shape)}"
                raise InputError(f"{shown(file)}: {shapes} do not go together; give [n, 4], [n] and [n]")
            if len(labels) and not (labels.min() >= 1 and labels.max() <= most):
                raise InputError(f"{shown(file)}: labels must be from 1 to {most}, got {sorted(set(labels.tolist()))}")

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, which: Sequence[int] | NDArray[Any] | slice) -> "SceneTable":
        """Some of the pictures, by their places or by a mask."""
        if not isinstance(which, slice):
            which = np.asarray(which, dtype=np.int64 if len(which) == 0 else None)
        places = np.arange(len(self))[which].tolist()
        return replace(
            self,
            files=tuple(self.files[row] for row in places),
            sizes=self.sizes[places],
            boxes=tuple(self.boxes[row] for row in places),
            labels=tuple(self.labels[row] for row in places),
            ignored=tuple(self.ignored[row] for row in places),
        )

    def of_classes(self, classes: Sequence[str]) -> "SceneTable":
        """The same with the labels of these classes, such as those a model knows; all objects must be of them."""
        counts = self.counts()[:, :2].sum(axis=1)
        unknown = [name for name, count in zip(self.classes, counts, strict=True) if count and name not in classes]
        if unknown:
            few = ", ".join(unknown[:3]) + ", ..." * (len(unknown) > 3)
            raise InputError(f"{self.name} has objects of {few}, not known here; give data of {', '.join(classes)}")
        places = {name: label for label, name in enumerate(classes, start=1)}
        label_of = np.array([0, *(places.get(name, 0) for name in self.classes)], dtype=np.int64)
        return replace(self, classes=tuple(classes), labels=tuple(label_of[labels] for labels in self.labels))

    @property
    def objects(self) -> int:
        """How many objects there are, without the ignored."""
        return sum(int((~ignored).sum()) for ignored in self.ignored)

    def counts(self) -> NDArray[np.int64]:
        """Per class: objects, ignored objects, and pictures with either [class, 3]."""
        found = np.zeros((len(self.classes) + 1, 3), dtype=np.int64)
        for labels, ignored in zip(self.labels, self.ignored, strict=True):
            np.add.at(found, (labels, ignored.astype(np.int64)), 1)
            found[np.unique(labels), 2] += 1
        return found[1:]

    def describe(self) -> str:
        """Pictures and objects, per class too, as a table of text."""
        counts, empty = self.counts(), sum(not len(labels) for labels in self.labels)
        without = f" ({empty:,} without objects)" if empty else ""
        pictures, objects = (_many(n, what) for n, what in ((len(self), "picture"), (self.objects, "object")))
        head = f"{self.name}: {pictures}{without}, {objects} of {len(self.classes)} classes"
        width = max([len("class"), *map(len, self.classes)])
        rows = [f"{'class':<{width}}  objects  ignored  pictures"] + [
            f"{name:<{width}}  {row[0]:>7,}  {row[1]:>7,}  {row[2]:>8,}"
            for name, row in zip(self.classes, counts.tolist(), strict=True)
        ]
        return "\n".join([f"{head}, {int(counts[:, 1].sum()):,} ignored", *rows])


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
