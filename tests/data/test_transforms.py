import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from frontrank.data.transforms import MEAN, STD, evaluation_transform, random_seed, training_transform
from frontrank.settings import DataConfig
from tests.errors import refusal

PLAIN = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3}  # pixels come out as they are, 0 to 255


def settings(resize=8, size=8, augment="crop", flip=False):
    return DataConfig(resize=resize, size=size, augment=augment, flip=flip)


def picture(height, width, seed=0):
    """No two pixels alike in all channels."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def pixels(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


def drawn(transform, image, seeds):
    results = []
    for seed in seeds:
        with random_seed(seed):
            results.append(transform(image).float())
    return results


def window_of(large, small):
    """Where `small` lies in `large` (top, left), or None."""
    side = small.shape[-1]
    windows = large.unfold(1, side, 1).unfold(2, side, 1)
    hits = (windows == small[:, None, None]).all(-1).all(-1).all(0).nonzero().tolist()
    return tuple(hits[0]) if len(hits) == 1 else None


def test_evaluation_takes_the_middle_and_normalises_each_channel():
    image = picture(8, 8)
    torch.testing.assert_close(evaluation_transform(8, 4, **PLAIN)(image), pixels(image)[:, 2:6, 2:6])
    found = evaluation_transform(4, 4)(Image.new("RGB", (9, 5), (255, 0, 51)))
    assert found.shape == (3, 4, 4)
    assert found.dtype == torch.float32
    assert type(found) is torch.Tensor
    for channel, value in enumerate((1.0, 0.0, 0.2)):
        torch.testing.assert_close(found[channel], torch.full((4, 4), (value - MEAN[channel]) / STD[channel]))


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (5, 7), (16, 16), (1, 1)])
def test_both_sides_are_resized_by_antialiased_bilinear_interpolation(shape):
    image = picture(*shape)
    expected = pixels(image.resize((16, 16), Image.Resampling.BILINEAR))
    torch.testing.assert_close(evaluation_transform(16, 16, **PLAIN)(image), expected)
    torch.testing.assert_close(training_transform(settings(16, 16))(image).float(), expected)


def test_crop_takes_every_window():
    image = picture(6, 6)
    found = drawn(training_transform(settings(6, 4)), image, range(100))
    assert {window_of(pixels(image), crop) for crop in found} == {(top, left) for top in range(3) for left in range(3)}


@pytest.mark.parametrize("augment", ["crop", "shift", "none"])
def test_flip_mirrors_half(augment):
    image = picture(8, 8)
    plain = drawn(training_transform(settings(augment=augment)), image, range(60))
    found = drawn(training_transform(settings(augment=augment, flip=True)), image, range(60))
    same = [bool((a == b).all()) for a, b in zip(plain, found, strict=True)]
    mirrored = [bool((a == b.flip(2)).all()) for a, b in zip(plain, found, strict=True)]
    assert [a or b for a, b in zip(same, mirrored, strict=True)] == [True] * 60
    assert 15 <= sum(mirrored) <= 45


def test_shift_moves_by_an_eighth_and_repeats_the_edge():
    image = picture(16, 16)
    padded = torch.from_numpy(np.pad(np.array(image), ((2, 2), (2, 2), (0, 0)), "edge")).permute(2, 0, 1).float()
    found = drawn(training_transform(settings(16, 16, "shift")), image, range(250))
    assert {window_of(padded, moved) for moved in found} == {(top, left) for top in range(5) for left in range(5)}


def test_resized_crop_shows_parts_of_many_sizes():
    ramp = Image.fromarray(np.tile(np.arange(256, dtype=np.uint8)[None, :, None], (256, 1, 3)))
    found = drawn(training_transform(settings(256, 32, "resized-crop")), ramp, range(60))
    assert {tuple(crop.shape) for crop in found} == {(3, 32, 32)}
    shares = [float(crop[0].max() - crop[0].min()) / 255 for crop in found]  # of the width
    assert min(shares) < 0.45 < 0.85 < max(shares) <= 1
    assert min(shares) > 0.2  # 8 % of the area at 3/4


@pytest.mark.parametrize("augment", ["crop", "resized-crop", "landmarks", "shift"])
def test_the_seed_alone_decides(augment):
    transform = training_transform(settings(32, 24, augment, flip=True))
    first = drawn(transform, picture(40, 40), range(8))
    torch.rand(17)
    for a, b in zip(first, drawn(transform, picture(40, 40), range(8)), strict=True):
        assert torch.equal(a, b)
    assert len({image.numpy().tobytes() for image in first}) > 5


def test_seeded_leaves_the_random_numbers_alone():
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), random_seed(2**63 + 5):
        _ = torch.rand(3) + 1 / 0
    assert torch.equal(torch.get_rng_state(), before)


def test_what_cannot_be_used(monkeypatch):
    for resize, size, name in ((223, 224, "resize"), (0, 0, "resize"), (8, -1, "size")):
        refusal(partial(evaluation_transform, resize, size), name)
        refusal(partial(training_transform, settings(resize, size)), name)
    for name, value in (("mean", (0.5,)), ("mean", (124, 116, 104)), ("std", (0.5, 0, 0.5))):
        refusal(partial(evaluation_transform, 8, 4, **{name: value}), name)
    refusal(lambda: training_transform(replace(settings(), augment="mix")), "augment", "'mix'")
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", None)
    refusal(evaluation_transform, "torchvision", "frontrank[train]")


def test_bytes_are_what_is_normalised():
    image = Image.effect_noise((40, 30), 60).convert("RGB")
    pixels = evaluation_transform(20, 16, as_bytes=True, interpolation="bicubic")(image)
    assert (pixels.dtype, pixels.shape) == (torch.uint8, (3, 16, 16))
    torch.testing.assert_close(evaluation_transform(20, 16, interpolation="bicubic", **PLAIN)(image), pixels.float())
