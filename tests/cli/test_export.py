"""`frontrank export`: the file, in float32 and int8, and the change of mAP."""

import re

import numpy as np
import onnx
import pytest
import torch

import frontrank as fr
from frontrank.models.export import OnnxModel, quantize_onnx
from tests.cli.images import EACH, TEST
from tests.errors import refusal

pytestmark = pytest.mark.training  # of torch's exporter, which takes as long
MODEL = "runs/first/model"
DATA = ("--data", "my_photos", "--workers", "0")


@pytest.fixture(scope="module")
def files(copied):
    """The model as a file, in float32."""
    fr.Embedder.load(copied / MODEL).export_onnx(copied / "float.onnx")
    return copied


def figures(text, metric):
    """The two values of a metric in a table."""
    return [float(each) for each in re.findall(r"-?\d+\.\d+", re.search(rf"^{metric} .*$", text, re.MULTILINE)[0])[:2]]


def test_the_file_ranks_as_the_model(folder, run):
    result = run("export", MODEL, "--onnx", "m.onnx", *DATA, status=0)
    assert "m.onnx" in result.err
    first, second = figures(result.out, "mAP")
    assert first == second
    table = fr.data.read_folder("my_photos").of("test")
    assert len(table) == EACH * len(TEST)
    expected = fr.embed_table(fr.Embedder.load(MODEL), table, workers=0)
    assert np.allclose(fr.embed_table(OnnxModel("m.onnx"), table, workers=0), expected, atol=1e-4)


def test_int8_and_the_change_of_map(folder, run):
    result = run("export", MODEL, "--onnx", "m.onnx", "--int8", *DATA, "--calibration", "9", "--quiet")
    assert (result.status, result.err) == (0, "")
    table = fr.data.read_folder("my_photos").of("test")
    models = fr.Embedder.load(MODEL), OnnxModel("m.onnx")
    embeddings = [fr.embed_table(model, table, workers=0) for model in models]
    values = [100 * fr.evaluate(each, table.labels)["mAP"] for each in embeddings]
    assert figures(result.out, "mAP") == pytest.approx(values, abs=0.0051)
    assert 0.9 < (embeddings[0] * embeddings[1]).sum(1).mean() < 1
    kinds = {tensor.data_type for tensor in onnx.load("m.onnx").graph.initializer}
    assert onnx.TensorProto.INT8 in kinds


def test_ranges_are_those_of_training_images(folder, run, monkeypatch):
    """The images that are ranked afterwards say nothing about the file."""
    batches = []
    monkeypatch.setattr("frontrank.models.export.quantize_onnx", lambda *words, **_: batches.extend(words[2]))
    monkeypatch.setattr("frontrank.models.export.export_onnx", lambda model, path, *_: path.write_bytes(b"x"))
    (folder / "m.onnx").write_bytes(b"x")
    monkeypatch.setattr("frontrank.cli.export._comparison", lambda *_: "")
    assert run("export", MODEL, "--onnx", "m.onnx", "--force", "--int8", *DATA, "--calibration", "6").status == 0
    table = fr.data.read_folder("my_photos").of("train")
    rows = table.rows(np.linspace(0, len(table) - 1, 6).astype(int))
    model = fr.Embedder.load(MODEL)
    assert np.allclose(model(torch.cat(batches)).detach().numpy(), fr.embed_table(model, rows, workers=0), atol=1e-5)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("", "--onnx"),
        ("--onnx m.txt", "--onnx"),
        ("--onnx float.onnx", "--onnx"),
        ("--onnx m.onnx --int8", "--int8"),
        ("--onnx m.onnx --split test", "--split"),
        ("--onnx m.onnx --calibration 8", "--calibration"),
        ("--onnx m.onnx --data nowhere", "--data nowhere"),
    ],
)
def test_refusals(files, refused, monkeypatch, words, name):
    monkeypatch.chdir(files)
    refused(["export", MODEL, *words.split()], name)


def test_files_that_are_no_models(files, tmp_path):
    (tmp_path / "m.onnx").write_text("text")
    refusal(lambda: OnnxModel(tmp_path / "m.onnx"), "m.onnx", error=fr.FrontrankError)
    refusal(lambda: quantize_onnx(tmp_path / "m.onnx", tmp_path / "q.onnx", []), "m.onnx", error=fr.FrontrankError)
    refusal(lambda: quantize_onnx(files / "float.onnx", tmp_path / "m.onnx", []), "m.onnx", error=fr.FrontrankError)
    assert (tmp_path / "m.onnx").read_text() == "text"
    assert not (tmp_path / "q.onnx").exists()
