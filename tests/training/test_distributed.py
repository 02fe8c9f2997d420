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
from frontrank.errors import InputError, InputTypeError
from frontrank.training import EmbeddingMemory, PeerLoss, distributed, gather, gather_rows, step_gradient
from tests.cases import random_labels
from tests.training.processes import STARTING, run
from tests.training.steps import DIM, LOSSES, build_images, build_model

# name: images of each step and the share of each process
BATCHES = {2: [(30, 18), (24, 24)], 3: [(5, 30, 13), (16, 16, 16)]}
MODES = ["plain", "memory", "multistage", "multistage and memory"]
LABELS = random_labels([12, 10, 8, 8, 6, 3, 1], 2)
CLASS_NUMBERS = LABELS.unique(return_inverse=True)[1]
FEW = ["PNP-D_q", "QuantizedAP-balanced", "BlackboxRecall-loglog", "pml-triplet"]


def build_loss(name):
    if name == "pml-proxies":
        torch.manual_seed(5)
        return PeerLoss(losses.ProxyAnchorLoss(num_classes=7, embedding_size=DIM).double())
    return LOSSES[name]()


def weights_of(*modules):
    return torch.cat([each.detach().flatten() for module in modules for each in module.parameters()])


def two_steps(name, mode, shares, norm="frozen"):
    """How two steps of gradient descent change the weights, and the losses, for the shares of the process this is."""
    model = build_model(norm=norm)
    network = distributed.wrapped(model)
    loss = build_loss(name)
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=1.0, momentum=0.9)
    before = weights_of(model, loss)
    memory = EmbeddingMemory(40) if "memory" in mode else None
    found = []
    for number, sizes in enumerate(shares):
        images, labels = build_images(sum(sizes), seed=number), (CLASS_NUMBERS if "prox" in name else LABELS)
        own = torch.arange(sum(sizes)).split(sizes)[distributed.rank()]
        optimizer.zero_grad()
        step = step_gradient(
            network,
            loss,
            images[own],
            labels[own],
            chunk=7 if "multistage" in mode else None,
            memory=memory,
        )
        assert step.labels.tolist() == labels.tolist()
        if memory is not None:
            memory.add(step.embeddings, step.labels)
        optimizer.step()
        found.append(step.loss)
    return {
        "changes": weights_of(model, loss) - before,
        "losses": torch.stack(found),
        "memory": None if memory is None else memory.state_dict()["embeddings"],
        "buffers": torch.cat([each.flatten().double() for each in model.buffers()]),
    }


def names(world):
    return [*LOSSES, "pml-proxies"] if world == 2 else FEW


def all_steps(rank, world):
    found = {(name, mode): two_steps(name, mode, BATCHES[world]) for name in names(world) for mode in modes(name)}
    found["live norm"] = two_steps("PNP-D_q", "multistage", BATCHES[world], norm="live")
    return {"steps": found, **small_things(rank, world)}


def modes(name):
    return [mode for mode in MODES if "prox" not in name or "memory" not in mode]


def small_things(rank, world):
    """What each of the other functions does, in the same processes: starting them is what takes the time."""
    found = {"rank": distributed.rank(), "world": distributed.world_size(), "main": distributed.is_main()}
    found["uneven"] = gather_rows(torch.arange(rank) + 10 * rank)  # 0 rows on rank 0
    found["nothing"] = gather_rows(torch.zeros(0, 3)).shape
    found["kinds"] = {
        str(dtype): gather_rows(torch.tensor([[rank, 1], [0, rank]]).to(dtype))
        for dtype in (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64)
    }
    found["transposed"] = gather_rows(torch.arange(6).view(2, 3).T + 100 * rank)
    rows = torch.full((rank, 2), float(rank), requires_grad=True)  # 0 rows on rank 0
    everyone = gather(rows)
    (everyone * torch.arange(1.0, 1 + everyone.numel()).view_as(everyone)).sum().backward()
    found["gathered"], found["slopes"] = everyone.detach(), rows.grad
    found["any"] = [distributed.any_rank(rank == 1), distributed.any_rank(False)]
    found["from main"] = distributed.from_main({"rank": rank})
    found["objects"] = distributed.gather_objects(f"of {rank}")
    distributed.barrier()
    found["refused"] = [refused(lambda: gather_rows(torch.zeros(2, 2 + rank)))]
    found["refused"].append(refused(lambda: gather_rows(torch.zeros(2, dtype=[torch.int64, torch.int32][rank % 2]))))
    images = build_images(4 * rank)
    found["refused"].append(
        refused(lambda: step_gradient(build_model(), fr.PNP(), images, torch.zeros(4 * rank).long()))
    )
    model = build_model()
    torch.manual_seed(rank)
    np.random.seed(rank)  # noqa: NPY002
    random.seed(rank)
    drawing = step_gradient(model, drawing_loss, build_images(2), torch.zeros(2).long())
    found["drawn in the loss"] = drawing.loss.item()
    found["drawn after"] = [torch.rand(()).item(), random.random(), float(np.random.rand())]  # noqa: NPY002
    random_triplets = PeerLoss(losses.TripletMarginLoss(triplets_per_anchor=1))
    found["random triplets"] = step_gradient(build_model(), random_triplets, build_images(9), torch.arange(9) % 3).loss
    return found


def drawing_loss(embeddings, labels):
    """A loss that is what it draws."""
    return embeddings.sum() * 0 + float(torch.rand(())) + random.random() + float(np.random.rand())  # noqa: NPY002


def refused(call):
    try:
        call()
    except InputError as error:
        return str(error)
    return None


def one_is_late(rank, world):
    """Rank 1 is busy with something else and does not come; rank 0 was told how long to wait."""
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert group.options._timeout == timedelta(seconds=STARTING)  # as start was told
    group._set_default_timeout(timedelta(seconds=3))  # only now: on a busy machine they may meet later than that
    sign = Path(os.environ["FOLDER"]) / "gave up"
    if rank == 1:
        for _ in range(1000):
            if sign.exists():
                return {"said": "was not waited for"}
            time.sleep(0.1)
        return {"said": "was waited for until it ended"}
    try:
        distributed.barrier()
    except RuntimeError:
        sign.touch()
        return {"said": "gave up"}
    return {"said": "waited for nobody"}


def one_fails(rank, world):
    """Rank 1 fails while the others wait for it."""
    if rank == 1:
        time.sleep(1)
        raise ValueError("of my own")
    try:
        distributed.barrier()
    except RuntimeError:
        return {"said": "gave up"}
    return {"said": "waited for nobody"}


def check_steps_equal_those_of_one_process(world, found):
    """Every loss, plain, with memory and in chunks, uneven shares, two steps of the optimizer."""
    alone = [(sum(sizes),) for sizes in BATCHES[world]]
    off = {}
    for name in names(world):
        for mode in modes(name):
            expected = two_steps(name, mode.replace("multistage", "plain"), alone)
            for rank, each in enumerate(found):
                for part in ("changes", "losses", *(["memory"] if "memory" in mode else [])):
                    difference = (each["steps"][name, mode][part] - expected[part]).norm() / expected[part].norm()
                    if not difference < 1e-10:
                        off[name, mode, rank, part] = float(difference)
    assert not off


def check_ranks_agree_exactly(world, found):
    for key, expected in found[0]["steps"].items():
        for each in found[1:]:
            assert torch.equal(each["steps"][key]["changes"], expected["changes"]), key
            assert torch.equal(each["steps"][key]["buffers"], expected["buffers"]), key


def test_steps_change_the_weights():
    """Or the comparisons above would compare nothing."""
    for name in names(2):
        assert two_steps(name, "plain", [(48,), (48,)])["changes"].norm() > 1e-3, name


def check_small_things(world, found):
    assert [each["rank"] for each in found] == list(range(world))
    assert {each["world"] for each in found} == {world}
    assert [each["main"] for each in found] == [rank == 0 for rank in range(world)]
    for each in found:
        assert each["uneven"].tolist() == {2: [10], 3: [10, 20, 21]}[world]
        assert each["nothing"] == (0, 3)
        for dtype, rows in each["kinds"].items():
            expected = torch.cat([torch.tensor([[rank, 1], [0, rank]]) for rank in range(world)]).to(rows.dtype)
            assert torch.equal(rows, expected), dtype
        assert each["transposed"][-3:].tolist() == [
            [100 * (world - 1) + a, 100 * (world - 1) + a + 3] for a in range(3)
        ]
        assert each["gathered"].tolist() == {2: [[1.0, 1.0]], 3: [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]}[world]
        assert each["any"] == [True, False]
        assert each["from main"] == {"rank": 0}
        assert each["objects"] == [f"of {rank}" for rank in range(world)]


def check_gradient_of_a_gather_is_the_own_share_times_the_processes(world, found):
    expected = {2: [[], [[2.0, 4.0]]], 3: [[], [[3.0, 6.0]], [[9.0, 12.0], [15.0, 18.0]]]}[world]
    assert [each["slopes"].tolist() for each in found] == expected


def check_mistakes_are_refused_by_all_processes_at_once(world, found):
    for each in found:
        assert "rows differ between processes" in each["refused"][0]
        assert "torch.int32" in each["refused"][1]
        assert "images is empty on at least one process" in each["refused"][2]


def check_a_loss_that_draws_draws_the_same_everywhere(world, found):
    """And what each process draws afterwards is its own again."""
    assert len({each["drawn in the loss"] for each in found}) == 1
    assert len({float(each["random triplets"]) for each in found}) == 1
    for place in range(3):
        assert len({each["drawn after"][place] for each in found}) == world


CHECKS = [
    check_steps_equal_those_of_one_process,
    check_ranks_agree_exactly,
    check_small_things,
    check_gradient_of_a_gather_is_the_own_share_times_the_processes,
    check_mistakes_are_refused_by_all_processes_at_once,
    check_a_loss_that_draws_draws_the_same_everywhere,
]
ENDS = {2: ["gave up", "was not waited for"], 3: ["gave up", "of my own", "gave up"]}


@pytest.mark.parametrize("world", [2, 3])
def test_processes_are_one(world, tmp_path):
    """One test for each number of processes, since to start them is what takes the time."""
    found = run(all_steps, world, tmp_path, then=[one_is_late, one_fails][world - 2])
    assert all(isinstance(first, dict) for first, _ in found), found
    for check in CHECKS:
        check(world, [first for first, _ in found])
    assert all(said in str(end) for said, (_, end) in zip(ENDS[world], found, strict=True)), found


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
    assert distributed.wrapped(model) is model
    distributed.barrier()
    distributed.stop()


@pytest.mark.parametrize("rows", [torch.tensor(1.0), [1, 2], None], ids=["0-d", "list", "none"])
def test_only_rows_are_gathered(rows):
    with pytest.raises(InputTypeError, match="rows must be a tensor"):
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
    assert not torch.distributed.is_initialized()


TORCHRUN = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
BAD = {
    "no address": ({"MASTER_ADDR": None}, {}, "MASTER_ADDR is not; start with torchrun"),
    "no rank": ({"RANK": None, "LOCAL_RANK": None}, {}, "RANK, LOCAL_RANK is not"),
    "a rank of letters": ({"RANK": "one"}, {}, "RANK must be a whole number, got 'one'"),
    "a world of letters": ({"WORLD_SIZE": "many"}, {}, "WORLD_SIZE must be a whole number"),
    "a rank too many": ({"RANK": "2"}, {}, "RANK is 2 but WORLD_SIZE is 2"),
    "a device without an exchange": ({}, {"device": "mps"}, "device mps trains in one process only"),
    "no time": ({}, {"timeout": 0}, "timeout must be greater than 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused_starts(name, environment):
    change, arguments, message = BAD[name]
    for key, value in {**TORCHRUN, **change}.items():
        if value is not None:
            environment.setenv(key, value)
    with pytest.raises(InputError) as raised:
        distributed.start(**arguments)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not torch.distributed.is_initialized()
