"""The examples that Hypothesis draws."""

from hypothesis.internal.conjecture.providers import HypothesisProvider


def test_they_do_not_depend_on_the_literals_of_local_modules():
    """What tests/conftest.py replaces has no public name: it must still be what Hypothesis asks."""
    assert len(HypothesisProvider(None)._local_constants) == 0
