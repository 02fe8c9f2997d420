"""Rows in memory, or left in their file: how much is held, and that nothing is in the way of other readers."""

import numpy as np
import pytest

from frontrank.retrieval import embedded as item_rows
from frontrank.retrieval.embedded import ItemRows, VectorRows
from frontrank.retrieval.items import Condition, Item

ROWS = np.arange(40, dtype="<f4").reshape(10, 4)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "vectors").write_bytes(ROWS.tobytes())
    with (tmp_path / "vectors").open("rb", buffering=0) as found:
        yield found


def test_a_file_that_is_too_large_is_never_held(file):
    vectors = VectorRows(4, ROWS.nbytes - 1, file)
    assert not vectors.in_memory
    for some in (ROWS[:3], ROWS[3:]):
        vectors.append(some)
        np.testing.assert_array_equal(vectors.rows, ROWS[: len(vectors)])
    assert not vectors.in_memory


def test_a_file_that_fits_is_held_until_it_has_grown(file, tmp_path):
    vectors = VectorRows(4, ROWS.nbytes, file)
    vectors.append(ROWS)
    assert vectors.in_memory
    with (tmp_path / "vectors").open("ab") as more:
        more.write(ROWS.tobytes())
    vectors.append(ROWS)
    assert not vectors.in_memory
    np.testing.assert_array_equal(vectors.rows, np.concatenate([ROWS, ROWS]))


def test_rows_of_a_file_leave_its_place_alone(file):
    """Another thread may be reading from there."""
    vectors = VectorRows(4, 0, file)
    vectors.append(ROWS)
    file.seek(12)
    np.testing.assert_array_equal(vectors.rows, ROWS)
    assert file.tell() == 12


def test_columns_of_fields_that_nobody_has_do_not_pile_up():
    rows = ItemRows(VectorRows(4, np.inf))
    rows.put(ROWS, [Item(str(i), metadata={"n": i}) for i in range(10)])
    for number in range(100):
        assert rows.select((Condition(f"invented_{number}", "=", ("x",)),)).count == 0
        assert rows.select((Condition("n", "=", (str(number),)),)).count == (number < 10)
    assert len(rows._columns) == item_rows._MOST_COLUMNS
    assert "n" in rows._columns  # used all the time
