"""The ledger is what the saved results make it, and quotes what recipes quote."""

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from frontrank.cli import evaluate, parse
from frontrank.cli.inputs import option_flags
from frontrank.cli.train import overrides
from frontrank.detection.settings import DetectConfig
from frontrank.evaluation.protocols import PROTOCOLS
from frontrank.settings import TrainConfig, find_recipe, read_config, read_recipe
from frontrank.training.run import build_loss
from studies import all_studies
from studies.trained import LEAST

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LEDGER = yaml.load((DOCS / "ledger.yaml").read_text(encoding="utf-8"), yaml.BaseLoader)
TABLES = {"PNP": 7, "Smooth-AP": 5, "AP_Q": 2, "FastAP": 3, "RaMBO": 8}


def _module(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(DOCS), *sys.path])
        patch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    return module


page = _module("ledger_page")
ROWS = [
    (paper["paper"], table, row) for paper in LEDGER["papers"] for table in paper["tables"] for row in table["rows"]
]
BLOCKS = {
    (paper["paper"], table["table"]): page.commands(table, LEDGER, ROOT)
    for paper in LEDGER["papers"]
    for table in paper["tables"]
}


@pytest.fixture(scope="module")
def text():
    """The page as it is made now."""
    return page.ledger(ROOT, DOCS / "studies" / "results")


def test_the_page_is_that_of_the_repository(text):
    assert text == (DOCS / "ledger.md").read_text(encoding="utf-8"), "run docs/build_studies.py"


def test_no_file_is_left_of_studies_that_no_longer_exist():
    names = [path.name for path in (DOCS / "studies").iterdir() if path.is_file() and path.name != "README.md"]
    assert [name for name in names if not name.startswith(tuple(all_studies()))] == []
    assert {path.stem for path in (DOCS / "studies" / "results").glob("*.json")} == set(all_studies())


# What the ledger is made of


def test_every_table_of_every_paper():
    there = {
        paper["paper"]: {table["table"].partition(",")[0] for table in paper["tables"]} for paper in LEDGER["papers"]
    }
    assert {*there} - {*TABLES} == {"Recall@k", "ROADMAP", "HAPPIER"}  # later papers, of which single figures are known
    assert {name: there[name] for name in TABLES} == {
        name: {str(number) for number in range(1, count + 1)} for name, count in TABLES.items()
    }


def test_sources_are_studies_or_files():
    for source in LEDGER["sources"].values():
        assert source["text"]
        assert source["on"]
        assert source.get("study", "smooth-ap-indicator") in all_studies()
        assert "file" not in source or (ROOT / source["file"]).is_file()


def test_every_row_is_whole():
    for paper, table, row in ROWS:
        where = f"{paper}, Table {table['table']}, {row['row']}"
        assert "paper" in row or "here" in row, where
        assert len(row.get("paper", table["columns"])) == len(table["columns"]), where
        assert {*row} <= {"row", "paper", "recipe", "options", "evaluated", "command", "why", "here", "as"}, where
        sources = sum(name in row for name in ("recipe", "command", "why"))
        assert sources == ("paper" in row and table.get("unit") != "count"), where
        assert "here" not in row or row["here"]["source"] in LEDGER["sources"], where
        assert "needs" not in table or table["needs"] in LEDGER["missing"], where
        here = all("here" in each for each in table["rows"])
        assert "needs" in table or here or table["table"] in ("1", "6"), where


def _read(command):
    """Return the options of a command, as its parser reads them."""
    name, *words = shlex.split(command)
    assert name == "frontrank"
    return parse(words)[1]


def _recipes(row):
    return row["recipe"].split(", ") if "recipe" in row else []


def test_every_row_can_be_trained():
    """The recipe with the options of the row makes settings that go together, and a loss."""
    for name, options, train in {
        (name, row.get("options", ""), BLOCKS[paper, table["table"]][0][0])
        for paper, table, row in ROWS
        for name in _recipes(row)
    }:
        kind = DetectConfig if name.startswith("detect-") else TrainConfig
        given = overrides(_read(f"{train.replace('RECIPE', name)} {options}"), kind)
        assert set(re.findall(r"--([a-z]+\.[a-z_]+)", options)) <= {*given}, name
        config = read_config(read_recipe(find_recipe(name, kind), kind), given, kind)
        if kind is TrainConfig:
            build_loss(config.loss, classes=10, dim=8)


def test_every_table_says_how_to_train_and_to_test():
    for paper, table, row in ROWS:
        blocks = BLOCKS[paper, table["table"]]
        assert len(blocks) >= len(_recipes(row))
        for block in blocks:
            assert " train --recipe RECIPE " in block[0]
            assert "--out RUN" in block[0]
            assert re.match(r"frontrank (detect )?evaluate ", block[-1])


def test_every_command_is_read():
    lines = {line for blocks in BLOCKS.values() for block in blocks for line in block}
    lines |= {
        f"{line} {row['evaluated']}"
        for paper, table, row in ROWS
        for block in BLOCKS[paper, table["table"]]
        for line in block
        if "evaluated" in row and line.startswith("frontrank evaluate")
    }
    for command in lines:
        options = _read(command)
        if command.startswith("frontrank evaluate"):
            assert options.protocol in PROTOCOLS
            if options.data is None:
                evaluate.check_combination(options)
            else:
                assert option_flags(options, evaluate._NOT_OF_MODELS) == []


def _figures_to_quote(paper, table, row):
    if (paper, table["table"], row["row"]) in (("RaMBO", "2", "FastAP"), ("RaMBO", "4", "FastAP, its Matlab code")):
        return row["paper"][:1]  # RaMBO quotes another row of FastAP's table beside it
    if "--loss.name" in row.get("options", "") and "merged" not in row["recipe"]:
        return []  # another loss than the recipe's
    if "options" in row or table["table"] == "8":
        return row["paper"][:1] if paper == "PNP" else []
    return [
        value
        for name, value in zip(table["columns"], row["paper"], strict=True)
        if name[:2] in ("R@", "mA", "AP", "RO", "RP") and "+1M" not in name
    ]


def test_recipes_quote_the_same_figures():
    """The two were read from the papers independently."""
    for paper, table, row in ROWS:
        if len(_recipes(row)) != 1 or (paper == "Smooth-AP" and table["table"].startswith("5")):
            continue
        text = (ROOT / "recipes" / f"{row['recipe']}.yaml").read_text(encoding="utf-8").split("\n\n")[0]
        for value in _figures_to_quote(paper, table, row):
            assert value in text or value.removeprefix("0") in text, f"{row['recipe']}: {value}"


def test_every_recipe_of_a_paper_is_in_the_ledger():
    named = {name for *_, row in ROWS for name in _recipes(row)}
    assert {path.stem for path in (ROOT / "recipes").glob("*.yaml") if "emoji" not in path.stem} == named


# What is computed


def gap_of(*rows, columns=("R@1",), **table):
    """Return the gap of rows: what the paper has, what was measured here."""
    given = [{"row": name, "paper": there} for name, (there, _) in zip("abc", rows, strict=False)]
    return page._gap({"columns": list(columns), "rows": given, **table}, [here for _, here in rows])


def test_order_of_rows():
    text = gap_of((["3"], {"R@1": [0.5] * 2}), (["2"], {"R@1": [0.7] * 2}), (["1"], {"R@1": [0.501, 0.499]}))
    assert "1 of 3 pairs" in text
    assert "round: a and b;" in text
    assert "counts: a and c." in text
    assert text.endswith(": 2.0 there, 20.0 here.")


@pytest.mark.parametrize(
    ("here_a", "here_b", "counts"),
    [
        ([0.52, 0.53, 0.54], [0.5, 0.51, 0.49], True),  # 3 points, 95 % of which are 2.3 around
        ([0.52, 0.55, 0.52], [0.5, 0.52, 0.48], False),  # 3 points, more than one standard deviation, and 4 around
        ([0.9], [0.1], False),  # one seed
    ],
)
def test_rows_are_in_an_order_by_the_rule_of_the_studies(here_a, here_b, counts):
    for first, second in ((here_a, here_b), (here_b, here_a)):
        text = gap_of((["2"], {"R@1": first}), (["1"], {"R@1": second}))
        assert ("counts: a and b" in text) is not counts
        assert f"{int(counts and first is here_a)} of 1 pairs" in text
        assert ("round: a and b" in text) is (counts and second is here_a)


def test_rows_without_an_order():
    assert "0 of 0 pairs" in gap_of((["1"], {"R@1": [0.5]}), (["1"], {"R@1": [0.7]}))  # equal in the paper
    assert gap_of((["1"], {"R@1": [0.5]}), (["2"], {"mAP": [0.5]}), columns=["there"], order=["there", "R@1"]) == ""


def test_emoji_in_the_ledger_are_those_of_the_results(text):
    """One figure all the way, by hand."""
    entries = json.loads((DOCS / "results" / "emoji.json").read_text())["entries"]
    (values,) = [each["values"]["R@1"] for each in entries if each["name"] == "PNP-D_q"]
    (line,) = re.findall(r"\| PNP-D_q \| paper \| 80\.1 .*\n(.*)\n", text)
    assert line.startswith(f"|  | here, emoji | {100 * sum(values) / 3:.1f} ± ")
    assert line.endswith("| 3 | [emoji](#emoji) |")


def test_studies_that_are_not_run_are_named_by_their_command(tmp_path):
    assert "python -m studies apq-triplet" in page.ledger(ROOT, tmp_path)


def test_the_rule_of_the_studies_is_on_the_page(text):
    assert f"more than {LEAST:g} points" in text.split("\n## ")[0].replace("\n", " ")
