"""The study of batches up to the whole training set."""

import pytest

from frontrank.studies import batch_size
from frontrank.studies.batch_size import batch_sizes
from tests.studies.made_up import entry


def test_batch_sizes_grow_by_four_up_to_half_of_all():
    assert batch_sizes(3600, 112) == [112, 448, 1792]
    assert batch_sizes(3583, 112) == [112, 448]
    assert batch_sizes(4 * 10_186, 112) == [112, 448, 1792, 7168]
    assert batch_sizes(100, 112) == [112]


def results(images, updates):
    """Means of batches of 112 with equal images and updates; that of the whole is 0.7."""
    rows = [(112, "images", images), (112, "updates", updates), (448, "images", 0.69), (448, "updates", 0.6)]
    made = [{"size": size, "whole": False, "budget": budget, **entry({}, mean, 0.001)} for size, budget, mean in rows]
    made.append({"size": 7400, "whole": True, "budget": "images", **entry({}, 0.7, 0.001)})
    return {"classes": 900, "images": 7400, "passes": 30, "rows": made}


@pytest.mark.parametrize(
    ("images", "updates", "said", "best"),
    [
        (0.6, 0.5, "**Agrees** with", "7,400"),
        (0.8, 0.5, "**Agrees in part** with", "112"),
        (0.8, 0.8, "**Does not agree** with", "112"),
    ],
)
def test_the_verdict_follows_from_what_was_measured(images, updates, said, best):
    found = results(images, updates)
    text = batch_size.told(found)
    assert said in text
    assert f"batches of {best} are best" in text
    assert "| 7,400, all | images, updates | 70.0 ± 0.1 |" in text
    assert set(batch_size.figures(found)) == {"batch-size"}
