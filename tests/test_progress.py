import builtins
import sys
import time

import pytest

from frontrank import progress as module
from frontrank.progress import progress


@pytest.fixture(params=["rich", "plain"])
def drawn_by(request, monkeypatch, capsys):
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True)  # pytest puts another object there for the test
    monkeypatch.setenv("TERM", "xterm")
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
    assert ("\x1b" in err) == (drawn_by == "rich")


@pytest.mark.parametrize(("show", "patience"), [(None, 0.0), (False, 0.0), (True, 60.0)])
def test_nothing_is_drawn_where_nobody_looks_or_the_work_is_short(show, patience, monkeypatch, capsys):
    monkeypatch.setattr(module, "_PATIENCE", patience)
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
