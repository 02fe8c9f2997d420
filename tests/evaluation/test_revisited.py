import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from frontrank.errors import FrontrankError, InputError, InputTypeError
from frontrank.evaluation import GroundTruth, evaluate_revisited
from frontrank.ranking import exact
from tests.reference import revisited as reference

SETUPS = ["easy", "medium", "hard"]
METRICS = ["mAP", "mP@1", "mP@5", "mP@10"]


def some_ground_truth(queries, items, seed=0, most=6):
    """Random easy, hard and junk items of each query; some lists are empty."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(queries):
        edges = np.cumsum(rng.integers(0, most + 1, 3))
        parts = np.split(rng.permutation(items)[: edges[-1]], edges[:-1])
        found.append(dict(zip(("easy", "hard", "junk"), parts, strict=True)))
    return found


def check(report, expected):
    """A report has the values of the reference, and their means over the queries that have any."""
    assert list(report) == METRICS
    for name in METRICS:
        values = [math.nan if of is None else of[name] for of in expected]
        np.testing.assert_allclose(report.per_query[name], values, rtol=1e-12, atol=0)
        assert report[name] == pytest.approx(np.nanmean(values), rel=1e-12)


def same(first, second):
    """Two reports have the same values, bit for bit."""
    assert dict(first) == dict(second)
    for name in first:
        assert first.per_query[name].tobytes() == second.per_query[name].tobytes()


def on_a_circle(*degrees):
    angles = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([angles.cos(), angles.sin()], 1)


def entry(easy=(), hard=(), junk=()):
    return {"easy": list(easy), "hard": list(hard), "junk": list(junk)}


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float16), (torch.bfloat16, torch.float32)], ids=str
)
def test_equal_to_the_reference(setup, dtypes):
    queries, gallery = torch.randn(9, 5).to(dtypes[0]), torch.randn(40, 5).to(dtypes[1])
    truth = some_ground_truth(9, 40)
    report = evaluate_revisited(queries, gallery, truth, setup)
    check(report, reference.evaluate(queries.tolist(), gallery.tolist(), truth, setup))
    assert report.gallery_size == 40
    assert report.settings == {"setup": setup}


@pytest.mark.parametrize("setup", SETUPS)
def test_many_positives_and_much_junk(setup):
    """More than the routine for few positives takes, and lists that cover most of the gallery."""
    queries, gallery = torch.randn(3, 4), torch.randn(200, 4)
    truth = some_ground_truth(3, 200, most=65, seed=2)
    assert max(len(of["easy"]) for of in truth) > exact.FEW
    expected = reference.evaluate(queries.tolist(), gallery.tolist(), truth, setup)
    check(evaluate_revisited(queries, gallery, truth, setup), expected)


@given(st.data())
def test_ties_anywhere(data):
    """Few directions, so that most items are tied with others at some other length."""
    number, dim = st.integers(-2, 2), 2
    row = st.lists(number, min_size=dim, max_size=dim).filter(any)
    queries = data.draw(st.lists(row, min_size=1, max_size=3))
    gallery = data.draw(st.lists(row, min_size=1, max_size=12))
    kinds = st.lists(st.sampled_from(["easy", "hard", "junk", ""]), min_size=len(gallery), max_size=len(gallery))
    truth = []
    for _ in queries:
        drawn = data.draw(kinds)
        truth.append({kind: [i for i, of in enumerate(drawn) if of == kind] for kind in ("easy", "hard", "junk")})
    setup = data.draw(st.sampled_from(SETUPS))
    expected = reference.evaluate(queries, gallery, truth, setup)
    assume(any(of is not None for of in expected))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    found = evaluate_revisited(torch.tensor(queries, dtype=dtype), torch.tensor(gallery, dtype=dtype), truth, setup)
    check(found, expected)


@pytest.mark.parametrize(
    ("setup", "ap", "at_1", "at_5"),
    [
        # 3 and 0 are taken out: 1+ 2 4. Precision before and at the positive is 1. It is also the last one.
        ("easy", 1, 1, 1),
        # 0 is taken out: 1+ 2 3+ 4. First positive (1 + 1) / 2, second (1/2 + 2/3) / 2 = 7/12; down to the third: 2/3.
        ("medium", (1 + 7 / 12) / 2, 1, 2 / 3),
        # 1 and 0 are taken out: 2 3+ 4. (0 + 1/2) / 2; none at the first place, one among two at the last positive.
        ("hard", 1 / 4, 0, 1 / 2),
    ],
)
def test_by_hand(setup, ap, at_1, at_5):
    report = evaluate_revisited(
        on_a_circle(0), on_a_circle(0, 10, 20, 30, 40), [entry(easy=[1], hard=[3], junk=[0])], setup
    )
    assert dict(report) == pytest.approx({"mAP": ap, "mP@1": at_1, "mP@5": at_5, "mP@10": at_5})


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_a_tie_counts_against_the_model_and_junk_does_not(order):
    """Three items of one direction: the positive comes after the negative, and the junk is not there."""
    gallery = torch.tensor([[1.0, 2.0]]) * torch.tensor(order)[:, None]
    report = evaluate_revisited(torch.tensor([[3.0, 1.0]]), gallery, [entry(easy=[0], junk=[2])])
    assert dict(report) == {"mAP": 1 / 4, "mP@1": 0, "mP@5": 1 / 2, "mP@10": 1 / 2}  # (0 + 1/2) / 2


def test_queries_without_a_positive_are_left_out():
    """Only the first has an easy item, only the second a hard one, the third neither."""
    truth = [entry(easy=[1]), entry(hard=[0], junk=[1]), entry(junk=[0])]
    queries, gallery = on_a_circle(0, 0, 0), on_a_circle(0, 10, 20)
    easy, hard = (evaluate_revisited(queries, gallery, truth, setup) for setup in ("easy", "hard"))
    assert easy["mAP"] == 1 / 4
    assert hard["mAP"] == 1
    both = evaluate_revisited(queries, gallery, truth, "medium")
    assert both["mAP"] == (1 / 4 + 1) / 2
    assert [report.without_positive for report in (easy, hard, both)] == [2, 2, 1]
    for report, empty in ((easy, [1, 2]), (hard, [0, 2]), (both, [2])):
        for name in METRICS:
            assert np.flatnonzero(np.isnan(report.per_query[name])).tolist() == empty
        assert np.flatnonzero(report.positives == 0).tolist() == empty


@pytest.mark.parametrize("setup", SETUPS)
def test_no_positive_at_all(setup):
    kind = "easy" if setup == "hard" else "junk"
    with pytest.raises(InputError, match=setup):
        evaluate_revisited(on_a_circle(0, 5), on_a_circle(0, 10), [entry(**{kind: [0]}), entry()], setup)


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("dtypes", [("f4", "f4"), ("f4", "f8"), ("f2", "f2")], ids=str)
def test_distractors_in_a_mapped_file(tmp_path, setup, dtypes):
    """The same, bit for bit, as a gallery that has them at its end; more rows than are read at once."""
    rng = np.random.default_rng(3)
    queries, gallery, more = (rng.standard_normal((n, 3)) for n in (4, 50, 9000))
    gallery, more = gallery.astype(dtypes[0]), more.astype(dtypes[1])
    more[:50] = gallery  # ties
    np.save(tmp_path / "distractors.npy", more)
    mapped = np.load(tmp_path / "distractors.npy", mmap_mode="r")
    truth = some_ground_truth(4, 50, seed=4)
    found = evaluate_revisited(queries, gallery, truth, setup, distractors=mapped)
    same(found, evaluate_revisited(queries, np.concatenate([gallery, more]), truth, setup))
    assert found.gallery_size == 9050
    assert found["mAP"] < evaluate_revisited(queries, gallery, truth, setup)["mAP"]


BAD = [
    ([entry([0])], InputError, "ground_truth"),
    ("ab", InputTypeError, "ground_truth"),
    (GroundTruth([], [], [], []), InputTypeError, "ground_truth .*GroundTruth"),
    ([entry([0]), [1]], InputError, r"ground_truth\[1\]"),
    ([entry([0]), {"easy": [], "junk": []}], InputError, r"ground_truth\[1\] .*hard"),
    ([entry([0]), entry([], [4])], InputError, r"ground_truth\[1\]\['hard'\] .*4"),
    ([entry([0], junk=[-1]), entry()], InputError, r"ground_truth\[0\]\['junk'\] .*-1"),
    ([entry([0]), entry([2, 1, 2])], InputError, r"ground_truth\[1\]\['easy'\] .*2"),
    ([entry([0], [3], [3]), entry()], InputError, r"ground_truth\[0\] .*3"),
    ([entry([0]), entry([1.0])], InputTypeError, r"ground_truth\[1\]\['easy'\]"),
]


@pytest.mark.parametrize(("truth", "error", "name"), BAD)
def test_bad_ground_truth(truth, error, name):
    with pytest.raises(error, match=name) as raised:
        evaluate_revisited(on_a_circle(0, 5), on_a_circle(0, 10, 20, 30), truth)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("setup", "error"), [("Easy", InputError), (None, InputTypeError)])
def test_bad_setup(setup, error):
    with pytest.raises(error, match="setup"):
        evaluate_revisited(on_a_circle(0), on_a_circle(0, 10), [entry([0])], setup)


def test_bad_rows_and_dimensions():
    queries, gallery, truth = torch.randn(1, 3), torch.randn(4, 3), [entry([0])]
    nan, zero = gallery.clone(), gallery.clone()
    nan[2, 1], zero[3] = math.nan, 0
    for arguments, more, name in (
        ((queries, nan, truth), None, "gallery .*2"),
        ((queries, gallery, truth), nan, "distractors .*2"),
        ((queries, gallery, truth), zero, "distractors .*3"),
        ((queries[:, :2], gallery, truth), None, "queries .*gallery"),
        ((queries, gallery, truth), gallery[:, :2], "gallery .*distractors"),
        ((queries, gallery, truth), gallery[:0], "distractors"),
        ((queries, gallery, truth), gallery.long(), "distractors"),
    ):
        with pytest.raises(FrontrankError, match=name):
            evaluate_revisited(*arguments, distractors=more)
