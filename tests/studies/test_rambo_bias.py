"""rambo-bias: its verdict, and that a real data set would go the same way."""

from pathlib import Path

import pytest

from frontrank.studies.rambo_bias import STUDY, measure, too_high
from frontrank.studies.study import Effort


def of(mean, std=0.01):
    return {"mean": list(mean), "std": [std] * len(mean)}


@pytest.mark.parametrize(
    ("mean", "std", "holds"),
    [
        ((0.9, 0.8, 0.7), 0.01, True),
        ((0.9, 0.8, 0.505), 0.1, False),  # 0.005 above, but the mean of 25 batches is uncertain by 0.02
        ((0.9, 0.8, 0.4), 0.01, False),
        ((0.7, 0.8, 0.9), 0.01, False),
    ],
)
def test_batches_are_too_good_where_all_are_above_and_fall(mean, std, holds):
    assert too_high(of(mean, std), 0.5, batches=25) is holds


def test_drawn_embeddings_say_so():
    found = measure(Effort(Path("unused"), quick=True))
    assert found["items"] == 360
    assert found["sizes"] == [32, 64, 128]
    assert "drawn embeddings" in STUDY.told(found)


@pytest.mark.parametrize(
    ("last", "verdict"),
    [((0.6, 0.6), "**Agrees**"), ((0.6, 0.4), "**Agrees in part**"), ((0.4, 0.4), "**Does not agree**")],
)
def test_verdict(last, verdict):
    ways = {name: of((0.9, end)) for name, end in zip("ab", last, strict=True)}
    found = {"source": "x", "items": 9, "classes": 3, "batches": 25, "sizes": [2, 4], "ways": ways, "dataset": 0.5}
    assert verdict in STUDY.told(found)
