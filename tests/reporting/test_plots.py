import sys

import pytest

from frontrank.evaluation import BatchMAP
from frontrank.reporting import plot_ap_error, plot_minibatch_map
from tests.errors import refusal


def test_ap_error_has_a_line_per_name():
    figure = plot_ap_error({"0.1": [0.3, 0.2, 0.1], "0.01": [0.02, 0.01, 0.0]}, x=[10, 20, 30])
    first, second = figure.axes[0].lines
    assert list(first.get_ydata()) == [0.3, 0.2, 0.1]
    assert list(second.get_xdata()) == [10, 20, 30]
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["0.1", "0.01"]


def test_minibatch_map_shows_mean_spread_and_data_set(tmp_path):
    figure = plot_minibatch_map(BatchMAP((32, 64), (0.9, 0.8), (0.1, 0.05), 0.5))
    truth, mean = figure.axes[0].lines
    assert list(truth.get_ydata()) == [0.5, 0.5]
    assert list(mean.get_ydata()) == [0.9, 0.8]
    corners = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert (corners.min(), corners.max()) == (0.75, 1.0)
    figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("errors", "x", "name"), [({}, None, "errors"), ({"a": []}, None, "errors"), ({"a": [1.0]}, [1, 2], "x")]
)
def test_nothing_to_draw(errors, x, name):
    refusal(lambda: plot_ap_error(errors, x=x), name)


def test_without_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refusal(lambda: plot_ap_error({"a": [1.0]}), "frontrank[report]")
