"""torch.compile gives the same value and gradient as eager mode."""

import pytest
import torch

import frontrank as fr
from tests.cases import BY_NAME, gallery, unequal_classes, value_and_gradients

pytestmark = pytest.mark.training  # the compiler takes longer than all other tests of losses


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("name", "batch", "backend"), [("PNP-D_q", unequal_classes, "aot_eager"), ("BlackboxAP", gallery, "eager")]
)
def test_compiled_loss(name, batch, backend):
    embeddings, more = batch()
    loss = BY_NAME[name].build()
    expected = value_and_gradients(loss, embeddings, more)
    actual = value_and_gradients(torch.compile(loss, backend=backend), embeddings, more)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of the compiler itself
def test_compiled_step_with_a_model():
    loss = fr.PNP(temperature=0.1)

    def step(model, x, labels):
        return loss(model(x), labels)

    embeddings, more = unequal_classes()
    model = torch.nn.Linear(6, 4, dtype=torch.float64)
    gradients = []
    for run in (step, torch.compile(step, backend="aot_eager")):
        model.zero_grad()
        run(model, embeddings, more["labels"]).backward()
        gradients.append(model.weight.grad.clone())
    assert (gradients[0] != 0).any()
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-12)
