import subprocess
import sys

import pytest

import frontrank as fr
from frontrank import errors


def test_public_names():
    assert sorted(fr.__all__) == [
        "AllClassesBatches",
        "BalancedBatches",
        "BlackboxAP",
        "BlackboxRecall",
        "CategoryBatches",
        "ClassifierAP",
        "Embedder",
        "EmbeddingMemory",
        "FastAP",
        "FrontrankError",
        "ImageTable",
        "Index",
        "Item",
        "PNP",
        "QuantizedAP",
        "RankLoss",
        "Report",
        "SmoothAP",
        "TrainConfig",
        "Whitening",
        "augment_database",
        "compare",
        "embed_table",
        "evaluate",
        "evaluate_revisited",
        "evaluate_scores",
        "evaluation",
        "expand_queries",
        "gather",
        "multistage_backward",
        "protocols",
        "ranking",
        "rerank",
        "resume",
        "train",
    ]
    assert all(hasattr(fr, name) for name in fr.__all__)


def test_public_names_of_ranking():
    assert sorted(fr.ranking.__all__) == fr.ranking.__all__
    assert all(hasattr(fr.ranking, name) for name in fr.ranking.__all__)


def test_import_needs_torch_and_numpy_only():
    code = (
        "import sys, torch; before = set(sys.modules); import frontrank; "
        "print(*sorted({name for name in set(sys.modules) - before}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "frontrank.losses.pnp" in loaded
    heavy = (
        "matplotlib",
        "scipy",
        "sklearn",
        "torchvision",
        "timm",
        "torch._dynamo",
        "torch._inductor",
        "pandas",
        "pyarrow",
        "safetensors",
        "faiss",
        "rich",
        "PIL",
    )
    assert [name for name in loaded if any(name == h or name.startswith(f"{h}.") for h in heavy)] == []


@pytest.mark.parametrize(("error", "kind"), [(errors.InputError, ValueError), (errors.InputTypeError, TypeError)])
def test_errors_are_of_the_package_and_of_python(error, kind):
    assert issubclass(error, fr.FrontrankError)
    assert issubclass(error, kind)
    assert issubclass(errors.FrontrankWarning, UserWarning)
