"""torch.compile gives the same value and gradient as eager mode."""

import pytest
import torch

import frontrank as fr
from frontrank.losses.rank_loss import _batch_loss
from tests.cases import BY_NAME, gallery, unequal_classes, value_and_gradients

pytestmark = pytest.mark.training  # the compiler takes longer than all other tests of losses


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(("name", "batch"), [("PNP-D_q", unequal_classes), ("BlackboxAP", gallery)])
def test_compiled_loss(name, batch):
    embeddings, more = batch()
    loss = BY_NAME[name].build()
    expected = value_and_gradients(loss, embeddings, more)
    actual = value_and_gradients(torch.compile(loss, backend="aot_eager", fullgraph=True), embeddings, more)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of the compiler itself
def test_compiled_step_with_a_model():
    losses = fr.PNP(temperature=0.1), fr.SmoothAP(temperature=0.1)

    def step(model, x, labels):
        return sum(loss(model(x), labels) for loss in losses)

    embeddings, more = unequal_classes()
    model = torch.nn.Linear(6, 4, dtype=torch.float64)
    gradients = []
    for run in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        model.zero_grad()
        run(model, embeddings, more["labels"]).backward()
        gradients.append(model.weight.grad.clone())
    assert (gradients[0] != 0).any()
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-12)
    assert losses[0].last["queries_used"] > 0


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of the compiler itself
@pytest.mark.parametrize(("batch", "dtype"), [(unequal_classes, torch.float64), (gallery, torch.float16)])
def test_the_operation_follows_the_rules_of_torch(batch, dtype):
    embeddings, more = batch()
    tensors = [x if x is None else x.to(dtype).requires_grad_() for x in (embeddings, more.get("ref_emb"))]
    loss = fr.PNP(temperature=0.1)
    arguments = (tensors[0], more["labels"], tensors[1], more.get("ref_labels"), None, None)
    torch.library.opcheck(_batch_loss, (loss.number, *arguments, True, tensors[1] is not None))
