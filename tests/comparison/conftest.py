"""What the tests of comparisons share: images, and a comparison that is done."""

import pytest

from frontrank.comparison.runner import run_comparison
from tests.comparison.comparisons import count_tasks, done_without_training, plan_of
from tests.training.runs import small_table


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A table of glyphs: 12 training classes, 8 for test, 8 images each."""
    return small_table(tmp_path_factory.mktemp("glyphs"))


@pytest.fixture(scope="session")
def trained(images, tmp_path_factory):
    """A comparison of two losses, two learning rates and two seeds, really trained: folder, results, tasks."""
    folder = tmp_path_factory.mktemp("compared") / "out"
    with pytest.MonkeyPatch.context() as monkeypatch:
        tasks = count_tasks(monkeypatch)
        plan = plan_of(images, lrs="1e-3,1e-2", seeds=2)
        results = run_comparison(plan, folder, command="frontrank compare ...", quiet=True)
    return folder, results, tasks


@pytest.fixture
def untrained(monkeypatch):
    """Runs are not done, but leave what runs do; they are listed here as (task, folder)."""
    return count_tasks(monkeypatch, done_without_training)
