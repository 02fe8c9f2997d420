"""2, 3 and 4 processes that share the queries have the gradient, and the report, of one process."""

import os

import pytest
import torch

import frontrank as fr
from frontrank.training import EmbeddingMemory, distributed, step_gradient
from tests.cases import BY_NAME, random_embeddings
from tests.products import Products
from tests.training.processes import STARTING, free_port, run
from tests.training.steps import DIM, build_images, build_model

WORLDS = {4: (3, 11, 1, 9), 3: (4, 15, 5), 2: (5, 19)}  # processes, and the images of each
LABELS = torch.stack([torch.arange(24) % 8, torch.arange(24) % 4], 1)  # two levels
NAMES = ["PNP-D_q", "SmoothAP", "FastAP-squared", "QuantizedAP-balanced", "BlackboxRecall-loglog", "BlackboxAP"]
NAMES += ["RecallAtK", "SupAP", "ROADMAP", "PairMargin", "SmoothNDCG", "HierarchicalAP"]  # one of each kind
MODES = {4: ["multistage and memory"], 3: ["plain", "memory", "multistage"], 2: ["multistage and memory"]}
EVALUATIONS = {  # classes of 3, 70 and 2
    "symmetric": (random_embeddings(3000, 1, dim=4), torch.arange(3000) // 3, {}),
    "large classes": (random_embeddings(420, 2, dim=4), torch.arange(420) % 6, {}),
    "levels": (random_embeddings(300, 3, dim=4), torch.stack([torch.arange(300) // 2, torch.arange(300) // 10], 1), {}),
    "sets": (random_embeddings(60, 6, dim=4), [{i // 2, i // 4} for i in range(60)], {}),
    "gallery": (
        random_embeddings(41, 4, dim=4),
        torch.arange(41) // 2 + 11,  # of the last two classes the gallery has nothing
        {"gallery": random_embeddings(90, 5, dim=4), "gallery_labels": torch.arange(90) // 3},
    ),
}


def gradients(modes, sizes):
    """The loss and the gradient of one step of each loss in each mode, for the share of this process."""
    model = build_model()
    network = distributed.wrap_model(model)
    return {(name, mode): gradient(network, name, mode, sizes) for name in NAMES for mode in modes}


def gradient(network, name, mode, sizes):
    network.zero_grad()
    loss = BY_NAME[name].build()
    labels = LABELS if getattr(loss, "graded", False) else LABELS[:, 0]
    memory = None
    if "memory" in mode:
        memory = EmbeddingMemory(30)
        memory.add(random_embeddings(20, 7, dim=DIM), labels[:20])
    own = torch.arange(24).split(sizes)[distributed.rank()]
    settings = {"chunk": 4 if "multistage" in mode else None, "memory": memory}
    step = step_gradient(network, loss, build_images(24)[own], labels[own], **settings)
    return torch.cat([step.loss.flatten(), *(each.grad.flatten() for each in network.parameters())])


def reports():
    """The metrics of each evaluation, and the products of this process."""
    results = {}
    for name, (embeddings, labels, more) in EVALUATIONS.items():
        metrics = ["R@1", "mAP", "mAP@R", *(["nDCG", "H-AP"] if name == "levels" else [])]
        with Products() as counted, distributed.share_queries():
            labels = labels if isinstance(labels, list) else labels.numpy()
            report = fr.evaluate(embeddings, labels, metrics=metrics, **more)
        results[name] = dict(report), counted.count
    return results


def work(rank, world):
    """The gradients and reports of 4 processes, then of 3 of them, then of 2."""
    results = {}
    for size, sizes in WORLDS.items():
        if size < world:
            distributed.stop(together=True)
            if rank >= size:
                break
            os.environ.update(WORLD_SIZE=str(size), MASTER_PORT=os.environ[f"PORT_{size}"])
            distributed.start("cpu", timeout=STARTING)
        results[size] = gradients(MODES[size], sizes), reports()
    return results


@pytest.mark.processes
def test_shares_of_processes_are_those_of_one(tmp_path, monkeypatch):
    for size in (2, 3):
        monkeypatch.setenv(f"PORT_{size}", str(free_port()))
    results = [first for first, _ in run(work, 4, tmp_path, timeout=600)]
    assert all(isinstance(each, dict) for each in results), results
    alone = reports()
    for size in WORLDS:
        whole = gradients(MODES[size], (24,))
        for actual, evaluations in (each[size] for each in results[:size]):
            for case, expected in whole.items():
                assert (actual[case] - expected).norm() < 1e-10 * expected.norm(), (size, case)
            for name, (metrics, products) in evaluations.items():
                assert metrics == alone[name][0], (size, name)
                if name in ("symmetric", "gallery"):  # the others are a few blocks
                    assert products <= 1.05 * alone[name][1] / size, (size, name)
