import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation.compare import Comparison, Difference, compare, compare_over_classes, table_of
from frontrank.evaluation.report import Report
from frontrank.evaluation.statistics import difference_over_classes, interval_over_classes
from tests.errors import refusal
from tests.reference.statistics import bootstrap_interval, sign_flip_p_value

NAN = math.nan


def of(values, name="R@1", **changes):
    fields = {"per_query": {name: values}, "positives": [1] * len(values), "gallery_size": 100}
    return Report.of(**{**fields, **changes})


def pair(queries=60, gain=0.1, seed=0):
    """Two reports of the same queries, the second better; some queries have no positive."""
    rng = np.random.default_rng(seed)
    positives = rng.integers(0, 4, queries)
    score = rng.random(queries)
    reports = []
    for shift in (0, gain):
        moved = np.clip(score + shift + 0.05 * rng.normal(size=queries), 0, 1)
        hits = (moved > 0.5) & (positives > 0)
        per_query = {"R@1": hits, "mAP": np.where(positives > 0, moved, NAN)}
        reports.append(Report.of(per_query, positives, 100, {"NMI": 0.5}))
    return reports


def test_equals_the_references():
    a, b = pair()
    found = compare(a, b, level=0.9, resamples=300, seed=4)
    assert list(found) == ["R@1", "mAP"]
    for name, difference in found.items():
        paired = b.per_query[name] - a.per_query[name]
        low, high = bootstrap_interval(paired.tolist(), 0.9, 300, 4)
        assert difference.low == pytest.approx(low, abs=1e-14)
        assert difference.high == pytest.approx(high, abs=1e-14)
        assert difference.difference == pytest.approx(b[name] - a[name], abs=1e-14)
        assert difference[:2] == (a[name], b[name])
    changed = b.per_query["R@1"] - a.per_query["R@1"]
    assert 0 < np.count_nonzero(changed) <= 12
    assert found["R@1"].p_value == sign_flip_p_value(changed[changed != 0].tolist())
    assert found["mAP"].p_value < 0.01


def test_the_other_way_round_is_the_negative():
    a, b = pair()
    there, back = compare(a, b), compare(b, a)
    for name in there:
        x, y = there[name], back[name]
        assert (y.a, y.b, y.difference, y.p_value) == (x.b, x.a, -x.difference, x.p_value)
        assert (y.low, y.high) == pytest.approx((-x.high, -x.low), abs=1e-14)
    assert (there["mAP"].verdict, back["mAP"].verdict) == ("better", "worse")


def test_verdict():
    unsure = "no clear difference"
    for low, high, verdict in ((0.1, 0.2, "better"), (-0.2, -0.1, "worse"), (0.0, 0.1, unsure), (-0.1, 0.0, unsure)):
        assert Difference(0.5, 0.5, (low + high) / 2, low, high, 0.5).verdict == verdict


def test_only_metrics_of_both():
    a = Report.of({"R@1": [1, 0], "mAP": [1, 0.5]}, [1, 1], 9, {"NMI": 0.5})
    b = Report.of({"mAP": [1, 1], "MRR": [1, 1]}, [1, 1], 9, {"NMI": 0.5})
    found = compare(a, b)
    assert isinstance(found, Mapping)
    assert list(found) == ["mAP"]
    assert len(found) == 1
    assert (found["mAP"].a, found["mAP"].b) == (0.75, 1.0)
    with pytest.raises(KeyError, match="no metric 'NMI'"):
        found["NMI"]


@pytest.mark.parametrize(
    ("a", "b", "names"),
    [
        (of([1, 0]), of([1, 0, 1]), "report_a .*2.*report_b .*3"),
        (of([1, 0, 1]), of([1, 0, 1], positives=[1, 2, 3]), "positives .*number 1"),
        (of([1, NAN, 1], "mAP"), of([1, 0, 1], "mAP"), "mAP .*number 1"),
        (of([1, 0], "R@1"), of([1, 0], "mAP"), "R@1 .*mAP"),
        (Report.of({}, [1], 9, {"NMI": 0.5}), Report.of({}, [1], 9, {"NMI": 0.5}), "none .*none"),
    ],
)
def test_reports_that_cannot_be_compared(a, b, names):
    with pytest.raises(InputError, match=names) as caught:
        compare(a, b)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "settings", "kind", "name"),
    [
        (("a.json", of([1])), {}, InputTypeError, "report_a .*Report.load"),
        ((of([1]), {"R@1": 1}), {}, InputTypeError, "report_b"),
        ((of([1]), of([1])), {"level": 95}, InputError, "level"),
        ((of([1]), of([1])), {"resamples": 0}, InputError, "resamples"),
        ((of([1]), of([1])), {"flips": 10}, InputError, "flips"),
        ((of([1]), of([1])), {"seed": -1}, InputError, "seed"),
        ((of([1]), of([1])), {"names": ("a",)}, InputTypeError, "names"),
    ],
)
def test_bad_arguments(arguments, settings, kind, name):
    with pytest.raises(kind, match=name):
        compare(*arguments, **settings)


# over classes


def test_many_queries_of_few_classes_are_not_sure():
    """Copies of each query change nothing: their class is one witness."""
    labels, hits = np.repeat([0, 1, 2, 3], 30), np.repeat([1.0, 0.0, 1.0, 1.0], 30)
    a, b = (Report.of({"R@1": of}, [29] * 120, 120) for of in (hits * 0, hits))
    assert interval_over_classes(hits, labels) == (0.25, 1.0)
    assert np.ptp(b.interval("R@1")) < 0.2
    change = compare_over_classes(a, b, labels, ("a", "b"))
    assert change["R@1"] == (0, 0.75, *difference_over_classes(hits * 0, hits, labels))
    assert change["R@1"].p_value == 0.25
    assert (change.queries, change.settings["classes"], change.names) == (120, 4, ("a", "b"))
    assert "4 classes" in change.notes[0]


def test_of_one_class_nothing_is_known():
    a, b = (Report.of({"R@1": [value] * 5, "mAP": [value, NAN, NAN, NAN, NAN]}, [1] * 5, 5) for value in (0, 1))
    assert interval_over_classes(a.per_query["R@1"], np.zeros(5)) is None
    assert interval_over_classes(a.per_query["mAP"], np.arange(5)) is None
    for classes, name in ((np.zeros(5), "R@1"), (np.arange(5), "mAP")):
        change = compare_over_classes(a, b, classes, ("a", "b"))[name]
        assert (change.low, change.high, change.verdict) == (-1, 1, "no clear difference")


# printing and files

COMPARISON = Comparison(
    {
        "R@1": Difference(0.74286, 0.65714, -0.08571, -0.1575, -0.01429, 0.0703),
        "mAP": Difference(0.5, 0.5, -1e-9, -0.00001, 0.25, 0.00002),
        "MRR": Difference(0.05, 1.0, 0.95, 0.9, 1.0, 0.0002),
    },
    60502,
    0.9,
    ("old", "PNP-D_q"),
    {"resamples": 100, "flips": 99, "seed": 0},
    ("a note",),
)


def test_text_table():
    first, *_ = lines = str(COMPARISON).split("\n")
    assert re.match("PNP-D_q .* old .*60,502", first)
    assert lines[2:] == [
        "",
        "metric    old  PNP-D_q  difference  90 % interval            p  PNP-D_q is",
        "R@1     74.29    65.71       -8.57  [-15.75,   -1.43]   0.0703  worse",
        "mAP     50.00    50.00        0.00  [  0.00,  +25.00]  <0.0001  unclear",
        "MRR      5.00   100.00      +95.00  [+90.00, +100.00]   0.0002  better",
        "",
        "a note",
    ]


def test_text_fits_a_terminal():
    """With the longest names of metrics, values, names and p that there are."""
    one = Difference(1.0, 1.0, -0.1, -1.0, 1.0, 0.00001)
    metrics = dict.fromkeys(("R-Precision", "dists@intra", "mAP@R"), one)
    for names in (("before", "after"), ("a-long-name-of-a-file", "another-long-name")):
        text = replace(COMPARISON, differences=metrics, names=names).table()
        assert max(map(len, text.splitlines())) <= 80
        assert all(name in text for name in names)


def test_galleries_of_two_sizes_are_noted():
    one, other = of([1, 0]), of([1, 0], gallery_size=1_000_100)
    assert {f"{one.gallery_size:,}", "1,000,100"} <= {*str(compare(one, other)).splitlines()[-1].split()}
    assert compare(of([1, 0]), of([1, 0])).notes == ()


def test_saves_to_json(tmp_path):
    a, b = pair()
    found, path = compare(a, b, names=("old", "new"), seed=2), tmp_path / "c.json"
    found.save(path)
    content = json.loads(path.read_text())
    assert (content["format"], content["version"]) == ("frontrank comparison", 1)
    assert (content["names"], content["level"], content["queries"]) == (["old", "new"], 0.95, 60)
    assert content["settings"] == {"resamples": 1000, "flips": 4999, "seed": 2}
    assert content["differences"]["mAP"] == {**found["mAP"]._asdict(), "verdict": "better"}
    refusal(lambda: found.save(path), "c.json")
    found.save(path, overwrite=True)


# several reports


def test_table_of_several():
    ours = Report.of({"R@1": [1, 1, 0], "mAP": [0.5, 0.5, 0.25]}, [1, 1, 1], 9, {"dists@intra": 0.25})
    theirs = Report.of({"R@1": [1, 0, 0], "mAP": [0.5, 0.5, 0.5]}, [1, 1, 1], 9, {"NMI": 0.25, "dists@intra": 0.5})
    assert table_of({"ours": ours, "their_s": theirs}).split("\n")[1:] == [
        "",
        "           R@1    mAP  dists@intra    NMI",
        "ours     66.67  41.67        0.250      -",
        "their_s  33.33  50.00        0.500  25.00",
    ]
    assert table_of({"ours": ours, "their_s": theirs}, "markdown").split("\n")[2:] == [
        "|          |       R@1 |       mAP | dists@intra |       NMI |",
        "| -------- | --------: | --------: | ----------: | --------: |",
        "| ours     | **66.67** |     41.67 |       0.250 |         - |",
        r"| their\_s |     33.33 | **50.00** |       0.500 | **25.00** |",
    ]
    latex = table_of({"ours": ours, "their_s": theirs}, "latex")
    assert r"their\_s &          33.33 & \textbf{50.00} &       0.500 & \textbf{25.00} \\" in latex


@pytest.mark.parametrize("other", [of([1, 1, 1]), of([1, 1], positives=[1, 2]), of([1, 1], gallery_size=50)])
def test_nothing_is_best_among_other_queries(other):
    found = table_of({"a": of([1, 0]), "b": other}, "markdown")
    assert "**" not in found
    assert found.split("\n")[:2] == ["in %", ""]
    assert "queries | gallery |" in found
    assert f"| {other.queries:>7} | {other.gallery_size:>7} |" in found


@pytest.mark.parametrize(("reports", "kind"), [({}, InputError), ({"a": {"R@1": 1}}, InputTypeError)])
def test_bad_reports(reports, kind):
    refusal(lambda: table_of(reports), "reports", error=kind)
