"""Small models, batches and every loss, for tests of training steps."""

import torch
from pytorch_metric_learning import losses, miners
from torch import nn

from frontrank.training import PeerLoss
from tests.cases import BY_NAME, NAMES, random_labels

DIM = 5
CLASSES = 6
LABELS = random_labels([5, 4, 3, 3, 1, 1], 3)
PEERS = {
    "pml-contrastive": lambda: PeerLoss(losses.ContrastiveLoss(neg_margin=1.2)),
    "pml-triplet": lambda: PeerLoss(losses.TripletMarginLoss(margin=0.3)),
    "pml-mined": lambda: PeerLoss(losses.MultiSimilarityLoss(), miners.MultiSimilarityMiner()),
}
LOSSES = {**{name: BY_NAME[name].build for name in NAMES}, **PEERS}


def build_model(dtype=torch.float64, dropout=0.0, norm="frozen", seed=0):
    """Images [image, 3, 6, 6] to embeddings of any length; the training flag is as in a training run."""
    torch.manual_seed(seed)
    body = [nn.Conv2d(3, 4, 3, bias=norm == "frozen"), nn.BatchNorm2d(4) if norm else nn.Identity()]
    body += [nn.Tanh(), nn.Dropout(dropout)]
    head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(dropout), nn.Linear(16, DIM)]
    model = nn.Sequential(*body, *head).to(dtype)
    if norm:
        model[1].running_mean.uniform_(-0.5, 0.5)
        model[1].running_var.uniform_(0.5, 2)
    model.train()
    if norm == "frozen":
        model[1].eval()
    return model


def build_images(n=17, seed=1, dtype=torch.float64):
    return torch.randn(n, 3, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def past(n=20, seed=5, dtype=torch.float64):
    """Embeddings and labels of earlier batches."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(n, DIM, generator=generator, dtype=torch.float64).to(dtype)
    return embeddings, LABELS[torch.randint(len(LABELS), (n,), generator=generator)]


def with_memory(loss, embeddings, labels, memory_embeddings, memory_labels, weight=0.5):
    """The loss of a batch against itself, and against a memory."""
    of_memory = loss(embeddings, labels, ref_emb=memory_embeddings, ref_labels=memory_labels)
    return (1 - weight) * loss(embeddings, labels) + weight * of_memory


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def largest_difference(found, expected):
    """Over all parameters: the length of the difference, as a share of the length of what is expected."""
    assert found.keys() == expected.keys()
    assert all(each.norm() > 0 for each in expected.values()), "no gradient: nothing was tested"
    return float(max((found[name] - expected[name]).norm() / expected[name].norm() for name in expected))
