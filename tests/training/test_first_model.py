"""The model before the first step: features that rank best, and a head that starts from them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import frontrank as fr
from frontrank.data.splits import hold_out_classes
from frontrank.data.table import read_table
from frontrank.models import Embedder
from frontrank.settings import BatchConfig, ModelConfig, OptimizerConfig, read_config, read_recipe, values_of
from frontrank.training import first_model
from frontrank.training.first_model import HEADS, choose_reading, start_head
from frontrank.training.run import RetrievalRun, resume, train
from tests.training.runs import config_of, small_table


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return small_table(tmp_path_factory.mktemp("glyphs"))


@pytest.fixture
def table(path):
    return hold_out_classes(read_table(path), 0.3)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Embedder("test_resnet", dim=16, image_size=32, resize=32, batch_norm="frozen")


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("dim", [5, 12])
def test_a_head_ranks_as_the_whitening_it_comes_from(kind, dim):
    rows = nn.functional.normalize(torch.randn(40, 8, dtype=torch.float64) + 1, dim=1)
    whitening = fr.Whitening.fit(rows, power=HEADS[kind])
    linear = nn.Linear(8, dim).double()
    weight, bias = first_model._head(kind, whitening, 3.0, linear)
    got = nn.functional.normalize(nn.functional.linear(3 * rows, weight, bias), dim=1)
    if kind == "rotation":
        expected = nn.functional.normalize(rows @ whitening.components[:dim].T, dim=1)
    else:
        expected = fr.Whitening.fit(rows, power=HEADS[kind], dim=min(dim, 8)).apply(rows)
    assert got.shape == (40, dim)
    assert torch.allclose(got @ got.T, expected @ expected.T, atol=0.05 if dim > 8 else 1e-9)


def test_rows_beyond_the_directions_of_few_images_are_orthogonal_and_not_zero():
    whitening = fr.Whitening.fit(torch.randn(5, 8, dtype=torch.float64))
    weight = first_model._head("pca", whitening, 1.0, nn.Linear(8, 8).double())[0]
    products = weight @ weight.T
    assert torch.allclose(products, torch.eye(8, dtype=torch.float64) / 3)


def test_the_head_of_few_images_ranks_as_their_features_do():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 512, dtype=torch.float64, generator=generator) + 1
    weight, bias = first_model._head("rotation", fr.Whitening.fit(rows[:20]), 1.0, nn.Linear(512, 256).double())
    got = nn.functional.normalize(nn.functional.linear(rows[20:], weight, bias), dim=1)
    unit = nn.functional.normalize(rows[20:], dim=1)
    difference = got @ got.T - unit @ unit.T
    assert abs(float(difference.mean())) < 0.02  # a random projection alone makes what is left too short


def test_a_sample_is_of_whole_classes_and_of_the_held_out_first(table):
    held_out = table.of("validation")
    few = first_model._sample_classes(table, len(held_out) + 1)
    assert sorted(few.paths) == sorted(held_out.paths)
    assert len(first_model._sample_classes(table, 1000)) == len(table)
    large = table.rows(np.tile(np.flatnonzero(np.isin(table.labels, held_out.labels[:1])), 50))
    two = replace(large, labels=np.arange(len(large)).astype(str).astype(object))
    assert len(first_model._sample_classes(large, 100)) == 100  # one class: as many as fit
    assert len(first_model._sample_classes(two, 100)) == 100  # no class of two images


def test_how_many_images_are_looked_at_depends_on_the_network_only(model):
    large = Embedder("test_resnet", dim=16, image_size=256)
    few, more, most = (first_model.affordable_images(*each) for each in ((large, 0.01), (large, 1), (large, 0)))
    assert 64 == few < more < most
    assert first_model.affordable_images(model, 1) > more


def test_the_best_head_on_held_out_classes_is_taken(model, table):
    held_out = table.of("validation")
    kind, values, _ = start_head(model, "auto", table.of("train"), held_out, "R@1", 0, workers=0)
    assert set(values) == {*HEADS, "none"}
    assert values[kind] == max(values[name] for name in HEADS)
    embeddings = first_model.embed_table(model, held_out, workers=0)
    assert fr.evaluate(embeddings, held_out.labels)["R@1"] == pytest.approx(values[kind], abs=0.03)
    before = model.head.linear.weight.clone()
    assert start_head(model, "random", table.of("train"), held_out, "R@1", 0)[0] == "random"
    assert torch.equal(model.head.linear.weight, before)


def test_a_metric_of_levels_looks_at_levels(model, table, monkeypatch):
    seen = []
    monkeypatch.setattr(first_model, "evaluate", lambda _, labels, **__: seen.append(labels.ndim) or {"H-AP": 0.5})
    table = replace(table, categories=np.array([f"group {code // 2 % 3}" for code in table.codes()]))
    choose_reading(model, table, "H-AP", 0, workers=0)
    start_head(model, "auto", table.of("train"), table.of("validation"), "H-AP", 0, workers=0)
    assert set(seen) == {2}


def test_readings_are_tried_and_an_earlier_stage_must_be_clearly_better(model, table, monkeypatch):
    readings = choose_reading(model, table, "R@1", 0, workers=0)
    tried = {(each.stage, each.pooling) for each in readings}
    assert {(0, "native"), (0, "gem"), (4, "flat"), (3, "average")} <= tried

    def choose(*values):
        given = iter([*values, *[0.52] * (len(tried) - len(values))])
        monkeypatch.setattr(first_model, "evaluate", lambda *_, **__: {"R@1": next(given)})
        best = choose_reading(model, table, "R@1", 0, workers=0)[0]
        return best.stage, best.pooling

    assert choose(0.50, 0.505) == (0, "native")
    assert choose(0.50, 0.54) == (0, "native")  # of 160 images: no more than chance
    assert choose(0.50, 0.60) == (0, "gem")


@pytest.fixture
def open_config(path, model, tmp_path):
    """Settings that leave everything to the run."""
    torch.save({f"backbone.{k}": v for k, v in model.backbone.state_dict().items()}, tmp_path / "weights.pth")
    network = ModelConfig("test_resnet", weights=str(tmp_path / "weights.pth"), dim=16)
    return replace(
        config_of(path, data={"augment": "auto", "flip": "auto", "resize": "auto"}),
        batches=BatchConfig(),
        model=network,
        optimizer=OptimizerConfig(),
        epochs="auto",
        minutes=0.02,
        head="auto",
    )


@pytest.mark.training
def test_the_frozen_network_is_the_model_if_no_step_is_as_good(open_config, tmp_path, monkeypatch):
    def measure(run, model):
        return {"R@1": 0.5 if model is run.model else 0.6, "mAP": 0.0 if model.settings.stage else 0.2}

    monkeypatch.setattr(RetrievalRun, "measure", measure)
    standing = train(replace(open_config, minutes=0, iterations=1), tmp_path / "run", quiet=True)
    assert standing.is_frozen_best
    own, published = Embedder.load(tmp_path / "run" / "model"), Embedder("test_resnet", image_size=32, dim=0)
    assert (own.settings.stage, own.settings.pooling, own.dim) == (0, "native", published.dim)
    assert resume(tmp_path / "run", {"iterations": "2"}, quiet=True).is_frozen_best
    assert Embedder.load(tmp_path / "run" / "model").dim == published.dim


@pytest.mark.training
def test_a_run_that_chooses_everything_writes_it_down_and_continues(open_config, tmp_path):
    standing = train(open_config, tmp_path / "run", quiet=True)
    assert standing.frozen["value"] >= 0
    stored = read_config(read_recipe(tmp_path / "run" / "config.yaml"))
    left = {name for name, value in values_of(stored).items() if value == "auto"}
    assert left <= {"data.layout", "device"}
    assert stored.iterations == standing.step >= 1
    assert stored.head in HEADS
    assert standing.best >= standing.before
    more = {"iterations": str(standing.step + 2)}
    assert resume(tmp_path / "run", more, quiet=True).step == standing.step + 2
    again = read_config(read_recipe(tmp_path / "run" / "config.yaml"))
    assert replace(again, iterations=stored.iterations) == stored
    assert np.isfinite(standing.best)
