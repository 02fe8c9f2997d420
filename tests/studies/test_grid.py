"""The grid of metrics and relaxations: its cells are the losses they are called after."""

import pytest

from frontrank.comparison.plan import read_plan
from frontrank.settings import find_recipe, read_recipe
from frontrank.training.run import build_loss
from studies import grid
from studies.grid import PUBLISHED, pairs
from studies.study import AGREES, AGREES_IN_PART, DOES_NOT_AGREE
from tests.studies.samples import entry, verdict


def test_every_cell_can_be_trained_and_is_what_it_says():
    recipe = read_recipe(find_recipe("emoji-demo"))
    plan = read_plan(recipe, {"data.path": "emoji"}, losses=",".join(pairs().values()), lrs="1e-4")
    losses = {way.name: build_loss(plan.config(way, 1e-4, 0, "images.csv").loss) for way in plan.ways}
    assert len(losses) == len(pairs()) == 3 * 7 + 1
    cells = {pair: losses[name] for pair, name in pairs().items()}
    assert repr(cells.pop(("bins, 19", "AP"))) == "QuantizedAP(bins=20, tie_aware=False, balance_classes=False)"
    for (row, column), loss in cells.items():
        kind, _, value = row.partition(", ")
        assert str(loss.relaxation).lower().startswith(kind)
        number = 0.2857 if kind == "blackbox" else value if kind == "bins" else float(value.partition(" = ")[2])
        assert f"={number}" in str(loss.relaxation)
        names = {"AP": "AveragePrecision()", "log = D_s": "weighting='log')", "loglog": "weighting='loglog')"}
        assert names.get(column, f"variant='{column}'") in str(loss.metric)


def results_of(new=0.5, published=0.6):
    cells = []
    for (row, column), loss in pairs().items():
        paper = PUBLISHED.get((row, column), "")
        cell = {"relaxation": row, "metric": column, "loss": loss, "published": paper}
        cells.append({**cell, **entry({}, published if paper else new, 0.001)})
    return {"frozen": {"R@1": 0.4}, "cells": cells}


@pytest.mark.parametrize(("new", "word"), [(0.5, AGREES), (0.6, AGREES_IN_PART), (0.65, DOES_NOT_AGREE)])
def test_verdict(new, word):
    results = results_of(new)
    assert verdict(grid.STUDY, results) == word
    assert len(grid.values(results)["level"]) == (11 if word == AGREES_IN_PART else 0)
