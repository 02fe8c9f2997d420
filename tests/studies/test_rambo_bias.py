"""rambo-bias: its verdict, and that a real data set would go the same way."""

from pathlib import Path

import pytest

from frontrank.errors import InputError
from frontrank.models.weights import PACKAGES
from frontrank.settings import DataConfig
from frontrank.training.run import build_images
from studies.rambo_bias import STUDY, measure, too_high
from studies.study import Effort
from tests.fetch import require_packages


def of(mean, std=0.01):
    return {"mean": list(mean), "std": [std] * len(mean), "used": [25] * len(mean)}


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
    assert too_high(of(mean, std), 0.5) is holds


@pytest.mark.parametrize(("used", "holds"), [([25, 25], True), ([9, 25], False), ([1, 25], False)])
def test_the_error_is_that_of_the_batches_that_were_used(used, holds):
    found = {"mean": [0.6, 0.55], "std": [0.2, 0.01]}  # 0.1 above, uncertain by 0.04 with 25 batches and 0.07 with 9
    assert too_high({**found, "used": used}, 0.5) is holds


@pytest.mark.parametrize(
    ("used", "said"),
    [
        ([25, 25], "All of them had a positive."),
        ([9, 25], "Batches that had a positive, by size: 9, 25 with a."),
    ],
)
def test_how_many_batches_were_used_is_told(used, said):
    ways = {"a": of((0.9, 0.6)) | {"used": used}, "b": of((0.9, 0.6))}
    found = {"source": "x", "items": 9, "classes": 3, "batches": 25, "sizes": [2, 4], "ways": ways, "dataset": 0.5}
    assert said in STUDY.told(found)
    assert set(STUDY.figures(found)) == {"minibatch-map"}


def test_images_that_are_given_are_looked_at(tmp_path, images):
    require_packages([PACKAGES["tf_efficientnet_lite0"]])
    found = measure(Effort(tmp_path, quick=True, data=images, show=False))
    test = build_images(DataConfig(path=images)).of("test")
    assert (found["items"], found["classes"]) == (len(test), len(set(test.labels))) == (224, 28)
    assert found["sizes"] == [32, 64]


def test_too_few_images_are_refused_before_any_is_embedded(tmp_path, images, monkeypatch):
    table = build_images(DataConfig(path=images))
    table.of("test").rows(range(63)).save(tmp_path / "few.csv")
    monkeypatch.setattr("frontrank.training.embedding.embed_table", None)
    with pytest.raises(InputError, match=r"^--data has 63 test images, and the study needs 64 or more; give other im"):
        measure(Effort(tmp_path, data=str(tmp_path / "few.csv"), show=False))


def test_drawn_embeddings_say_so():
    found = measure(Effort(Path("unused"), quick=True))
    assert found["items"] == 360
    assert found["sizes"] == [32, 64, 128]
    assert [of["used"] for of in found["ways"].values()] == [[10, 10, 10]] * 2
    assert "drawn embeddings" in STUDY.told(found)


@pytest.mark.parametrize(
    ("last", "verdict"),
    [((0.6, 0.6), "**Agrees**"), ((0.6, 0.4), "**Agrees in part**"), ((0.4, 0.4), "**Does not agree**")],
)
def test_verdict(last, verdict):
    ways = {name: of((0.9, end)) for name, end in zip("ab", last, strict=True)}
    found = {"source": "x", "items": 9, "classes": 3, "batches": 25, "sizes": [2, 4], "ways": ways, "dataset": 0.5}
    assert verdict in STUDY.told(found)
