import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from frontrank.errors import FrontrankError, InputError, InputTypeError
from frontrank.retrieval import Whitening

SAID = {"format": "frontrank.whitening", "version": "1", "power": "0.25"}


@pytest.fixture
def whitening():
    return Whitening.fit(torch.randn(30, 5), power=0.3, dim=3)


def test_comes_back_as_it_was(whitening, tmp_path):
    whitening.save(tmp_path / "w.safetensors")
    again = Whitening.load(str(tmp_path / "w.safetensors"))
    assert again.power == 0.3
    for name in ("mean", "components", "variance"):
        assert torch.equal(getattr(again, name), getattr(whitening, name))
    rows = torch.randn(4, 5)
    assert torch.equal(again.apply(rows), whitening.apply(rows))
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_replaces_a_file_only_if_told_to(whitening, tmp_path):
    path = tmp_path / "w"
    path.write_text("precious")
    with pytest.raises(InputError, match=r"w exists already; give another path, or overwrite=True"):
        whitening.save(path)
    assert path.read_text() == "precious"
    whitening.save(path, overwrite=True)
    assert Whitening.load(path).power == 0.3


def test_a_folder_that_does_not_exist(whitening, tmp_path):
    with pytest.raises(InputError, match=r"w cannot be written: No such file or directory; give another path"):
        whitening.save(tmp_path / "none" / "w")


def test_a_folder_in_place_of_a_file(whitening, tmp_path):
    (tmp_path / "w").mkdir()
    with pytest.raises(InputError, match=r"w cannot be written: .*; give another path"):
        whitening.save(tmp_path / "w", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["w"]
    with pytest.raises(InputError, match=r"w is not a file; give the path of a saved whitening"):
        Whitening.load(tmp_path / "w")
    with pytest.raises(InputError, match=r"none is not a file"):
        Whitening.load(tmp_path / "none")


@pytest.mark.parametrize("call", [Whitening.load, lambda path: Whitening.fit(torch.randn(5, 3)).save(path)])
def test_paths_are_paths(call):
    with pytest.raises(InputTypeError, match="path must be a path, got 3"):
        call(3)


def test_a_file_of_something_else(tmp_path):
    path = tmp_path / "w"
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"w is damaged, or no whitening \(.*\); save it again"):
        Whitening.load(path)
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(InputError, match=r"w holds no whitening; give the path of a file that Whitening.save wrote"):
        Whitening.load(path)


def test_a_file_cut_short(whitening, tmp_path):
    whitening.save(tmp_path / "w")
    (tmp_path / "w").write_bytes((tmp_path / "w").read_bytes()[:-8])
    with pytest.raises(InputError, match="w is damaged, or no whitening"):
        Whitening.load(tmp_path / "w")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"version": "2"}, r"w has version 2 of the format, this is 1; update frontrank"),
        ({"power": "strong"}, "w is damaged, or no whitening"),
        ({"power": "nan"}, "w is damaged: its tensors do not fit"),
        ({"power": "2"}, "w is damaged: its tensors do not fit"),
    ],
)
def test_other_settings(whitening, tmp_path, said, message):
    whitening.save(tmp_path / "w")
    save_file(load_file(tmp_path / "w"), tmp_path / "w", SAID | said)
    with pytest.raises(InputError, match=message):
        Whitening.load(tmp_path / "w")


def test_settings_left_out(whitening, tmp_path):
    whitening.save(tmp_path / "w")
    save_file(load_file(tmp_path / "w"), tmp_path / "w", {k: v for k, v in SAID.items() if k != "power"})
    with pytest.raises(InputError, match=r"w is damaged, or no whitening \('power'\)"):
        Whitening.load(tmp_path / "w")


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept | {"mean": kept["mean"][:4].clone()},
        lambda kept: kept | {"variance": kept["variance"][:2].clone()},
        lambda kept: kept | {"variance": -kept["variance"]},
        lambda kept: kept | {"components": kept["components"] * torch.nan},
        lambda kept: kept | {"components": kept["components"][0].clone()},
        lambda kept: kept | {"components": kept["components"][:0].clone(), "variance": kept["variance"][:0].clone()},
        lambda kept: {name: tensor.float() for name, tensor in kept.items()},
        lambda kept: {"mean": kept["mean"], "variance": kept["variance"]},
    ],
)
def test_tensors_that_do_not_fit_together(whitening, tmp_path, change):
    whitening.save(tmp_path / "w")
    save_file(change(load_file(tmp_path / "w")), tmp_path / "w", SAID)
    with pytest.raises(InputError, match=r"w is damaged.*; save it again"):
        Whitening.load(tmp_path / "w")


@pytest.mark.parametrize("call", ["save", "load"])
def test_without_safetensors(whitening, tmp_path, monkeypatch, call):
    whitening.save(tmp_path / "w")
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FrontrankError, match=r"needs safetensors; pip install 'frontrank\[train\]'"):
        getattr(whitening, call)(tmp_path / ("v" if call == "save" else "w"))
