"""Pages of studies and the ledger are what the saved results make them, and the ledger quotes what recipes quote."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import matplotlib
import pytest
import yaml

from frontrank.config_detection import DetectConfig
from frontrank.settings import find_recipe, settings
from frontrank.studies import all_studies

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
        assert (f"[{study.title}]({name}.md)" if there else f"not run yet: `frontrank study {name}`") in index


def test_a_study_that_was_run_has_its_page(tmp_path, monkeypatch):
    from frontrank.studies.study import Effort, run_study

    study = all_studies()["smooth-ap-indicator"]
    run_study(study, tmp_path / "out", Effort(tmp_path / "work", quick=True), "frontrank study smooth-ap-indicator")
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
    assert {*row} <= {"row", "paper", "recipe", "options", "then", "command", "here", "as"}
    assert not ("recipe" in row and "command" in row)
    if "here" in row:
        assert row["here"]["source"] in LEDGER["sources"]
    assert "needs" not in table or table["needs"] in LEDGER["missing"]
    assert "needs" in table or all("here" in each for each in table["rows"]) or table["table"] in ("1", "6")


@every_row
def test_options_are_settings(paper, table, row):
    names = row.get("recipe", "").split(", ") if "recipe" in row else []
    kind = DetectConfig if names and names[0].startswith("detect-") else None
    known = set(settings(kind)) if kind else set(settings())
    given = re.findall(r"--([a-z]+\.[a-z_]+)", row.get("options", "") + row.get("command", ""))
    assert set(given) <= known
    for name in names:
        assert (ROOT / "recipes" / f"{name}.yaml").is_file()
    for name in re.findall(r"--recipe (\S+)", row.get("command", "")):
        assert find_recipe(name)


@pytest.mark.parametrize(("paper", "table", "row"), [each for each in ROWS if _has_one_recipe(*each.values)])
def test_recipes_quote_the_same_figures(paper, table, row):
    """The two were read from the papers apart."""
    text = (ROOT / "recipes" / f"{row['recipe']}.yaml").read_text(encoding="utf-8").split("\n\n")[0]
    said = re.sub(r"\s+", " ", text.replace("\n#", " "))
    if (paper, table["table"], row["row"]) in (("RaMBO", "2", "FastAP"), ("RaMBO", "4", "FastAP, its Matlab code")):
        figures = row["paper"][:1]  # RaMBO quotes another row of FastAP's table beside it
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
        named |= set(row.get("recipe", "").split(", ")) | set(re.findall(r"--recipe (\S+)", row.get("command", "")))
    there = {path.stem for path in (ROOT / "recipes").glob("*.yaml") if "emoji" not in path.stem}
    assert there == named - {""}


# What is computed


def test_order_of_rows():
    table = {
        "columns": ["R@1"],
        "rows": [{"row": name, "paper": [there]} for name, there in zip("abc", ("3", "2", "1"), strict=True)],
    }
    here = [{"R@1": [0.5, 0.5]}, {"R@1": [0.7, 0.7]}, {"R@1": [0.5, 0.3]}]
    text = page._gap(table, here)
    assert "by R@1, 1 of 3 pairs of rows" in text
    assert "the other way round: a and b;" in text
    assert "closer than the spread over seeds: a and c." in text
    assert text.endswith("these rows: 2.0 there, 30.0 here.")


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
    budgets = (("AP_Q", 448, 40, 0.5), ("triplet", 448, 40, 0.45), ("triplet", 112, 160, 0.4))
    rows = [
        {
            "loss": loss,
            "size": size,
            "updates": steps,
            "backwards": 17920,
            "forwards": 17920,
            "values": {"mAP": [value]},
        }
        for loss, size, steps, value in budgets
    ]
    margins = [
        {"margin": margin, "memory": memory, "R@1": values}
        for margin, memory, values in ((True, True, [0.6, 0.62]), (True, False, [0.5, 0.5]), (False, True, []))
    ]
    return {
        "smooth-ap-ablation": {"columns": ablation},
        "apq-triplet": {"rows": rows},
        "rambo-ablation": {"entries": margins},
    }


def test_figures_of_studies_come_in_when_they_are_run(tmp_path):
    for name, found in _of_studies().items():
        kept = {"study": name, "command": f"frontrank study {name}", "machine": "2 cores of x", "found": found}
        (tmp_path / f"{name}.json").write_text(json.dumps(kept))
    text = page.ledger(ROOT, tmp_path)
    assert "Not run yet" not in text
    assert "On 2 cores of x. Every figure: [apq-triplet.json](studies/results/apq-triplet.json)." in text
    assert "|  | here, emoji | - | - | 0.500 ± 0.000 | 2 | [ablation](#ablation) |" in text
    assert "by mAP VGGFace2 there and mAP here, 1 of 3 pairs" in text  # of temperatures
    assert (
        "| AP_Q, batches of 448 | here, emoji | - | - | - | - | 17,920 | 17,920 | 40 | - | - | - | 50.0 | 1 |" in text
    )
    assert "|  | here, emoji | - | - | - | 61.0 ± 1.4 | 2 | [margins](#margins) |" in text
    assert "|  | here, emoji | - | - | - | - | 0 | [margins](#margins) |" in text  # diverged
    assert "by CUB200 there and R@1 here, 1 of 1 pairs" in text


def test_a_path_that_leads_nowhere_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="a / b=2: 0 elements are b=2"):
        page._at({"a": [{"b": 1}]}, ["a", "b=2"])


def test_the_head_says_what_cannot_be_compared(files):
    head = files["ledger.md"].decode().split("\n## ")[0]
    assert "never edited by hand" in head
    assert "only the *order* of the rows can be compared" in head
