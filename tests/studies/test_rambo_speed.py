"""rambo-speed: what is left out, how time grows, the verdict; no times are tested."""

from pathlib import Path

import pytest
import torch

from studies.rambo_speed import STUDY, exponent, free_memory, measure, too_large
from studies.study import Effort


def row(length, seconds, sort=0.1):
    return {"length": length, "seconds": seconds, "sort_seconds": sort, "repeats": 3, "positives": 1, "with_slope": 1}


def test_short_lists_are_measured_on_one_thread():
    torch.set_num_threads(2)
    try:
        found = measure(Effort(Path("unused"), quick=True))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert [each["length"] for each in found["rows"]] == [1_000, 10_000]
    assert all(each["with_slope"] > each["positives"] // 10 for each in found["rows"])
    assert found["left_out"] == []


def test_what_does_not_fit_is_left_out_with_a_reason():
    assert too_large(100, 10**9) == ""
    assert too_large(10**8, 10**9) == "it may take 8 GB, and 1 are free"
    assert too_large(10**5, None) == ""
    assert "not known" in too_large(10**8, None)


@pytest.mark.parametrize(
    ("limit", "taken", "free"),
    [
        (None, None, 4_096_000),
        ("max\n", "9\n", 4_096_000),  # no limit
        ("3000000\n", "1000000\n", 2_000_000),
        ("9000000\n", "1000000\n", 4_096_000),  # more than the machine has
        ("1000\n", "2000\n", 0),
    ],
)
def test_a_container_has_no_more_than_its_limit_leaves(tmp_path, limit, taken, free):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    group = tmp_path / "sys" / "fs" / "cgroup"
    group.mkdir(parents=True)
    for name, text in (("max", limit), ("current", taken)):
        if text is not None:
            (group / f"memory.{name}").write_text(text)
    assert free_memory(tmp_path) == free


def test_memory_may_be_unknown(tmp_path):
    assert free_memory(tmp_path) is None


def test_time_in_proportion_to_length_has_the_exponent_1():
    assert exponent([row(100, 0.1), row(10_000, 10.0)]) == pytest.approx(1)
    assert exponent([row(100, 0.1), row(10_000, 1000.0)]) == pytest.approx(2)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([row(100_000, 0.01), row(1_000_000, 0.1)], "**Agrees**"),
        ([row(100_000, 0.01), row(1_000_000, 0.1, sort=0.01)], "**Agrees in part**"),
        ([row(100_000, 0.01), row(1_000_000, 1.0)], "**Does not agree**"),
        ([row(10_000, 0.01), row(100_000, 0.1), row(1_000_000, 0.25)], "**Agrees**"),
        ([row(10_000, 0.01), row(100_000, 0.015), row(1_000_000, 0.3)], "**Agrees in part**"),  # as 0.74 over all
    ],
)
def test_verdict(rows, verdict):
    told = STUDY.told({"rows": rows, "left_out": [{"length": 10**8, "reason": "it may take 8 GB, and 1 are free"}]})
    assert verdict in told
    assert "331 ms" in told
    assert "100,000,000 was left out: it may take 8 GB" in told


def test_the_worst_step_is_told_with_a_guess_only_where_the_longest_list_fails():
    def told(*seconds):
        rows = [row(10 ** (4 + place), each) for place, each in enumerate(seconds)]
        return STUDY.told({"rows": rows, "left_out": []})

    late, early, none = told(0.01, 0.015, 0.3), told(0.01, 0.2, 0.3), told(0.01, 0.02, 0.2)
    assert "to the power 1.30, from 100,000 to 1,000,000 items (the criterion: below 1.2 from each to the next" in late
    assert "from the shortest to the longest it is 0.74 (sorting: 0.00)" in late
    assert "to the power 1.30, from 10,000 to 100,000 items" in early
    assert "to the power 1.00, from 100,000 to 1,000,000 items" in none
    assert ["A guess, which was not measured" in each for each in (late, early, none)] == [True, False, False]
