"""Pages of studies and the ledger are what the saved results make them, and the ledger quotes what recipes quote."""

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import matplotlib
import pytest
import yaml

from frontrank.cli import evaluate, parse
from frontrank.cli.train import overrides
from frontrank.detection.settings import DetectConfig
from frontrank.evaluation.protocols import PROTOCOLS
from frontrank.settings import TrainConfig, find_recipe, read_config, read_recipe
from frontrank.training.run import build_loss
from studies import all_studies
from studies.over_seeds import LEAST

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LEDGER = yaml.load((DOCS / "ledger.yaml").read_text(encoding="utf-8"), yaml.BaseLoader)
TABLES = {"PNP": 7, "Smooth-AP": 5, "AP_Q": 2, "FastAP": 3, "RaMBO": 8}
PATHS = re.compile(r"/tmp/|/home/|/root/|/Users/|/work/")


def _module(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(DOCS), *sys.path])
        patch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    return module


build, page = _module("build_studies"), _module("ledger_page")
ROWS = [
    pytest.param(paper["paper"], table, row, id=f"{paper['paper']}-{table['table']}-{row['row']}")
    for paper in LEDGER["papers"]
    for table in paper["tables"]
    for row in table["rows"]
]


def _has_one_recipe(paper, table, row):
    return "," not in row.get("recipe", ",") and not (paper == "Smooth-AP" and table["table"].startswith("5"))


every_row = pytest.mark.parametrize(("paper", "table", "row"), ROWS)


@pytest.fixture(scope="module")
def files():
    return build.written()


def _drawn_by(svg):
    return re.search(rb"Matplotlib v[\d.]+", svg)[0]


def test_nothing_is_edited_by_hand(files):
    """Text is the same byte for byte; drawings too, where the same version of matplotlib draws them."""
    mine = f"Matplotlib v{matplotlib.__version__}".encode()
    changed = []
    for name, content in files.items():
        path = DOCS / name
        assert path.is_file(), f"{name} is missing; run: python docs/build_studies.py"
        there = path.read_bytes()
        as_before = path.suffix in (".md", ".html", ".csv", ".json") or (
            path.suffix == ".svg" and _drawn_by(there).startswith(mine)
        )
        if as_before and there != content:
            changed.append(name)
    assert changed == [], "run: python docs/build_studies.py"


def test_nothing_is_left_of_studies_that_are_no_more(files):
    there = {f"studies/{path.name}" for path in (DOCS / "studies").iterdir() if path.is_file()}
    assert there == {name for name in files if name.startswith("studies/")}
    assert {path.stem for path in (DOCS / "studies" / "results").glob("*.json")} <= set(all_studies())


@pytest.mark.parametrize("path", sorted((DOCS / "studies" / "results").glob("*.json")), ids=lambda path: path.stem)
def test_saved_results(path):
    text = path.read_text(encoding="utf-8")
    kept = json.loads(text)
    assert kept["study"] == path.stem
    assert not kept["quick"]
    assert len(text) < 150_000
    assert not PATHS.search(text)


def test_the_index_has_all_studies(files):
    index = files["studies/README.md"].decode()
    for name, study in all_studies().items():
        there = (DOCS / "studies" / "results" / f"{name}.json").exists()
        assert (f"[{study.title}]({name}.md)" if there else f"not run yet: `python -m studies {name}`") in index


def test_a_study_that_was_run_has_its_page(tmp_path, monkeypatch):
    from studies.study import Effort, run_study

    study = all_studies()["smooth-ap-indicator"]
    run_study(study, tmp_path / "out", Effort(tmp_path / "work", quick=True), "python -m studies smooth-ap-indicator")
    (tmp_path / "results").mkdir()
    (tmp_path / "out" / "results.json").rename(tmp_path / "results" / "smooth-ap-indicator.json")
    files = build.written(tmp_path / "results")
    text = files["studies/smooth-ap-indicator.md"].decode()
    assert "(smooth-ap-indicator-indicator.svg)" in text
    assert files["studies/smooth-ap-indicator-indicator.svg"].decode() == (
        tmp_path / "out" / "indicator.svg"
    ).read_text(encoding="utf-8")
    assert f"[{study.title}](smooth-ap-indicator.md) | Fig. 2 | agrees |" in files["studies/README.md"].decode()


def test_links_to_what_a_study_makes_beside_figures(tmp_path):
    from dataclasses import replace

    study = replace(
        all_studies()["smooth-ap-indicator"],
        figures=lambda found: {},
        told=lambda found: "**Agrees**: [try it](try.html)",
        more=lambda found: {"try.html": b"<p>"},
    )
    made = dict.fromkeys(("command", "seed", "frontrank", "torch", "machine"), "x")
    files = build.study_files(study, {"found": {}, "quick": False, **made})
    assert files["smooth-ap-indicator-try.html"] == b"<p>"
    assert b"[try it](smooth-ap-indicator-try.html)" in files["smooth-ap-indicator.md"]


# What the ledger is made of


def test_every_table_of_every_paper():
    there = {
        paper["paper"]: {table["table"].partition(",")[0] for table in paper["tables"]} for paper in LEDGER["papers"]
    }
    assert there == {name: {str(number) for number in range(1, count + 1)} for name, count in TABLES.items()}


def test_sources_are_studies_or_files():
    for source in LEDGER["sources"].values():
        assert source["told"]
        assert source["on"]
        assert source.get("study", "smooth-ap-indicator") in all_studies()
        assert "file" not in source or (ROOT / source["file"]).is_file()


@every_row
def test_a_row_is_whole(paper, table, row):
    assert "paper" in row or "here" in row
    assert len(row.get("paper", table["columns"])) == len(table["columns"])
    assert {*row} <= {"row", "paper", "recipe", "options", "evaluated", "command", "why", "here", "as"}
    assert sum(name in row for name in ("recipe", "command", "why")) == (
        "paper" in row and table.get("unit") != "count"
    )
    if "here" in row:
        assert row["here"]["source"] in LEDGER["sources"]
    assert "needs" not in table or table["needs"] in LEDGER["missing"]
    assert "needs" in table or all("here" in each for each in table["rows"]) or table["table"] in ("1", "6")


def _read(command):
    """The options of a command, as its parser reads them."""
    name, *words = shlex.split(command)
    assert name == "frontrank"
    return parse(words)[1]


def _recipes(row):
    return row["recipe"].split(", ") if "recipe" in row else []


BLOCKS = {
    f"{paper['paper']}-{table['table']}": page.commands(table, LEDGER, ROOT)
    for paper in LEDGER["papers"]
    for table in paper["tables"]
}


@pytest.mark.parametrize(("paper", "table", "row"), [each for each in ROWS if "recipe" in each.values[2]])
def test_rows_train_and_are_tested(paper, table, row):
    """The recipe with the options of the row makes settings that go together, and a loss; then comes an evaluation."""
    blocks = BLOCKS[f"{paper}-{table['table']}"]
    assert len(blocks) >= len(_recipes(row))
    for name in _recipes(row):
        kind = DetectConfig if name.startswith("detect-") else TrainConfig
        given = overrides(_read(f"{blocks[0][0].replace('RECIPE', name)} {row.get('options', '')}"), kind)
        config = read_config(read_recipe(find_recipe(name, kind), kind), given, kind)
        assert set(re.findall(r"--([a-z]+\.[a-z_]+)", row.get("options", ""))) <= {*given}
        if kind is TrainConfig:
            build_loss(config.loss, classes=10, dim=8)
    for line in (line for block in blocks for line in block if line.startswith("frontrank evaluate")):
        assert _read(f"{line} {row.get('evaluated', '')}")


@pytest.mark.parametrize("name", [name for name, blocks in BLOCKS.items() if blocks])
def test_tables_say_how_to_train_and_to_test(name):
    for block in BLOCKS[name]:
        assert " train --recipe RECIPE " in block[0]
        assert "--out RUN" in block[0]
        assert re.match(r"frontrank (detect )?evaluate ", block[-1])


@pytest.mark.parametrize("command", sorted({line for each in BLOCKS.values() for block in each for line in block}))
def test_commands_are_read(command):
    options = _read(command)
    if command.startswith("frontrank evaluate"):
        assert options.protocol in PROTOCOLS
        if options.data is None:
            evaluate.check_combination(options)
        else:
            assert evaluate._flags(options, evaluate._NOT_OF_MODELS) == []


@pytest.mark.parametrize(("paper", "table", "row"), [each for each in ROWS if _has_one_recipe(*each.values)])
def test_recipes_quote_the_same_figures(paper, table, row):
    """The two were read from the papers apart."""
    text = (ROOT / "recipes" / f"{row['recipe']}.yaml").read_text(encoding="utf-8").split("\n\n")[0]
    said = re.sub(r"\s+", " ", text.replace("\n#", " "))
    if (paper, table["table"], row["row"]) in (("RaMBO", "2", "FastAP"), ("RaMBO", "4", "FastAP, its Matlab code")):
        figures = row["paper"][:1]  # RaMBO quotes another row of FastAP's table beside it
    elif "--loss.name" in row.get("options", "") and "merged" not in row["recipe"]:
        figures = []  # another loss than the recipe's
    elif "options" in row or table["table"] == "8":
        figures = row["paper"][:1] if paper == "PNP" else []
    else:
        figures = [
            value
            for name, value in zip(table["columns"], row["paper"], strict=True)
            if name[:2] in ("R@", "mA", "AP", "RO", "RP") and "+1M" not in name
        ]
    missing = [value for value in figures if value not in said and value.removeprefix("0") not in said]
    assert not missing


def test_every_recipe_of_a_paper_is_in_the_ledger():
    named = set()
    for _, _, row in (each.values for each in ROWS):
        named |= set(_recipes(row))
    there = {path.stem for path in (ROOT / "recipes").glob("*.yaml") if "emoji" not in path.stem}
    assert there == named


# What is computed


def test_order_of_rows():
    table = {
        "columns": ["R@1"],
        "rows": [{"row": name, "paper": [there]} for name, there in zip("abc", ("3", "2", "1"), strict=True)],
    }
    here = [{"R@1": [0.5, 0.5]}, {"R@1": [0.7, 0.7]}, {"R@1": [0.501, 0.499]}]
    text = page._gap(table, here)
    assert "by R@1, 1 of 3 pairs of rows" in text
    assert "the other way round: a and b;" in text
    assert "no difference here that counts: a and c." in text
    assert text.endswith("these rows: 2.0 there, 20.0 here.")


@pytest.mark.parametrize(
    ("here_a", "here_b", "counts"),
    [
        ([0.52, 0.53, 0.54], [0.5, 0.51, 0.49], True),  # 3 points, 95 % of which are 2.3 around
        ([0.52, 0.55, 0.52], [0.5, 0.52, 0.48], False),  # 3 points, more than one standard deviation, and 4 around
        ([0.503, 0.504, 0.504], [0.5, 0.5, 0.5], False),  # certain, and less than half a point
        ([0.9], [0.1], False),  # one seed
        ([0.9, 0.9], [0.1], False),
    ],
)
def test_rows_are_in_an_order_by_the_rule_of_the_studies(here_a, here_b, counts):
    table = {"columns": ["R@1"], "rows": [{"row": "a", "paper": ["2"]}, {"row": "b", "paper": ["1"]}]}
    for first, second in ((here_a, here_b), (here_b, here_a)):
        text = page._gap(table, [{"R@1": first}, {"R@1": second}])
        assert ("no difference here that counts: a and b" in text) is not counts
        assert f"{int(counts and first is here_a)} of 1 pairs" in text
        assert ("the other way round: a and b" in text) is (counts and second is here_a)


def test_figures_are_added_and_multiplied():
    assert page._joined("sum", [1, 2, 3]) == [6]
    assert page._joined("sum", [[0.5, 0.6]]) == [0.5, 0.6]
    assert page._joined("product", [[0.5, 1.0], 40]) == [20.0, 40.0]  # seconds of a step by seed, steps


def test_rows_that_are_equal_in_the_paper_have_no_order():
    table = {"columns": ["R@1"], "rows": [{"row": name, "paper": ["1.0"]} for name in "ab"]}
    assert "0 of 0 pairs" in page._gap(table, [{"R@1": [0.5]}, {"R@1": [0.7]}])


def test_values_are_read_by_place_and_by_name():
    data = {"a": [{"name": "x", "values": {"R@1": [0.5, 0.7]}}, {"name": "y", "n": 3}]}
    assert page._at(data, ["a", "x", "values", "R@1"]) == [0.5, 0.7]
    assert page._at(data, ["a", "1", "n"]) == 3


@pytest.mark.parametrize(
    ("values", "unit", "column", "said"),
    [
        ([0.5, 0.7], "percent", "R@1", "60.0 ± 14.1"),
        ([0.629], "percent", "R@1", "62.9"),
        ([0.393], "percent", "dists@intra", "0.393"),
        ([0.85], "fraction", "mAP", "0.850"),
        ([0.0046178], "seconds", "100k", "4.6 ms"),
        ([4.0636], "seconds", "10M", "4.06 s"),
        ([59551], "count", "images", "59,551"),
        ([1.084], "power", "time", "n^1.08"),
        ([27.0, 33.0], "percent", "time", "0.5 min"),
        ([0], "percent", "extra lines", "0"),
        (None, "percent", "R@1", "-"),
    ],
)
def test_how_values_are_shown(values, unit, column, said):
    assert page._shown(values, unit, column) == said


def test_emoji_in_the_ledger_are_those_of_the_results(files):
    """One figure all the way, by hand."""
    values = next(
        e for e in json.loads((DOCS / "results" / "emoji.json").read_text())["entries"] if e["name"] == "PNP-D_q"
    )
    mean = sum(values["values"]["R@1"]) / 3
    text = files["ledger.md"].decode()
    (line,) = re.findall(r"\| PNP-D_q \| paper \| 80\.1 .*\n(.*)\n", text)
    assert line.startswith(f"|  | here, emoji | {100 * mean:.1f} ± ")
    assert line.endswith("| 3 | [emoji](#emoji) |")


def test_what_notes_say_of_the_emoji():
    entries = {each["name"]: each for each in json.loads((DOCS / "results" / "emoji.json").read_text())["entries"]}
    own = {name.removeprefix("PNP-"): each for name, each in entries.items() if name.startswith("PNP-")}
    assert {name: each["lr"] for name, each in own.items() if each["lr"] != 3e-4} == {
        **dict.fromkeys(("O", "I_u", "I_b"), 1e-4),
        "D_s": 1e-3,
    }
    within = {name: each["mean"]["dists@intra"] for name, each in own.items()}
    assert min(within, key=within.get) == "D_s"
    assert within["D_q"] < within["O"]
    for metric in ("NMI", "dists@inter"):
        values = {name: each["mean"][metric] for name, each in own.items()}
        assert sorted(values, key=values.get)[3:] in (["D_s", "D_q"], ["D_q", "D_s"])
    lambdas = json.loads((DOCS / "results" / "emoji-lam.json").read_text())["entries"]
    assert max(each["mean"]["R@1"] for each in lambdas) < entries["FastAP"]["mean"]["R@1"]
    assert entries["BlackboxRecall-log"]["settings"].get("loss.lam", 4.0) == 4.0


def _of_studies():
    """What the studies of the ledger keep, with figures that are made up."""
    columns = {
        "temperature": ("0.001", "0.01", "0.1"),
        "positives": ("2", "4", "8"),
        "batch, same steps": ("64", "128", "256"),
    }
    ablation = {
        name: [{"value": value, "mAP": [0.4 + 0.1 * place, 0.4 + 0.1 * place]} for place, value in enumerate(values)]
        for name, values in columns.items()
    }
    budgets = (("AP_Q", 448, 40, 0.5), ("triplet", 448, 40, 0.45), ("triplet", 112, 320, 0.4))
    rows = [
        {
            "loss": loss,
            "size": size,
            "updates": steps,
            "backwards": size * steps,
            "forwards": size * steps,
            "seconds": [0.9, 0.9],
            "values": {"mAP": [value, value]},
        }
        for loss, size, steps, value in budgets
    ]
    margins = [
        {"margin": margin, "memory": memory, "R@1": values}
        for margin, memory, values in ((True, True, [0.61, 0.611]), (True, False, [0.5, 0.5]), (False, True, []))
    ]
    lists = [{"length": length, "seconds": length / 1e7} for length in (100_000, 1_000_000, 10_000_000)]
    return {
        "smooth-ap-ablation": {"columns": ablation},
        "apq-triplet": {"rows": rows, "lines": {"AP_Q": 0, "triplet": 3}},
        "rambo-ablation": {"entries": margins},
        "rambo-speed": {"rows": lists},  # the longest was left out
    }


def _kept(folder, studies):
    for name, found in studies.items():
        kept = {"study": name, "command": f"python -m studies {name}", "machine": "2 cores of x", "found": found}
        (folder / f"{name}.json").write_text(json.dumps(kept))


def test_figures_of_studies_come_in_when_they_are_run(tmp_path):
    _kept(tmp_path, _of_studies())
    text = page.ledger(ROOT, tmp_path)
    assert "Not run yet" not in text
    assert "On 2 cores of x. Every figure: [apq-triplet.json](studies/results/apq-triplet.json)." in text
    assert "|  | here, emoji | - | - | 0.500 ± 0.000 | 2 | [ablation](#ablation) |" in text
    assert "by mAP VGGFace2 there and mAP here, 1 of 3 pairs" in text  # of temperatures
    here = "here, emoji | - | - | - | -"
    assert f"| AP_Q, batches of 448 | {here} | 17,920 | 17,920 | 40 | - | 0 | 0.6 min | 50.0 ± 0.0 | 2 |" in text
    assert f"| triplets, batches of 112 | {here} | 35,840 | 35,840 | 320 | - | 3 | 4.8 min | 40.0 ± 0.0 | 2 |" in text
    assert "|  | here, emoji | - | - | - | 61.1 ± 0.1 | 2 | [margins](#margins) |" in text
    assert "|  | here, emoji | - | - | - | - | failed | [margins](#margins) |" in text  # diverged
    assert "by CUB200 there and R@1 here, 1 of 1 pairs" in text
    assert "| BlackboxAP, up to 100M | here, drawn scores | 10.0 ms | 100.0 ms | 1.00 s | - |" in text
    assert "; BlackboxAP, up to 100M takes 0.30, 0.30, 0.26 times the paper's time." in text


def test_what_a_study_leaves_out_has_failed(tmp_path):
    studies = _of_studies()
    del studies["apq-triplet"]["rows"][0]
    _kept(tmp_path, studies)
    text = page.ledger(ROOT, tmp_path)
    dashes = " | ".join("-" * 11)
    assert f"| AP_Q, batches of 448 | here, emoji | {dashes} | failed | [triplets](#triplets) |" in text
    assert "by ROxf M there and mAP here, 1 of 1 pairs" in text  # of those that are left


def test_what_a_study_has_twice_is_an_error(tmp_path):
    studies = _of_studies()
    studies["apq-triplet"]["rows"] *= 2
    _kept(tmp_path, studies)
    with pytest.raises(ValueError, match="2 elements are loss=AP_Q"):
        page.ledger(ROOT, tmp_path)


def test_no_gap_where_one_row_is_left():
    table = {"columns": ["there"], "order": ["there", "R@1"], "rows": [{"row": name, "paper": ["1"]} for name in "ab"]}
    assert page._gap(table, [{"R@1": [0.5]}, {"mAP": [0.5]}]) == ""


def test_times_are_of_the_first_row():
    table = {
        "unit": "seconds",
        "columns": ["1k", "1M"],
        "rows": [{"row": "CPU", "paper": ["10 ms", "2 s"], "as": "sorting"}, {"row": "ours"}, {"row": "none"}],
    }
    here = [{"1k": [0.02], "1M": [2.0]}, {"1k": [0.001]}, None]
    said = "sorting takes 2.00, 1.00 times the paper's time; ours takes 0.10 times the paper's time."
    assert page._gap(table, here) == f"on another processor, {said}"


def test_a_path_that_leads_nowhere_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="a / b=2: 0 elements are b=2"):
        page._at({"a": [{"b": 1}]}, ["a", "b=2"])
    assert page._at({"a": [{"b": 1}]}, ["a", "b=2", "c"], may_lack=True) is None
    with pytest.raises(ValueError, match="2 elements are b=1"):
        page._at({"a": [{"b": 1}, {"b": 1}]}, ["a", "b=1"], may_lack=True)
    with pytest.raises(KeyError):
        page._at({"a": [{"b": 1}]}, ["a", "c=1"], may_lack=True)


def test_the_head_says_what_cannot_be_compared(files):
    head = files["ledger.md"].decode().split("\n## ")[0]
    assert "never edited by hand" in head
    assert "only the *order* of the rows can be compared" in head
    assert f"it is more than {LEAST:g} points, and its 95 % interval over seeds" in head.replace("\n", " ")


def test_notes_name_the_study_of_merged_classes():
    (tables,) = (paper["tables"] for paper in LEDGER["papers"] if paper["paper"] == "PNP")
    for table in (each for each in tables if each["table"] in ("6", "7")):
        assert "[pnp-merged](studies/pnp-merged.md)" in table["note"]
        assert "48 px" in table["note"]
        assert "32 px" in table["note"]
