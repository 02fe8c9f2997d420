import signal

import pytest
import torch
from hypothesis import settings

from frontrank.ranking import ranks, steps, stream

torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
settings.register_profile("frontrank", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("frontrank")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a shell's background job, which all it starts would inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def rows_per_block(monkeypatch):
    """A function that sets how many queries a loss works on at once, and makes the tiles of that work small."""

    def set_rows(rows):
        monkeypatch.setattr(stream, "_ROWS", rows)
        monkeypatch.setattr(stream, "_LEAST_ROWS", 1)
        for module in (steps, ranks):
            monkeypatch.setattr(module, "TILE", 40)

    return set_rows
