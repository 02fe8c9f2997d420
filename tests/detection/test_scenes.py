"""The table of scenes: what it refuses, and its rows and classes."""

import numpy as np
import pytest

from frontrank.detection.data import SceneTable
from frontrank.errors import InputError
from tests.detection.scenes import table_of

BOX = [1, 2, 3, 4]


@pytest.fixture
def table():
    return table_of([[(BOX, 1, False), (BOX, 3, True)], [], [(BOX, 2, False)]])


@pytest.mark.parametrize("which", [[2, 0], np.array([2, 0]), [np.int64(-1), 0]])
def test_rows_by_place(table, which):
    some = table.rows(which)
    assert some.files == ("2.jpg", "0.jpg")
    assert [each.tolist() for each in some.labels] == [[2], [1, 3]]
    assert some.ignored[1].tolist() == [False, True]
    assert some.sizes.shape == (2, 2)


def test_rows_by_mask_slice_and_none(table):
    assert table.rows(np.array([True, False, True])).files == ("0.jpg", "2.jpg")
    assert table.rows(slice(1, None)).files == ("1.jpg", "2.jpg")
    assert len(table.rows([])) == 0
    assert table.rows([]).sizes.shape == (0, 2)


def test_counts(table):
    assert len(table) == 3
    assert table.objects == 2
    assert table.counts().tolist() == [[1, 0, 1], [1, 0, 1], [0, 1, 1]]
    assert "3 pictures (1 without objects), 2 objects of 3 classes, 1 ignored" in table.describe()


def test_labels_of_other_classes(table):
    other = table.of_classes(["cat", "dog", "ant", "bee"])
    assert [each.tolist() for each in other.labels] == [[3, 1], [], [4]]
    assert other.classes == ("cat", "dog", "ant", "bee")
    with pytest.raises(InputError, match=r"made has objects of bee, cat, not known here; give data of ant$"):
        table.of_classes(["ant"])
    assert table.rows([2]).of_classes(["bee"]).labels[0].tolist() == [1]  # of the other classes there is nothing


def parts(**changed):
    box, label, aside = np.zeros((1, 4), np.float32), np.array([1]), np.array([False])
    given = {"sizes": np.array([[9, 9]]), "boxes": (box,), "labels": (label,), "ignored": (aside,)}
    return SceneTable("made", ("ant",), ("a.jpg",), **(given | changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"boxes": ()}, "boxes has 0 rows, files has 1"),
        ({"sizes": np.array([9])}, r"sizes must be \[1, 2\]"),
        ({"labels": (np.array([1, 1]),)}, r"a.jpg: boxes \[1, 4\], labels \[2\], ignored \[1\] do not go together"),
        ({"ignored": (np.zeros(2, bool),)}, "do not go together"),
        ({"labels": (np.array([0]),)}, r"labels must be from 1 to 1, got \[0\]"),
        ({"labels": (np.array([2]),)}, r"labels must be from 1 to 1, got \[2\]"),
    ],
)
def test_what_does_not_fit_together(changed, said):
    with pytest.raises(InputError, match=said):
        parts(**changed)
