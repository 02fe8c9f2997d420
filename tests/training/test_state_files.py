import copy
import hashlib
import io
import json
import math
import re
import struct
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.training import checkpoints as state_files
from frontrank.training.checkpoints import (
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)


def same(left, right):
    """Equal in type and to the bit, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and bits(left) == bits(right)
    if isinstance(left, np.ndarray | np.generic):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, float):
        return struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(*keys) and same(left[keys[0]], right[keys[1]]) for keys in zip(left, right, strict=True)
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def through_file(state, folder):
    return load_checkpoint(save_checkpoint(folder, 0, state))


# What comes back


@pytest.mark.parametrize("name", sorted(state_files._DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3)], ids=str)
def test_tensors_of_every_dtype_and_shape(name, shape, tmp_path):
    dtype = state_files._DTYPES[name]
    tensor = torch.randint(0, 2, shape).to(dtype) if name == "BOOL" else torch.randint(0, 100, shape).float().to(dtype)
    assert same(through_file({"t": tensor}, tmp_path), {"t": tensor})


def test_bits_of_a_tensor_that_are_no_number(tmp_path):
    tensor = torch.tensor([0x7FC00001, -0x400001, 0x7F800000, -0x80000000], dtype=torch.int32).view(torch.float32)
    assert bits(through_file(tensor, tmp_path)) == bits(tensor)


def test_tensors_that_share_memory_or_have_gaps(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    state = {"whole": base, "again": base, "turned": base.T, "column": base[:, 1], "spread": base[0].expand(2, 4)}
    found = through_file(state, tmp_path)
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor)
        assert found[name].is_contiguous()
    found["whole"].zero_()
    assert torch.equal(found["again"], base)


def test_views_that_are_lazy(tmp_path):
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    found = through_file([tensor.conj(), tensor.conj().imag], tmp_path)
    assert found[0].tolist() == [1 - 2j, 3 + 4j]
    assert found[1].tolist() == [-2.0, 4.0]


def test_parameters_come_back_as_plain_tensors(tmp_path):
    found = through_file(torch.nn.Parameter(torch.ones(2)), tmp_path)
    assert type(found) is torch.Tensor
    assert not found.requires_grad
    found += 1
    assert found.tolist() == [2.0, 2.0]


PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    2**53,
    2**53 + 1,
    -(2**53) - 1,
    2**64,
    -(10**5000),
    0.0,
    -0.0,
    0.1,
    1.0,
    5e-324,
    1.7976931348623157e308,
    math.inf,
    -math.inf,
    math.nan,
    -math.nan,
    struct.unpack("<d", b"\x01\0\0\0\0\0\xf4\x7f")[0],
    "",
    'with "quotes", \\ and \n',
    "Ünïcödé 🙂 \ud800 \x00",
    b"",
    b"\x00\xff",
    [],
    (),
    {},
    [[], ({},)],
    {1: "int", "1": "text", 1.5: "float", None: "none", "": "empty"},
    {True: 1, False: 0},
    {"dict": 1},
    {"tensor": "weights"},
    [("tuple", [1])],
    np.float64(0.1),
    np.float32(0.1),
    np.int64(-3),
    np.bool_(True),
    np.arange(6).reshape(2, 3),
    np.array(2.5),
    np.zeros((0, 3), np.float16),
    np.arange(4, dtype=np.uint64),
    np.array([1 + 2j], np.complex64),
]


@pytest.mark.parametrize("value", PLAIN, ids=range(len(PLAIN)))
def test_plain_values(value, tmp_path):
    assert same(through_file(value, tmp_path), value)
    assert same(through_file({"a": [value, (value,)]}, tmp_path), {"a": [value, (value,)]})


def test_arrays_in_any_order_can_be_written_to(tmp_path):
    array = np.arange(6.0).reshape(2, 3)
    frozen = array.copy()
    frozen.flags.writeable = False
    for each in (array.T, array[:, ::-1], np.asfortranarray(array), frozen):
        found = through_file(each, tmp_path)
        assert np.array_equal(found, each)
        found += 1


def test_subclasses_of_dict_become_dicts_in_order(tmp_path):
    found = through_file([OrderedDict(z=1, a=2), Counter("aab")], tmp_path)
    assert same(found, [{"z": 1, "a": 2}, {"a": 2, "b": 1}])
    assert list(found[0]) == ["z", "a"]


def test_paths_that_look_alike_do_not_mix(tmp_path):
    one, two, three, four, five = (torch.tensor(float(value)) for value in range(5))
    state = {"a/b": one, "a": {"b": two}, 1: three, "1": four, "__metadata__": five}
    assert same(through_file(state, tmp_path), state)
    assert same(through_file(one, tmp_path), one)


def test_an_optimizer_goes_on_as_if_nothing_had_happened(tmp_path):
    def steps(model, optimizer, count):
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.linspace(-1, 1, 12).reshape(4, 3)).square().sum().backward()
            optimizer.step()

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    steps(model, optimizer, 3)
    path = save_checkpoint(tmp_path, 3, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    other = copy.deepcopy(model)
    steps(model, optimizer, 3)
    state = load_checkpoint(path)
    assert same(list(state["optimizer"]["state"]), [0, 1, 2, 3])
    other.load_state_dict(state["model"])
    resumed = torch.optim.Adam(other.parameters(), lr=0.7)
    resumed.load_state_dict(state["optimizer"])
    steps(other, resumed, 3)
    assert same(dict(other.state_dict()), dict(model.state_dict()))


tensors = st.builds(
    lambda shape, dtype: torch.arange(math.prod(shape)).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float64]),
)
keys = st.text() | st.integers() | st.none() | st.floats(allow_nan=False)
leaves = keys | st.booleans() | st.floats() | st.binary() | tensors | tensors.map(lambda each: each.float().numpy())
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=20,
)


@given(states)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_state_comes_back_and_others_can_read_the_file(tmp_path, state):
    path = save_checkpoint(tmp_path, 0, state)
    assert same(load_checkpoint(path), state)
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["state"]) == json.loads(json.dumps(state_files._packed(state, "", {})))
        for name in file.keys():  # noqa: SIM118
            file.get_tensor(name)


def test_others_read_the_same_tensors(tmp_path):
    state = {"flag": torch.tensor([True]), "model": {"bias": torch.randn(3).bfloat16(), "weight": torch.randn(2, 3)}}
    with safe_open(save_checkpoint(tmp_path, 0, state), "pt") as file:
        assert set(file.keys()) == {"flag", "model/bias", "model/weight"}
        assert torch.equal(file.get_tensor("model/weight"), state["model"]["weight"])
        assert torch.equal(file.get_tensor("model/bias"), state["model"]["bias"])
        assert torch.equal(file.get_tensor("flag"), state["flag"])


def test_tensors_begin_at_multiples_of_their_items(tmp_path):
    for letters in range(8):  # a header of any length
        state = {"a" * letters: torch.tensor([True]), "b": torch.zeros(1), "c": torch.zeros(3, dtype=torch.float64)}
        content = save_checkpoint(tmp_path, 0, state).read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
        for name, tensor in state.items():
            start = 8 + size + header[name or "state"]["data_offsets"][0]
            assert start % tensor.element_size() == 0
            assert content[start : start + tensor.nbytes] == bits(tensor)


# What is refused

ODD = {
    "set": ({1}, "holds a set at a/0"),
    "device": (torch.device("cpu"), "holds a device at a/0"),
    "size": (torch.Size([1]), "holds a Size at a/0"),
    "path": (Path("x"), "holds a P[a-z]*Path at a/0"),
    "object": (object(), "holds a object at a/0"),
    "function": (print, "holds a builtin_function_or_method at a/0"),
    "complex": (1j, "holds a complex at a/0"),
    "tuple as key": ({(1, 2): 3}, r"has the key \(1, 2\) in the dict at a/0; use text or numbers as keys"),
    "complex128": (
        torch.zeros(1, dtype=torch.complex128),
        r"holds a tensor of torch.complex128 .* at a/0.*; convert it",
    ),
    "sparse": (torch.zeros(2, 2).to_sparse(), r"torch.float32 \(torch.sparse_coo, on cpu\) at a/0"),
    "meta": (torch.zeros(2, device="meta"), "on meta"),
    "array of objects": (np.array([None]), "holds an array of object at a/0; give arrays of numbers"),
    "array of text": (np.array(["a"]), "holds an array of <U1 at a/0"),
    "foreign bytes": (np.zeros(2, ">f4"), "holds an array of >f4 at a/0"),
    "masked": (np.ma.masked_array([1.0], [True]), "holds a MaskedArray at a/0"),
}


@pytest.mark.parametrize("case", ODD)
def test_what_a_file_cannot_hold(case, tmp_path):
    value, says = ODD[case]
    save_checkpoint(tmp_path, 1, "good")
    with pytest.raises(InputTypeError, match=says):
        save_checkpoint(tmp_path, 2, {"a": [value]})
    assert names(tmp_path) == ["step-00000001.safetensors"]


def test_a_state_that_contains_itself(tmp_path):
    state = []
    state.append(state)
    with pytest.raises(InputError, match="state is nested too deeply, or contains itself; make it flatter"):
        save_checkpoint(tmp_path, 0, state)


# Damage


@pytest.fixture
def content(tmp_path):
    return save_checkpoint(
        tmp_path, 1, {"lr": 0.1, "weights": torch.randn(50), "flags": torch.tensor([True])}
    ).read_bytes()


def is_refused(content, folder):
    path = folder / "step-00000009.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"^{re.escape(str(path))} is damaged, or no checkpoint; use an earlier one$"):
        load_checkpoint(path)
    with pytest.warns(FrontrankWarning, match="is damaged"):
        assert latest_checkpoint(folder).name == "step-00000001.safetensors"
    return True


def test_a_file_that_was_cut_off_or_grew(content, tmp_path):
    positions = sorted({*range(0, 110, 9), *range(110, len(content), len(content) // 60), len(content) - 1})
    assert len(positions) > 50
    for position in positions:
        assert is_refused(content[:position], tmp_path)
        assert is_refused(content[:position] + b"\0" * (len(content) - position), tmp_path)
    assert is_refused(content + b"\0", tmp_path)


def test_a_flipped_bit_anywhere(content, tmp_path):
    assert state_files.is_whole(io.BytesIO(content))
    for position in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            assert not state_files.is_whole(io.BytesIO(damaged)), (position, bit)
    for position in range(0, len(content), 40):
        assert is_refused(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :], tmp_path)


def with_digest(header, data=b""):
    """A file that is whole, whatever it says."""
    text = json.dumps(
        {"__metadata__": {"sha256": "0" * 64} | header.pop("__metadata__", {})} | header, separators=(",", ":")
    )
    content = struct.pack("<Q", len(text)) + text.encode() + data
    return content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1)


SAYS = {"format": "frontrank.checkpoint", "version": "1", "state": "3"}
F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
CRAFTED = {
    "another format": ({"__metadata__": SAYS | {"format": "x"}}, "is x, version 1, this reads .*; update frontrank"),
    "a later version": ({"__metadata__": SAYS | {"version": "2"}}, "is frontrank.checkpoint, version 2, this reads"),
    "no format": ({}, "is no checkpoint"),
    "no state": ({"__metadata__": {"format": "frontrank.checkpoint", "version": "1"}}, r"is no checkpoint \('state'\)"),
    "no JSON": ({"__metadata__": SAYS | {"state": "{"}}, "is no checkpoint"),
    "unknown kind": ({"__metadata__": SAYS | {"state": '{"code": "1"}'}}, "it holds a 'code'"),
    "two kinds": ({"__metadata__": SAYS | {"state": '{"int": "1", "float": "1"}'}}, "is no checkpoint"),
    "unknown tensor": ({"__metadata__": SAYS | {"state": '{"tensor": "t"}'}}, "is no checkpoint"),
    "no data": ({"__metadata__": SAYS, "t": F32}, "its tensors do not fit its header"),
    "wrong offsets": ({"__metadata__": SAYS, "t": F32 | {"data_offsets": [0, 4]}}, "its tensors do not fit its header"),
    "unknown dtype": ({"__metadata__": SAYS, "t": F32 | {"dtype": "X"}}, "is no checkpoint"),
    "huge": ({"__metadata__": SAYS, "t": F32 | {"shape": [1 << 62]}}, "is no checkpoint"),
    "negative": ({"__metadata__": SAYS, "t": F32 | {"shape": [-1]}}, "is no checkpoint"),
    "odd entry": ({"__metadata__": SAYS, "t": {"dtype": "F32"}}, "is no checkpoint"),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_a_whole_file_that_makes_no_sense(case, tmp_path):
    header, says = CRAFTED[case]
    path = tmp_path / "odd"
    path.write_bytes(with_digest(dict(header), b"" if case == "no data" else bytes(8)))
    with pytest.raises(InputError, match=says) as raised:
        load_checkpoint(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_the_crafted_files_would_be_read_if_right(tmp_path):
    (tmp_path / "right").write_bytes(with_digest({"__metadata__": dict(SAYS), "t": F32}, bytes(8)))
    assert load_checkpoint(tmp_path / "right") == 3


def test_a_safetensors_file_of_somebody_else(tmp_path):
    from safetensors.torch import save_file

    save_file({"t": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=r"other.safetensors is damaged, or no checkpoint"):
        load_checkpoint(tmp_path / "other.safetensors")
    with pytest.raises(
        InputError, match="none cannot be read: No such file or directory; give the path of a checkpoint"
    ):
        load_checkpoint(tmp_path / "none")
