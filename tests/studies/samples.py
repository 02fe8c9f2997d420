"""Results that were never measured, and their pages."""

from dataclasses import replace

from studies import find_study
from studies.study import render_page

ENVIRONMENT = {"seed": 0, "quick": False, "frontrank": "1", "torch": "2", "machine": "2 cores of x"}
RESULTS = {  # of smooth-ap-indicator
    "difference": [-1.0, 0.0, 1.0],
    "step": [0.0, 0.0, 1.0],
    "curves": {
        name: {"value": [0.0, 0.5, 1.0], "slope": [0.0, 1.0, 0.0], "region": 0.1, "ap_error": error}
        for name, error in (("sigmoid, τ = 0.1", 0.1), ("linear", 0.3))
    },
    "lists": 2,
    "items": 3,
    "positives": 1,
}
STUB = replace(find_study("smooth-ap-indicator"), measure=lambda effort: RESULTS, draw=lambda results: {})


def render(study, results):
    """Return the page of results."""
    return render_page(study, {"command": "python -m studies x", **ENVIRONMENT, "found": results}, ["a"])


def verdict(study, results):
    """Return the verdict on results; it must be on their page."""
    word = study.values(results)["verdict"]
    assert f"**{word}**" in render(study, results)
    return word


def entry(settings, mean, spread=0.0, metrics=("mAP", "R@1"), **more):
    """Return an entry of a comparison with three seeds around a mean."""
    values = [mean - spread, mean, mean + spread]
    return {
        "name": ", ".join(f"{key}={value}" for key, value in settings.items()),
        "settings": settings,
        "lr": 3e-4,
        "seeds": [0, 1, 2],
        "planned": 3,
        "values": dict.fromkeys(metrics, values),
        "seconds": [0.3] * 3,
        "megabytes": [400.0] * 3,
        **more,
    }


def failed_entry(settings):
    return {**entry(settings, 0.0), "seeds": [], "values": {}, "failed": "the gradient is not finite"}
