"""Pooling to one vector: as the network has it, by tokens, or of a map: average, maximum, GeM, R-MAC, all places.

All functions take maps [image, channel, height, width], or [image, channel, place] if places have no order, and return
[image, channel].
"""

import torch
from torch import Tensor, nn

from frontrank.checks import check_choice

TOKEN_POOLINGS = ("cls", "cls+average")
POOLINGS = ("native", *TOKEN_POOLINGS, "average", "max", "gem", "rmac", "flat")
_NOTHING = 1e-12  # a vector with no larger entry has no direction
_LEAST_POWER = 0.01  # 0 has no generalised mean; training may come near


def unit(x: Tensor) -> Tensor:
    """Scale rows to length 1, in their own dtype; a row of zeros stays as it is, with a finite gradient.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    largest = x.detach().abs().amax(-1, keepdim=True)
    nothing = largest <= _NOTHING
    scaled = x / torch.where(nothing, 1, largest)  # squares of very long rows would overflow
    length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return scaled / torch.where(nothing, 1, length)


def average(maps: Tensor) -> Tensor:
    """Return the mean of each channel (SPoC).

    >>> average(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]))
    tensor([[3.]])
    """
    return maps.flatten(2).mean(2)


def maximum(maps: Tensor) -> Tensor:
    """Return the largest value of each channel (MAC).

    >>> maximum(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]))
    tensor([[6.]])
    """
    return maps.flatten(2).amax(2)


def gem(maps: Tensor, power: Tensor | float = 3.0, eps: float = 1e-6) -> Tensor:
    """Return the generalised mean of each channel: (mean of max(x, eps)^power)^(1 / power).

    power 1 is the average, a large one nears the maximum; values below eps, negative ones too, count as eps.
    Filip Radenović, Giorgos Tolias, Ondřej Chum, "Fine-tuning CNN Image Retrieval with No Human Annotation",
    TPAMI 2018, Eq. (3), with one power for all channels.

    >>> gem(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]), power=3.0)  # ((1 + 8 + 27 + 216) / 4)^(1/3)
    tensor([[3.9791]])
    """
    values = maps.flatten(2).clamp(min=eps)
    largest = values.detach().amax(2, keepdim=True)  # scaled by it, the mean cannot overflow
    return (values / largest).pow(power).mean(2).pow(1 / power) * largest[..., 0]


def rmac(maps: Tensor, levels: int = 3) -> Tensor:
    """Return the sum of the maxima of square regions of several sizes, each scaled to length 1.

    Giorgos Tolias, Ronan Sicre, Hervé Jégou, "Particular object retrieval with integral max-pooling of CNN
    activations", ICLR 2016, without its whitening of each region: the head does that work here.

    >>> maps = torch.tensor([[[[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [[4.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]])
    >>> rmac(maps, levels=1)  # of the left and the right square: (3, 4) / 5 + (0, 1)
    tensor([[0.6000, 1.8000]])
    """
    regions = rmac_regions(maps.shape[-2], maps.shape[-1], levels)
    maxima = [maps[..., top : top + side, left : left + side].amax((-2, -1)) for top, left, side in regions]
    return unit(torch.stack(maxima, 1)).sum(1)


def rmac_regions(height: int, width: int, levels: int = 3) -> list[tuple[int, int, int]]:
    """Return (top, left, side) of the regions of R-MAC.

    Level l has l regions of side 2 min(height, width) / (l + 1) along the shorter side, evenly spread, and along the
    longer side as many more as bring the overlap of the first level's regions nearest to 40 % (any number; the
    authors' code stops at 6).

    >>> rmac_regions(2, 3, levels=2)
    [(0, 0, 2), (0, 1, 2), (0, 0, 1), (0, 1, 1), (0, 2, 1), (1, 0, 1), (1, 1, 1), (1, 2, 1)]
    """
    short, long = sorted((height, width))
    more = 0
    if long > short:
        # |1 - (long - short) / (count short) - 0.4|, times 5 short, in whole numbers so that ties are ties
        more = min(range(1, 2 * long), key=lambda count: abs(3 * count * short - 5 * (long - short)) / count)
    regions = []
    for level in range(1, levels + 1):
        side = max(1, 2 * short // (level + 1))
        tops = _spread(height - side, level + more * (height > width))
        lefts = _spread(width - side, level + more * (width > height))
        regions += [(top, left, side) for top in tops for left in lefts]
    return regions


def _spread(room: int, count: int) -> list[int]:
    return [0] if count == 1 else [i * room // (count - 1) for i in range(count)]


class Pooling(nn.Module):
    """Pooling by name, computed in float32 whatever the precision of the maps; GeM's power is trained.

    "flat" puts all places side by side [image, channel * place]. It is the only pooling that knows where in the image
    something is, for aligned pictures of one size, such as logos, glyphs or cropped faces. With "native", "cls" and
    "cls+average" the backbone has pooled already: features [image, feature] stay as they are.

    >>> Pooling("flat")(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]))
    tensor([[1., 2., 3., 6.]])
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = check_choice("pooling", kind, POOLINGS)
        if kind == "gem":
            self.power = nn.Parameter(torch.tensor([3.0]))

    def forward(self, maps: Tensor) -> Tensor:
        """Return [image, feature] in float32 (float64 if the maps are)."""
        maps = maps if maps.dtype == torch.float64 else maps.float()
        if self.kind == "gem":
            return gem(maps, self.power.to(maps.dtype).clamp(min=_LEAST_POWER))
        if self.kind == "flat" or maps.ndim == 2:
            return maps.flatten(1)
        return {"average": average, "max": maximum, "rmac": rmac}[self.kind](maps)

    def extra_repr(self) -> str:
        return self.kind
