"""read_ground_truth: files of every protocol and kind of list, files of something else, and damaged ones."""

import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frontrank.data import ground_truth
from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation import evaluate_revisited, read_ground_truth
from tests.data import python2_pickles

PROTOCOLS = range(6)
BOXES = [(1.5, 2.0, 30.0, 40.25), (0.0, -1.0, 9.0, 9.0)]
KINDS = {
    "lists": list,
    "tuples": tuple,
    "int64": lambda of: np.array(of, np.int64),
    "int32": lambda of: np.array(of, np.int32),
    "uint16": lambda of: np.array(of, np.uint16),
    "big-endian": lambda of: np.array(of, ">i4"),
    "scalars": lambda of: [np.int64(i) for i in of],
    "int32 scalars": lambda of: [np.int32(i) for i in of],
    "empty ones of floats": lambda of: np.array(of, np.int64) if of else np.array([]),
    "every second": lambda of: np.array([[i, -1] for i in of], np.int64).reshape(-1, 2)[:, 0],
    "columns": lambda of: np.asfortranarray(np.array(of, np.int64).reshape(-1, 1)),
    "read-only": lambda of: np.frombuffer(np.array(of, np.int64).tobytes(), np.int64),
}


def content(kind=list, boxes=list):
    lists = [([3, 200], [], [300]), ([], [0, 2, 1], [])]
    entries = [
        {**dict(zip(("easy", "hard", "junk"), map(kind, of), strict=True)), "bbx": boxes(box)}
        for of, box in zip(lists, BOXES, strict=True)
    ]
    return {"imlist": ["all_souls_000013", "été", "日本"], "qimlist": ["q0", "q1"], "gnd": entries}


def read(folder, stored, protocol=None):
    path = folder / "gnd.pkl"
    path.write_bytes(stored if isinstance(stored, bytes) else pickle.dumps(stored, protocol))
    return read_ground_truth(path)


def check(found):
    assert [{kind: of.tolist() for kind, of in entry.items()} for entry in found.lists] == [
        {"easy": [3, 200], "hard": [], "junk": [300]},
        {"easy": [], "hard": [0, 2, 1], "junk": []},
    ]
    assert all(of.dtype == np.int64 and of.ndim == 1 for entry in found.lists for of in entry.values())
    assert found.images == ["all_souls_000013", "été", "日本"]
    assert found.queries == ["q0", "q1"]
    assert found.boxes == BOXES


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", KINDS)
def test_lists_of_every_protocol(tmp_path, kind, protocol):
    check(read(tmp_path, content(KINDS[kind], tuple if kind == "tuples" else np.array), protocol))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["int64", "scalars"])
def test_files_of_numpy_1_and_2(tmp_path, kind, protocol):
    """Modules have other names in them."""
    data = pickle.dumps(content(KINDS[kind]), protocol)
    old = data.replace(b"numpy._core", b"numpy.core")
    check(read(tmp_path, old))
    check(read(tmp_path, old.replace(b"numpy.core", b"numpy._core")))


@pytest.mark.parametrize("data", python2_pickles.PROTOCOLS, ids=["0", "1", "2"])
def test_files_of_python_2(tmp_path, data):
    found = read(tmp_path, data)
    assert [{kind: of.tolist() for kind, of in entry.items()} for entry in found.lists] == [
        {"easy": [1, 200, 65535], "hard": [0, 2], "junk": []}
    ]
    assert found.images == ["im0", "été"]
    assert found.queries == ["qé"]
    assert found.boxes == [(1.5, 2.0, 3.0, 4.0)]


def test_rows_and_columns(tmp_path):
    """An array of several dimensions is read row after row, however it is stored."""
    table = np.arange(6).reshape(2, 3)
    for of in (table, np.asfortranarray(table), table.astype("i2"), table.T.copy().T):
        for protocol in PROTOCOLS:
            stored = {"imlist": [], "qimlist": ["q"], "gnd": [{"easy": of, "hard": [], "junk": []}]}
            assert read(tmp_path, stored, protocol).lists[0]["easy"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "names", [["a", "bé"], ("a", "bé"), [b"a", b"b\xe9"], np.array(["a", "bé"]), np.array([b"a", b"b\xe9"])], ids=repr
)
def test_names_of_any_kind(tmp_path, names, protocol):
    found = read(tmp_path, {**content(), "imlist": names, "qimlist": names}, protocol)
    assert found.images == found.queries == ["a", "bé"]
    assert {type(name) for name in found.images + found.queries} == {str}


def test_boxes_may_be_missing_or_whole_numbers(tmp_path):
    stored = content()
    del stored["gnd"][0]["bbx"]
    stored["gnd"][1]["bbx"] = [1, 2, 3, 4]
    assert read(tmp_path, stored).boxes == [(), (1.0, 2.0, 3.0, 4.0)]


def test_shared_lists_and_more_keys(tmp_path):
    """A list named twice in the file, and things that are not asked for."""
    shared = np.array([1, 2])
    entry = {"easy": shared, "hard": [], "junk": [], "note": {"a": (None, True, 1.5)}}
    found = read(tmp_path, {"imlist": [], "qimlist": ["a", "b"], "gnd": [entry, {**entry, "easy": shared}], "more": 1})
    assert [of["easy"].tolist() for of in found.lists] == [[1, 2], [1, 2]]


def test_path_as_text(tmp_path):
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(content()))
    check(read_ground_truth(str(tmp_path / "gnd.pkl")))


@pytest.mark.parametrize("kind", ["lists", "int32"])
def test_what_is_read_can_be_evaluated(tmp_path, kind):
    entries = [{"easy": [0], "hard": [3, 1], "junk": [2]}, {"easy": [], "hard": [4], "junk": []}]
    stored = {"imlist": [], "qimlist": ["a", "b"], "gnd": [{k: KINDS[kind](v) for k, v in e.items()} for e in entries]}
    queries, gallery = torch.randn(2, 3), torch.randn(6, 3)
    found = evaluate_revisited(queries, gallery, read(tmp_path, stored).lists)
    assert dict(found) == dict(evaluate_revisited(queries, gallery, entries))


def without(key):
    return {name: of for name, of in content().items() if name != key}


def with_entry(**changed):
    stored = content()
    stored["gnd"][1].update(changed)
    return stored


def lacking(kind):
    stored = content()
    del stored["gnd"][1][kind]
    return stored


DEEP = [[]]
for _ in range(16):
    DEEP = [DEEP, DEEP]  # 2^16 lists if they are walked through
WRONG = [
    (None, "it has no"),
    ([1, 2], "it has no"),
    ("gnd imlist qimlist", "it has no"),
    (np.arange(3), "it has no"),
    (without("gnd"), "it has no"),
    (without("imlist"), "it has no"),
    (without("qimlist"), "it has no"),
    ({**content(), "gnd": None}, "gnd is no"),
    ({**content(), "gnd": {"easy": []}}, "gnd is no"),
    ({**content(), "gnd": [1, 2]}, "gnd must have"),
    ({**content(), "gnd": np.arange(2)}, "gnd must have"),
    ({**content(), "imlist": "abc"}, "imlist is no"),
    ({**content(), "imlist": [1, 2]}, "imlist must have"),
    ({**content(), "imlist": [["a"]]}, "imlist must have"),
    ({**content(), "imlist": DEEP}, "imlist must have"),
    ({**content(), "qimlist": ["a", None]}, "qimlist must have"),
    ({**content(), "qimlist": ["a"]}, "it names 1"),
    (lacking("easy"), r"gnd\[1\] has no"),
    (lacking("hard"), r"gnd\[1\] has no"),
    (lacking("junk"), r"gnd\[1\] has no"),
    (with_entry(easy=5), r"easy of gnd\[1\]"),
    (with_entry(easy=None), r"easy of gnd\[1\]"),
    (with_entry(easy="12"), r"easy of gnd\[1\]"),
    (with_entry(hard=[1.0]), r"hard of gnd\[1\]"),
    (with_entry(hard=["1"]), r"hard of gnd\[1\]"),
    (with_entry(hard=[True]), r"hard of gnd\[1\]"),
    (with_entry(hard=np.array([1.0])), r"hard of gnd\[1\]"),
    (with_entry(hard=np.array(["1"])), r"hard of gnd\[1\]"),
    (with_entry(junk=[[1]]), r"junk of gnd\[1\]"),
    (with_entry(junk=DEEP), r"junk of gnd\[1\]"),
    (with_entry(junk=[2**63]), "too large"),
    (with_entry(junk=[np.uint64(2**63)]), "too large"),
    (with_entry(bbx="1234"), r"bbx of gnd\[1\]"),
    (with_entry(bbx=["1", "2"]), r"bbx of gnd\[1\]"),
    (with_entry(bbx=[float("nan")]), "a bbx has"),
    (with_entry(bbx=np.array([np.inf])), "a bbx has"),
    (with_entry(bbx=[10**400]), "too large"),
]


@pytest.mark.parametrize(("stored", "message"), WRONG)
def test_pickles_of_something_else(tmp_path, stored, message):
    with pytest.raises(InputError, match=rf"gnd\.pkl is not a ground-truth pickle: .*{message}.*; is it a") as raised:
        read(tmp_path, stored)
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"missing\.pkl cannot be"):
        read_ground_truth(tmp_path / "missing.pkl")
    with pytest.raises(InputError, match="cannot be read"):
        read_ground_truth(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_ground_truth("a\0b")
    for path in (None, 0, b"gnd.pkl", ["gnd.pkl"]):
        with pytest.raises(InputTypeError, match=rf"path must be the name of a file, got {type(path).__name__}"):
            read_ground_truth(path)


def test_a_file_that_is_too_large(tmp_path, monkeypatch):
    data = pickle.dumps(content())
    monkeypatch.setattr(ground_truth, "_LARGEST", len(data))
    check(read(tmp_path, data))
    with pytest.raises(InputError, match=rf"gnd\.pkl has more than {len(data)} bytes, too many for a ground-truth"):
        read(tmp_path, data + b" ")


def test_one_list_named_very_often(tmp_path, monkeypatch):
    """A short file that would be long when written out."""
    entry = {"easy": list(range(100)), "hard": np.arange(100), "junk": [], "bbx": [0.0] * 4}
    stored = {"imlist": [], "qimlist": ["q"] * 30, "gnd": [entry] * 30}  # 30 * (100 + 100 + 4) = 6120 numbers
    assert len(pickle.dumps(stored)) < 3000
    monkeypatch.setattr(ground_truth, "_LARGEST", 6120)
    assert len(read(tmp_path, stored).lists) == 30
    monkeypatch.setattr(ground_truth, "_LARGEST", 6119)
    with pytest.raises(InputError, match="its lists have"):
        read(tmp_path, stored)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80\x04", b"(", b"N", b"}", b"]q\x00"])
def test_files_that_end_too_early(tmp_path, data):
    with pytest.raises(InputError, match=r"gnd\.pkl is not"):
        read(tmp_path, data)


def test_the_empty_file(tmp_path):
    with pytest.raises(InputError, match="is not a"):
        read(tmp_path, b"")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_truncated_anywhere(tmp_path, protocol):
    data = pickle.dumps(content(np.array), protocol)
    for size in range(0, len(data), 5):
        with pytest.raises(InputError, match=r"gnd\.pkl is") as raised:
            read(tmp_path, data[:size])
        assert "\n" not in str(raised.value)


@given(st.binary(max_size=60))
def test_random_bytes(tmp_path_factory, data):
    with pytest.raises(InputError, match=r"gnd\.pkl is") as raised:
        read(tmp_path_factory.getbasetemp(), data)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_bytes_changed_anywhere(tmp_path, protocol):
    """Whatever is changed, the file is read or an error of one line says why not."""
    data = pickle.dumps(content(np.array), protocol)
    dice = random.Random(protocol)
    messages = []
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(dice.choice([1, 1, 2, 5])):
            changed[dice.randrange(len(data))] = dice.randrange(256)
        try:
            read(tmp_path, bytes(changed))
        except InputError as error:
            messages.append(str(error))
    assert len(messages) > 40
    assert "\n" not in "".join(messages)
    assert max(map(len, messages)) < len(str(tmp_path)) + 300
