"""What a user may hand to an evaluation, and what is said of everything else."""

import math
import sys

import numpy as np
import pytest
import torch

import frontrank as fr
from frontrank.errors import FrontrankError, InputError, InputTypeError
from frontrank.evaluation.evaluate import encode_labels, read_lists
from frontrank.ranking.vectors import check_labels

X, Y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), [0, 0, 1, 1, 2, 2]
Z, ZY = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)), [0, 1, 1, 5]
NAN_ROW, ZERO_ROW = X.clone(), X.clone()
NAN_ROW[[1, 4]] = math.nan
ZERO_ROW[5] = 0


def refused(error, message, call, *args, **more):
    """The call is refused in one line that says this."""
    with pytest.raises(error, match=message) as caught:
        call(*args, **more)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([4, 4, -1], [-1, 4, 9]),
        (["b", "b", "a"], ["a", "b", "zz"]),
        ([b"b", b"b", b"a"], ["a", "b", "zz"]),
        (np.array([1, 1, 0], dtype=bool), np.array([0, 1, 7])),
        (np.array([4, 4, 1], dtype=np.int8), np.array([1, 4, 300])),
        (np.array([2**53 + 1, 2**53 + 1, 2**53]), np.array([2**53, 2**53 + 1, 0], dtype=np.uint64)),
        (np.array([4, 4, -1]), np.array([2**64 - 1, 4, 0], dtype=np.uint64)),
    ],
)
def test_the_same_label_has_the_same_number(first, second):
    first, second = np.asarray(first), np.asarray(second)
    mine, other = encode_labels(first, second)
    alone, again = encode_labels(first, None)
    assert mine.dtype == other.dtype == alone.dtype == torch.long
    same = [[a == b for b in map(plain, second.tolist())] for a in map(plain, first.tolist())]
    assert (mine[:, None] == other).tolist() == same
    assert (alone[:, None] == again).tolist() == [[a == b for b in first.tolist()] for a in first.tolist()]


def plain(label):
    return label.decode() if isinstance(label, bytes) else label


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        ([1, 2], InputError),
        ([[1], [2], [3]], InputError),
        (7, InputError),
        (["a", None, "b"], InputTypeError),
        (np.array(["2020"] * 3, dtype="datetime64"), InputTypeError),
        (np.array(["a", math.nan, "b"], dtype=object), InputTypeError),
        ([[1], [1, 2], [3]], FrontrankError),
        (torch.ones(3, dtype=torch.bfloat16), InputTypeError),
    ],
)
def test_wrong_labels(labels, error):
    refused(error, "labels", check_labels, "labels", labels, 3)
    refused(InputTypeError, "gallery_labels", encode_labels, np.array(["1"]), np.array([1]))


def test_whole_numbers_in_a_square_list_are_indices():
    """[[1, 0], [0, 1]] names items; only True and False make a matrix."""
    assert read_lists("relevant", [[1, 0], [0, 1]], 2, 2).counts.tolist() == [2, 2]
    assert read_lists("relevant", [[True, False], [False, True]], 2, 2).counts.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("lists", "error", "name"),
    [
        (np.ones((3, 4)), InputTypeError, "relevant"),
        (torch.ones(3, 4, dtype=torch.long), InputTypeError, "relevant"),
        (np.ones((4, 3), dtype=bool), InputError, "relevant"),
        ([[0], [4], []], InputError, r"relevant\[1\] .*4"),
        ([[0], [1], [2, -1]], InputError, r"relevant\[2\] .*-1"),
        ([[0], [1], [2, 3, 2]], InputError, r"relevant\[2\] .*2"),
        ([[0], [1.0], []], InputTypeError, r"relevant\[1\]"),
        ([0, 1, 2], InputTypeError, r"relevant\[0\]"),
        (([0] for _ in range(3)), InputTypeError, "relevant"),
        ([[True], [True, False], [True]], FrontrankError, "relevant"),
        (torch.eye(3, 4).bool().to_sparse(), FrontrankError, "relevant"),
    ],
)
def test_wrong_lists(lists, error, name):
    refused(error, name, read_lists, "relevant", lists, 3, 4)


WRONG = {
    "no labels": ((X,), {}, InputError, "labels"),
    "ignored alone": ((X,), {"ignored": [[]] * 6}, InputError, "ignored"),
    "NaN": ((NAN_ROW, Y), {}, InputError, "embeddings .*1, 4"),
    "NaN in a gallery": ((Z, ZY), {"gallery": NAN_ROW, "gallery_labels": Y}, InputError, "gallery .*1, 4"),
    "zeros": ((ZERO_ROW, Y), {}, InputError, "embeddings .*5"),
    "no rows": ((X[:0], []), {}, InputError, "embeddings"),
    "all different": ((X, range(6)), {}, InputError, "labels"),
    "strangers": ((X, [8] * 6), {"gallery": Z, "gallery_labels": ZY}, InputError, "gallery_labels"),
    "none relevant": ((X,), {"gallery": Z, "relevant": [[]] * 6}, InputError, "relevant"),
    "all ignored": ((X, Y), {"ignored": [range(6)] * 6}, InputError, "query"),
    "gallery alone": ((X, Y), {"gallery": Z}, InputError, "gallery_labels"),
    "gallery labels alone": ((X, Y), {"gallery_labels": ZY}, InputError, "gallery_labels"),
    "dimensions": ((X, Y), {"gallery": Z[:, :2], "gallery_labels": ZY}, InputError, "embeddings .*gallery"),
    "groups without labels": ((X,), {"relevant": [[1]] * 6, "metrics": ["NMI"]}, InputError, "NMI"),
    "groups without gallery labels": (
        (X, Y), {"gallery": Z, "relevant": [[1]] * 6, "metrics": ["NMI"]}, InputError, "gallery_labels",
    ),
    "name": ((X, Y), {"name": 5}, InputTypeError, "name"),
    "no such device": ((X, Y), {"device": "gpu"}, InputError, "device"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input(name):
    args, more, error, message = WRONG[name]
    refused(error, message, fr.evaluate, *args, **more)


def test_without_a_library_for_clusters(monkeypatch):
    for name in ("faiss", "sklearn.cluster"):
        monkeypatch.setitem(sys.modules, name, None)
    refused(FrontrankError, "pip install", fr.evaluate, X, Y, metrics=["NMI"])


ODD = [
    *[0, -1.5, math.nan, True, 1j, "abc", b"x", [], [[]], {}, {1, 2}, object(), [None] * 6, [[1]] * 6, [{}] * 6],
    *[[[1.0], [1.0, 2.0]], [[True], [True, False]], [1, "a", None, 2.0, b"x", ()], (x for x in range(6)), [2**70] * 6],
    *[np.float32(3), np.zeros(6), np.zeros((6, 0)), np.ones((6, 6), dtype=object), np.array(None), np.ones((2, 2, 2))],
    *[np.ones((6, 6), dtype="U1"), np.zeros(6, dtype="datetime64[s]"), np.zeros(6, dtype=[("a", "f4")])],
    *[np.ones((6, 3), dtype=">f8"), np.ma.masked_array(np.ones((6, 3)), mask=True), np.ones((6, 6), dtype=np.uint16)],
    *[np.full((6, 6), np.finfo(np.longdouble).max), np.ones((6, 6), dtype=np.complex64), torch.tensor(1)],
    *[torch.ones(6, 6).to_sparse(), torch.ones(6, 6, dtype=torch.bfloat16), torch.ones(6, 6, dtype=torch.float8_e5m2)],
    *[[torch.ones(3, requires_grad=True)] * 6, [torch.ones(2), torch.ones(3)], torch.ones(6) > 0],
]
SIMPLE = [odd for odd in ODD if not isinstance(odd, torch.Tensor | np.ndarray | list)]
FORMS = [{}, {"gallery": Z, "gallery_labels": ZY}, {"gallery": Z, "gallery_labels": ZY, "relevant": [[1]] * 6}]


def outcome(call, given):
    """Empty if the call gives numbers or an error of the package in one line; else what went wrong."""
    try:
        report = call(**given)
    except FrontrankError as error:
        return "" if "\n" not in str(error) else f"several lines: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if all(map(math.isfinite, report.values())) else f"{report!r}"


def assert_none_breaks(call, argument, odds, forms):
    found = {str(odd)[:40]: outcome(call, form | {argument: odd}) for odd in odds for form in forms}
    assert not {odd: wrong for odd, wrong in found.items() if wrong}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("argument", ["embeddings", "labels", "gallery", "gallery_labels", "relevant", "ignored"])
def test_odd_input_is_refused_or_fine(argument):
    base = {"embeddings": X, "labels": Y, "metrics": ["mAP", "dists@inter"]}
    assert_none_breaks(fr.evaluate, argument, ODD, [base | form for form in FORMS])


@pytest.mark.parametrize("argument", ["scores", "labels", "gallery_labels", "relevant", "ignored"])
def test_odd_scores_are_refused_or_fine(argument):
    assert_none_breaks(fr.evaluate_scores, argument, ODD, [{"scores": X @ X.T, "labels": Y, "metrics": ["mAP"]}])


@pytest.mark.parametrize("argument", ["metrics", "seed", "name"])
def test_odd_settings_are_refused_or_fine(argument):
    assert_none_breaks(fr.evaluate, argument, SIMPLE, [{"embeddings": X, "labels": Y, "metrics": ["NMI"]}])


def test_a_query_without_a_positive_is_looked_at_too():
    of_items = {"gallery": X, "gallery_labels": [0] * len(X)}
    refused(InputError, "embeddings .*1", fr.evaluate, NAN_ROW[:2], [0, 1], **of_items)
