"""`Adapter`: what it computes, that it helps on classes it has not seen, and what it refuses."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import frontrank as fr
from frontrank.errors import FrontrankError, FrontrankWarning, InputError, InputTypeError
from frontrank.retrieval.adapter import RATES
from tests.errors import refusal
from tests.reference import retrieval_adapter as reference

DIM, EACH = 16, 6


def draw(classes, seed=0):
    """Rows whose classes differ in 6 directions, below louder ones that say nothing."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), EACH)
    signal = rng.normal(size=(classes, 6))[labels] + 0.3 * rng.normal(size=(len(labels), 6))
    rows = np.concatenate([signal, 3 * rng.normal(size=(len(labels), DIM - 6))], 1)
    return rows.astype(np.float32), np.array([f"class {label}" for label in labels])


def precision(rows, labels):
    return fr.evaluate(rows, labels, metrics=("mAP",), progress=False)["mAP"]


@pytest.fixture(scope="module")
def fitted():
    return fr.Adapter.fit(*draw(40), dims=(8, 4), hidden=5, steps=40, batch_size=120)


@pytest.mark.parametrize("hidden", [0, 5])
def test_ranks_unseen_classes_better_and_equals_the_reference(hidden):
    rows, labels = draw(30, seed=1)
    adapter = fr.Adapter.fit(*draw(60), hidden=hidden, steps=60, batch_size=120)
    assert precision(adapter.apply(rows), labels) > 2 * precision(rows, labels)
    assert adapter.chosen.score == max(trial.score for trial in adapter.trials if trial.steps in (0, 60))
    assert adapter.trial.chosen == adapter.chosen
    held_out = adapter.held_out_rows
    score = precision(adapter.trial.apply(draw(60)[0][held_out]), draw(60)[1][held_out])
    assert score == pytest.approx(adapter.chosen.score, abs=1e-6)
    tensors = {name: tensor.tolist() for name, tensor in adapter.tensors.items()}
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        result = adapter.apply(torch.from_numpy(rows[:5]).to(dtype))
        expected = torch.tensor(reference.adapted(tensors, rows[:5].tolist()), dtype=dtype)
        torch.testing.assert_close(result, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_begins_as_a_whitening(power):
    rows, labels = draw(20)
    for hidden in (0, 3):
        adapter = fr.Adapter.fit(rows, labels, power=power, dim=7, steps=0, held_out=0, hidden=hidden)
        expected = fr.Whitening.fit(rows, power, 7).apply(rows)
        torch.testing.assert_close(adapter.apply(rows), expected, rtol=0, atol=1e-5)


def test_few_directions_are_not_made_louder():
    """20 rows, all but the same in all directions but 6."""
    rows, labels = draw(20)
    rows[:, 6:] = 1e-4 * rows[:, 6:]
    adapter = fr.Adapter.fit(rows, labels, power=0.5, dim=12, steps=0, held_out=0)
    spread = adapter.apply(rows).std(0)
    assert spread[:5].min() > 10 * spread[6:].max()
    rows[:, 6:] = 0
    refusal(lambda: fr.Adapter.fit(rows, labels, dim=12), "dim", "at most 6")
    assert fr.Adapter.fit(rows, labels, steps=3).apply(rows).isfinite().all()


def test_is_never_worse_than_the_input_on_held_out_classes():
    """Labels that say nothing: no training helps."""
    rows, labels = draw(20)
    with pytest.warns(FrontrankWarning, match="worse"):  # six directions with all that there is to know
        fr.Adapter.fit(np.roll(rows[:, :6], 1, 1) * [9, 1, 1, 1, 1, 1], labels, dims=(2, 1), steps=0)
    adapter = fr.Adapter.fit(rows, np.random.default_rng(0).permutation(labels), steps=5)
    assert adapter.chosen.score >= adapter.trials[0].score
    assert adapter.trials[0].start == "input"


def test_nested_dimensions(fitted):
    rows, _ = draw(30, seed=1)
    assert fitted.out_dim == 8
    short = fitted.truncate(4)
    first = torch.nn.functional.normalize(fitted.apply(rows.astype(np.float64))[:, :4])
    torch.testing.assert_close(short.apply(rows.astype(np.float64)), first)
    refusal(lambda: fitted.truncate(9), "dim")


def test_one_step_follows_the_sum_over_prefixes():
    """The first step of Adam goes against the sign of the gradient."""
    rows, labels = draw(10)
    settings = {"dims": (6, 3), "power": 0.25, "lr": 1e-3, "temperature": 0.1, "held_out": 0, "batch_size": 60}
    start, after = (fr.Adapter.fit(rows, labels, steps=steps, **settings) for steps in (0, 1))
    weight = start.tensors["weight"].clone().requires_grad_()
    z = torch.nn.functional.normalize(torch.from_numpy(rows)) @ weight.T + start.tensors["bias"]
    codes = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    loss = fr.PNP(alpha=1.0, temperature=0.1)
    (loss(z, codes) + loss(z[:, :3], codes)).backward()
    moved = after.tensors["weight"] - start.tensors["weight"]
    large = weight.grad.abs() > 1e-5
    assert large.any()
    assert torch.equal(moved[large].sign(), -weight.grad[large].sign())


@pytest.mark.parametrize("loss", ["SmoothAP", "FastAP", fr.BlackboxAP()])
def test_other_losses_and_fixed_settings(loss):
    adapter = fr.Adapter.fit(*draw(12), loss=loss, held_out=0.5, steps=3, batch_size=1000)
    assert {trial.lr for trial in adapter.trials if trial.steps} == set(RATES)
    only = fr.Adapter.fit(*draw(12), loss=loss, held_out=0.5, steps=3, lr=0.1, power=0.5, refit=False)
    assert {(trial.lr, trial.power) for trial in only.trials if trial.steps} == {(0.1, 0.5)}
    assert only.is_same(only.trial)


def test_works_with_scikit_learn():
    base, pipeline = pytest.importorskip("sklearn.base"), pytest.importorskip("sklearn.pipeline")
    rows, labels = draw(12)
    adapter = fr.Adapter(dim=5, steps=2, held_out=0)
    assert base.clone(adapter).get_params() == adapter.get_params()
    result = pipeline.make_pipeline(adapter).fit(rows, labels).transform(rows)
    assert isinstance(result, np.ndarray)
    assert np.array_equal(result, fr.Adapter.fit(rows, labels, dim=5, steps=2, held_out=0).transform(rows))
    assert adapter.set_params(dim=6).dim == 6
    refusal(lambda: adapter.set_params(dmi=6), "dmi")


def test_comes_back_as_it_was(fitted, tmp_path):
    path = tmp_path / "a.safetensors"
    fitted.save(path)
    again, rows = fr.Adapter.load(path), draw(5, seed=2)[0]
    assert again.is_same(fitted)
    assert not again.is_same(fitted.truncate(4))
    assert (again.chosen, again.hidden, list(again.dims)) == (fitted.chosen, 5, [8, 4])
    assert torch.equal(again.apply(rows), fitted.apply(rows))
    refusal(lambda: fitted.save(path), error=FrontrankError)


def test_files_that_are_no_adapters(fitted, tmp_path):
    path = tmp_path / "a.safetensors"
    fitted.save(path)
    content, tensors = path.read_bytes(), load_file(path)
    facts = {"format": "frontrank.adapter", "version": "1", "settings": "{}"}
    for change in ({"version": "2"}, {"format": "other"}, {"settings": "["}):
        save_file(tensors, path, facts | change)
        refusal(lambda: fr.Adapter.load(path), "safetensors")
    for change in ({"bias": torch.zeros(3)}, {"down": torch.zeros(5, 8)}, {"weight": torch.full((8, DIM), torch.nan)}):
        save_file(tensors | change, path, facts)
        refusal(lambda: fr.Adapter.load(path), "safetensors")
    for wrong in (content[:100], content[:-9], b""):
        path.write_bytes(wrong)
        refusal(lambda: fr.Adapter.load(path), "safetensors")
    refusal(lambda: fr.Adapter.load(tmp_path / "missing"), "missing")


@pytest.mark.training
@pytest.mark.parametrize("dim", [8, 4])
def test_as_onnx(fitted, dim, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    path, adapter, rows = tmp_path / "a.onnx", fitted.truncate(dim), draw(5, seed=2)[0]
    adapter.export_onnx(path)
    (result,) = runtime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"embeddings": rows})
    torch.testing.assert_close(torch.from_numpy(result), adapter.apply(rows), rtol=0, atol=1e-5)


def test_an_index_changes_both_sides_and_remembers(fitted, tmp_path):
    rows, labels = draw(6)
    items = [fr.Item(str(row), label=label) for row, label in enumerate(labels)]
    with fr.Index(tmp_path / "i", dim=DIM, adapter=fitted) as index:
        index.add(rows, items)
    with fr.Index.load(tmp_path / "i") as index:
        assert index.settings.adapter.is_same(fitted)
        assert index.settings.stored_dim == 8
        np.testing.assert_allclose(index.vectors(["3"]), fitted.transform(rows[3:4]), atol=1e-5)
        scores = fitted.apply(rows[:1]) @ fitted.apply(rows).T
        assert set(index.search(rows[:1], k=4)[0].ids) == {str(row) for row in scores[0].topk(4).indices.tolist()}
    for change in ({"adapter": fitted.truncate(4)}, {"adapter": 3}, {"whitening": fr.Whitening.fit(rows)}):
        with pytest.raises((InputError, InputTypeError), match=next(iter(change))):
            fr.Index(tmp_path / "i", dim=DIM, **{"adapter": fitted} | change)
    refusal(lambda: fr.Index(dim=3, adapter=fitted), "adapter")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"dim": 0}, "dim"),
        ({"dim": DIM + 1}, "dim"),
        ({"dims": "8,4"}, "dims"),
        ({"dims": (8, 4), "dim": 6}, "dim"),
        ({"held_out": 1.0}, "held_out"),
        ({"power": 2.0}, "power"),
        ({"lr": 0.0}, "lr"),
        ({"loss": "SmothAP"}, "SmoothAP"),
        ({"loss": 3}, "loss"),
        ({"loss": "pml.ContrastiveLoss"}, "PeerLoss"),
        ({"loss": "FastAP", "temperature": 0.1}, "temperature"),
        ({"loss": fr.SmoothAP(), "options": {"temperature": 1.0}}, "options"),
    ],
)
def test_settings_that_are_refused(settings, name):
    with pytest.raises((InputError, InputTypeError), match=name):
        fr.Adapter.fit(*draw(12), **settings)


def test_input_that_is_refused(fitted):
    rows, labels = draw(12)
    for wrong in (labels[:-1], rows[:, 0], np.zeros((len(rows), 0), int), np.arange(len(rows)), [{1, 2}] * len(rows)):
        refusal(lambda wrong=wrong: fr.Adapter.fit(rows, wrong), "labels", error=(InputError, InputTypeError))
    refusal(lambda: fitted.apply(rows[:, :5]), "embeddings")
    refusal(lambda: fr.Adapter().apply(rows), "fit")
