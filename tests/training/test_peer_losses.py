"""Losses of pytorch-metric-learning, called as ours: the same values as there, and no query compared with itself."""

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers

import frontrank as fr
from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.training import PeerLoss, peer_loss, peer_losses
from tests.errors import refusal

DIM = 6
LABELS = torch.tensor([0, 3, 1, 1, 0, 2, 3, 0, 1, 2, 4, 0])
OLD_LABELS = torch.tensor([1, 0, 4, 2, 2, 0, 5, 3, 1])
# those that take the pairs they are given, so that a pair can be left out
WITH_GALLERY = [
    "CircleLoss", "ContrastiveLoss", "GeneralizedLiftedStructureLoss", "IntraPairVarianceLoss", "LiftedStructureLoss",
    "MarginLoss", "MultiSimilarityLoss", "NTXentLoss", "SignalToNoiseRatioContrastiveLoss", "SupConLoss",
    "TripletMarginLoss", "TupletMarginLoss",
]  # fmt: skip
OF_CLASSES = [
    "ArcFaceLoss", "CosFaceLoss", "NormalizedSoftmaxLoss", "ProxyAnchorLoss", "ProxyNCALoss", "SoftTripleLoss",
    "SubCenterArcFaceLoss",
]  # fmt: skip
OF_A_BATCH = ["AngularLoss", "FastAPLoss", "NCALoss", "NPairsLoss", "PNPLoss", "ThresholdConsistentMarginLoss"]


def unit(n, seed):
    rows = torch.randn(n, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(rows)


def batch():
    return unit(len(LABELS), 1).requires_grad_()


def gallery(embeddings, old_labels=OLD_LABELS):
    """The batch and other items as one gallery, without a query in its own list."""
    ref_emb, ref_labels = torch.cat([embeddings, unit(len(old_labels), 2)]), torch.cat([LABELS, old_labels])
    candidates = torch.ones(len(LABELS), len(ref_labels), dtype=torch.bool).fill_diagonal_(False)
    return {"ref_emb": ref_emb, "ref_labels": ref_labels, "candidates": candidates}


def cross_batch_memory(name, **more):
    """The library's own loss of a batch and the same memory."""
    peer = losses.CrossBatchMemory(build(name).loss, DIM, memory_size=30, **more)
    peer.embedding_memory = peer.embedding_memory.double()
    peer.add_to_memory(unit(len(OLD_LABELS), 2), OLD_LABELS, len(OLD_LABELS))
    return peer


def watch_indices(loss):
    """The list that the indices of its calls are added to."""
    seen = []
    loss.loss.register_forward_pre_hook(lambda module, given: seen.append(given[2]))
    return seen


def value_and_slopes(loss, embeddings, **more):
    value = loss(embeddings, LABELS, **more)
    return value.detach(), torch.autograd.grad(value, embeddings)[0]


def build(name):
    torch.manual_seed(4)
    return peer_loss(name, classes=6, dim=DIM)


@pytest.mark.parametrize("name", [*WITH_GALLERY, *OF_CLASSES, *OF_A_BATCH])
def test_a_batch_gives_what_the_library_gives(name):
    embeddings, loss = batch(), build(name)
    expected = build(name).loss(embeddings, LABELS)
    value, slopes = value_and_slopes(loss, embeddings)
    assert torch.equal(value, expected.detach())
    assert torch.equal(slopes, torch.autograd.grad(expected, embeddings)[0])
    assert slopes.norm() > 0
    alone = 0 if name in OF_CLASSES else 1  # the one of class 4
    assert loss.last == {"queries_used": 12 - alone, "queries_skipped": alone}


@pytest.mark.parametrize("name", WITH_GALLERY)
def test_an_empty_memory_is_the_batch_alone(name):
    """Which it is only if no query is paired with itself, and every other pair is there."""
    embeddings = batch()
    expected = value_and_slopes(build(name), embeddings)
    found = value_and_slopes(build(name), embeddings, **gallery(embeddings, old_labels=OLD_LABELS[:0]))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in WITH_GALLERY if name != "LiftedStructureLoss"])
def test_a_memory_gives_what_cross_batch_memory_gives(name):
    """LiftedStructureLoss takes numbers of the gallery for numbers of the batch, which are not the same there."""
    embeddings, loss = batch(), build(name)
    expected = cross_batch_memory(name)(embeddings.detach(), LABELS)
    value, slopes = value_and_slopes(loss, embeddings, **gallery(embeddings))
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=0)
    assert slopes.norm() > 0
    assert loss.last == {"queries_used": 12, "queries_skipped": 0}


@pytest.mark.parametrize("miner", ["BatchHardMiner", "MultiSimilarityMiner", "PairMarginMiner", "TripletMarginMiner"])
@pytest.mark.parametrize("name", ["ContrastiveLoss", "TripletMarginLoss"])
def test_mined_pairs(name, miner):
    embeddings = batch()
    peer = cross_batch_memory(name, miner=getattr(miners, miner)())
    loss = peer_loss(name, miner=miner)
    value, _ = value_and_slopes(loss, embeddings, **gallery(embeddings))
    torch.testing.assert_close(value, peer(embeddings.detach(), LABELS), rtol=1e-10, atol=0)
    plain = getattr(losses, name)()(embeddings, LABELS, getattr(miners, miner)()(embeddings, LABELS))
    assert torch.equal(loss(embeddings, LABELS), plain)


def test_contrastive_by_hand():
    """Both queries are of one class; besides each other the gallery has (0.6, 0.8) of another class."""
    embeddings, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    ref_emb, candidates = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), ~torch.eye(2, 3, dtype=torch.bool)
    more = {"ref_emb": ref_emb, "ref_labels": torch.tensor([0, 0, 1]), "candidates": candidates}
    value = peer_loss("ContrastiveLoss", {"neg_margin": 1.0})(embeddings, labels, **more)
    far, near = (0.4**2 + 0.8**2) ** 0.5, (0.6**2 + 0.2**2) ** 0.5
    torch.testing.assert_close(value, torch.tensor(2**0.5 + ((1 - far) + (1 - near)) / 2))


def test_triplets_are_those_of_the_library():
    """All of them, in its order."""
    loss, embeddings = peer_loss("TripletMarginLoss"), batch()
    seen = watch_indices(loss)
    loss(embeddings, LABELS, **gallery(embeddings))
    ref_labels = torch.cat([LABELS, OLD_LABELS])
    expected = [
        (a, p, n)
        for a in range(len(LABELS))
        for p in range(len(ref_labels))
        for n in range(len(ref_labels))
        if a != p and LABELS[a] == ref_labels[p] and LABELS[a] != ref_labels[n]
    ]
    assert torch.stack(seen[0], 1).tolist() == [list(each) for each in expected]


def test_random_triplets():
    """So many for each query, none with itself, each possible one at some time."""
    loss, embeddings = peer_loss("TripletMarginLoss", {"triplets_per_anchor": 400}), batch()
    seen = watch_indices(loss)
    more = gallery(embeddings)
    loss(embeddings, LABELS, **more)
    query, positive, negative = seen[0]
    assert query.unique(return_counts=True)[1].tolist() == [400] * 12
    assert (query != positive).all()
    assert (LABELS[query] == more["ref_labels"][positive]).all()
    assert (LABELS[query] != more["ref_labels"][negative]).all()
    assert set(positive[query == 0].tolist()) == {4, 7, 11, 13, 17}
    assert set(negative[query == 10].tolist()) == set(range(21)) - {10, 14}


@pytest.mark.parametrize("each", ["all", 3])
def test_no_triplet_at_all(each):
    loss = peer_loss("TripletMarginLoss", {"triplets_per_anchor": each})
    embeddings = batch()
    one_class = {**gallery(embeddings), "ref_labels": torch.zeros(21).long()}
    value = loss(embeddings, torch.zeros(12).long(), **one_class)
    assert value == 0
    assert torch.autograd.grad(value, embeddings)[0].norm() == 0


@pytest.mark.parametrize("name", ["ContrastiveLoss", "TripletMarginLoss", "MultiSimilarityLoss"])
def test_candidates_of_a_batch(name):
    """What is taken out of a list does not matter: only the items of the first six are left."""
    embeddings = batch()
    candidates = torch.zeros(12, 12, dtype=torch.bool)
    candidates[:6, :6] = True
    value = build(name)(embeddings, LABELS, candidates=candidates)
    expected = build(name)(embeddings[:6], LABELS[:6])
    slopes = torch.autograd.grad(value, embeddings)[0]
    assert slopes[6:].norm() == 0
    assert slopes[:6].norm() > 0
    if name != "MultiSimilarityLoss":  # the mean over all queries there
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("miner", ["PairMarginMiner", "TripletMarginMiner"])
def test_candidates_of_mined_pairs(miner):
    """Of what a miner chose among all, what was taken out of a list is left out: positives and negatives."""
    loss, embeddings = peer_loss("ContrastiveLoss", miner=miner), batch()
    seen = watch_indices(loss)
    candidates = torch.rand(12, 12) < 0.6
    loss(embeddings, LABELS, candidates=candidates)
    mined = [each.tolist() for each in loss.miner(embeddings, LABELS)]
    if len(mined) == 3:
        rows = [(a, p, n) for a, p, n in zip(*mined, strict=True) if candidates[a, p] and candidates[a, n]]
        expected = list(zip(*rows, strict=True))
    else:
        near = [(a, p) for a, p in zip(*mined[:2], strict=True) if candidates[a, p]]
        far = [(a, n) for a, n in zip(*mined[2:], strict=True) if candidates[a, n]]
        expected = [*zip(*near, strict=True), *zip(*far, strict=True)]
    assert [each.tolist() for each in seen[0]] == [list(each) for each in expected]
    assert 0 < len(expected[1]) < len(mined[1])
    assert 0 < len(expected[-1]) < len(mined[-1])


def test_a_gallery_of_its_own():
    """Without candidates nothing is taken for the query."""
    embeddings, other = batch(), unit(9, 7)
    value = build("ContrastiveLoss")(embeddings, LABELS, ref_emb=other, ref_labels=OLD_LABELS)
    expected = losses.ContrastiveLoss()(embeddings, LABELS, ref_emb=other, ref_labels=OLD_LABELS)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    itself = build("NTXentLoss")(embeddings, LABELS, ref_emb=embeddings.detach().clone(), ref_labels=LABELS)
    assert itself != build("NTXentLoss")(embeddings, LABELS)


@pytest.mark.parametrize("name", OF_CLASSES)
def test_weights_of_classes_are_parameters(name):
    loss = build(name).double()
    assert len(list(loss.parameters())) == 1
    loss(batch(), LABELS).backward()
    assert all(each.grad.norm() > 0 for each in loss.parameters())
    again = peer_loss(name, classes=6, dim=DIM).double()
    again.load_state_dict(loss.state_dict())
    assert torch.equal(again(batch(), LABELS), loss(batch(), LABELS))


# By name


def test_by_name():
    options = {"margin": 0.3, "distance": "CosineSimilarity", "reducer": "MeanReducer"}
    loss = peer_loss("TripletMarginLoss", options, "TripletMarginMiner")
    assert (loss.loss.margin, type(loss.miner).__name__) == (0.3, "TripletMarginMiner")
    assert isinstance(loss.loss.distance, distances.CosineSimilarity)
    assert isinstance(loss.loss.reducer, reducers.MeanReducer)
    given = distances.DotProductSimilarity()
    assert peer_loss("ContrastiveLoss", {"distance": given}).loss.distance is given


def test_classes_are_filled_in_where_they_are_needed():
    assert peer_loss("ArcFaceLoss", classes=9, dim=4).loss.W.shape == (4, 9)
    assert peer_loss("ArcFaceLoss", {"num_classes": 5}, classes=9, dim=4).loss.W.shape == (4, 5)
    assert len(peer_loss("MarginLoss", classes=9, dim=4).loss.beta) == 1  # a number for all classes is its default
    assert len(peer_loss("MarginLoss", {"num_classes": 5}, classes=9).loss.beta) == 5


BAD_NAMES = {
    "loss": (("TripletMargin",), "TripletMarginLoss?"),
    "a wrapper": (("CrossBatchMemory",), "CrossBatchMemory"),
    "without labels": (("VICRegLoss",), "VICRegLoss"),
    "argument": (("ContrastiveLoss", {"neg_margn": 1}), "neg_margin?"),
    "missing argument": (("ArcFaceLoss",), "embedding_size, num_classes"),
    "value": (("FastAPLoss", {"num_bins": "many"}), "FastAPLoss"),
    "distance": (("ContrastiveLoss", {"distance": "Cosine"}), "CosineSimilarity?"),
    "miner": (("ContrastiveLoss", None, "BatchHard"), "BatchHardMiner?"),
}


@pytest.mark.parametrize("name", BAD_NAMES)
def test_refused_names(name):
    arguments, message = BAD_NAMES[name]
    with pytest.raises(InputError) as raised:
        peer_loss(*arguments)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


# What is refused


@pytest.mark.parametrize("name", ["ArcFaceLoss", "SoftTripleLoss", *OF_A_BATCH])
def test_losses_of_a_batch_have_no_memory(name):
    embeddings = batch()
    refusal(lambda: build(name)(embeddings, LABELS, **gallery(embeddings)), name)


def test_swap_and_a_miner_of_the_nearest_positive_have_no_memory():
    embeddings = batch()
    swap = peer_loss("TripletMarginLoss", {"swap": True})
    for name, loss in (
        ("swap", swap),
        ("BatchEasyHardMiner", peer_loss("ContrastiveLoss", miner="BatchEasyHardMiner")),
    ):
        refusal(lambda loss=loss: loss(embeddings, LABELS, **gallery(embeddings)), name)


@pytest.mark.parametrize("name", OF_CLASSES)
def test_labels_beyond_the_classes(name):
    for labels in (LABELS + 2, LABELS - 1, LABELS * 100):
        refusal(lambda labels=labels: build(name)(batch(), labels), "labels", "6 classes")


def test_what_the_library_refuses_is_said_in_one_line():
    peer_losses._warn_of_smooth_ap.cache_clear()
    with (
        pytest.warns(FrontrankWarning, match="SmoothAPLoss"),
        pytest.raises(InputError, match="SmoothAPLoss") as raised,
    ):
        build("SmoothAPLoss")(batch(), LABELS)
    assert "\n" not in str(raised.value)


BAD_CALLS = {
    "relevant": ({"relevant": torch.ones(12, 12, dtype=torch.bool)}, "labels"),
    "no labels": ({"labels": None}, "labels"),
    "no labels of the gallery": ({"ref_emb": unit(3, 1)}, "ref_emb and ref_labels"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_refused_calls(name):
    change, message = BAD_CALLS[name]
    refusal(lambda: build("ContrastiveLoss")(batch(), **{"labels": LABELS, **change}), message)


@pytest.mark.parametrize(
    ("loss", "miner", "name"),
    [
        (fr.PNP(), None, "loss .*PNP"),
        (losses.CrossBatchMemory(losses.ContrastiveLoss(), 4), None, "got CrossBatchMemory"),
        (losses.ContrastiveLoss, None, "got type"),
        (losses.ContrastiveLoss(), losses.ContrastiveLoss(), "miner"),
    ],
    ids=["ours", "wrapper", "class", "loss for a miner"],
)
def test_refused_objects(loss, miner, name):
    with pytest.raises(InputTypeError, match=name):
        PeerLoss(loss, miner)
