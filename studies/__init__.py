"""The papers' explanations as small studies: run one, look at it, change it."""

from importlib import import_module

from frontrank.errors import InputError
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
    "grid",
    "batch_size",
)


def all_studies() -> dict[str, Study]:
    """The studies by name."""
    found = [import_module(f"studies.{name}").STUDY for name in _MODULES]
    return {study.name: study for study in found}


def study_named(name: str) -> Study:
    """A study by its name."""
    from difflib import get_close_matches

    studies = all_studies()
    if name in studies:
        return studies[name]
    near = get_close_matches(name, studies, 1)
    remedy = f"did you mean {near[0]}?" if near else "frontrank study lists them"
    raise InputError(f"there is no study {name!r}; {remedy}")
