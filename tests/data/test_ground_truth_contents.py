"""read_ground_truth: files of every protocol and kind of list, files of something else, and damaged ones."""

import pickle

import numpy as np
import pytest

from frontrank.data import ground_truth
from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation import read_ground_truth
from tests.data import python2_pickles
from tests.errors import refusal

PROTOCOLS = range(6)
BOXES = [(1.5, 2.0, 30.0, 40.25), (0.0, -1.0, 9.0, 9.0)]
KINDS = {
    "lists": list,
    "int64": lambda of: np.array(of, np.int64),
    "int32": lambda of: np.array(of, np.int32),
    "big-endian": lambda of: np.array(of, ">i4"),
    "scalars": lambda of: [np.int64(i) for i in of],
    "empty ones of floats": lambda of: np.array(of, np.int64) if of else np.array([]),
    "every second": lambda of: np.array([[i, -1] for i in of], np.int64).reshape(-1, 2)[:, 0],
    "columns": lambda of: np.asfortranarray(np.array(of, np.int64).reshape(-1, 1)),
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
    check(read(tmp_path, content(KINDS[kind], np.array), protocol))


@pytest.mark.parametrize("kind", ["int64", "scalars"])
def test_files_of_numpy_1_and_2(tmp_path, kind):
    """Modules have other names in them."""
    for protocol in range(4):
        old = pickle.dumps(content(KINDS[kind]), protocol).replace(b"numpy._core", b"numpy.core")
        check(read(tmp_path, old))
        check(read(tmp_path, old.replace(b"numpy.core", b"numpy._core")))


def test_files_of_python_2(tmp_path):
    found = read(tmp_path, python2_pickles.PROTOCOL_2)
    assert [{kind: of.tolist() for kind, of in entry.items()} for entry in found.lists] == [
        {"easy": [1, 200, 65535], "hard": [0, 2], "junk": []}
    ]
    assert found.images == ["im0", "été"]
    assert found.queries == ["qé"]
    assert found.boxes == [(1.5, 2.0, 3.0, 4.0)]


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


def without(key):
    return {name: of for name, of in content().items() if name != key}


def with_entry(**changed):
    stored = content()
    stored["gnd"][1].update(changed)
    return stored


DEEP = [[]]
for _ in range(16):
    DEEP = [DEEP, DEEP]  # 2^16 lists if they are walked through
WRONG = [
    (None, "gnd"),
    (without("gnd"), "gnd"),
    (without("qimlist"), "qimlist"),
    ({**content(), "gnd": {"easy": []}}, "gnd"),
    ({**content(), "gnd": [1, 2]}, "gnd"),
    ({**content(), "imlist": [1, 2]}, "imlist"),
    ({**content(), "qimlist": ["a"]}, "1 .*2"),
    ({**content(), "gnd": [{"easy": [], "junk": []}] * 2}, r"gnd\[0\] .*hard"),
    (with_entry(easy=5), r"easy .*gnd\[1\]"),
    (with_entry(hard=[1.0]), r"hard .*gnd\[1\]"),
    (with_entry(junk=DEEP), r"junk .*gnd\[1\]"),
    (with_entry(junk=[2**63]), "large"),
    (with_entry(bbx=["1", "2"]), r"bbx .*gnd\[1\]"),
    (with_entry(bbx=np.array([np.inf])), "bbx"),
    (with_entry(bbx=[10**400]), "large"),
]


@pytest.mark.parametrize(("stored", "names"), WRONG)
def test_pickles_of_something_else(tmp_path, stored, names):
    with pytest.raises(InputError, match=rf"gnd\.pkl .*{names}") as raised:
        read(tmp_path, stored)
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "missing.pkl", tmp_path):
        refusal(lambda path=path: read_ground_truth(path), path.name)
    refusal(lambda: read_ground_truth("a\0b"), "null")
    refusal(lambda: read_ground_truth(None), "path", error=InputTypeError)


def test_a_file_that_is_too_large(tmp_path, monkeypatch):
    data = pickle.dumps(content())
    monkeypatch.setattr(ground_truth, "_LARGEST", len(data))
    check(read(tmp_path, data))
    refusal(lambda: read(tmp_path, data + b" "), f"{len(data)}")


def test_one_list_named_very_often(tmp_path, monkeypatch):
    """A short file that would be long when written out."""
    entry = {"easy": list(range(100)), "hard": np.arange(100), "junk": [], "bbx": [0.0] * 4}
    stored = {"imlist": [], "qimlist": ["q"] * 30, "gnd": [entry] * 30}  # 30 * (100 + 100 + 4) = 6120 numbers
    assert len(pickle.dumps(stored)) < 3000
    monkeypatch.setattr(ground_truth, "_LARGEST", 6120)
    assert len(read(tmp_path, stored).lists) == 30
    monkeypatch.setattr(ground_truth, "_LARGEST", 6119)
    refusal(lambda: read(tmp_path, stored), "6,119")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_truncated_anywhere(tmp_path, protocol):
    data = pickle.dumps(content(np.array), protocol)
    for size in range(0, len(data), 5):
        refusal(lambda size=size: read(tmp_path, data[:size]), "gnd.pkl is")
