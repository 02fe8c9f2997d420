"""Real pictures, real runs: training ranks classes better that it has never seen."""

import math

import pytest

import frontrank as fr
from frontrank.settings import read_config
from frontrank.training.logs import read_log
from tests.pictures import glyph_pictures

pytestmark = pytest.mark.training

SETTINGS = {
    "data.validation": 0.0,
    "data.resize": 32,
    "data.size": 32,
    "data.augment": "none",
    "data.flip": False,
    "data.workers": 0,
    "model.backbone": "test_resnet",
    "model.weights": "none",
    "model.dim": 64,
    "model.batch_norm": "train",
    "batches.size": 64,
    "batches.chunk": 64,
    "head": "random",
    "optimizer.name": "adam",
    "optimizer.head_lr": 1.0,
    "optimizer.schedule": "linear",
    "optimizer.warmup": 0,
    "optimizer.weight_decay": 0.0,
}
FIRST = {"loss.variant": "D_s", "loss.temperature": 0.05, "optimizer.lr": 1e-2, "iterations": 25}
THEN = {"optimizer.lr": 5e-3, "iterations": 60, "log_every": 10, "batches.memory": 256, "batches.memory_after": 10}
LOSSES = {
    "PNP": {"loss.variant": "D_q", "loss.temperature": 0.05},
    "triplet": {"loss.name": "pml.TripletMarginLoss", "loss.miner": "TripletMarginMiner"},
}
RISE = 0.03  # of R@1: about 7 of the 224 unseen images


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glyphs")
    table = glyph_pictures(folder, classes=60)
    table.save(folder / "images.csv")
    return table


def train(table, out, settings):
    path = str(table.root / "images.csv")
    fr.train(read_config({**SETTINGS, "data.path": path, **settings}), out, quiet=True)
    return out / "model"


def recall(table, model):
    """R@1 on the classes that were not trained on."""
    unseen = table.of("test")
    embeddings = fr.embed_table(fr.Embedder.load(model), unseen, workers=0)
    return fr.evaluate(embeddings, unseen.labels, metrics=("R@1",), progress=False)["R@1"]


@pytest.fixture(scope="module")
def start(glyphs, tmp_path_factory):
    """A model that has learnt a little, as one with pretrained weights has: the model, and its R@1."""
    out = tmp_path_factory.mktemp("start")
    fr.Embedder("test_resnet", dim=64, image_size=32, resize=32).save(out / "random")
    model = train(glyphs, out / "run", FIRST)
    assert recall(glyphs, model) > recall(glyphs, out / "random") + RISE
    return model, recall(glyphs, model)


@pytest.mark.parametrize("loss", LOSSES)
def test_training_ranks_unseen_classes_better(loss, glyphs, start, tmp_path):
    model, before = start
    trained = train(glyphs, tmp_path / "run", {**THEN, "model.weights": str(model), **LOSSES[loss]})
    assert recall(glyphs, trained) > before + RISE
    lines = [line for line in read_log(tmp_path / "run" / "log.jsonl") if "loss" in line]
    assert all(math.isfinite(line["loss"]) and line["gradient norm"] > 0 for line in lines)
    assert all(("AP error" in line) == (loss == "PNP") for line in lines)
