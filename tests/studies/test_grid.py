"""The grid of metrics and relaxations: its cells are the losses they are called after."""

from frontrank.comparison.plan import read_plan
from frontrank.settings import find_recipe, read_recipe
from frontrank.training.run import build_loss
from studies.grid import pairs


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
        number = value if kind == "bins" else float(value.partition(" = ")[2])
        assert f"={number}" in str(loss.relaxation)
        names = {"AP": "AveragePrecision()", "log = D_s": "weighting='log')", "loglog": "weighting='loglog')"}
        assert names.get(column, f"variant='{column}'") in str(loss.metric)
