"""What the tests of comparisons share: images, and a comparison that is done."""

import pytest

from frontrank.comparison.runner import compare
from tests.comparison.comparisons import count_tasks, done_without_training, plan_of
from tests.training.runs import small_table


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A table of glyphs: 12 training classes, 8 for test, 8 images each."""
    return small_table(tmp_path_factory.mktemp("glyphs"))


@pytest.fixture(scope="session")
def compared_before(images, tmp_path_factory):
    """A comparison of two losses, two learning rates and three seeds: its folder, what it found, the tasks it took."""
    folder = tmp_path_factory.mktemp("compared") / "out"
    with pytest.MonkeyPatch.context() as monkeypatch:
        tasks = count_tasks(monkeypatch)
        plan = plan_of(images, lrs="1e-3,1e-2", seeds=3)
        compared = compare(plan, folder, command="frontrank compare ...", quiet=True)
    return folder, compared, tasks


@pytest.fixture
def tasks(monkeypatch):
    """Runs are done in this process, and listed here as (task, folder)."""
    return count_tasks(monkeypatch)


@pytest.fixture
def untrained(monkeypatch):
    """Runs are not done, but leave what runs do; they are listed here as (task, folder)."""
    return count_tasks(monkeypatch, done_without_training)
