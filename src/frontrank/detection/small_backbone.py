"""A small network for detection on a CPU, trained from nothing: residual blocks with group normalisation.

Group normalisation knows no batch: it is the same for a batch of one, over several processes, and in evaluation.
"""

from torch import Tensor, nn
from torch.nn import functional

CHANNELS = (32, 64, 96)  # of the maps at 1/4, 1/8 and 1/16 of the picture's size
_GROUPS = 8


class SmallBackbone(nn.Module):
    """Feature maps [image, channel, height, width] of a batch, finest first."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.GroupNorm(_GROUPS, 24), nn.ReLU(True))
        before = (24, *CHANNELS[:-1])
        self.stages = nn.ModuleList(
            nn.Sequential(_Block(narrow, wide, 2), _Block(wide, wide, 1))
            for narrow, wide in zip(before, CHANNELS, strict=True)
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        maps, last = [], self.stem(images)
        for stage in self.stages:
            last = stage(last)
            maps.append(last)
        return maps


class _Block(nn.Module):
    """Two convolutions beside a short cut."""

    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(_GROUPS, wide)
        self.second = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(_GROUPS, wide)
        self.short: nn.Module = nn.Identity()
        if stride > 1:
            self.short = nn.Sequential(nn.Conv2d(narrow, wide, 1, stride, bias=False), nn.GroupNorm(_GROUPS, wide))

    def forward(self, maps: Tensor) -> Tensor:
        found = functional.relu(self.first_norm(self.first(maps)))
        return functional.relu(self.second_norm(self.second(found)) + self.short(maps))
