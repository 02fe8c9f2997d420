"""torch.compile gives the same value and gradient as eager mode."""

import pytest
import torch

import frontrank as fr
from frontrank.losses.rank_loss import _batch_loss
from frontrank.ranking import FunctionMetric, Sigmoid
from tests.cases import BY_NAME, NAMES, gallery, unequal_classes, value_and_gradients

pytestmark = pytest.mark.training  # the compiler takes longer than all other tests of losses


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


OWN = {"own function": lambda: fr.RankLoss(FunctionMetric(lambda pos, neg: neg / (1 + pos + neg)), Sigmoid(0.1))}
LEVELS = torch.stack([torch.arange(13) // 3, torch.arange(13) // 6], 1)  # finest first


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of the compiler itself
@pytest.mark.parametrize(
    ("name", "batch"),
    [*[(name, unequal_classes) for name in [*NAMES, *OWN]], ("BlackboxAP", gallery), ("HierarchicalAP", None)],
)
def test_compiled_loss(name, batch):
    embeddings, more = batch() if batch else (unequal_classes()[0], {"labels": LEVELS})
    loss = OWN[name]() if name in OWN else BY_NAME[name].build()
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
@pytest.mark.parametrize(
    ("build", "batch", "dtype"),
    [
        (fr.PNP, unequal_classes, torch.float64),
        (fr.PNP, gallery, torch.float16),
        (fr.RecallAtK, unequal_classes, torch.float64),
    ],
)
def test_the_operation_follows_the_rules_of_torch(build, batch, dtype):
    embeddings, more = batch()
    tensors = [x if x is None else x.to(dtype).requires_grad_() for x in (embeddings, more.get("ref_emb"))]
    loss = build(temperature=0.1)
    arguments = (tensors[0], more["labels"], tensors[1], more.get("ref_labels"), None, None)
    torch.library.opcheck(_batch_loss, (loss.number, *arguments, True, tensors[1] is not None))
    assert _batch_loss(loss.number, *arguments, True, False)[1].dtype == torch.promote_types(dtype, torch.float32)
