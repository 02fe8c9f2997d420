"""Wrong input to the functions a user calls: one line that names the argument."""

import numpy as np
import pytest
import torch

import frontrank.retrieval as retrieval
from frontrank.errors import InputError, InputTypeError
from frontrank.ranking.vectors import Vectors
from frontrank.retrieval import Whitening, augment_database, expand_queries, nearest, rerank

ROWS = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
BAD = ROWS.clone()
BAD[4, 1] = torch.nan
ZERO = ROWS.clone()
ZERO[[0, 5]] = 0

CALLS = {
    "expand_queries, queries": lambda rows: expand_queries(rows, ROWS),
    "expand_queries, gallery": lambda rows: expand_queries(ROWS, rows),
    "augment_database, gallery": augment_database,
    "rerank, queries": lambda rows: rerank(rows, ROWS, 2, 1),
    "rerank, gallery": lambda rows: rerank(ROWS, rows, 2, 1),
    "Whitening.fit, embeddings": Whitening.fit,
    "Whitening.apply, embeddings": Whitening.fit(ROWS).apply,
}

WRONG = [
    (BAD, InputError, r"{} has NaN or infinite values in 1 row \(number 4\); drop"),
    (ZERO.numpy(), InputError, r"{} is all zeros in 2 rows \(number 0, 5\), which have no direction; drop"),
    (ROWS.int(), InputTypeError, "{} must be floating point numbers, got torch.int32"),
    (ROWS[0], InputError, r"{} must have the shape \(items, dimensions\), got \(3,\)"),
    (ROWS[:0], InputError, "{} has no rows"),
    ([[1.0, 2.0], [1.0]], InputError, "{} must have rows of one length"),
    ("file.npy", InputTypeError, "{} must be floating point numbers"),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("rows", "error", "message"), WRONG)
def test_wrong_rows(call, rows, error, message):
    with pytest.raises(error, match=message.format(call.split(", ")[1])) as raised:
        CALLS[call](rows)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: expand_queries(ROWS, ROWS[:, :2]), InputError, "queries has 3 dimensions and gallery has 2"),
        (lambda: rerank(ROWS, ROWS[:, :2]), InputError, "queries has 3 dimensions and gallery has 2"),
        (lambda: expand_queries(ROWS, k=0), InputError, "k must be at least 1, got 0"),
        (lambda: expand_queries(ROWS, k=2.0), InputTypeError, "k must be a whole number, got 2.0"),
        (lambda: expand_queries(ROWS, k=True), InputTypeError, "k must be a whole number, got True"),
        (lambda: expand_queries(ROWS, alpha=-1), InputError, "alpha must be at least 0, got -1"),
        (lambda: expand_queries(ROWS, alpha=torch.nan), InputError, "alpha must be at least 0, got nan"),
        (lambda: expand_queries(ROWS, alpha="2"), InputTypeError, "alpha must be a number, got '2'"),
        (lambda: augment_database(ROWS, k=-3), InputError, "k must be at least 1, got -3"),
        (lambda: augment_database(ROWS, alpha=None), InputTypeError, "alpha must be a number, got None"),
        (lambda: rerank(ROWS, k1=0), InputError, "k1 must be at least 1, got 0"),
        (lambda: rerank(ROWS, k2=0), InputError, "k2 must be at least 1, got 0"),
        (lambda: rerank(ROWS, k1=3, k2=4), InputError, "k2 is 4, more than k1 = 3"),
        (lambda: rerank(ROWS, lam=1.1), InputError, "lam must be at least 0 and at most 1, got 1.1"),
        (lambda: Whitening.fit(ROWS, power=-0.1), InputError, "power must be at least 0 and at most 1, got -0.1"),
        (lambda: Whitening.fit(ROWS, dim=0), InputError, "dim must be at least 1, got 0"),
        (lambda: Whitening.fit(ROWS, dim=1.5), InputTypeError, "dim must be a whole number, got 1.5"),
        (lambda: nearest(*[Vectors("rows", ROWS)] * 2, k=0), InputError, "k must be at least 1, got 0"),
    ],
)
def test_wrong_settings(call, error, message):
    with pytest.raises(error, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_a_bad_row_far_into_a_mapped_file_is_named(tmp_path):
    file = np.memmap(tmp_path / "rows", dtype=np.float16, mode="w+", shape=(20_000, 2))
    file[:] = 1
    file[17_000] = 0
    with pytest.raises(InputError, match=r"gallery is all zeros in 1 row \(number 17000\)"):
        expand_queries(np.ones((1, 2)), file)


def test_public_names():
    assert sorted(retrieval.__all__) == retrieval.__all__
    assert all(hasattr(retrieval, name) for name in retrieval.__all__)
