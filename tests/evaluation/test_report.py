import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation.report import Report
from tests.errors import refusal
from tests.reference.statistics import bootstrap_interval

NAN = math.nan


def a_report(queries=50, seed=0, **changes):
    rng = np.random.default_rng(seed)
    positives = rng.integers(1, 5, queries)
    positives[1:4] = 0
    hits = (rng.random(queries) < 0.8) & (positives > 0)
    precision = np.where(positives > 0, rng.random(queries), NAN)
    given = {
        "per_query": {"R@1": hits.astype(float), "R@10": np.maximum(hits, positives > 1), "mAP": precision},
        "positives": positives,
        "gallery_size": 1200,
        "whole": {"NMI": 0.9, "dists@intra": 0.3125},
        "name": "test",
        "notes": ("a note", "another"),
        "settings": {"seed": 3, "setup": "medium", "share": 0.5, "exact": True, "limit": None},
    }
    return Report.of(**{**given, **changes})


def test_is_a_mapping():
    report = Report.of({"R@1": [1, 0, 1, 0], "mAP": [0.5, NAN, 1.0, 0.75]}, [1, 0, 2, 1], 7, {"NMI": 0.5})
    assert isinstance(report, Mapping)
    assert list(report.items()) == [("R@1", 0.5), ("mAP", 0.75), ("NMI", 0.5)]  # mAP: 2.25 / 3
    assert report.get("MRR") is None
    assert (report.queries, report.without_positive, report.gallery_size) == (4, 1, 7)
    assert (report.positives.dtype, report.per_query["R@1"].dtype) == (np.int64, np.float64)
    with pytest.raises(FrozenInstanceError):
        report.name = "other"


def test_input_is_copied_and_then_constant():
    hits, positives, whole = np.array([1.0, 0.0]), np.array([1, 1]), {"NMI": 0.5}
    report = Report.of({"R@1": hits}, positives, 3, whole)
    hits[:], positives[:], whole["NMI"] = 0, 0, 0.1
    assert report.per_query["R@1"].tolist() == [1, 0]
    assert report.positives.tolist() == [1, 1]
    assert report["NMI"] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        report.per_query["R@1"][0] = 0
    with pytest.raises(ValueError, match="read-only"):
        report.positives[0] = 0


# intervals


def test_intervals_equal_the_loop():
    report = a_report()
    assert list(report.intervals) == ["R@1", "R@10", "mAP"]
    for name, found in report.intervals.items():
        expected = bootstrap_interval(report.per_query[name].tolist(), 0.95, 1000, 0)
        assert found == pytest.approx(expected, abs=1e-14)
    expected = bootstrap_interval(report.per_query["mAP"].tolist(), 0.5, 150, 7)
    assert report.interval("mAP", level=0.5, resamples=150, seed=7) == pytest.approx(expected, abs=1e-14)


def test_no_interval_without_values_per_query():
    assert Report.of({}, [1], 9, {"NMI": 0.5}).intervals == {}
    refusal(lambda: a_report().interval("NMI"), "NMI")
    with pytest.raises(KeyError, match="no metric 'MRR'"):
        a_report().interval("MRR")


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"level": 95}, InputError),
        ({"resamples": 10}, InputError),
        ({"seed": -1}, InputError),
        ({"seed": None}, InputTypeError),
    ],
)
def test_bad_settings_of_an_interval(settings, kind):
    with pytest.raises(kind, match=next(iter(settings))):
        a_report().interval("mAP", **settings)


# bad input

ONE = {"per_query": {"R@1": [1.0, 0.0]}, "positives": [1, 1], "gallery_size": 5}


@pytest.mark.parametrize(
    ("changes", "kind", "name"),
    [
        ({"positives": []}, InputError, "positives"),
        ({"positives": [1.0, 1.0]}, InputTypeError, "positives"),
        ({"positives": [[1], [1, 2]]}, InputTypeError, "positives"),
        ({"positives": [-1, 1]}, InputError, "positives"),
        ({"positives": [1, 6]}, InputError, "gallery_size"),
        ({"gallery_size": 5.0}, InputError, "gallery_size"),
        ({"per_query": {"R@1": [1.0]}}, InputError, "R@1"),
        ({"per_query": {"R@1": ["x", "y"]}}, InputTypeError, "R@1"),
        ({"per_query": {"mAP": [NAN, NAN]}}, InputError, "mAP"),
        ({"per_query": {"R@1": [80.0, 0]}}, InputError, "R@1"),
        ({"per_query": {}}, InputError, "metric"),
        ({"whole": {"R@1": 0.6}}, InputError, "R@1"),
        ({"whole": {"NMI": NAN}}, InputError, "NMI"),
        ({"whole": {"dists@intra": 10**400}}, InputError, "dists@intra"),
        ({"name": 3}, InputTypeError, "name"),
        ({"notes": "a note"}, InputTypeError, "notes"),
        ({"settings": {"k": [1]}}, InputTypeError, "settings"),
        ({"settings": {"k": NAN}}, InputError, "settings"),
    ],
)
def test_bad_fields(changes, kind, name):
    with pytest.raises(kind, match=name) as caught:
        Report.of(**{**ONE, **changes})
    assert "\n" not in str(caught.value)


def test_metrics_must_be_the_means():
    assert Report({"R@1": np.float32(0.5)}, **ONE)["R@1"] == 0.5
    refusal(lambda: Report({"R@1": 0.6}, **ONE), "R@1")
    assert dict(Report({"NMI": 0.6}, **ONE)) == {"R@1": 0.5, "NMI": 0.6}


# printing


def lines_of(report, format="text"):
    return report.table(format).split("\n")


def test_text_table():
    report = Report.of(
        {"R@1": [1, 0, 0, 1], "R@10": [1, 1, 0, 1], "mAP": [0.5, 0.5, NAN, 0.5]},
        [1, 2, 0, 1],
        1200,
        {"NMI": 0.90214, "dists@intra": 0.31254},
        name="SOP test",
        notes=("three starts",),
        settings={"seed": 0, "setup": "hard"},
    )
    assert lines_of(report)[0] == "SOP test"
    assert re.match("4 queries, .*1,200", lines_of(report)[1])
    assert lines_of(report)[3:] == [
        "",
        "metric           %  95 % interval",
        "R@1          50.00  [ 0.00, 100.00]",
        "R@10         75.00  [25.00, 100.00]",
        "mAP          50.00  [50.00,  50.00]",
        "NMI          90.21",
        "dists@intra  0.313  cosine distance",
        "",
        "seed: 0, setup: hard",
        "three starts",
    ]
    assert str(report) == report.table() == report.table("text")
    assert repr(report) == "Report(R@1=0.5000, R@10=0.7500, mAP=0.5000, NMI=0.9021, dists@intra=0.3125; 4 queries)"
    assert "| R@1         | 50.00 | [ 0.00, 100.00] |" in report.table("markdown")
    assert r"R@1         & 50.00 & [ 0.00, 100.00] \\" in report.table("latex")
    assert report.table("csv").splitlines()[4] == "NMI,90.21,"
    assert '<th scope="row">NMI</th><td class="n">90.21</td>' in report.table("html")


@pytest.mark.parametrize(
    ("lacking", "names", "line"),
    [
        (0, ["R@1", "mAP"], "every query"),
        (1, ["R@1", "R@5", "P@5"], "1 query .*: R@k and P@k count "),
        (2, ["mAP", "mAP@R"], "2 queries .*: mAP and mAP@R leave "),
        (1500, ["R@1", "mP@1", "mP@5", "mAP", "MRR"], "1,500 queries .*: R@k counts .*; mP@k, mAP and MRR leave "),
        (3, [], "3 queries [^:]*$"),
    ],
)
def test_what_becomes_of_queries_without_a_positive(lacking, names, line):
    positives = np.array([0] * lacking + [1] * 5)
    without = np.where(positives > 0, 1, NAN)
    per_query = {name: without if name.startswith("m") or name == "MRR" else np.nan_to_num(without) for name in names}
    report = Report.of(per_query, positives, 10, {"NMI": 0.5})
    assert re.match(line, lines_of(report)[1])


# files


def assert_same(first, second):
    assert dict(first) == dict(second)
    assert list(first) == list(second)
    assert list(first.per_query) == list(second.per_query)
    for name, values in first.per_query.items():
        np.testing.assert_array_equal(values, second.per_query[name])
    np.testing.assert_array_equal(first.positives, second.positives)
    for field in ("gallery_size", "name", "notes", "settings"):
        assert getattr(first, field) == getattr(second, field)


def test_round_trip_is_exact(tmp_path):
    report = a_report()
    report.save(tmp_path / "report.json")
    assert_same(Report.load(str(tmp_path / "report.json")), report)
    assert replace(report).settings is not report.settings  # nobody else's changes reach a report
    assert os.listdir(tmp_path) == ["report.json"]


def saved(tmp_path):
    a_report(queries=5).save(tmp_path / "whole.json", overwrite=True)
    return json.loads((tmp_path / "whole.json").read_text())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("per_query", {"R@1": [True, 1, 1, 1, 1]}),
        ("per_query", {"R@1": [1, 1]}),
        ("metrics", {"NMI": 0.9}),
        ("metrics", []),
        ("positives", [10**30] * 5),
        ("gallery_size", "12"),
    ],
)
def test_files_with_a_bad_field(tmp_path, field, value):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**saved(tmp_path), field: value}))
    with pytest.raises(InputError, match=rf"bad\.json .*{field}") as caught:
        Report.load(path)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        refusal(lambda path=path: Report.load(path), path.name)
    refusal(lambda: Report.load(None), "path", error=InputTypeError)
