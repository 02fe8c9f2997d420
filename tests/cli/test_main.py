"""The command around its subcommands: help, errors, exit statuses, and how it is started."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import frontrank as fr
from frontrank.cli import evaluation, main

SCRIPT = Path(sys.executable).parent / "frontrank"


def test_without_arguments_it_prints_its_help(run):
    found = run()
    assert found.status == 0
    assert found.out.startswith("usage: frontrank")
    assert all(f"\n    {name} " in found.out for name in ("demo", "train", "evaluate", "index", "search", "serve"))
    assert found.err == ""
    assert run("--help").out == found.out


def test_version(run):
    assert run("--version").out == f"frontrank {fr.__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evalute"], "frontrank: there is no command 'evalute'; did you mean evaluate? See frontrank --help"),
        (["indx"], "frontrank: there is no command 'indx'; did you mean index? See frontrank --help"),
        (["polish"], "frontrank: there is no command 'polish'; see frontrank --help"),
        (["--quick"], "frontrank: unrecognized arguments: --quick; see frontrank --help"),
        (
            ["evaluate", "a.npy", "--lables", "x"],
            "frontrank evaluate: there is no option --lables; did you mean --labels? See frontrank evaluate --help",
        ),
        (
            ["evaluate", "a.npy", "--metric=R@1"],
            "frontrank evaluate: there is no option --metric; did you mean --metrics? See frontrank evaluate --help",
        ),
        (["evaluate", "a", "b"], "frontrank evaluate: 'b' is one argument too many; see frontrank evaluate --help"),
        (
            ["evaluate"],
            "frontrank evaluate: the following arguments are required: EMBEDDINGS; see frontrank evaluate --help",
        ),
    ],
)
def test_wrong_words(run, words, message):
    found = run(*words)
    assert (found.status, found.out, found.err) == (2, "", message + "\n")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (fr.FrontrankError("labels is wrong"), 2, "labels is wrong"),
        (fr.FrontrankError("two\nlines"), 2, "two lines"),
        (MemoryError("Unable to allocate 9 TiB"), 2, "out of memory; free some, or use a machine or --device"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), 2, "out of memory; "),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, "out of memory; "),
    ],
)
def test_what_goes_wrong_is_one_line(run, monkeypatch, error, status, message):
    def fail(options):
        raise error

    monkeypatch.setattr(evaluation, "run", fail)
    found = run("evaluate", "a.npy")
    assert (found.status, found.out) == (status, "")
    assert found.err.startswith(f"frontrank evaluate: {message}")
    assert found.err.count("\n") == 1


def test_our_own_mistakes_are_not_hidden(monkeypatch):
    def fail(options):
        raise RuntimeError("a bug")

    monkeypatch.setattr(evaluation, "run", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["evaluate", "a.npy"])


def test_as_a_module(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["frontrank", "evaluate", "test.npz"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("frontrank", run_name="__main__")
    assert ended.value.code == 0
    assert "mAP" in capsys.readouterr().out


def test_installed_script_in_an_empty_folder(tmp_path):
    found = subprocess.run([SCRIPT, "evaluate", "test.npy"], cwd=tmp_path, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "frontrank evaluate: test.npy is not there; check its name and the folder .\n"


WITHOUT_TORCH = [  # the package itself is put aside: whether `import frontrank` needs torch is not the command's to say
    sys.executable,
    "-c",
    "import sys, types; package = types.ModuleType('frontrank'); package.__path__ = [sys.argv[1]]; "
    "package.__version__ = '0'; sys.modules['frontrank'] = package; from frontrank.cli import main\n"
    "try: sys.exit(main(sys.argv[2:]))\n"
    "finally: print({'torch', 'numpy'} & set(sys.modules), file=sys.stderr)",
    str(Path(fr.__file__).parent),
]


@pytest.mark.parametrize("name", ["evaluate", "index", "search", "serve"])
def test_help_needs_no_torch(name):
    found = subprocess.run([*WITHOUT_TORCH, name, "--help"], capture_output=True, text=True)
    assert found.stdout.startswith(f"usage: frontrank {name}")
    assert (found.returncode, found.stderr) == (0, "set()\n")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([SCRIPT, "evaluate", "test.npz", "--json", "kept.json", "--quiet"], ""),
        ([*WITHOUT_TORCH, "evaluate", "--help"], "set()\n"),
    ],
)
def test_a_reader_that_goes_away_is_no_error(folder, command, said):
    """Nothing can be printed and nothing is said, but the report is saved."""
    reading, writing = os.pipe()
    os.close(reading)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with os.fdopen(writing, "w") as gone:
        found = subprocess.run(command, env=buffered, stdout=gone, stderr=subprocess.PIPE, text=True)
    assert (found.returncode, found.stderr) == (141, said)
    assert "--json" not in command or fr.Report.load(folder / "kept.json").queries == 36
