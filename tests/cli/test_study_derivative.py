"""`frontrank study pnp-designer --derivative`."""

import pytest


def test_the_command(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("study", "pnp-designer", "--quick", "--derivative", "R/(1+R)", "--out", "out")
    assert done.status == 0
    assert "\n    frontrank study pnp-designer --quick --derivative 'R/(1+R)'\n" in done.out
    assert (tmp_path / "out" / "designer.html").stat().st_size < 150_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pnp-gradients", "--derivative", "1"], "--derivative is of pnp-designer, not of pnp-gradients; leave it out"),
        (["pnp-designer", "--derivative", "1/(1+R"], "derivative '1/(1+R', position 3: this ( is never closed"),
        (["pnp-designer", "--derivative", "R-1"], "f'(0) = -1"),
        (["pnp-designer", "--derivative", "1", "--redraw"], "--derivative has no effect beside --redraw"),
    ],
)
def test_what_the_command_refuses(words, said, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("study", *words)
    assert done.status != 0
    assert said in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
