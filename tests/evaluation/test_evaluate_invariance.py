"""What must not change the result of an evaluation, and embeddings with nothing in them."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import frontrank as fr
from tests.exact_paths import SMALL, set_sizes, taken
from tests.reference import evaluation as reference

NAMES = reference.NAMES


def same(first, second):
    """Are two reports equal, bit for bit?"""
    assert list(first) == list(second)
    return all(first.per_query[name].tobytes() == second.per_query[name].tobytes() for name in first.per_query)


def rows_with_ties(count, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, (count, dim), generator=generator).float() + 3 * torch.eye(dim)[0]


@pytest.fixture(params=["symmetric", "large classes", "groups"])
def labels(request, monkeypatch):
    """Labels of 90 rows, for each of the ways to go over them."""
    set_sizes(monkeypatch, block=20, chunk=32, pairs=300 if request.param == "groups" else None)
    paths = taken(monkeypatch)
    yield torch.arange(90) % (2 if request.param == "large classes" else 9)
    assert ("symmetric" in paths) == (request.param != "groups")
    assert ("many" in paths) == (request.param == "large classes")


@pytest.mark.parametrize("rows", [torch.randn(90, 16), rows_with_ties(90)], ids=["apart", "ties"])
def test_own_gallery_is_a_gallery_without_oneself(rows, labels):
    alone = fr.evaluate(rows, labels, metrics=NAMES)
    ignored = [[q] for q in range(90)]
    assert same(fr.evaluate(rows, labels, gallery=rows, gallery_labels=labels, ignored=ignored, metrics=NAMES), alone)
    assert same(fr.evaluate(rows, relevant=labels[:, None] == labels, metrics=NAMES), alone)
    report = fr.evaluate(
        rows, gallery=rows, relevant=labels[:, None] == labels, ignored=torch.eye(90) > 0, metrics=NAMES
    )
    assert same(report, alone)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_a_mapped_file_is_the_same_as_memory(dtype, labels, tmp_path):
    rows, items = (torch.randn(n, 16).numpy().astype(dtype) for n in (90, 70))
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "items.npy", items)
    mapped, mapped_items = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("rows", "items"))
    for in_memory in (rows, torch.from_numpy(rows)):
        assert same(fr.evaluate(mapped, labels, metrics=NAMES), fr.evaluate(in_memory, labels, metrics=NAMES))
    more = {"gallery_labels": labels[:70], "metrics": NAMES}
    first = fr.evaluate(mapped, labels, gallery=mapped_items, **more)
    assert same(first, fr.evaluate(rows, labels, gallery=torch.from_numpy(items), **more))


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_sizes_of_blocks_change_nothing(data, monkeypatch):
    rows = rows_with_ties(20) if data.draw(st.booleans()) else torch.randn(20, 5)
    y = torch.arange(20) % 4
    with monkeypatch.context() as patch:
        set_sizes(patch, block=512, held=1 << 24, pairs=1 << 23, few=40, cell=64, redo=64, chunk=8192)
        plain = fr.evaluate(rows, y, metrics=NAMES)
    with monkeypatch.context() as patch:
        names = ["block", "held", "pairs", "few", "cell", "redo", "chunk", "pairs_at_once"]
        set_sizes(
            patch, **{name: data.draw(st.integers(name not in ("few", "redo"), 60), label=name) for name in names}
        )
        assert same(fr.evaluate(rows, y, metrics=NAMES), plain)


@settings(max_examples=10)
@given(st.permutations(range(20)), st.permutations(range(15)), st.integers(0, 50))
def test_the_order_of_items_changes_nothing(order, item_order, seed):
    rows, items = rows_with_ties(20, seed=seed), rows_with_ties(15, seed=seed + 1)
    y, z = torch.arange(20) % 6, torch.arange(15) % 4
    first, second = fr.evaluate(rows, y, metrics=NAMES), fr.evaluate(rows[order], y[order], metrics=NAMES)
    for name in NAMES:
        np.testing.assert_allclose(second.per_query[name], first.per_query[name][order], rtol=1e-12)
    first = fr.evaluate(rows, y, gallery=items, gallery_labels=z, metrics=NAMES)
    second = fr.evaluate(rows, y, gallery=items[item_order], gallery_labels=z[item_order], metrics=NAMES)
    for name in NAMES:
        np.testing.assert_allclose(second.per_query[name], first.per_query[name], rtol=1e-12)


THREADS = """
import hashlib, torch, frontrank as fr
rows = torch.randn(530, 32, generator=torch.Generator().manual_seed(0))
rows[265:] = rows[:265]
for classes in (53, 7):
    for threads in (1, 2):
        torch.set_num_threads(threads)
        report = fr.evaluate(rows, torch.arange(530) // 5 % classes, metrics=["mAP"])
        print(hashlib.sha256(report.per_query["mAP"].tobytes()).hexdigest())
"""


@pytest.mark.processes
def test_the_number_of_threads_changes_nothing():
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-W", "error", "-c", THREADS]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100, env=environment)
    rows = torch.randn(530, 32, generator=torch.Generator().manual_seed(0))
    rows[265:] = rows[:265]
    expected = []
    for classes in (53, 7):
        report = fr.evaluate(rows, torch.arange(530) // 5 % classes, metrics=["mAP"])
        expected += [hashlib.sha256(report.per_query["mAP"].tobytes()).hexdigest()] * 2
    assert out.stdout.split() == expected
    assert out.stderr == ""


@pytest.mark.parametrize(
    "rows",
    [
        torch.full((60, 500), -1e-3, dtype=torch.float16),
        torch.randn(1, 500).expand(60, -1),
        torch.randint(-9, 9, (1, 500)) * torch.arange(1.0, 61)[:, None],
        torch.randn(1, 500) * 2.0 ** torch.arange(-30, 30)[:, None],
    ],
    ids=["a half constant", "one row", "multiples", "powers of two"],
)
@pytest.mark.parametrize("classes", [20, 2])
def test_a_collapsed_embedding_is_at_the_bottom(rows, classes, monkeypatch):
    """All negatives stand before each of the m positives: AP is the mean of k / (negatives + k), k = 1 to m."""
    set_sizes(monkeypatch, few=10)
    y = torch.arange(60) % classes
    positives, negatives = 60 // classes - 1, 60 - 60 // classes
    report = fr.evaluate(rows, y, metrics=NAMES)
    bottom = sum(k / (negatives + k) for k in range(1, positives + 1)) / positives
    assert report["mAP"] == pytest.approx(bottom, rel=1e-12)
    assert report["MRR"] == pytest.approx(1 / (negatives + 1))
    for name in ("R@1", "R@10", "P@1", "P@3", "mAP@R", "R-precision"):
        assert report[name] == 0
    more = {"gallery": rows, "gallery_labels": y, "metrics": NAMES, "ignored": [[q] for q in range(60)]}
    assert same(fr.evaluate(rows.double(), y, **more), report)


@pytest.mark.parametrize(
    ("dtype", "powers"),
    [
        (torch.float32, (-37, -30, 0, 30, 37)),
        (torch.float64, (-300, -200, 0, 200, 300)),
        (torch.bfloat16, (-37, 0, 37)),
    ],
    ids=str,
)
@pytest.mark.parametrize("few", [40, 0])
def test_large_and_tiny_rows(dtype, powers, few, monkeypatch):
    set_sizes(monkeypatch, **SMALL, few=few)
    scales = 10.0 ** torch.tensor(powers, dtype=torch.float64)[torch.arange(30) % len(powers)]
    rows = (torch.randn(30, 6, dtype=torch.float64) * scales[:, None]).to(dtype)
    y = [q % 7 for q in range(30)]
    lists = reference.ranked_lists(rows.double().tolist(), None, reference.same_label(y))
    report = fr.evaluate(rows, y, metrics=NAMES)
    for name, values in reference.values(lists).items():
        np.testing.assert_allclose(report.per_query[name], values, rtol=1e-12)


@pytest.mark.parametrize("make", [lambda x: x.clone().requires_grad_(), lambda x: x.numpy().copy()])
def test_nothing_given_is_changed(make):
    rows, items = make(torch.randn(12, 4)), make(torch.randn(9, 4))
    y, z = torch.arange(12) % 3, np.arange(9) % 3
    relevant, ignored = y[:, None] == torch.tensor(z), [np.array([2, 1])] * 12
    given = [rows, items, y, z, relevant]
    before = [x.detach().clone() if isinstance(x, torch.Tensor) else x.copy() for x in given]
    metrics = [*NAMES, "NMI", "dists@intra", "dists@inter"]
    fr.evaluate(rows, y, metrics=metrics)
    fr.evaluate(rows, y, gallery=items, gallery_labels=z, metrics=metrics)
    fr.evaluate(rows, y, gallery=items, relevant=relevant, ignored=ignored)
    assert all(bool((a == b).all()) for a, b in zip(before, given, strict=True))
    assert all(one.tolist() == [2, 1] for one in ignored)
    assert torch.is_grad_enabled()
