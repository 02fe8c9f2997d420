"""The losses of the papers, one file each, and RankLoss, of which most are presets.

The names are those of `registry.py`. They are imported when they are used: the registry is needed without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from frontrank.losses.registry import CLASSIFIER_LOSSES, LOSSES, OTHER_LOSSES

if TYPE_CHECKING:  # for type checkers and editors; a test holds it together with the registry
    from frontrank.losses.fastap import FastAP as FastAP
    from frontrank.losses.happier import HierarchicalAP as HierarchicalAP
    from frontrank.losses.pnp import PNP as PNP
    from frontrank.losses.quantized_ap import QuantizedAP as QuantizedAP
    from frontrank.losses.rambo import BlackboxAP as BlackboxAP
    from frontrank.losses.rambo import BlackboxRecall as BlackboxRecall
    from frontrank.losses.rambo import ClassifierAP as ClassifierAP
    from frontrank.losses.rank_loss import CombinedLoss as CombinedLoss
    from frontrank.losses.rank_loss import RankLoss as RankLoss
    from frontrank.losses.recall_at_k import RecallAtK as RecallAtK
    from frontrank.losses.roadmap import ROADMAP as ROADMAP
    from frontrank.losses.roadmap import PairMargin as PairMargin
    from frontrank.losses.roadmap import SmoothNDCG as SmoothNDCG
    from frontrank.losses.roadmap import SupAP as SupAP
    from frontrank.losses.smooth_ap import SmoothAP as SmoothAP

_LOSSES = LOSSES | CLASSIFIER_LOSSES | OTHER_LOSSES
__all__ = sorted(_LOSSES)


def __getattr__(name: str) -> Any:
    if name not in _LOSSES:
        raise AttributeError(f"module 'frontrank.losses' has no attribute {name!r}")
    value = getattr(import_module(_LOSSES[name].module), name)
    globals()[name] = value  # from now on found without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LOSSES})
