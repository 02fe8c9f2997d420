"""What an image goes through before the model: PIL image to float tensor [3, size, size].

Sizes change by bilinear interpolation with antialiasing, as PIL and the papers' code do it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from frontrank.checks import check_number
from frontrank.errors import InputError, InputTypeError
from frontrank.settings import DataConfig

Transform = Callable[[Any], Tensor]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
_SHIFT = 1 / 8  # of the side, at most
_SCALE, _TURN = (0.8, 1.25), 10  # landmarks: factor and degrees, at most
_JITTER = {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.05}


def evaluation_transform(
    resize: int = 256, size: int = 224, mean: Sequence[float] = MEAN, std: Sequence[float] = STD
) -> Transform:
    """Both sides to `resize` (the aspect is not kept, as in the papers), the middle `size` x `size`, normalised.

    >>> from PIL import Image
    >>> image = evaluation_transform(8, 4, mean=(0.5,) * 3, std=(0.5,) * 3)(Image.new("RGB", (20, 10), (255, 0, 255)))
    >>> image.shape, image[:, 0, 0].tolist()
    (torch.Size([3, 4, 4]), [1.0, -1.0, 1.0])
    """
    _check_sizes(resize, size)
    return _sequence([_resize(resize), *_middle(resize, size), *_numbers(mean, std)])


def training_transform(
    config: DataConfig, mean: Sequence[float] | None = MEAN, std: Sequence[float] | None = STD
) -> Transform:
    """What a training image goes through; its randomness is torch's, so that `seeded` fixes it.

    config: its resize, size, augment and flip. Every kind of `augment` begins with both sides at `resize`:
        crop          a random `size` x `size` (what the papers PNP, Smooth-AP, FastAP and RaMBO say)
        resized-crop  8 to 100 % of the area at an aspect of 3/4 to 4/3, made `size` x `size` (code of PNP, Smooth-AP)
        landmarks     scaled by 0.8 to 1.25, turned by up to 10 degrees, colours jittered, a random crop (AP_Q Sec. 4.2,
                      which names these steps but not their strengths: those are ours)
        shift         the middle, moved by up to 1/8 of its side; beyond the image its edge repeats. For small pictures
        none          as in evaluation
    Half of the images are mirrored where `flip` says so, with every kind.
    mean, std: None gives bytes from 0 to 255, a quarter of the memory, which an `Embedder` normalises itself
    """
    _check_sizes(config.resize, config.size)
    if config.augment not in _AUGMENTS:
        raise InputError(f"augment must be one of {', '.join(_AUGMENTS)}, got {config.augment!r}")
    changed = _AUGMENTS[config.augment](config.resize, config.size)
    mirrored = [_v2().RandomHorizontalFlip()] if config.flip else []
    return _sequence([_resize(config.resize), *changed, *mirrored, *_numbers(mean, std)])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within, torch's random numbers on the CPU are those of the seed; afterwards they go on as if nothing had been.

    >>> with seeded(5):
    ...     first = torch.rand(1)
    >>> _ = torch.rand(1)
    >>> with seeded(5):
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
    for name, value in (("resize", resize), ("size", size)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputTypeError(f"{name} must be a whole number of pixels, got {value!r}")
        check_number(name, value, at_least=1)
    if resize < size:
        raise InputError(f"resize is {resize}, smaller than the crop of size {size}; make it at least {size}")


def _crop(resize: int, size: int) -> list[Any]:
    return [_v2().RandomCrop(size)]


def _resized_crop(resize: int, size: int) -> list[Any]:
    return [_v2().RandomResizedCrop(size, antialias=True)]


def _landmarks(resize: int, size: int) -> list[Any]:
    v2 = _v2()
    turned = v2.RandomAffine(_TURN, scale=_SCALE, interpolation=v2.InterpolationMode.BILINEAR)
    margin = min(resize // 4 + 1, resize - 1)  # a corner moves by less than (cos 10 + sin 10) / 0.8 of half a side
    return [_Mirrored(turned, margin), v2.ColorJitter(**_JITTER), v2.RandomCrop(size)]


def _shift(resize: int, size: int) -> list[Any]:
    margin = max(1, round(size * _SHIFT))
    return [_v2().Pad(margin, padding_mode="edge"), _v2().CenterCrop(size + 2 * margin), _v2().RandomCrop(size)]


def _middle(resize: int, size: int) -> list[Any]:
    return [_v2().CenterCrop(size)] if size < resize else []


class _Mirrored:
    """A change of place whose outside is the mirrored image, not black: a turned image has corners to be filled."""

    def __init__(self, change: Callable[[Any], Any], margin: int) -> None:
        v2 = _v2()
        self._steps = v2.Pad(margin, padding_mode="reflect"), change
        self._margin = margin

    def __call__(self, image: Any) -> Any:
        side = image.width
        for step in self._steps:
            image = step(image)
        return image.crop((self._margin, self._margin, self._margin + side, self._margin + side))


_AUGMENTS: dict[str, Callable[[int, int], list[Any]]] = {
    "crop": _crop,
    "resized-crop": _resized_crop,
    "landmarks": _landmarks,
    "shift": _shift,
    "none": _middle,
}


def _resize(side: int) -> Any:
    return _v2().Resize((side, side), antialias=True)


def _numbers(mean: Sequence[float] | None, std: Sequence[float] | None) -> list[Any]:
    """0 to 255 becomes 0 to 1, less the mean, over the standard deviation, per channel; bytes without these."""
    if mean is None or std is None:
        return [_v2().ToImage(), _v2().ToPureTensor()]
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != 3:
            raise InputError(f"{name} must be 3 numbers, for red, green and blue, got {values!r}")
        for value in values:
            check_number(name, value, **({"above": 0} if name == "std" else {"at_least": 0, "at_most": 1}))
    v2 = _v2()
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(mean), list(std)), v2.ToPureTensor()]


def _sequence(steps: list[Any]) -> Transform:
    return _v2().Compose(steps)


def _v2() -> Any:
    try:
        from torchvision.transforms import v2
    except ImportError as error:
        raise InputError("preparing images needs torchvision; pip install 'frontrank[train]'") from error
    return v2
