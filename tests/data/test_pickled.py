"""Files that try to run something, to change something or to take all memory while they are read."""

import collections
import copyreg
import datetime
import functools
import os
import pathlib
import pickle
import struct
import subprocess
import tracemalloc

import numpy as np
import pytest

from frontrank.data import ground_truth as pickled
from frontrank.data.ground_truth import read_ground_truth
from frontrank.errors import InputError

try:
    from numpy._core.multiarray import _reconstruct, scalar
    from numpy._core.numeric import _frombuffer
except ImportError:  # numpy 1
    from numpy.core.multiarray import _reconstruct, scalar
    from numpy.core.numeric import _frombuffer


class Call:
    """Pickled as a call of a function, and the state of what it returns."""

    def __init__(self, function, *args, state=None):
        self.parts = (function, args) if state is None else (function, args, state)

    def __reduce__(self):
        return self.parts

    def __call__(self):
        """What pickle demands of a function to be called."""


class Own:
    """A class whose state writes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __setstate__(self, state):
        pathlib.Path(state["path"]).touch()


def refusal(folder, data, match=r"gnd\.pkl is refused: it asks for .+, which no ground-truth file needs$"):
    """The error of reading a file: one line that says why."""
    (folder / "gnd.pkl").write_bytes(data)
    with pytest.raises(InputError, match=match) as raised:
        read_ground_truth(folder / "gnd.pkl")
    assert "\n" not in str(raised.value)
    return str(raised.value)


WRITES_A_FILE = {
    "os.system": lambda path: Call(os.system, f"echo > '{path}'"),
    "subprocess.check_call": lambda path: Call(subprocess.check_call, ["touch", str(path)]),
    "eval": lambda path: Call(eval, f"open({str(path)!r}, 'w').close()"),
    "exec": lambda path: Call(exec, f"open({str(path)!r}, 'w').close()"),
    "the result of a call": lambda path: Call(Call(getattr, pathlib.Path(path), "touch")),
    "functools.partial": lambda path: Call(functools.partial(pathlib.Path.touch, pathlib.Path(path))),
    "numpy.save": lambda path: Call(np.save, str(path), np.arange(3)),
    "numpy.load": lambda path: Call(np.load, str(path) + ".in", None, True),
    "an object array": lambda path: np.array([None, Call(os.mkdir, str(path))], dtype=object),
    "a class": Own,
    "deep in a ground truth": lambda path: {
        **{"imlist": ["a"], "qimlist": ["b"]},
        "gnd": [{"easy": [1], "hard": [], "junk": [], "bbx": [Call(os.mkdir, str(path))]}],
    },
}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", WRITES_A_FILE)
def test_nothing_runs(tmp_path, name, protocol):
    written = tmp_path / "written.npy"
    np.save(tmp_path / "in.npy", np.array([Call(os.mkdir, str(written))], dtype=object), allow_pickle=True)
    os.rename(tmp_path / "in.npy", f"{written}.in")
    data = pickle.dumps(WRITES_A_FILE[name](written), protocol)
    refusal(tmp_path, data)
    assert not written.exists()
    pickle.loads(data)  # what would have happened
    assert written.exists()


NOT_DATA = {
    "os.system": (os.system, "posix.system"),
    "eval": (eval, "builtins.eval|__builtin__.eval"),
    "bytearray": (bytearray(b"a"), "bytearray"),
    "a type": (float, "float"),
    "numpy.load": (np.load, "numpy.load"),
    "a date": (datetime.date(2020, 1, 1), "datetime.date"),
    "an ordered dict": (collections.OrderedDict(a=1), "collections.OrderedDict"),
    "a complex number": (1j, "complex"),
    "a path": (pathlib.PurePosixPath("a"), "PurePosixPath"),
    "a numpy type": (np.int64, "numpy.int64"),
    "a random generator": (np.random.RandomState(0), "numpy.random"),
    "objects": (np.array([1, 2], object), "an array of something else than numbers or text"),
    "dates": (np.array(["2020-01-01"], "M8[D]"), "an array of something else"),
    "records": (np.array([(1, 2.0)], "i4,f8"), "an array of something else"),
    "complex numbers": (np.array([1j]), "an array of something else"),
    "one object": (Call(scalar, np.dtype("O"), [1]), "an array of something else"),
    "one text": (np.array(["abc"])[0], "a numpy scalar that is no number"),
}


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("name", NOT_DATA)
def test_what_is_not_data(tmp_path, name, protocol):
    thing, said = NOT_DATA[name]
    refusal(tmp_path, pickle.dumps({"imlist": thing}, protocol), match=rf"it asks for \S*({said}).*, which no ground")


@pytest.mark.parametrize("thing", [{1, 2}, frozenset([1]), {1: 2}, {(1, 2): 3}, {None: 1}, {b"a": 1}], ids=repr)
def test_containers_that_are_not_needed(tmp_path, thing):
    refusal(tmp_path, pickle.dumps(thing, 4))


def asks(module, name):
    return b"c" + module + b"\n" + name + b"\n"


ENCODE = asks(b"_codecs", b"encode")
INSTRUCTIONS = {
    "a persistent id": b"Pabc\n.",
    "a persistent id on the stack": b"K\x01Q.",
    "an instance": b"(ios\ngetcwd\n.",
    "an instance of something allowed": b"(inumpy\ndtype\n.",
    "an object": b"(" + asks(b"numpy", b"dtype") + b"S'i8'\no.",
    "a new object": asks(b"numpy", b"dtype") + b")\x81.",
    "a new object by name": asks(b"numpy", b"dtype") + b")}\x92.",
    "a buffer from elsewhere": b"\x80\x05\x97.",
    "a read-only buffer": b"\x80\x05C\x01a\x98.",
    "state of a function": ENCODE + b"(N}S'__defaults__'\n(S'rot13'\ntstb.",
    "attributes of a function": ENCODE + b"}S'x'\nI1\nsb.",
    "state of a list": b"]}b.",
    "state of text": b"S'a'\n}b.",
    "state of a class": asks(b"numpy", b"dtype") + b"}S'set'\nNsb.",
    "a dotted name": b"\x80\x04\x8c\x05numpy\x94\x8c\x0edtype.__init__\x94\x93.",
    "a name of an allowed module": asks(b"numpy", b"fromfile"),
    "a name from the other allowed one": asks(b"_codecs", b"lookup"),
    "another encoding": ENCODE + b"(S'abc'\nS'rot13'\ntR.",
    "an encoding of no text": ENCODE + b"(I1\ntR.",
    "a key without end": b"}" + b")" + b"2\x86" * 18 + b"K\x01s.",  # its hash looks at 2^18 tuples
    "a key without end, by the list": b"}(" + b")" + b"2\x86" * 18 + b"K\x01u.",
    "a key without end, by a dict": b"()" + b"2\x86" * 18 + b"K\x01d.",
}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_instructions_that_plain_data_does_not_need(tmp_path, name):
    functions = [of for of in pickled._NAMES.values() if of is not None]
    before = [(getattr(of, "__defaults__", None), dict(vars(of))) for of in functions]
    refusal(tmp_path, INSTRUCTIONS[name])
    assert before == [(getattr(of, "__defaults__", None), dict(vars(of))) for of in functions]


@pytest.mark.parametrize("code", [b"\x82\xf0", b"\x83\xf0\x00", b"\x84\xf0\x00\x00\x00"], ids=["1", "2", "4"])
def test_registered_extensions(tmp_path, code):
    """Their objects are kept by the process, so that their names are not looked up any more."""
    copyreg.add_extension("os", "getcwd", 0xF0)
    try:
        data = b"\x80\x02" + code + b")R."
        assert pickle.loads(data) == os.getcwd()
        refusal(tmp_path, data, match="it asks for the instruction 0x8[234], which")
    finally:
        copyreg.remove_extension("os", "getcwd", 0xF0)


def test_names_in_the_message_are_short_and_of_one_line(tmp_path):
    name = "system\nbad \x1b[31m\ud800" + "x" * 10_000
    text = name.encode("utf-8", "surrogatepass")
    data = b"\x80\x04\x8c\x02osX" + struct.pack("<I", len(text)) + text + b"\x93."
    said = refusal(tmp_path, data, match=r"it asks for os\.system\\nbad ")
    assert said.isprintable()
    assert said.isascii()
    assert len(said) < len(str(tmp_path)) + 250


def test_messages_of_damage_are_short(tmp_path):
    assert len(refusal(tmp_path, b"F" + b"x" * 10_000 + b"\n.", "is not a ground-truth pickle")) < 400


def array(shape, kind="i8", data=b"\x01" + bytes(7), order=False):
    return Call(_reconstruct, np.ndarray, (0,), b"b", state=(1, shape, np.dtype(kind), order, data))


def dtype(code, *state):
    return Call(np.dtype, code, False, True, state=state)


def lists_of(stored):
    entry = {"easy": stored, "hard": [], "junk": []}
    return {"imlist": [], "qimlist": ["q"], "gnd": [entry]}


def test_these_arrays_are_read_where_nothing_is_wrong(tmp_path):
    """So that the next test does not pass for another reason."""
    plain = (3, "<", None, None, None, -1, -1, 0)
    for stored in (
        array((1,)),
        Call(_frombuffer, b"\x01" + bytes(7), np.dtype("i8"), (1,), "C"),
        Call(_frombuffer, b"\x01" + bytes(7), dtype("i8", *plain), (1,), "C"),
        [Call(scalar, dtype("i8", *plain), b"\x01" + bytes(7))],
    ):
        (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(lists_of(stored)))
        assert read_ground_truth(tmp_path / "gnd.pkl").lists[0]["easy"].tolist() == [1]


ARRAYS = {
    "a huge shape": (array((10**12,)), "cannot reshape"),
    "a huge shape of a buffer": (Call(_frombuffer, b"", np.dtype("i8"), (10**12,), "C"), "cannot reshape"),
    "a shape beyond all numbers": (array((10**30,)), "."),
    "many dimensions": (array((1,) * 33), "an array has no shape"),
    "a shape that is no tuple": (array({"a": 1}), "an array has no shape"),
    "a shape of text": (array(("1",)), "an array has no shape"),
    "too little data": (array((2,)), "cannot reshape"),
    "data cut off": (array((1,), data=b"abc"), "buffer size must be a multiple"),
    "data that is a list": (array((1,), data=[1]), "an array of something else"),
    "data that is a number": (Call(_frombuffer, 10**12, np.dtype("i8"), (1,), "C"), "an array of something else"),
    "data that is an array": (Call(_frombuffer, array((1,)), np.dtype("i8"), (1,), "C"), "an array of something else"),
    "objects from bytes": (
        Call(_frombuffer, bytes(8), np.dtype("O"), (1,), "C"),
        "refused: .*an array of something else",
    ),
    "a dtype that is none": (Call(_frombuffer, b"", "i8", (0,), "C"), "an array of something else"),
    "a dtype with fields": (
        Call(_frombuffer, b"", dtype("i8", 3, "<", None, ("a",), {"a": 1}, -1, -1, 0), (0,), "C"),
        "an array of records",
    ),
    "a dtype of arrays": (
        Call(_frombuffer, b"", dtype("i8", 3, "<", (np.dtype("i8"), (10**9,)), None, None, -1, -1, 0), (0,), "C"),
        "an array of records",
    ),
    "a dtype of another order": (Call(_frombuffer, b"", dtype("i8", 3, "x", None, None, None), (0,), "C"), "records"),
    "a dtype by its number": (Call(_frombuffer, b"", dtype(5, 3, "<", None, None, None), (0,), "C"), "something else"),
    "a wide dtype": (Call(_frombuffer, b"", dtype("S99999", 3, "|", None, None, None), (0,), "C"), "something else"),
    "a dtype without width": (Call(_frombuffer, b"", dtype("S0", 3, "|", None, None, None), (0,), "C"), "something"),
    "a number of wrong length": (Call(scalar, np.dtype("i8"), bytes(16)), "a number of 16 bytes"),
    "a number cut off": (Call(scalar, np.dtype("i8"), b""), "a number of 0 bytes"),
    "bytes of a size": (Call(bytes, 10**12), "a way to encode text"),
}


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_are_none(tmp_path, name, protocol):
    stored, said = ARRAYS[name]
    refusal(tmp_path, pickle.dumps(lists_of(stored), protocol), match=rf"gnd\.pkl is .*{said}")


def test_state_set_twice_leaves_no_view_of_freed_memory(tmp_path):
    """An array cannot be made of another one, whose memory a second state would give back."""
    first = array((4,), data=bytes(32))
    data = pickle.dumps([first, Call(_frombuffer, first, np.dtype("i8"), (4,), "C")], 4)
    refusal(tmp_path, data)


FROM_BUFFER = asks(b"numpy.core.numeric", b"_frombuffer")
INT64 = asks(b"numpy", b"dtype") + b"(S'i8'\ntR"


def text(size):
    """Some text, at place 0 of the memo."""
    return b"S'" + b"x" * size + b"'\np0\n0"


LARGE = {
    "a place in the memo": b"Nr" + struct.pack("<I", 3_000_000) + b".",
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"abc.",
    "a bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 26) + b"abc.",
    "text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"abc.",
    "a frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"N.",
    "a number": b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b"abc.",
    "Python 2 text": b"T" + struct.pack("<i", 1 << 30) + b"abc.",
    "more than any size": b"\x80\x05\x96" + b"\xff" * 8 + b"abc.",
    "one text encoded often": text(100_000) + (ENCODE + b"(g0\nS'latin1'\ntR") * 300 + b".",
    "one text in many arrays": text(80_000) + (FROM_BUFFER + b"(g0\n" + INT64 + b"(I10000\ntS'C'\ntR") * 300 + b".",
}


@pytest.mark.parametrize("name", LARGE)
def test_memory_stays_small(tmp_path, name):
    tracemalloc.start()
    try:
        refusal(tmp_path, LARGE[name], match=r"gnd\.pkl is not a ground-truth pickle")
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("place", [-1, 2**32, 2**61 - 1, 10**30])
def test_places_in_the_memo(tmp_path, place):
    refusal(tmp_path, b"Np%d\n." % place, match=f"no place {place} in the memo; copy it again")


def test_numbers_of_many_digits(tmp_path):
    refusal(tmp_path, b"I" + b"1" * 5000 + b"\n.", match="is not a ground-truth pickle: Exceeds the limit")


def test_nested_very_deeply(tmp_path):
    refusal(tmp_path, b"]" * 100_000 + b"a" * 99_999 + b".", match="it has no 'gnd'")


def test_a_list_that_holds_itself(tmp_path):
    stored = []
    stored.append(stored)
    refusal(tmp_path, pickle.dumps({"imlist": [], "qimlist": [], "gnd": stored}), match="gnd must have dict in it")
    refusal(tmp_path, pickle.dumps(lists_of(stored)), match=r"easy of gnd\[0\] must have int in it")
