"""The gradient of a step: chunked equals plain, whatever the loss, the randomness, the precision and the layers."""

import random
import warnings

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses
from torch import nn

import frontrank as fr
from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.ranking import AveragePrecision, Exact
from frontrank.training import EmbeddingMemory, PeerLoss, multistage_backward, step_gradient
from frontrank.training.checkpoints import random_state, set_random_state
from frontrank.training.gradient import mix_pairs
from tests.training.steps import (
    DIM,
    LABELS,
    LOSSES,
    build_images,
    build_model,
    gradients,
    largest_difference,
    past,
    with_memory,
)

N = len(LABELS)
CHUNKS = [1, 7]


def plain_backward(model, loss, images, labels, chunk, autocast=None):
    """The plain way: all chunks are embedded with their activations, then one backward."""
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        embeddings = torch.cat([model(each) for each in images.split(chunk)])
    value = loss(embeddings.float() if autocast else embeddings, labels)
    value.backward()
    return value.detach()


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", LOSSES)
def test_equals_the_pass_that_keeps_activations(name, chunk):
    """With dropout. Blackbox losses jump where two scores change places; none of these scores are that near."""
    images = build_images(dtype=torch.float32)
    plain, chunked = (build_model(torch.float32, dropout=0.3) for _ in range(2))
    torch.manual_seed(7)
    expected = plain_backward(plain, LOSSES[name](), images, LABELS, chunk)
    torch.manual_seed(7)
    value = multistage_backward(chunked, LOSSES[name](), images, LABELS, chunk=chunk)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    assert not value.requires_grad
    assert largest_difference(gradients(chunked), gradients(plain)) < 1e-6


@pytest.mark.parametrize("name", LOSSES)
def test_equals_the_whole_batch_at_once(name):
    """Without randomness it does not matter what the chunks are."""
    images = build_images()
    plain, chunked, listed = (build_model() for _ in range(3))
    expected = plain_backward(plain, LOSSES[name](), images, LABELS, N)
    value = multistage_backward(chunked, LOSSES[name](), images, LABELS, chunk=5)
    again = multistage_backward(listed, LOSSES[name](), list(images.split([2, 9, 6])), LABELS)
    torch.testing.assert_close(torch.stack([value, again]), expected.repeat(2), rtol=1e-12, atol=1e-14)
    assert largest_difference(gradients(chunked), gradients(plain)) < 1e-11
    assert largest_difference(gradients(listed), gradients(plain)) < 1e-11


@pytest.mark.parametrize(("chunk", "weight"), [(4, 0.5), (None, 0.2)])
@pytest.mark.parametrize("name", LOSSES)
def test_with_a_memory(name, chunk, weight):
    images, (old, old_labels) = build_images(), past()
    plain, chunked = build_model(), build_model()
    expected = with_memory(LOSSES[name](), plain(images), LABELS, old, old_labels, weight)
    expected.backward()
    memory, more = EmbeddingMemory(30), {} if weight == 0.2 else {"memory_weight": weight}
    memory.add(old, old_labels)
    value = multistage_backward(chunked, LOSSES[name](), images, LABELS, chunk=chunk, memory=memory, **more)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-14)
    assert largest_difference(gradients(chunked), gradients(plain)) < 1e-11
    held = memory.state_dict()
    torch.testing.assert_close(held["embeddings"], torch.cat([old, plain(images).detach()])[-30:])
    assert held["labels"].tolist() == torch.cat([old_labels, LABELS])[-30:].tolist()


@pytest.mark.parametrize("chunk", [4, None])
def test_a_step_returns_all_rows_and_adds_nothing_to_the_memory(chunk):
    model, memory = build_model(), EmbeddingMemory(30)
    memory.add(*past())
    step = step_gradient(model, fr.PNP(temperature=0.1), build_images(), LABELS, chunk=chunk, memory=memory)
    torch.testing.assert_close(step.embeddings, model(build_images()).detach())
    assert step.labels.tolist() == LABELS.tolist()
    assert step.loss.shape == ()
    assert not step.loss.requires_grad
    assert not step.embeddings.requires_grad
    assert len(memory) == 20


MEMORIES = {  # labels in a memory, and its weight
    "empty": ([], 0.5),
    "no positives": ([1, 2, 3], 0.5),
    "no weight": (LABELS.tolist(), 0.0),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_a_memory_without_effect_is_the_batch_alone(name):
    old_labels, weight = MEMORIES[name]
    loss = fr.SmoothAP(temperature=0.1, include_query=True)
    alone, beside, memory = build_model(), build_model(), EmbeddingMemory(20)
    memory.add(past(len(old_labels))[0], torch.tensor(old_labels).long())
    expected = multistage_backward(alone, loss, build_images(), LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = multistage_backward(beside, loss, build_images(), LABELS, chunk=4, memory=memory, memory_weight=weight)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    assert largest_difference(gradients(beside), gradients(alone)) < 1e-11


def test_a_full_memory_with_few_positives_is_pointed_out_once():
    model, loss, memory = build_model(), fr.PNP(temperature=0.1), EmbeddingMemory(4)
    memory.add(past(4)[0], torch.tensor([LABELS[0], 1, 2, 3]))
    share = (LABELS[0] == LABELS).double().mean()
    with pytest.warns(FrontrankWarning, match=f"{share:.0%}.*batches.memory"):
        step_gradient(model, loss, build_images(), LABELS, memory=memory)
    assert loss.last["queries_used"] == int((LABELS[:, None] == LABELS).sum(1).gt(1).sum())  # of the batch
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step_gradient(model, loss, build_images(), LABELS, memory=memory)
        memory = EmbeddingMemory(5)  # may still get some
        memory.add(past(4)[0], torch.tensor([LABELS[0], 1, 2, 3]))
        step_gradient(model, loss, build_images(), LABELS, memory=memory)


@pytest.mark.parametrize("weight", [-0.1, 1.1, None])
def test_weights_of_a_memory_that_are_not_valid(weight):
    with pytest.raises((InputError, InputTypeError), match="memory_weight"):
        step_gradient(build_model(), fr.PNP(), build_images(), LABELS, memory=EmbeddingMemory(4), memory_weight=weight)


@pytest.mark.parametrize("chunk", [4, None])
def test_gradients_are_added_and_weighted(chunk):
    """Two batches at weight 1/2 and 1/4: half the gradient of one and a quarter of that of the other."""
    batches = [(build_images(seed=seed), LABELS.roll(seed)) for seed in (1, 2)]
    loss = fr.PNP(temperature=0.1)
    apart = []
    for images, labels in batches:
        model = build_model()
        plain_backward(model, loss, images, labels, N)
        apart.append(gradients(model))
    model = build_model()
    values = [
        multistage_backward(model, loss, images, labels, chunk=chunk, weight=weight)
        for (images, labels), weight in zip(batches, (0.5, 0.25), strict=True)
    ]
    expected = {name: apart[0][name] / 2 + apart[1][name] / 4 for name in apart[0]}
    assert largest_difference(gradients(model), expected) < 1e-11
    torch.testing.assert_close(values[0], loss(build_model()(batches[0][0]), LABELS.roll(1)).detach())  # not weighted


# Randomness


class Noise(nn.Module):
    """Noise from every generator a layer may draw from."""

    def forward(self, x):
        of_python, of_numpy = random.random(), float(np.random.rand())  # noqa: NPY002
        return x * (1 + torch.rand_like(x)) * (1 + of_python) * (1 + of_numpy)


def draw():
    return torch.rand(3).tolist(), random.random(), float(np.random.rand())  # noqa: NPY002


@pytest.mark.parametrize("chunk", [1, 4])
def test_all_randomness_is_repeated_and_then_goes_on_as_after_one_pass(chunk):
    start = random_state()
    plain, chunked = (nn.Sequential(build_model(), Noise()) for _ in range(2))
    images, loss = build_images(), fr.PNP(temperature=0.1)
    set_random_state(start)
    plain_backward(plain, loss, images, LABELS, chunk)
    expected = draw()
    set_random_state(start)
    multistage_backward(chunked, loss, images, LABELS, chunk=chunk)
    assert draw() == expected
    assert largest_difference(gradients(chunked), gradients(plain)) < 1e-11


def test_random_numbers_of_the_loss_are_not_drawn_again():
    """Random triplets: the numbers after the step are those after the loss."""
    loss = PeerLoss(losses.TripletMarginLoss(triplets_per_anchor=2))
    plain, chunked = (build_model(dropout=0.2) for _ in range(2))
    torch.manual_seed(3)
    plain_backward(plain, loss, build_images(), LABELS, 4)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with torch.no_grad():
        multistage_backward(chunked, loss, build_images(), LABELS, chunk=4)
    assert torch.equal(torch.rand(4), expected)
    assert largest_difference(gradients(chunked), gradients(plain)) < 1e-11


class Counting(nn.Module):
    """A layer that does something else each time it is called."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * torch.linspace(1, self.calls, x.shape[1], dtype=x.dtype)


def test_a_model_that_cannot_be_repeated_is_pointed_out():
    model = nn.Sequential(build_model(), Counting())
    with pytest.warns(FrontrankWarning, match="model"):
        multistage_backward(model, fr.PNP(temperature=0.1), build_images(), LABELS, chunk=4)
    assert model[1].calls == 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        multistage_backward(model, fr.PNP(temperature=0.1), build_images(), LABELS)


def test_a_single_chunk_is_embedded_once():
    for chunk in (N, N + 5, None):
        model = nn.Sequential(build_model(), Counting())
        multistage_backward(model, fr.PNP(temperature=0.1), build_images(), LABELS, chunk=chunk)
        assert model[1].calls == 1


# Norm layers


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("chunk", [3, N])
def test_live_batch_norm_sees_each_chunk_once(chunk, momentum):
    images, loss = build_images(), fr.PNP(temperature=0.1)
    plain, chunked = build_model(norm="live"), build_model(norm="live")
    plain[1].momentum = chunked[1].momentum = momentum
    plain_backward(plain, loss, images, LABELS, chunk)
    multistage_backward(chunked, loss, images, LABELS, chunk=chunk)
    assert chunked[1].num_batches_tracked == len(images.split(chunk))
    for name, buffer in plain.named_buffers():
        assert torch.equal(dict(chunked.named_buffers())[name], buffer), name
    assert largest_difference(gradients(chunked), gradients(plain)) < 1e-11
    assert (chunked[1].momentum, chunked[1].track_running_stats) == (momentum, True)
    assert chunked[1].training


@pytest.mark.parametrize("live", [True, False])
def test_instance_norm_sees_each_chunk_once(live):
    images, loss = build_images(), fr.PNP(temperature=0.1)
    plain, chunked = (build_model(norm=None) for _ in range(2))
    for model in (plain, chunked):
        model[1] = nn.InstanceNorm2d(4, track_running_stats=True, affine=True).double().train(live)
        model[1].running_var.fill_(3)
    plain_backward(plain, loss, images, LABELS, 5)
    multistage_backward(chunked, loss, images, LABELS, chunk=5)
    assert torch.equal(chunked[1].running_mean, plain[1].running_mean)
    assert torch.equal(chunked[1].running_var, plain[1].running_var)
    assert largest_difference(gradients(chunked), gradients(plain)) < 1e-11


def test_flags_are_left_alone_when_the_model_fails():
    class Failing(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls > 6:
                raise RuntimeError("enough")
            return x

    model = nn.Sequential(build_model(norm="live"), Failing())
    torch.manual_seed(2)
    with pytest.raises(RuntimeError, match="enough"):
        multistage_backward(model, fr.PNP(temperature=0.1), build_images(), LABELS, chunk=4)
    after = torch.rand(3)
    torch.manual_seed(2)
    assert torch.equal(torch.rand(3), after)
    assert (model[0][1].momentum, model[0][1].track_running_stats) == (0.1, True)


# Precision


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["PNP-D_q", "BlackboxAP", "pml-contrastive"])
def test_autocast(name, dtype, outer):
    """Also where the caller is within autocast himself: the weights that are cast there are kept for later."""
    images = build_images(dtype=torch.float32)
    plain, chunked = (build_model(torch.float32, dropout=0.2) for _ in range(2))
    seen = []
    chunked.register_forward_hook(lambda module, given, made: seen.append(made.dtype))
    torch.manual_seed(7)
    expected = plain_backward(plain, LOSSES[name](), images, LABELS, 4, dtype)
    torch.manual_seed(7)
    with torch.autocast("cpu", dtype=dtype, enabled=outer):
        value = multistage_backward(chunked, LOSSES[name](), images, LABELS, chunk=4, autocast=dtype)
    assert set(seen) == {dtype}
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)
    eps = torch.finfo(dtype).eps  # weights' gradients of all chunks are added up in halves in the plain way
    assert largest_difference(gradients(chunked), gradients(plain)) < 2 * eps


@pytest.mark.parametrize("chunk", [4, None])
def test_the_loss_is_computed_in_float32(chunk):
    seen = []

    def loss(embeddings, labels):
        seen.append((embeddings.dtype, (embeddings @ embeddings.T).dtype))
        return embeddings.sum()

    model, images = build_model(torch.float32), build_images(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step = step_gradient(model, loss, images, LABELS, chunk=chunk, autocast=torch.bfloat16)
    assert seen == [(torch.float32, torch.float32)]
    assert step.embeddings.dtype == torch.float32


@pytest.mark.parametrize("chunk", [4, None])
def test_a_scaler_scales_once(chunk):
    images, loss = build_images(dtype=torch.float32), fr.PNP(temperature=0.1)
    plain, scaled = build_model(torch.float32), build_model(torch.float32)
    expected = multistage_backward(plain, loss, images, LABELS, chunk=chunk)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(scaled.parameters(), lr=0.1)
    value = multistage_backward(scaled, loss, images, LABELS, chunk=chunk, scaler=scaler)
    assert torch.equal(value, expected)
    assert all(torch.equal(grad, 1024 * gradients(plain)[name]) for name, grad in gradients(scaled).items())
    scaler.unscale_(optimizer)
    assert largest_difference(gradients(scaled), gradients(plain)) < 1e-6


def test_an_overflow_is_left_to_the_scaler():
    model = build_model(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38)
    images = build_images(dtype=torch.float32)
    multistage_backward(model, lambda e, y: 100 * e.sum(), images, LABELS, chunk=4, scaler=scaler)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() < 3e38
    assert all(torch.equal(each, before[name]) for name, each in model.named_parameters())


# What a loss may be


@pytest.mark.parametrize("chunk", [4, None])
def test_a_frozen_model_under_a_loss_that_learns(chunk):
    loss = PeerLoss(losses.ProxyAnchorLoss(num_classes=6, embedding_size=DIM).double())
    model = build_model().requires_grad_(False)
    multistage_backward(model, loss, build_images(), LABELS.unique(return_inverse=True)[1], chunk=chunk)
    assert loss.loss.proxies.grad.norm() > 0
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("chunk", [4, None])
@pytest.mark.parametrize(
    "loss",
    [fr.RankLoss(AveragePrecision(), Exact()), lambda e, y: torch.tensor(2.0), lambda e, y: (e.sum() * 0).reshape(1)],
    ids=["exact", "constant", "of one element"],
)
def test_a_loss_without_a_gradient_gives_zeros(loss, chunk):
    model = build_model()
    value = multistage_backward(model, loss, build_images(), LABELS, chunk=chunk)
    assert value.shape == ()
    assert all(torch.equal(each, torch.zeros_like(each)) for each in gradients(model).values())


def test_chunks_of_different_sizes_of_images():
    """Every chunk may have a height and a width of its own."""
    chunks = [build_images(9), build_images(8, seed=2)[:, :, :, :5]]
    plain, chunked = build_model(), build_model()
    loss = fr.PNP(temperature=0.1)
    expected = loss(torch.cat([plain(each) for each in chunks]), LABELS)
    expected.backward()
    assert torch.equal(multistage_backward(chunked, loss, chunks, LABELS), expected)
    assert largest_difference(gradients(chunked), gradients(plain)) < 1e-11


# What is refused


def nan_slopes(embeddings, labels):
    return embeddings.sum() + (embeddings - embeddings.detach()).abs().sqrt().sum()


BAD = {
    "chunk 0": ({"chunk": 0}, InputError, "chunk"),
    "weight nan": ({"weight": float("nan")}, InputError, "weight"),
    "no images": ({"images": build_images(0), "labels": LABELS[:0]}, InputError, "images"),
    "an empty chunk": ({"images": [build_images(), build_images(0)]}, InputError, "images"),
    "a number for images": ({"images": torch.tensor(1.0)}, InputTypeError, "images"),
    "a list of numbers": ({"images": [1.0, 2.0]}, InputTypeError, "images"),
    "few labels": ({"labels": LABELS[1:]}, InputError, "labels"),
    "float labels": ({"labels": LABELS.float()}, InputTypeError, "labels"),
    "a loss of nan": ({"loss": lambda e, y: e.sum() * float("nan")}, InputError, "loss"),
    "slopes of nan": ({"loss": nan_slopes}, InputError, "gradient"),
    "a loss per image": ({"loss": lambda e, y: e.sum(1)}, InputTypeError, "loss"),
    "a model of maps": ({"model": nn.Conv2d(3, 2, 3).double()}, InputTypeError, "model"),
}


@pytest.mark.parametrize("chunk", [4, None])
@pytest.mark.parametrize("name", BAD)
def test_wrong_arguments_add_no_gradient(name, chunk):
    change, error, argument = BAD[name]
    model = build_model()
    arguments = {"model": model, "loss": fr.PNP(), "images": build_images(), "labels": LABELS, "chunk": chunk, **change}
    memory = EmbeddingMemory(5)
    with pytest.raises(error, match=argument):
        multistage_backward(**arguments, memory=memory if "loss" not in change else None)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert len(memory) == 0


def levels_of(labels):
    return torch.stack([labels, labels // 2], 1)


@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize("chunk", [None, 3])
def test_labels_of_several_levels_and_mixed_pairs(chunk, mix):
    """Chunks, a memory and virtual images: the gradient is that of the loss written out."""
    torch.manual_seed(0)
    model, images, labels = torch.nn.Linear(5, 4), torch.randn(12, 5), levels_of(torch.arange(12) % 5)
    loss, memory = fr.HierarchicalAP(0.1), fr.EmbeddingMemory(8)
    memory.add(torch.randn(8, 4), levels_of(torch.arange(8) % 5))
    past, past_labels = memory.gallery(torch.zeros(1, 4))
    torch.manual_seed(1)
    embeddings, all_labels = model(images), labels
    if mix:
        embeddings, all_labels = mix_pairs(embeddings, labels)
        assert len(embeddings) == 12 + 9  # classes of 3, 3, 2, 2, 2
    expected = (loss(embeddings, all_labels) + loss(embeddings, all_labels, ref_emb=past, ref_labels=past_labels)) / 2
    slopes = torch.autograd.grad(expected, list(model.parameters()))
    torch.manual_seed(1)
    value = fr.multistage_backward(model, loss, images, labels, chunk=chunk, memory=memory, memory_weight=0.5, mix=mix)
    torch.testing.assert_close(value, expected.detach())
    for parameter, slope in zip(model.parameters(), slopes, strict=True):
        torch.testing.assert_close(parameter.grad, slope)
    assert memory.gallery(torch.zeros(1, 4))[1].tolist() == labels[-8:].tolist()
    with pytest.raises(InputError, match="labels"):
        memory.add(torch.randn(2, 4), torch.tensor([1, 2]))
