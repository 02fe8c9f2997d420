import builtins
import sys
import time

import pytest

from frontrank import progress as module
from frontrank.progress import progress


@pytest.fixture(params=["rich", "plain"])
def drawn_by(request, monkeypatch, capsys):
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    if request.param == "plain":
        real = builtins.__import__

        def without(name, *args, **kwargs):
            if name.startswith("rich"):
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", without)
    return request.param


def test_a_bar_is_drawn_on_stderr_and_goes_away(drawn_by, capsys):
    with progress("ranking", 4, show=True) as step:
        for _ in range(4):
            time.sleep(0.1)
            step(1)
    out, err = capsys.readouterr()
    assert out == ""
    assert "ranking" in err
    assert "%" in err


@pytest.mark.parametrize("show", [None, False])
def test_nothing_is_drawn_where_nobody_looks(show, monkeypatch, capsys):
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    with progress("ranking", 2, show=show) as step:
        step(1)
        step(1)
    assert capsys.readouterr() == ("", "")


def test_an_error_inside_ends_the_bar(drawn_by, capsys):
    def work():
        with progress("ranking", 3, show=True) as step:
            step(1)
            step(1)
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        work()
    assert capsys.readouterr().out == ""
