"""Studies: figures and tables of the papers, measured again; `python -m studies` lists and runs them."""

from importlib import import_module
from typing import TYPE_CHECKING

from frontrank.checks import suggestion
from frontrank.errors import InputError

if TYPE_CHECKING:
    from studies.study import Study

_MODULES = (  # in the order of the list
    "pnp_gradients",
    "pnp_circle",
    "pnp_designer",
    "pnp_ablation",
    "pnp_merged",
    "smooth_ap_indicator",
    "smooth_ap_error",
    "smooth_ap_ablation",
    "apq_ablation",
    "apq_triplet",
    "fastap_ablation",
    "fastap_batches",
    "rambo_landscape",
    "rambo_bias",
    "rambo_collapse",
    "rambo_speed",
    "rambo_ablation",
    "frozen_features",
    "grid",
    "linear_head",
    "batch_size",
)


def all_studies() -> "dict[str, Study]":
    """Return the studies by name."""
    modules = [vars(import_module(f"studies.{name}")) for name in _MODULES]
    studies = [study for module in modules for study in module.get("STUDIES") or (module["STUDY"],)]
    return {study.name: study for study in studies}


def find_study(name: str) -> "Study":
    """Return the study of this name."""
    studies = all_studies()
    if name not in studies:
        remedy = suggestion(name, studies) or "; python -m studies lists them"
        raise InputError(f"there is no study {name!r}{remedy}")
    return studies[name]
