"""Transforms of a PIL image to a float tensor [3, size, size] for the model.

Images are resized with antialiasing, as in PIL: by bilinear interpolation, as the papers' code, unless a model wants
another one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frontrank.checks import check_choice, check_integer, check_number, import_extra
from frontrank.errors import InputError
from frontrank.settings import AUTO, DataConfig

Transform = Callable[[Any], Tensor]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
_SHIFT = 1 / 8  # of the side, at most
_SCALE, _TURN = (0.8, 1.25), 10  # landmarks: factor and degrees, at most
_JITTER = {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.05}


def evaluation_transform(
    resize: int = 256,
    size: int = 224,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    interpolation: str = "bilinear",
    as_bytes: bool = False,
) -> Transform:
    """Resize both sides to `resize` (the aspect is not kept, as in the papers), crop the middle, and normalise.

    as_bytes: do not normalise, which an `Embedder` does itself: a quarter of the memory

    >>> from PIL import Image
    >>> image = evaluation_transform(8, 4, mean=(0.5,) * 3, std=(0.5,) * 3)(Image.new("RGB", (20, 10), (255, 0, 255)))
    >>> image.shape, image[:, 0, 0].tolist()
    (torch.Size([3, 4, 4]), [1.0, -1.0, 1.0])
    """
    _check_sizes(resize, size)
    for name, values, bounds in (("mean", mean, {"at_least": 0, "at_most": 1}), ("std", std, {"above": 0})):
        if len(values) != 3:
            raise InputError(f"{name} must be 3 numbers, for red, green and blue, got {values!r}")
        for value in values:
            check_number(name, value, **bounds)
    return _Evaluation(resize, size, interpolation, None if as_bytes else (mean, std))


class _Evaluation:
    """The transform of evaluation by Pillow and torch alone: torchvision takes as long again to find its functions."""

    def __init__(self, resize: int, size: int, interpolation: str, scale: Any) -> None:
        _resize(resize, interpolation)  # checks it
        self._side, edge = (resize, resize), round((resize - size) / 2)
        self._middle = (edge, edge, edge + size, edge + size) if size < resize else None
        self._filter = interpolation.removesuffix("-exact").upper()  # by its name in Pillow
        self._scale = None if scale is None else [torch.tensor(list(values))[:, None, None] for values in scale]

    def __call__(self, image: Any) -> Tensor:
        from PIL.Image import Resampling

        image = image if image.mode == "RGB" else image.convert("RGB")
        image = image if image.size == self._side else image.resize(self._side, Resampling[self._filter])
        image = image if self._middle is None else image.crop(self._middle)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels if self._scale is None else pixels.float().div_(255).sub_(self._scale[0]).div_(self._scale[1])


def training_transform(config: DataConfig) -> Transform:
    """Return the random transform of a training image; it draws from torch, so that `random_seed` fixes it.

    config: its resize, size, interpolation, augment and flip. Every kind of `augment` begins by resizing both sides to
    `resize`:
        crop          a random `size` x `size` (the papers of PNP, Smooth-AP, FastAP and RaMBO)
        resized-crop  8 to 100 % of the area at an aspect of 3/4 to 4/3, made `size` x `size` (code of PNP, Smooth-AP)
        landmarks     scaled by 0.8 to 1.25, turned by up to 10 degrees, colours jittered, a random crop (AP_Q Sec. 4.2,
                      which names these steps but not their strengths: those are ours)
        shift         the middle, moved by up to 1/8 of its side; beyond the image its edge repeats. For small pictures
        none          as in evaluation
    With `flip`, half of the images are mirrored, whatever the kind.
    The tensor has bytes from 0 to 255, a quarter of the memory, which an `Embedder` normalises itself.
    """
    v2 = _v2()
    _check_sizes(config.resize, config.size)
    steps = _AUGMENTS[check_choice("augment", config.augment, _AUGMENTS)](config.resize, config.size)
    flip = [v2.RandomHorizontalFlip()] if config.flip else []
    resize = _resize(config.resize, "bilinear" if config.interpolation == AUTO else config.interpolation)
    return v2.Compose([resize, *steps, *flip, v2.ToImage(), v2.ToPureTensor()])


@contextmanager
def random_seed(seed: int) -> Iterator[None]:
    """Seed torch's random numbers on the CPU inside the with block; afterwards they go on as before.

    >>> with random_seed(5):
    ...     first = torch.rand(1)
    >>> _ = torch.rand(1)
    >>> with random_seed(5):
    ...     print(bool(torch.rand(1) == first))
    True
    """
    before = torch.random.get_rng_state()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed, and look for, every GPU
    try:
        yield
    finally:
        torch.random.set_rng_state(before)


def _check_sizes(resize: int, size: int) -> None:
    check_integer("resize", resize, at_least=1)
    check_integer("size", size, at_least=1)
    if resize < size:
        raise InputError(f"resize is {resize}, smaller than the crop of size {size}; make it at least {size}")


def _resize(side: int, interpolation: str) -> Any:
    v2 = _v2()
    modes = {mode.value: mode for mode in v2.InterpolationMode}
    return v2.Resize((side, side), modes[check_choice("interpolation", interpolation, modes)], antialias=True)


def _landmarks(resize: int, size: int) -> list[Any]:
    v2 = _v2()
    turn = v2.RandomAffine(_TURN, scale=_SCALE, interpolation=v2.InterpolationMode.BILINEAR)
    margin = min(resize // 4 + 1, resize - 1)  # a corner moves by less than (cos 10 + sin 10) / 0.8 of half a side
    return [_MirrorOutside(turn, margin), v2.ColorJitter(**_JITTER), v2.RandomCrop(size)]


def _shift(resize: int, size: int) -> list[Any]:
    margin = max(1, round(size * _SHIFT))
    return [_v2().Pad(margin, padding_mode="edge"), _v2().CenterCrop(size + 2 * margin), _v2().RandomCrop(size)]


def _middle(resize: int, size: int) -> list[Any]:
    return [_v2().CenterCrop(size)] if size < resize else []


class _MirrorOutside:
    """A turn or shift that fills the corners with the mirrored image, not with black."""

    def __init__(self, change: Callable[[Any], Any], margin: int) -> None:
        self._pad, self._change, self._margin = _v2().Pad(margin, padding_mode="reflect"), change, margin

    def __call__(self, image: Any) -> Any:
        end = self._margin + image.width
        return self._change(self._pad(image)).crop((self._margin, self._margin, end, end))


_AUGMENTS: dict[str, Callable[[int, int], list[Any]]] = {
    "crop": lambda resize, size: [_v2().RandomCrop(size)],
    "resized-crop": lambda resize, size: [_v2().RandomResizedCrop(size, antialias=True)],
    "landmarks": _landmarks,
    "shift": _shift,
    "none": _middle,
}


def _v2() -> Any:
    return import_extra("torchvision.transforms.v2", "train", "preparing images")
