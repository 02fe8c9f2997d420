"""`frontrank data emoji-scenes`: what it is given goes to the builder, and what came out is said."""

import pytest

from frontrank.cli import main
from frontrank.errors import InputError
from frontrank.samples import scenes as emoji_scenes
from frontrank.samples.scenes import SceneCounts


@pytest.fixture
def asked(monkeypatch):
    calls = []

    def build(out, **given):
        calls.append((out, given))
        if given.get("size") == 1:
            raise InputError("size must be at least 64, got 1")
        return SceneCounts({"train": 2000, "test": 500}, {"train": 6856, "test": 1767}, {"train": 173, "test": 45})

    monkeypatch.setattr(emoji_scenes, "build_emoji_scenes", build)
    return calls


def test_what_is_said(asked, capsys):
    assert main(["data", "emoji-scenes", "my scenes"]) == 0
    said = capsys.readouterr().out
    assert asked == [("my scenes", {})]
    assert "train   2,000    6,856        173" in said
    assert "next: frontrank detect train --recipe detect-emoji-rambo --data 'my scenes'" in said


def test_options(asked):
    assert main(["data", "emoji-scenes", "out", "--scenes", "40", "--size", "96", "--seed", "3"]) == 0
    assert asked == [("out", {"scenes": 40, "size": 96, "seed": 3})]


def test_refusals(asked, capsys):
    assert main(["data", "emoji-scenes", "out", "--size", "1"]) == 2
    assert capsys.readouterr().err == "frontrank data: size must be at least 64, got 1\n"
    with pytest.raises(SystemExit):
        main(["data", "emoji-scenes", "out", "--clases", "3"])
    assert "there is no option --clases" in capsys.readouterr().err
