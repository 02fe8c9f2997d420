"""`frontrank data emoji` and `frontrank data glyphs`: what they say, and that what they build can be trained on."""

import shlex
import shutil

import pytest

import frontrank as fr
from frontrank.cli import data as command
from frontrank.errors import InputError
from frontrank.samples import emoji, glyphs
from tests.cli.images import TINY
from tests.samples import fake_emoji

START = "--backbone tf_efficientnet_lite0 --weights package --data.size 64 --data.resize 64"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, and small packages of emoji."""
    made = fake_emoji.write_archives(tmp_path / "packages")
    monkeypatch.setattr(emoji, "fetch", lambda packages, show=None: [made[package] for package in packages])
    monkeypatch.setattr(emoji, "COUNTS", {})
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_emoji(here, run):
    found = run("data", "emoji", "my emoji")
    assert (found.status, found.err) == (0, "")
    table = fr.data.read_table("my emoji/images.csv")
    assert found.out == (
        f"{table.describe()}\n\n"
        "the images are in my emoji, their table is my emoji/images.csv\n"
        "no class is both in train and in test: the test is on classes that training never saw\n"
        "the drawings have licences of their own, see my emoji/LICENCES.md\n"
        f"next: frontrank train --data 'my emoji' {START} --out runs/first\n"
    )
    again = run("data", "emoji", "my emoji")
    assert (again.out, again.err) == (found.out, "")


def test_the_next_command_trains(here, run):
    """On the folder, on its table, and wherever the folder is moved to."""
    found = run("data", "emoji", "my emoji")
    words = shlex.split(found.out.splitlines()[-1].replace(f" {START}", ""))[2:]
    assert run(*words, *TINY, "--quiet").status == 0
    assert (here / "runs" / "first" / "model").is_dir()
    assert run("train", "--data", "my emoji/images.csv", *TINY, "--quiet", "--out", "second").status == 0
    assert (here / "second" / "images.csv").read_text() == (here / "runs/first/images.csv").read_text().replace(
        "../../", "../"
    )
    shutil.move("my emoji", "moved")
    assert run("data", "check", "moved").out.endswith(" images can be read\n")


def test_options_of_emoji(here, run):
    found = run("data", "emoji", "out", "--classes", 4, "--size", 20, "--skin-tones")
    assert found.status == 0, found.err
    table = fr.data.read_table("out/images.csv")
    assert len(set(table.labels)) == 4
    assert fr.data.read_image(table.files()[0]).size == (20, 20)
    assert "is built with skin_tones true (not false)" in run("data", "emoji", "out", "--classes", 4, "--size", 20).err


def test_fewer_classes_come_out_than_were_asked_for(here, run, monkeypatch):
    """As pictures turn out to be the same once they are drawn."""
    asked, usual = [], emoji._keep_distinct

    def sifted(folder, jobs):
        asked.extend({job.emoji.label for job in jobs})
        return [job for job in usual(folder, jobs) if job.emoji.label != asked[0]]

    assert "came out" not in run("data", "emoji", "four", "--classes", 4, "--size", 20).out
    monkeypatch.setattr(emoji, "_keep_distinct", sifted)
    found = run("data", "emoji", "out", "--classes", 4, "--size", 20)
    assert "\n3 classes came out, not 4: the pictures of others turned out to be the same or blank\n" in found.out


def test_examples_of_emoji(here, run, monkeypatch):
    monkeypatch.setattr(emoji, "SIZE", 16)
    for line in command.EMOJI_EPILOG.splitlines()[1:]:
        words = shlex.split(line)[1:]
        if "--classes" in words:
            words[-1] = "4"  # there are not forty here
        assert run(*words).status == 0


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("glyphs glyphs", {}),
        ("glyphs glyphs-sop --like sop", {"like": "sop"}),
        ("glyphs few --classes 100 --typefaces small", {"classes": 100, "typefaces": "small"}),
        ("glyphs few --typefaces uming,ukai", {"typefaces": ["uming", "ukai"]}),
        ("glyphs few --typefaces 'uming, ukai ,'", {"typefaces": ["uming", "ukai"]}),
        ("glyphs few --typefaces ' small'", {"typefaces": "small"}),
        ("glyphs few --size 20 --any-version", {"size": 20, "any_version": True}),
    ],
)
def test_options_of_glyphs(here, run, monkeypatch, words, given):
    calls = []

    def build(out, **options):
        calls.append((out, options))
        return fr.ImageTable(here, ["a/1.png"], ["a"], [""], ["test"], [""])

    monkeypatch.setattr(glyphs, "build_glyphs", build)
    found = run("data", *shlex.split(words))
    out = words.split()[1]
    assert calls == [(out, {"any_version": False, **given})]
    assert found.out.endswith(f"next: frontrank train --data {out} {START} --out runs/first\n")
    if "--any" not in words and "," not in words and "'" not in words:
        assert f"  frontrank data {words}\n" in command.GLYPHS_EPILOG


@pytest.mark.parametrize("error", [InputError("npm is not here; install it"), KeyboardInterrupt()])
def test_what_goes_wrong(here, run, monkeypatch, error):
    def fail(packages, show=None):
        raise error

    monkeypatch.setattr(emoji, "fetch", fail)
    found = run("data", "emoji", "out")
    assert found.err == f"frontrank data: {str(error) or 'interrupted'}\n"
    assert (found.status, found.out) == (130 if isinstance(error, KeyboardInterrupt) else 2, "")
    monkeypatch.undo()


def test_a_folder_of_something_else(here, run):
    (here / "photos").mkdir()
    (here / "photos" / "1.jpg").touch()
    found = run("data", "emoji", "photos")
    assert (found.status, found.out) == (2, "")
    assert found.err == "frontrank data: photos holds something else; give a new folder for the data\n"
