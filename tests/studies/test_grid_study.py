"""The grid of metrics and relaxations: its cells are the losses they are called after."""

import pytest

from frontrank.comparison.plan import read_plan
from frontrank.settings import find_recipe, read_recipe
from frontrank.training.run import build_loss
from studies import grid
from studies.grid import PUBLISHED, pairs
from tests.studies.made_up import entry


def test_every_cell_can_be_trained_and_is_what_it_says():
    recipe = read_recipe(find_recipe("emoji-demo"))
    plan = read_plan(recipe, {"data.path": "emoji"}, losses=",".join(pairs().values()), lrs="1e-4")
    losses = {way.name: build_loss(plan.config(way, 1e-4, 0, "images.csv").loss) for way in plan.ways}
    assert len(losses) == len(pairs()) == 3 * 7 + 1
    found = {pair: losses[name] for pair, name in pairs().items()}
    assert repr(found.pop(("bins, 19", "AP"))) == "QuantizedAP(bins=20, tie_aware=False, balance_classes=False)"
    for (row, column), loss in found.items():
        kind, _, value = row.partition(", ")
        assert str(loss.relaxation).lower().startswith(kind)
        assert f"={value if kind == 'bins' else float(value.partition(' = ')[2])}" in str(loss.relaxation)
        names = {"AP": "AveragePrecision()", "log = D_s": "weighting='log')", "loglog": "weighting='loglog')"}
        assert names.get(column, f"variant='{column}'") in str(loss.metric)


def test_published_pairs():
    known = {pair: PUBLISHED[pair] for pair in pairs() if pair in PUBLISHED}
    assert len(known) == len(PUBLISHED), "a pair that is not in the grid"
    assert known[("sigmoid, τ = 0.05", "D_q")] == "PNP"
    assert known[("blackbox, λ = 32", "loglog")] == "RaMBO"
    assert (known[("bins, 10", "AP")], known[("bins, 19", "AP")]) == ("FastAP", "AP_Q")
    assert {pair for pair in pairs() if pair not in known} == {
        ("sigmoid, τ = 0.05", "loglog"),
        *(("bins, 10", metric) for metric in grid.METRICS if metric != "AP"),
        *(("blackbox, λ = 32", metric) for metric in ("O", "I_u", "I_b", "D_q")),
    }


def results(new_pair=0.5, best=0.6):
    cells = []
    for (row, column), loss in pairs().items():
        paper = PUBLISHED.get((row, column), "")
        mean = best if paper else new_pair
        made = entry({}, mean, 0.001)
        cells.append({"relaxation": row, "metric": column, "loss": loss, "published": paper, **made})
    return {"frozen": {"R@1": 0.4}, "cells": cells}


@pytest.mark.parametrize(
    ("new_pair", "said"),
    [(0.5, "**Agrees**: the best new pair"), (0.6, "**Agrees in part**"), (0.65, "**Does not agree**: the best new")],
)
def test_the_verdict_follows_from_what_was_measured(new_pair, said):
    assert said in grid.told(results(new_pair))


def test_the_criterion_and_the_searches_are_told(monkeypatch):
    found = results()
    assert "It agrees if every new pair is below the best published one" in grid.told(found)
    monkeypatch.setattr(grid, "_LRS", "1e-4,3e-4,4e-4")
    assert "Of 22 searches for a learning rate, none chose the lowest" in grid.told(found)
    found["cells"][7]["lr"] = 4e-4
    found["cells"][8] |= {"lr": None, "values": {}}
    said = grid.told(found)
    assert "Of 21 searches for a learning rate, 1 chose" in said
    assert "so these could still gain: AP on bins, 10." in said


def test_pairs_that_failed_are_said_and_drawn():
    found = results()
    found["cells"][7] = {**found["cells"][7], "values": {}}
    assert "Diverged: AP on bins, 10." in grid.told(found)
    assert set(grid.figures(found)) == {"grid"}
