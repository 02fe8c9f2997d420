"""Studies that are done once for all tests: those that train with runs that are made up, on a few glyphs."""

import sys

import pytest

from frontrank.comparison import runner as comparison_checks
from frontrank.models.weights import PACKAGES
from studies import all_studies
from studies.study import Effort, run_study
from studies.trained import trained
from tests.comparison.comparisons import count_tasks, done_without_training
from tests.fetch import require_packages

STUDIES = all_studies()


def trains(study):
    """Whether a study runs comparisons, which take long."""
    return getattr(sys.modules[study.measure.__module__], "trained", None) is trained


def has_a_network(study):
    """Whether a study takes the network of the demonstration to images itself."""
    return hasattr(sys.modules[study.measure.__module__], "emoji") and not trains(study)


MEASURED = [name for name, study in STUDIES.items() if not trains(study)]
TRAINED = [name for name, study in STUDIES.items() if trains(study)]


def command(name):
    return f"python -m studies {name} --quick"


def done(name, out, images="", seed=0):
    """A quick study into a folder; gives its page. Fails where it needs weights that were not fetched."""
    if has_a_network(STUDIES[name]):
        require_packages([PACKAGES["tf_efficientnet_lite0"]])
    effort = Effort(out / "work", quick=True, seed=seed, data=images, show=False)
    return run_study(STUDIES[name], out, effort, command(name))


def without_training(monkeypatch, do=done_without_training):
    """Let comparisons make up their runs, without a network; gives the list of their tasks."""
    monkeypatch.setattr(comparison_checks, "_check_models", lambda plan: None)
    return count_tasks(monkeypatch, do)


def done_without_runs(name, out, images):
    """A quick study that trains, without the training."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_training(monkeypatch)
        return done(name, out, images)
