"""The command around its subcommands: help, errors, exit statuses, and how it is started."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import frontrank as fr
from frontrank.cli import COMMANDS, main, parse
from frontrank.errors import InterruptedRunError
from tests.cli.conftest import examples

ACTIONS = ["data check", "data emoji", "data emoji-scenes", "data glyphs"]
ACTIONS += ["detect evaluate", "detect predict", "detect train"]
HELP = """
import sys
from frontrank.cli import main
try:
    main([*sys.argv[1:], "--help"])
finally:
    print(*{"torch", "numpy", "timm", "yaml", "jsonargparse"} & {*sys.modules}, file=sys.stderr)
"""


def test_help_lists_the_commands_and_there_is_a_version(run):
    result = run()
    assert (result.status, result.err) == (0, "")
    assert [name for name in COMMANDS if f"\n  {name} " not in result.out] == []
    assert run("--help").out == result.out
    assert run("--version").out == f"frontrank {fr.__version__}\n"


@pytest.mark.processes
@pytest.mark.parametrize("command", ["", *COMMANDS, *ACTIONS])
def test_help_is_quick_and_shows_an_example(command):
    """In a process of its own, which shows what was imported."""
    program = [sys.executable, "-c", HELP, *command.split()]
    done = subprocess.run(program, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "\n")
    assert done.stdout.startswith(f"usage: frontrank {command}".strip())
    assert f"examples:\n  frontrank {command}" in done.stdout or command in ("detect", "search")
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_the_help_parse(command):
    module = importlib.import_module(f"frontrank.cli.{command}")
    texts = [place.__doc__ or "" for place in (module, *vars(module).values()) if callable(place) or place is module]
    texts = [text for text in texts if "examples:" in text]
    lines = [words for text in texts for words in examples(text)]
    assert len(lines) >= 3 * len(texts)
    assert command in {parse(words)[0] for words in lines}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("evalute", "evaluate?"),
        ("--quick", "--quick"),
        ("evaluate a.npy --lables x", "--labels?"),
        ("evaluate a b", "'b'"),
        ("evaluate", "EMBEDDINGS"),
        ("data chekc my_photos", "ACTION"),
        ("data emoji a --size large", "--size"),
        ("detect train --loss.lamb 1", "--loss.lam?"),
    ],
)
def test_wrong_words(run, words, name):
    result = run(*words.split())
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("frontrank")
    assert result.err.count("\n") == 1
    assert name in result.err
    assert "--help" in result.err


@pytest.fixture
def fail(monkeypatch):
    """A function that makes `frontrank evaluate` raise this."""

    def with_error(error):
        def run(options):
            raise error

        monkeypatch.setattr("frontrank.cli.evaluate.run", run)

    return with_error


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (InterruptedRunError("saved"), 130, "saved"),
        (fr.FrontrankError("two\nlines"), 2, "two lines"),
        (MemoryError("Unable to allocate 9 TiB"), 2, "memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), 2, "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, "memory"),
    ],
)
def test_what_goes_wrong_is_one_line(run, fail, error, status, message):
    fail(error)
    result = run("evaluate", "a.npy")
    assert (result.status, result.out, result.err.count("\n")) == (status, "", 1)
    assert result.err.startswith("frontrank evaluate: ")
    assert message in result.err


def test_our_own_mistakes_are_not_hidden(fail):
    fail(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        main(["evaluate", "a.npy"])


@pytest.mark.processes
def test_the_installed_script(tmp_path):
    script = Path(sys.executable).parent / "frontrank"
    done = subprocess.run([script, "demo", "--classes", "3"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--classes" in done.stderr


def closed_pipe():
    """A file that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


@pytest.mark.processes
def test_a_reader_that_goes_away_is_no_error():
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with closed_pipe() as gone:
        program = [sys.executable, "-m", "frontrank", "evaluate", "--help"]
        done = subprocess.run(program, env=buffered, stdout=gone, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_report_is_saved_even_if_nobody_reads_the_table(folder, monkeypatch):
    with closed_pipe() as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert main(["evaluate", "test.npz", "--json", "saved.json", "--quiet"]) == 141
        monkeypatch.undo()
    assert fr.Report.load(folder / "saved.json").queries == 36


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        ("demo --out new", "timm", "demo"),
        ("index runs/first/model my_photos --to new.index", "PIL", "train"),
        ("index runs/first/model my_photos --to new.index", "faiss", "search"),
        ("adapt train.npz --out new.safetensors", "safetensors", "train"),
        ("adapt train.npz --out new.safetensors --onnx new.onnx", "onnxruntime", "export"),
        ("compare --data my_photos --losses triplet --out new --dry-run", "pytorch_metric_learning", "train"),
        ("report runs/first", "jinja2", "report"),
        ("serve photos.index", "uvicorn", "serve"),
    ],
)
def test_a_missing_package_is_one_line_that_names_the_extra(folder, refused, monkeypatch, words, missing, extra):
    for name in [missing, *(name for name in sys.modules if name.startswith(f"{missing}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    assert f"frontrank[{extra}]" in refused(words.split(), missing)
