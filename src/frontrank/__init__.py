"""Frontrank: train image search that puts the right images first.

Public names are imported when they are first used (PEP 562), so that `import frontrank` and `frontrank --help` are
quick: torch alone takes seconds to load. A new public name is written twice: below for type checkers and editors, and
in `_NAMES`. A test holds the two together.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from frontrank.version import __version__ as __version__

if TYPE_CHECKING:
    from frontrank import data as data
    from frontrank import detection as detection
    from frontrank import errors as errors
    from frontrank import evaluation as evaluation
    from frontrank import losses as losses
    from frontrank import models as models
    from frontrank import ranking as ranking
    from frontrank import retrieval as retrieval
    from frontrank import settings as settings
    from frontrank import training as training
    from frontrank.data import AllClassesBatches as AllClassesBatches
    from frontrank.data import BalancedBatches as BalancedBatches
    from frontrank.data import CategoryBatches as CategoryBatches
    from frontrank.data import ImageTable as ImageTable
    from frontrank.errors import FrontrankError as FrontrankError
    from frontrank.evaluation import Report as Report
    from frontrank.evaluation import compare as compare
    from frontrank.evaluation import evaluate as evaluate
    from frontrank.evaluation import evaluate_revisited as evaluate_revisited
    from frontrank.evaluation import evaluate_scores as evaluate_scores
    from frontrank.evaluation import protocols as protocols
    from frontrank.losses import PNP as PNP
    from frontrank.losses import ROADMAP as ROADMAP
    from frontrank.losses import BlackboxAP as BlackboxAP
    from frontrank.losses import BlackboxRecall as BlackboxRecall
    from frontrank.losses import ClassifierAP as ClassifierAP
    from frontrank.losses import CombinedLoss as CombinedLoss
    from frontrank.losses import FastAP as FastAP
    from frontrank.losses import HierarchicalAP as HierarchicalAP
    from frontrank.losses import PairMargin as PairMargin
    from frontrank.losses import QuantizedAP as QuantizedAP
    from frontrank.losses import RankLoss as RankLoss
    from frontrank.losses import RecallAtK as RecallAtK
    from frontrank.losses import SmoothAP as SmoothAP
    from frontrank.losses import SmoothNDCG as SmoothNDCG
    from frontrank.losses import SupAP as SupAP
    from frontrank.models import Embedder as Embedder
    from frontrank.retrieval import Adapter as Adapter
    from frontrank.retrieval import Index as Index
    from frontrank.retrieval import Item as Item
    from frontrank.retrieval import Whitening as Whitening
    from frontrank.retrieval import augment_database as augment_database
    from frontrank.retrieval import expand_queries as expand_queries
    from frontrank.retrieval import rerank as rerank
    from frontrank.settings import TrainConfig as TrainConfig
    from frontrank.training import EmbeddingMemory as EmbeddingMemory
    from frontrank.training import embed_table as embed_table
    from frontrank.training import gather as gather
    from frontrank.training import multistage_backward as multistage_backward
    from frontrank.training.run import resume as resume
    from frontrank.training.run import train as train

_NAMES = {  # module: its public names
    "data": "AllClassesBatches BalancedBatches CategoryBatches ImageTable",
    "errors": "FrontrankError",
    "evaluation": "Report compare evaluate evaluate_revisited evaluate_scores protocols",
    "losses": "PNP ROADMAP BlackboxAP BlackboxRecall ClassifierAP CombinedLoss FastAP HierarchicalAP PairMargin "
    "QuantizedAP RankLoss RecallAtK SmoothAP SmoothNDCG SupAP",
    "models": "Embedder",
    "retrieval": "Adapter Index Item Whitening augment_database expand_queries rerank",
    "settings": "TrainConfig",
    "training": "EmbeddingMemory embed_table gather multistage_backward",
    "training.run": "resume train",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
_SUBMODULES = (
    *("data", "detection", "errors", "evaluation", "losses", "models"),
    *("ranking", "retrieval", "settings", "training"),
)

__all__ = sorted([*_MODULES, "evaluation", "ranking"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(import_module(f"frontrank.{_MODULES[name]}"), name)
    elif name in _SUBMODULES:
        value = import_module(f"frontrank.{name}")
    else:
        raise AttributeError(f"module 'frontrank' has no attribute {name!r}")
    globals()[name] = value  # from now on found without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_SUBMODULES})
