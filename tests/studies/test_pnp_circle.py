"""The toy on the circle: its points, batches and training, and the verdict of pnp-circle."""

import io
from pathlib import Path

import pytest
import torch
from PIL import Image

from frontrank.losses import PNP
from studies import circle, pnp_circle
from studies.study import Effort


def test_batches_by_hand():
    rows = circle.batch_rows(10).unflatten(0, (4, 16))
    assert rows[:, 0].tolist() == [170 % 150, 150 + 190 % 150, 300 + 230 % 150, 450 + 290 % 150]
    assert rows[3].tolist() == [450 + (140 + k) % 150 for k in range(16)]
    assert (circle.labels()[rows] == torch.arange(4)[:, None]).all()


def test_a_class_meets_all_its_points():
    for number in range(circle.CLASSES):
        starts = {int(circle.batch_rows(step).unflatten(0, (4, 16))[number, 0]) for step in range(circle.POINTS)}
        assert len(starts) == circle.POINTS


def test_points_on_lines():
    data = circle.toy("lines", 0)
    train, test = (part.unflatten(0, (4, 150)) for part in (data.train, data.test))
    assert (train[..., 0] - train[..., 1]).abs().max() < 0.2  # on the diagonal
    assert [round(float(x), 1) for x in train[..., 0].mean(1)] == [-0.8, -0.3, 0.2, 0.7]
    assert [[round(float(x), 1) for x in mean] for mean in test.mean(1)] == [
        [-1, -0.2],
        [-1, 0.6],
        [-0.2, -1],
        [0.6, -1],
    ]


def test_classes_of_three_centres():
    data = circle.toy("centres", 5)
    train, test = (part.unflatten(0, (4, 150)) for part in (data.train, data.test))
    for points, count in [*((own, 3) for own in train), *((own, 1) for own in test)]:
        centres = []  # a point further than four times the spread from all of them begins another
        for point in points:
            if all(float((point - centre).norm()) > 0.48 for centre in centres):
                centres.append(point)
        assert 1 <= len(centres) <= count


def test_a_seed_says_all():
    for layout in circle.LAYOUTS:
        one, same, other = (circle.toy(layout, seed) for seed in (1, 1, 2))
        assert torch.equal(one.train, same.train)
        assert all(torch.equal(a, b) for a, b in zip(one.weights, same.weights, strict=True))
        assert not torch.equal(one.train, other.train)
        assert torch.equal(one.train, (one.train * 1e4).round() / 1e4)
        assert [tuple(weight.shape) for weight in one.weights] == [(30, 2), (30,), (30, 30), (30,), (2, 30), (2,)]


def test_training_is_that_of_torch():
    """Against a network of torch's own layers."""
    data, loss = circle.toy("centres", 3), PNP("D_s", temperature=0.1)
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 30), torch.nn.ReLU(), torch.nn.Linear(30, 30), torch.nn.ReLU(), torch.nn.Linear(30, 2)
    ).double()
    with torch.no_grad():
        for own, weight in zip(net.parameters(), data.weights, strict=True):
            own.copy_(weight)
    optimizer = torch.optim.Adam(net.parameters(), lr=circle.RATE)
    for step in range(3):
        rows = circle.batch_rows(step)
        optimizer.zero_grad()
        loss(net(data.train[rows]), circle.labels()[rows]).backward()
        optimizer.step()
    seen = []
    found = circle.train(data, loss, 3, lambda step, _: seen.append(step))
    assert seen == [0, 1, 2, 3]
    for own, weight in zip(net.parameters(), found, strict=True):
        torch.testing.assert_close(own.detach(), weight)


def test_numbers_as_text():
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1.0, -1e-9]], dtype=torch.float64)
    text = circle.as_text(circle.degrees(embeddings), 0)
    assert text == "0 90 270 0"
    assert circle.from_text(text) == [0, 90, 270, 0]


def test_gaps_are_paired():
    found = circle.mean_gap([0.1, 0.5], [0.3, 0.6])
    assert found["mean"] == pytest.approx(0.15)
    assert found["two_errors"] == pytest.approx(2 * 0.05)  # the gaps are 0.2 and 0.1


def made(maps, intras):
    """Results in which D_q gains so much in mAP, and in dists@intra, on each of the layouts."""
    layouts = {}
    for layout, of_map, of_intra in zip(circle.LAYOUTS, maps, intras, strict=True):
        part = {}
        for name, share in (("I_b", 0), ("D_q", 1)):
            base = {metric: [0.5, 0.51, 0.52] for metric in circle.METRICS}
            base["mAP"] = [value + share * of_map for value in (0.5, 0.6, 0.7)]
            base["dists@intra"] = [value + share * of_intra for value in (0.5, 0.6, 0.7)]
            part[name] = base
        layouts[layout] = {"test": part, "train": part}
    return {"seed": 0, "seeds": 3, "steps": 300, "layouts": layouts}


@pytest.mark.parametrize(
    ("maps", "intras", "verdict"),
    [
        ((0.1, 0.1), (0.1, 0.1), "**Agrees**"),
        ((0.1, -0.1), (0.1, 0.1), "**Agrees in part**"),
        ((-0.1, -0.1), (0.1, -0.1), "**Agrees in part**"),
        ((-0.1, 0.0), (0.0, -0.1), "**Does not agree**"),
    ],
)
def test_verdict(maps, intras, verdict):
    assert (
        f"\n{verdict}: training classes are kept wider on {sum(gain > 0 for gain in intras)} of 2"
        in pnp_circle.told(made(maps, intras))
    )


def test_differences_are_told_with_one_standard_error():
    found = made((0.1, 0.1), (0.1, 0.1))
    found["layouts"]["lines"]["test"]["D_q"]["mAP"] = [0.6, 0.7, 0.86]  # gaps of 0.1, 0.1 and 0.16: 0.12 ± 0.02
    said = pnp_circle.told(found)
    assert "D_q less I_b is +12.0 ± 2.0 (lines), +10.0 ± 0.0 (centres) points of mAP" in said
    assert "± of these differences is one standard error." in said
    found["layouts"]["lines"]["test"]["D_q"]["mAP"] = [0.6, 0.6, 0.73]  # 0.1, 0.0 and 0.03: 0.043 ± 0.030, below two
    assert "test classes better apart on 1" in pnp_circle.told(found)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ((0.4, 0.4), "in this seed D_q is worse on both; the means over 3 seeds are in the table"),
        ((0.6, 0.4), "in this seed D_q is worse on centres; the means"),
        ((0.6, 0.5), "in this seed D_q is not worse on either; the means"),
    ],
)
def test_that_the_run_which_is_drawn_may_go_against_the_means_is_told(first, said):
    found = made((0.1, 0.1), (0.1, 0.1))
    for own, value in zip(found["layouts"].values(), first, strict=True):
        own["test"]["D_q"]["mAP"][0] = value
    assert said in pnp_circle.told(found)
    assert f"Its mAP is I_b 50 and D_q {100 * first[0]:.0f} on *lines*" in pnp_circle.told(found)


def test_the_animation_is_small_and_moves():
    found = pnp_circle.measure(Effort(Path("unused"), quick=True))
    moving = pnp_circle.more(found)["circle.gif"]
    assert len(moving) < 1_500_000
    with Image.open(io.BytesIO(moving)) as image:
        assert image.n_frames >= 15
        assert image.info["loop"] == 0
