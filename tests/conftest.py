import signal
from dataclasses import replace

import pytest
import torch
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from frontrank.ranking import tiles

torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
settings.register_profile("frontrank", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("frontrank")
# Hypothesis draws some values from the literals of all local modules that happen to be imported: an edit anywhere, or
# other tests in the same process, would change the examples of every test. There is no setting for that.
providers._get_local_constants = providers.Constants
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a shell's background job, which all it starts would inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def rows_per_block(monkeypatch):
    """A function that sets how many queries a loss works on at once, and makes the tiles of that work small."""

    def set_rows(rows):
        monkeypatch.setattr(tiles, "CPU", replace(tiles.CPU, rows=rows, least_rows=1, tile=40))

    return set_rows
