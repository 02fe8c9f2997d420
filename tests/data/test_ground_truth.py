"""Ground-truth files that try to run something, to change something or to take all memory while they are read.

What good files hold is tested in test_ground_truth_contents.py.
"""

import collections
import copyreg
import os
import pathlib
import pickle
import struct
import tracemalloc

import numpy as np
import pytest

from frontrank.data import ground_truth
from frontrank.data.ground_truth import read_ground_truth
from tests.errors import refusal

try:
    from numpy._core.multiarray import _reconstruct, scalar
    from numpy._core.numeric import _frombuffer
except ImportError:  # numpy 1
    from numpy.core.multiarray import _reconstruct, scalar
    from numpy.core.numeric import _frombuffer


class Call:
    """Pickled as a call of a function, and the state of its result."""

    def __init__(self, function, *args, state=None):
        self.parts = (function, args) if state is None else (function, args, state)

    def __reduce__(self):
        return self.parts

    def __call__(self):
        """Pickle demands this of a function to be called."""


class WritesAFile:
    """A class whose state writes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __setstate__(self, state):
        pathlib.Path(state["path"]).touch()


def refused(folder, data, more=True):
    """The error of reading a file that asks for more than data."""
    (folder / "gnd.pkl").write_bytes(data)
    message = refusal(lambda: read_ground_truth(folder / "gnd.pkl"), "gnd.pkl")
    assert ("refused" in message) == more
    return message


def damaged(folder, data):
    """The error of reading a file that is no good data."""
    return refused(folder, data, more=False)


TRAPS = {
    "a function": lambda path: Call(os.mkdir, str(path)),
    "the result of a call": lambda path: Call(Call(getattr, pathlib.Path(path), "touch")),
    "an object array": lambda path: np.array([None, Call(os.mkdir, str(path))], dtype=object),
    "a class": WritesAFile,
    "deep in a ground truth": lambda path: {
        **{"imlist": ["a"], "qimlist": ["b"]},
        "gnd": [{"easy": [1], "hard": [], "junk": [], "bbx": [Call(os.mkdir, str(path))]}],
    },
}


@pytest.mark.parametrize("name", TRAPS)
def test_nothing_runs(tmp_path, name):
    for protocol in (0, 2, 5):
        target = tmp_path / f"sprung{protocol}.npy"
        data = pickle.dumps(TRAPS[name](target), protocol)
        refused(tmp_path, data)
        assert not target.exists()
        pickle.loads(data)  # so it would have been seen
        assert target.exists()


NO_DATA = {
    "a class": collections.OrderedDict(a=1),
    "dates": np.array(["2020-01-01"], "M8[D]"),
    "one object": Call(scalar, np.dtype("O"), [1]),
    "one text": np.array(["abc"])[0],
    "a set": {1, 2},
    "a key that is a tuple": {(1, 2): 3},
}


@pytest.mark.parametrize("name", NO_DATA)
def test_what_is_not_data(tmp_path, name):
    for protocol in (0, 2, 4):
        refused(tmp_path, pickle.dumps({"imlist": NO_DATA[name]}, protocol))


def asks(module, name):
    return b"c" + module + b"\n" + name + b"\n"


ENCODE = asks(b"_codecs", b"encode")
DTYPE = asks(b"numpy", b"dtype")
INSTRUCTIONS = {
    "a persistent id": b"Pabc\n.",
    "a new object": DTYPE + b")\x81.",
    "a buffer from elsewhere": b"\x80\x05\x97.",
    "state of a function": ENCODE + b"(N}S'__defaults__'\n(S'rot13'\ntstb.",
    "state of a class": DTYPE + b"}S'set_state'\nNsb.",
    "a dotted name": b"\x80\x04\x8c\x05numpy\x94\x8c\x0edtype.__init__\x94\x93.",
    "a name of an allowed module": asks(b"numpy", b"fromfile"),
    "another encoding": ENCODE + b"(S'abc'\nS'rot13'\ntR.",
    "a key without end": b"}" + b")" + b"2\x86" * 18 + b"K\x01s.",  # its hash looks at 2^18 tuples
}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_instructions_that_plain_data_does_not_need(tmp_path, name):
    functions = [of for of in ground_truth._NAMES.values() if of is not None]
    before = [(getattr(of, "__defaults__", None), dict(vars(of))) for of in functions]
    refused(tmp_path, INSTRUCTIONS[name])
    assert before == [(getattr(of, "__defaults__", None), dict(vars(of))) for of in functions]


def test_registered_extensions(tmp_path):
    """The process keeps their objects, so that their names are not looked up any more."""
    copyreg.add_extension("os", "getcwd", 0xF0)
    try:
        for code in (b"\x82\xf0", b"\x83\xf0\x00", b"\x84\xf0\x00\x00\x00"):
            data = b"\x80\x02" + code + b")R."
            assert pickle.loads(data) == os.getcwd()
            refused(tmp_path, data)
    finally:
        copyreg.remove_extension("os", "getcwd", 0xF0)


def test_messages_are_short_and_of_one_line(tmp_path):
    text = ("system\nbad \x1b[31m\ud800" + "x" * 10_000).encode("utf-8", "surrogatepass")
    message = refused(tmp_path, b"\x80\x04\x8c\x02osX" + struct.pack("<I", len(text)) + text + b"\x93.")
    assert message.isprintable()
    assert message.isascii()
    assert len(message) < len(str(tmp_path)) + 250
    assert len(damaged(tmp_path, b"F" + b"x" * 10_000 + b"\n.")) < 400


def array(shape, kind="i8", data=b"\x01" + bytes(7)):
    return Call(_reconstruct, np.ndarray, (0,), b"b", state=(1, shape, np.dtype(kind), False, data))


def buffer(data=b"", kind="i8", shape=(0,)):
    return Call(_frombuffer, data, np.dtype(kind) if isinstance(kind, str) else kind, shape, "C")


def dtype(code, *state):
    return Call(np.dtype, code, False, True, state=state)


def lists_of(stored):
    entry = {"easy": stored, "hard": [], "junk": []}
    return {"imlist": [], "qimlist": ["q"], "gnd": [entry]}


def test_such_arrays_are_read_if_nothing_is_wrong(tmp_path):
    """So that the next tests do not pass for another reason."""
    plain = dtype("i8", 3, "<", None, None, None, -1, -1, 0)
    one = b"\x01" + bytes(7)
    for stored in (array((1,)), buffer(one, "i8", (1,)), buffer(one, plain, (1,)), [Call(scalar, plain, one)]):
        (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(lists_of(stored)))
        assert read_ground_truth(tmp_path / "gnd.pkl").lists[0]["easy"].tolist() == [1]


DAMAGED = {
    "a huge shape": array((10**12,)),
    "a shape beyond all numbers": buffer(shape=(10**30,)),
    "many dimensions": array((1,) * 33),
    "data cut off": array((1,), data=b"abc"),
    "a number of wrong length": Call(scalar, np.dtype("i8"), bytes(16)),
}
REFUSED = {
    "data that is a number": buffer(10**12, "i8", (1,)),
    "objects from bytes": buffer(bytes(8), "O", (1,)),
    "a dtype with fields": buffer(kind=dtype("i8", 3, "<", None, ("a",), {"a": 1}, -1, -1, 0)),
    "an unknown byte order": buffer(kind=dtype("i8", 3, "x", None, None, None)),
    "a wide dtype": buffer(kind=dtype("S99999", 3, "|", None, None, None)),
    "bytes of a size": Call(bytes, 10**12),
}


@pytest.mark.parametrize("name", DAMAGED | REFUSED)
def test_damaged_arrays_and_arrays_of_something_else(tmp_path, name):
    for protocol in (0, 5):
        refused(tmp_path, pickle.dumps(lists_of((DAMAGED | REFUSED)[name]), protocol), more=name in REFUSED)


INT64 = DTYPE + b"(S'i8'\ntR"


def text(size):
    """Some text, at place 0 of the memo."""
    return b"S'" + b"x" * size + b"'\np0\n0"


LARGE = {
    "a place in the memo": b"Nr" + struct.pack("<I", 3_000_000) + b".",
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"abc.",
    "one text encoded often": text(100_000) + (ENCODE + b"(g0\nS'latin1'\ntR") * 300 + b".",
    "one text in many arrays": text(80_000)
    + (asks(b"numpy.core.numeric", b"_frombuffer") + b"(g0\n" + INT64 + b"(I10000\ntS'C'\ntR") * 300
    + b".",
}


@pytest.mark.parametrize("name", LARGE)
def test_memory_stays_small(tmp_path, name):
    tracemalloc.start()
    try:
        damaged(tmp_path, LARGE[name])
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_places_in_the_memo_numbers_and_depth(tmp_path):
    for place in (-1, 2**32, 10**30):
        damaged(tmp_path, b"Np%d\n." % place)
    damaged(tmp_path, b"I" + b"1" * 5000 + b"\n.")
    assert "gnd" in damaged(tmp_path, b"]" * 100_000 + b"a" * 99_999 + b".")
    itself = []
    itself.append(itself)
    damaged(tmp_path, pickle.dumps({"imlist": [], "qimlist": [], "gnd": itself}))
    damaged(tmp_path, pickle.dumps(lists_of(itself)))
