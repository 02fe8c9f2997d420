"""Several processes are one: the same gradients, the same weights after steps, and no process left hanging."""

import os
import random
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from pytorch_metric_learning import losses

import frontrank as fr
from frontrank.errors import FrontrankError, InputError, InputTypeError
from frontrank.training import EmbeddingMemory, PeerLoss, distributed, gather, gather_rows, step_gradient
from frontrank.training.embedding import embed_table, embed_to_folder, merge_embeddings
from tests.cases import random_labels
from tests.training.processes import STARTING, run
from tests.training.small_model import SmallModel, noise_table, table_of
from tests.training.steps import DIM, LOSSES, build_images, build_model

WORLD = 3
SHARES = [(5, 30, 13), (16, 16, 16)]  # of the images of each step
LABELS = random_labels([12, 10, 8, 8, 6, 3, 1], 2)
CLASS_NUMBERS = LABELS.unique(return_inverse=True)[1]
CASES = [
    *(("pml-triplet", mode) for mode in ("plain", "memory", "multistage and memory")),
    *((name, "multistage and memory") for name in ("PNP-D_q", "HierarchicalAP")),
    *(("pml-proxies", mode) for mode in ("plain", "multistage")),
]
DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64)


def build_loss(name):
    if name == "pml-proxies":
        torch.manual_seed(5)
        return PeerLoss(losses.ProxyAnchorLoss(num_classes=7, embedding_size=DIM).double())
    return LOSSES[name]()


def weights_of(*modules):
    return torch.cat([each.detach().flatten() for module in modules for each in module.parameters()])


def two_steps(name, mode, shares, norm="frozen"):
    """Return how two steps of gradient descent change the weights, and the losses, for the shares of this process."""
    model = build_model(norm=norm)
    network = distributed.wrap_model(model)
    loss = build_loss(name)
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=1.0, momentum=0.9)
    before = weights_of(model, loss)
    memory = EmbeddingMemory(40) if "memory" in mode else None
    values = []
    for number, sizes in enumerate(shares):
        images, labels = build_images(sum(sizes), seed=number), (CLASS_NUMBERS if "prox" in name else LABELS)
        labels = torch.stack([labels, labels % 3], 1) if name == "HierarchicalAP" else labels
        own = torch.arange(sum(sizes)).split(sizes)[distributed.rank()]
        optimizer.zero_grad()
        chunk = 7 if "multistage" in mode else None
        step = step_gradient(network, loss, images[own], labels[own], chunk=chunk, memory=memory)
        assert step.labels.tolist() == labels.tolist()
        if memory is not None:
            memory.add(step.embeddings, step.labels)
        optimizer.step()
        values.append(step.loss)
    return {
        "changes": weights_of(model, loss) - before,
        "losses": torch.stack(values),
        "memory": torch.ones(1) if memory is None else memory.state_dict()["embeddings"],
        "buffers": torch.cat([each.flatten().double() for each in model.buffers()]),
    }


def drawing_loss(embeddings, labels):
    """A loss that is what it draws."""
    return embeddings.sum() * 0 + float(torch.rand(())) + random.random() + float(np.random.rand())  # noqa: NPY002


def refusal(call):
    try:
        call()
    except FrontrankError as error:
        return str(error)
    return None


def work(rank, world):
    """Do everything in the same processes: starting them is what takes the time."""
    results = {"steps": {case: two_steps(*case, SHARES) for case in CASES}}
    results["steps"]["live norm"] = two_steps("PNP-D_q", "multistage", SHARES, norm="live")
    results["who"] = distributed.rank(), distributed.world_size(), distributed.is_main()
    results["uneven"] = gather_rows(torch.arange(rank) + 10 * rank).tolist()  # 0 rows on rank 0
    results["empty"] = gather_rows(torch.zeros(0, 3)).shape
    results["dtypes"] = {dtype: gather_rows(torch.tensor([[rank, 1], [0, rank]]).to(dtype)) for dtype in DTYPES}
    results["transposed"] = gather_rows(torch.arange(6).view(2, 3).T + 100 * rank)
    rows = torch.full((rank, 2), float(rank), requires_grad=True)  # 0 rows on rank 0
    everyone = gather(rows)
    (everyone * torch.arange(1.0, 1 + everyone.numel()).view_as(everyone)).sum().backward()
    results["gather"], results["slopes"] = everyone.tolist(), rows.grad.tolist()
    results["any"] = [distributed.any_rank(rank == 1), distributed.any_rank(False)]
    results["from main"] = distributed.from_main({"rank": rank})
    results["objects"] = distributed.gather_objects(f"of {rank}")
    images, labels = build_images(4 * rank), torch.zeros(4 * rank).long()
    results["refusals"] = [
        refusal(lambda: gather_rows(torch.zeros(2, 2 + rank))),
        refusal(lambda: gather_rows(torch.zeros(2, dtype=[torch.int64, torch.int32][rank % 2]))),
        refusal(lambda: step_gradient(build_model(), fr.PNP(), images, labels)),
    ]
    model = build_model()
    torch.manual_seed(rank)
    np.random.seed(rank)  # noqa: NPY002
    random.seed(rank)
    step = step_gradient(model, drawing_loss, build_images(2), torch.zeros(2).long())
    results["draws"] = [torch.rand(()).item(), random.random(), float(np.random.rand())]  # noqa: NPY002
    triplets = PeerLoss(losses.TripletMarginLoss(triplets_per_anchor=1))
    other = step_gradient(build_model(), triplets, build_images(9), torch.arange(9) % 3)
    results["drawing losses"] = step.loss.item(), other.loss.item()
    return results | embed_together(rank)


def embed_together(rank):
    folder = Path(os.environ["FOLDER"])
    table = table_of(folder / "images", rows=11)
    embeddings = embed_table(SmallModel(), table, workers=0)
    few = embed_table(SmallModel(), table.rows(np.array([3, 1])), workers=0)  # fewer than processes
    embed_to_folder(SmallModel(), table, folder / "shards", shard_rows=2, workers=0)
    embed_to_folder(SmallModel(), table, folder / "two", shard_rows=6, workers=0)  # none for the third process
    model = SmallModel()
    model.broken_rows = (0,) if rank == 1 else ()
    return {"embeddings": embeddings, "few": few, "failure": refusal(lambda: embed_table(model, table, workers=0))}


def end_badly(rank, world):
    """Rank 0 waits for the others in vain, then rank 1 fails while rank 2 waits for it."""
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert group.options._timeout == timedelta(seconds=STARTING)
    group._set_default_timeout(timedelta(seconds=3))  # only now: on a busy machine they may meet later than that
    sign = Path(os.environ["FOLDER"]) / "gave up"
    while rank != 0 and not sign.exists():
        time.sleep(0.1)
    if rank == 1:
        raise ValueError("of my own")
    try:
        distributed.barrier()
    except RuntimeError:
        sign.touch()
        return "gave up"
    return "waited for nobody"


@pytest.mark.processes
def test_processes_are_one(tmp_path):
    """One test of everything, since starting the processes is what takes the time."""
    (tmp_path / "images").mkdir()
    table = noise_table(tmp_path / "images", rows=11)
    ranks = run(work, WORLD, tmp_path, then=end_badly)
    results = [first for first, _ in ranks]
    assert all(isinstance(first, dict) for first in results), results
    for case in CASES:
        check_steps(case, [each["steps"] for each in results])
    check_exchange(results)
    check_embedding(results, table, tmp_path)
    ends = [end for _, end in ranks]
    assert (ends[0], ends[2]) == ("gave up", "gave up")
    assert "of my own" in ends[1]


def check_steps(case, steps):
    """Losses of all kinds, plain, with memory and in chunks, uneven shares: as in one process, and the same on all."""
    name, mode = case
    expected = two_steps(name, mode.replace("multistage", "plain"), [(sum(sizes),) for sizes in SHARES])
    assert expected["changes"].norm() > 1e-3
    for part in ("changes", "losses", "memory"):
        for each in steps:
            difference = each[case][part] - expected[part]
            assert difference.norm() < 1e-10 * expected[part].norm(), (case, part)
    for each in steps[1:]:
        for key in (case, "live norm"):
            assert torch.equal(each[key]["changes"], steps[0][key]["changes"]), key
            assert torch.equal(each[key]["buffers"], steps[0][key]["buffers"]), key


def check_exchange(results):
    assert [each["who"] for each in results] == [(0, 3, True), (1, 3, False), (2, 3, False)]
    for each in results:
        assert each["uneven"] == [10, 20, 21]
        assert each["empty"] == (0, 3)
        for dtype, rows in each["dtypes"].items():
            expected = torch.cat([torch.tensor([[rank, 1], [0, rank]]) for rank in range(WORLD)]).to(dtype)
            assert torch.equal(rows, expected), dtype
        assert each["transposed"][-3:].tolist() == [[200, 203], [201, 204], [202, 205]]
        assert each["any"] == [True, False]
        assert each["from main"] == {"rank": 0}
        assert each["objects"] == ["of 0", "of 1", "of 2"]
        assert each["gather"] == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
        for word, refusal in zip(("rows", "torch.int32", "images"), each["refusals"], strict=True):
            assert word in refusal
    # the gradient of a gather is the own share, times the processes
    assert [each["slopes"] for each in results] == [[], [[3.0, 6.0]], [[9.0, 12.0], [15.0, 18.0]]]
    # a loss draws the same random numbers everywhere; what each process draws afterwards is its own again
    assert len({each["drawing losses"] for each in results}) == 1
    for place in range(3):
        assert len({each["draws"][place] for each in results}) == WORLD


def check_embedding(results, table, folder):
    expected = embed_table(SmallModel(), table, workers=0)
    shards = [merge_embeddings(folder / name, table, folder / f"{name}.npy") for name in ("shards", "two")]
    for embeddings in (*map(np.load, shards), *(each["embeddings"] for each in results)):
        np.testing.assert_allclose(embeddings, expected, atol=1e-6)
    for each in results:
        np.testing.assert_allclose(each["few"], expected[[3, 1]], atol=1e-6)
    assert "4.png" in results[1]["failure"]  # the first image of its share
    assert "another process" in results[0]["failure"]
    assert "another process" in results[2]["failure"]


# One process


def test_one_process_is_a_world_of_one():
    rows = torch.rand(3, 2, requires_grad=True)
    assert gather(rows) is rows
    assert gather_rows(rows) is rows
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
    assert distributed.any_rank(True)
    assert not distributed.any_rank(False)
    assert distributed.from_main("x") == "x"
    assert distributed.gather_objects(5) == [5]
    model = build_model()
    assert distributed.wrap_model(model) is model
    distributed.barrier()
    distributed.stop()


def test_what_fails_on_one_process_fails_on_all(monkeypatch):
    monkeypatch.setattr(distributed, "any_rank", lambda failed: True)
    with pytest.raises(FrontrankError, match="another process"), distributed.fail_together():
        pass
    with pytest.raises(InputError, match="mine"), distributed.fail_together():
        raise InputError("mine")


@pytest.mark.parametrize("rows", [torch.tensor(1.0), [1, 2]], ids=["0-d", "list"])
def test_only_rows_are_gathered(rows):
    with pytest.raises(InputTypeError, match="rows"):
        gather_rows(rows)


@pytest.fixture
def environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_without_torchrun_nothing_is_joined(environment):
    assert distributed.start("cpu") == torch.device("cpu")
    environment.setenv("WORLD_SIZE", "1")
    assert distributed.start("cpu") == torch.device("cpu")
    assert not dist.is_initialized()


TORCHRUN = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}


@pytest.mark.parametrize(
    ("change", "arguments", "name"),
    [
        ({"MASTER_ADDR": None}, {}, "MASTER_ADDR"),
        ({"RANK": "one"}, {}, "RANK"),
        ({"WORLD_SIZE": "many"}, {}, "WORLD_SIZE"),
        ({"RANK": "2"}, {}, "RANK"),
        ({}, {"device": "mps"}, "device"),
    ],
)
def test_starts_that_are_not_valid(change, arguments, name, environment):
    for key, value in {**TORCHRUN, **change}.items():
        if value is not None:
            environment.setenv(key, value)
    with pytest.raises(InputError, match=name):
        distributed.start(**arguments)
    assert not dist.is_initialized()
