"""The package as a whole: its public names, what importing it loads, and its exceptions."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import frontrank as fr
from frontrank import errors

PUBLIC = [
    "Adapter", "AllClassesBatches", "BalancedBatches", "BlackboxAP", "BlackboxRecall", "CategoryBatches",
    "ClassifierAP", "CombinedLoss", "Embedder", "EmbeddingMemory", "FastAP", "FrontrankError", "HierarchicalAP",
    "ImageTable", "Index", "Item", "PNP", "PairMargin", "QuantizedAP", "ROADMAP", "RankLoss", "RecallAtK", "Report",
    "SmoothAP", "SmoothNDCG", "SupAP", "TrainConfig", "Whitening", "augment_database", "compare", "embed_table",
    "evaluate", "evaluate_revisited", "evaluate_scores", "evaluation", "expand_queries", "gather",
    "multistage_backward", "protocols", "ranking", "rerank", "resume", "train",
]  # fmt: skip


def test_public_names():
    assert fr.__all__ == PUBLIC
    assert {*PUBLIC, "losses", "settings", "__version__"} <= {*dir(fr)}
    assert [name for name in [*PUBLIC, *fr._SUBMODULES] if not hasattr(fr, name)] == []
    assert fr.__getattr__("losses").PNP is fr.PNP
    assert fr.protocols is fr.evaluation.protocols
    assert not hasattr(fr, "losess")


def test_the_citation_is_of_this_version():
    text = (Path(__file__).parents[1] / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {fr.__version__}\n" in text


def test_type_checkers_and_python_see_the_same_names():
    tree = ast.parse(Path(fr.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = {alias.asname: node.module for node in block.body for alias in node.names}
    names = {name: f"frontrank.{module}" for name, module in fr._MODULES.items()}
    assert imports == {**names, **dict.fromkeys(fr._SUBMODULES, "frontrank")}


def loaded_modules(code):
    """The modules that some code loads, in a process of its own."""
    program = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_public_name_stands_once():
    """But for what every command has, and for a metric and the loss on it."""
    places = {}
    for file in Path(fr.__file__).parent.rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                places.setdefault(node.name, set()).add(file)
    twice = {name for name, files in places.items() if len(files) > 1}
    assert twice == {"add_arguments", "main", "run", "HierarchicalAP", "RecallAtK"}


@pytest.mark.processes
def test_importing_the_package_and_its_base_modules_loads_nothing_heavy():
    light = "import frontrank, frontrank.checks, frontrank.errors, frontrank.files, frontrank.losses.registry"
    loaded = loaded_modules(f"{light}, frontrank.detection.settings, frontrank.tables, frontrank.cli")
    assert "frontrank.settings" in loaded
    assert loaded & {"torch", "numpy", "timm", "yaml", "frontrank.data", "frontrank.losses.pnp"} == set()


@pytest.mark.processes
def test_public_names_need_torch_and_numpy_only():
    loaded = loaded_modules("from frontrank import *") - loaded_modules("import torch")
    assert "frontrank.losses.pnp" in loaded
    heavy = (
        *("matplotlib", "scipy", "sklearn", "torchvision", "timm", "pandas", "pyarrow", "safetensors", "faiss", "rich"),
        *("PIL", "torch._dynamo", "torch._inductor"),
    )
    assert [name for name in loaded if any(name == h or name.startswith(f"{h}.") for h in heavy)] == []


@pytest.mark.parametrize(("error", "kind"), [(errors.InputError, ValueError), (errors.InputTypeError, TypeError)])
def test_errors_are_of_the_package_and_of_python(error, kind):
    assert issubclass(error, fr.FrontrankError)
    assert issubclass(error, kind)
    assert issubclass(errors.FrontrankWarning, UserWarning)
