import copy
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout

import onnx
import onnxruntime
import pytest
import torch

from frontrank.errors import FrontrankError, InputTypeError
from frontrank.models import export
from tests.errors import refusal
from tests.models.small import images, names, small

pytestmark = pytest.mark.training  # of torch's exporter, which takes as long


def run(path, x):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [node.name for node in session.get_inputs()] == ["images"]
    assert [node.name for node in session.get_outputs()] == ["embeddings"]
    return torch.from_numpy(session.run(None, {"images": x.numpy()})[0])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A transformer in double precision and its file, and what was printed; exporting takes seconds."""
    torch.manual_seed(0)
    model = small("test_vit", pooling="gem", layer_norm=True, dropout=0.5).double()
    path, out = tmp_path_factory.mktemp("exported") / "new" / "m.onnx", io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        model.export_onnx(path)
    return model, path, out.getvalue()


def check_same_embeddings(path, model):
    for count in (1, 2, 5):
        x = images(count)
        torch.testing.assert_close(run(path, x), model(x), rtol=0, atol=1e-5)


def test_gives_the_same_embeddings_for_any_number_of_images(exported):
    model, path, out = exported
    assert out == ""
    assert model.training
    assert model.head.linear.weight.dtype == torch.float64
    check_same_embeddings(path, copy.deepcopy(model).float().eval())
    assert names(path.parent) == ["m.onnx"]


@pytest.mark.slow
def test_regions_of_a_convolutional_network(tmp_path):
    model = small(pooling="rmac").eval()
    model.export_onnx(tmp_path / "m.onnx")
    check_same_embeddings(tmp_path / "m.onnx", model)


def test_metadata(exported):
    model, path, _ = exported
    onnx.checker.check_model(onnx.load(path))
    metadata = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert metadata["fingerprint"] == model.fingerprint
    assert json.loads(metadata["mean"]) == list(model.mean)
    assert json.loads(metadata["std"]) == list(model.std)
    assert (metadata["image_size"], metadata["resize"], metadata["backbone"]) == ("64", "67", "test_vit")


class TestRefusals:
    def test_a_difference_above_the_tolerance(self, exported, tmp_path, monkeypatch):
        monkeypatch.setattr(export, "_onnx_model", lambda model: onnx.load(exported[1]))
        other = copy.deepcopy(exported[0])
        with torch.no_grad():
            other.head.linear.weight[0] *= -1
        (tmp_path / "m.onnx").write_text("old")
        refusal(lambda: other.export_onnx(tmp_path / "m.onnx", overwrite=True), "tolerance", error=FrontrankError)
        assert names(tmp_path) == ["m.onnx"]
        assert (tmp_path / "m.onnx").read_text() == "old"
        other.export_onnx(tmp_path / "m.onnx", overwrite=True, tolerance=2.0)
        assert names(tmp_path) == ["m.onnx"]
        assert (tmp_path / "m.onnx").stat().st_size > 1000

    @pytest.mark.parametrize("differences", [[0.0, float("nan")], [2e-4, 0.0]], ids=str)
    def test_one_difference_is_enough(self, tmp_path, monkeypatch, differences):
        monkeypatch.setattr(export, "_onnx_model", lambda model: onnx.ModelProto())
        monkeypatch.setattr(export, "_differences", lambda *_: differences)
        refusal(lambda: small().export_onnx(tmp_path / "m.onnx"), "tolerance", error=FrontrankError)
        assert names(tmp_path) == []

    def test_another_shape_or_no_model(self, exported):
        model = small("test_vit", pooling="gem", layer_norm=True, dim=9).eval()
        assert export._differences(exported[1].read_bytes(), model) == [float("inf")] * 2
        with pytest.raises(FrontrankError, match="onnxruntime"):
            export._differences(onnx.ModelProto().SerializeToString(), model)

    def test_what_torch_cannot_export(self, tmp_path, monkeypatch):
        def fail(*_, **__):
            raise ValueError("no such operator\nand a long story")

        monkeypatch.setattr(torch.onnx, "export", fail)
        with pytest.raises(FrontrankError, match=r"test_resnet.*\(no such operator\)"):
            small().export_onnx(tmp_path / "m.onnx")
        assert names(tmp_path) == []

    def test_arguments(self, tmp_path, monkeypatch):
        model, path = small(), tmp_path / "m.onnx"
        path.write_text("precious")
        for arguments, name in (
            ({"path": path}, "m.onnx"),
            ({"path": tmp_path, "overwrite": True}, tmp_path.name),
            ({"path": tmp_path / "new", "tolerance": 0}, "tolerance"),
        ):
            refusal(lambda arguments=arguments: model.export_onnx(**arguments), name)
        refusal(lambda: model.export_onnx(None), "path", error=InputTypeError)
        monkeypatch.setattr(export, "_LARGEST", 1000)
        refusal(lambda: model.export_onnx(path, overwrite=True), "model")
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        refusal(lambda: model.export_onnx(path, overwrite=True), "onnxruntime")
        assert path.read_text() == "precious"
