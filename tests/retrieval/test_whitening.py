import math
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from frontrank.errors import InputError, InputTypeError
from frontrank.ranking import vectors
from frontrank.retrieval import Whitening
from tests.errors import refusal
from tests.reference import retrieval_whitening as reference

POWERS = [0.0, 0.25, 0.5, 1.0]


def spread(rows, dim, dtype=torch.float64):
    """Rows with a mean and very different variances."""
    return (torch.randn(rows, dim, dtype=torch.float64) * torch.logspace(0, -1.5, dim) + 0.7).to(dtype)


@pytest.fixture
def small_chunks(monkeypatch):
    chunks = vectors.Vectors.chunks
    monkeypatch.setattr(vectors.Vectors, "chunks", lambda self, rows=7: chunks(self, rows))


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-4), (torch.float64, 1e-11)])
def test_equals_the_decomposition_of_all_rows(power, dtype, tolerance):
    training, rows = spread(40, 6, dtype), spread(9, 6, dtype)
    for dim in (1, 3, 6):
        result = Whitening.fit(training, power, dim).apply(rows)
        assert result.dtype == dtype
        expected = torch.from_numpy(reference.whitened(training.tolist(), rows.tolist(), power, dim))
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance)


def test_a_first_chunk_unlike_the_others(small_chunks):
    training = spread(40, 6)
    training[:7] = -training[:7] + torch.eye(6, dtype=torch.float64)[0]
    expected = torch.from_numpy(reference.whitened(training.tolist(), training.tolist(), 0.5, None))
    torch.testing.assert_close(Whitening.fit(training, 0.5).apply(training), expected, rtol=0, atol=1e-11)


def test_by_hand():
    """Mean (0.9, 0, 0); variances 4 * 0.1^2 / 4 = 0.01, 2 * 0.6^2 / 4 = 0.18 and 0."""
    rows = torch.tensor([[0.8, 0.6, 0.0], [0.8, -0.6, 0.0], [1.0, 0.0, 0.0], [5.0, 0.0, 0.0]], dtype=torch.float64)
    whitening = Whitening.fit(rows, power=0.5)
    torch.testing.assert_close(whitening.mean, torch.tensor([0.9, 0.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(whitening.variance, torch.tensor([0.18, 0.01], dtype=torch.float64))
    torch.testing.assert_close(whitening.components, torch.eye(3, dtype=torch.float64)[[1, 0]])
    new = whitening.apply(torch.tensor([[0.0, 0.6, 0.8]], dtype=torch.float64))  # off the mean by (-0.9, 0.6, 0.8)
    y = torch.tensor([0.6 / math.sqrt(0.18), -0.9 / 0.1], dtype=torch.float64)  # (1.414, -9)
    torch.testing.assert_close(new[0], y / y.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_directions_that_say_nothing_are_dropped(dtype):
    """Of 5 rows one goes with the mean; columns of zeros and differences of others add nothing."""
    rows = spread(50, 5, dtype)
    dead = torch.cat([rows, torch.zeros(50, 2, dtype=dtype), rows[:, :1] - rows[:, 1:2]], 1)
    for training, rank in ((torch.randn(5, 40).to(dtype), 4), (dead, 5)):
        whitening = Whitening.fit(training, power=0.5)
        assert whitening.components.shape == (rank, training.shape[1])
        result = whitening.apply(torch.randn(8, training.shape[1]).to(dtype))
        torch.testing.assert_close(result.norm(dim=1), torch.ones(8, dtype=dtype))


def test_other_dimensions_than_there_are():
    with pytest.raises(InputError, match=r"^dim .*at most 4"):
        Whitening.fit(torch.randn(5, 40), dim=5)
    with pytest.raises(InputError, match=r"^embeddings .*5 .*4"):
        Whitening.fit(torch.randn(9, 4)).apply(torch.randn(3, 5))


@pytest.mark.parametrize("rows", [torch.ones(1, 3), torch.rand(1, 9).expand(6, 9), torch.rand(6, 1) * torch.rand(1, 9)])
def test_rows_that_do_not_differ(rows):
    with pytest.raises(InputError, match=r"^embeddings"):
        Whitening.fit(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_which_nothing_is_left(dtype):
    training = torch.tensor([[0.8, 0.6, 0.0], [0.8, -0.6, 0.0]], dtype=dtype)  # only the second dimension varies
    whitening = Whitening.fit(training)
    rows = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.3, 0.0, -2.0]], dtype=dtype)
    with pytest.raises(InputError, match=r"^embeddings .*2 rows \(number 0, 2\)"):
        whitening.apply(rows)
    with pytest.raises(InputError, match=r"^embeddings .*\(number 0, 1, 2, 3, 4, \.\.\.\)"):
        whitening.apply(rows[:1].expand(6, 3))
    assert whitening.apply(rows[1:2]).tolist() == [[1.0]]


def test_arrays_and_half_precision(small_chunks):
    rows = spread(20, 6, torch.float32)
    expected = Whitening.fit(rows).apply(rows)
    for same in (rows.numpy(), rows.clone().requires_grad_()):
        result = Whitening.fit(same).apply(same)
        assert torch.equal(result, expected)
        assert not result.requires_grad
    half = Whitening.fit(rows.half()).apply(rows.half())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, expected, rtol=0, atol=0.05)


# Files


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


def test_paths_that_cannot_be_used(whitening, tmp_path):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "none" / "w", tmp_path / "folder"):
        refusal(lambda path=path: whitening.save(path, overwrite=True), f"{path.name} cannot be written")
        with pytest.raises(InputError, match=f"{path.name} .*file"):
            Whitening.load(path)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    for call in (whitening.save, Whitening.load):
        refusal(lambda call=call: call(3), "path", error=InputTypeError)


def test_files_of_something_else(whitening, tmp_path):
    path = tmp_path / "w"
    whitening.save(path)
    for content in (b"", path.read_bytes()[:-8]):
        path.write_bytes(content)
        refusal(lambda: Whitening.load(path), "w is damaged")
    save_file({"weight": torch.ones(2)}, path)
    refusal(lambda: Whitening.load(path), "/w ")


FACTS = {"format": "frontrank.whitening", "version": "1", "power": "0.25"}


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts | {"mean": parts["mean"][:4].clone()},
        lambda parts: parts | {"variance": -parts["variance"]},
        lambda parts: parts | {"components": parts["components"][0].clone()},
        lambda parts: {name: parts[name] for name in ("mean", "variance")},
    ],
)
def test_tensors_that_do_not_fit_together(whitening, tmp_path, change):
    whitening.save(tmp_path / "w")
    save_file(change(load_file(tmp_path / "w")), tmp_path / "w", FACTS)
    refusal(lambda: Whitening.load(tmp_path / "w"), "w is damaged")


@pytest.mark.parametrize("call", ["save", "load"])
def test_without_safetensors(whitening, tmp_path, monkeypatch, call):
    whitening.save(tmp_path / "w")
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    refusal(lambda: getattr(whitening, call)(tmp_path / ("v" if call == "save" else "w")), "frontrank[train]")
