"""Wrong input to the functions a user calls: an error of one line that names the argument."""

import pytest
import torch

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
    (BAD, InputError, r"NaN.*number 4"),
    (ZERO.numpy(), InputError, r"zeros.*number 0, 5"),
    (ROWS.int(), InputTypeError, "int32"),
    (ROWS[0], InputError, r"\(3,\)"),
    (ROWS[:0], InputError, "no rows"),
    ([[1.0, 2.0], [1.0]], InputError, "length"),
]


@pytest.mark.parametrize("call", CALLS)
def test_wrong_rows(call):
    for rows, error, fault in WRONG:
        with pytest.raises(error, match=f"^{call.split(', ')[1]} .*{fault}") as raised:
            CALLS[call](rows)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda: expand_queries(ROWS, ROWS[:, :2]), InputError, "queries .*gallery"),
        (lambda: rerank(ROWS, ROWS[:, :2]), InputError, "queries .*gallery"),
        (lambda: expand_queries(ROWS, k=0), InputError, "k "),
        (lambda: expand_queries(ROWS, alpha=-1), InputError, "alpha "),
        (lambda: expand_queries(ROWS, alpha="2"), InputTypeError, "alpha "),
        (lambda: augment_database(ROWS, k=-3), InputError, "k "),
        (lambda: augment_database(ROWS, alpha=None), InputTypeError, "alpha "),
        (lambda: rerank(ROWS, k1=0), InputError, "k1 "),
        (lambda: rerank(ROWS, k2=0), InputError, "k2 "),
        (lambda: rerank(ROWS, k1=3, k2=4), InputError, "k2 .*k1"),
        (lambda: rerank(ROWS, lam=1.1), InputError, "lam "),
        (lambda: Whitening.fit(ROWS, power=-0.1), InputError, "power "),
        (lambda: Whitening.fit(ROWS, dim=0), InputError, "dim "),
        (lambda: nearest(*[Vectors("rows", ROWS)] * 2, k=0), InputError, "k "),
    ],
)
def test_wrong_settings(call, error, name):
    with pytest.raises(error, match=f"^{name}"):
        call()
