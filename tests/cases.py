"""Every loss on embeddings beside its reference, and random batches to compare them on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

import frontrank as fr
from frontrank.ranking import Bins, Blackbox, MeanAveragePrecisionAtR, PenalizedNegatives, Recall, Sigmoid
from tests.reference import graded, rambo, sigmoid_ranks
from tests.reference.fastap import fastap, of_bins
from tests.reference.lists import lists_of_batch, mean_over_classes, mean_over_queries
from tests.reference.quantized_ap import quantized_ap


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable  # (**more settings) -> loss
    of_list: Callable  # reference of one ranked list
    smooth: bool = False  # differentiable everywhere
    on_ranks: bool = True  # takes include_query
    balanced: bool = False

    def reference(self, embeddings, labels=None, **more):
        mean = mean_over_classes if self.balanced else mean_over_queries
        return mean(self.of_list, lists_of_batch(embeddings, labels, **more))


def f_prime_of_log(r):
    return 1 / (1 + r)


def loglog(before_pos, before_neg):
    return torch.log(1 + torch.log(1 + before_neg))


def penalized(before_pos, before_neg):
    return sigmoid_ranks.pnp_f(before_neg, "D_q", alpha=1.5)


def _pnp(variant, **settings):
    return Case(
        f"PNP-{variant}",
        partial(fr.PNP, variant, temperature=0.1, **settings),
        partial(sigmoid_ranks.pnp, variant=variant, temperature=0.1, **settings),
        smooth=True,
    )


CASES = [
    *[_pnp(variant) for variant in ("O", "I_u", "D_s", "D_q")],
    _pnp("I_b", b=4.0),
    Case(
        "PNP-sharp",
        partial(fr.PNP, alpha=1.5, temperature=0.01),
        partial(sigmoid_ranks.pnp, variant="D_q", alpha=1.5, temperature=0.01),
    ),
    Case(
        "PNP-from_derivative",
        partial(fr.PNP.from_derivative, f_prime_of_log, temperature=0.1),
        partial(sigmoid_ranks.pnp, variant="D_s", temperature=0.1),
        smooth=True,
    ),
    Case(
        "SmoothAP",
        partial(fr.SmoothAP, temperature=0.1),
        partial(sigmoid_ranks.smooth_ap, temperature=0.1),
        smooth=True,
    ),
    Case("SmoothAP-sharp", fr.SmoothAP, partial(sigmoid_ranks.smooth_ap, temperature=0.01)),
    *[
        Case(
            f"sigmoid-recall-{weighting}",
            partial(fr.RankLoss, Recall(weighting), Sigmoid(0.1)),
            partial(sigmoid_ranks.recall, weighting=weighting, temperature=0.1),
            smooth=True,
        )
        for weighting in ("log", "loglog")
    ],
    *[
        Case(
            f"FastAP-{distance}",
            partial(fr.FastAP, bins=7, distance=distance),
            partial(fastap, bins=7, distance=distance),
            on_ranks=False,
        )
        for distance in ("squared", "euclidean")
    ],
    Case("QuantizedAP", fr.QuantizedAP, partial(quantized_ap, bins=20), on_ranks=False),
    Case("bins-recall", partial(fr.RankLoss, Recall("loglog"), Bins(7)), partial(of_bins, bins=7, of_pair=loglog)),
    Case(
        "bins-PNP",
        partial(fr.RankLoss, PenalizedNegatives("D_q", alpha=1.5), Bins(12)),
        partial(of_bins, bins=12, of_pair=penalized),
    ),
    Case(
        "QuantizedAP-tie_aware",
        partial(fr.QuantizedAP, bins=9, tie_aware=True),
        partial(quantized_ap, bins=9, tie_aware=True),
        on_ranks=False,
    ),
    Case(
        "QuantizedAP-balanced",
        partial(fr.QuantizedAP, bins=9, balance_classes=True),
        partial(quantized_ap, bins=9),
        on_ranks=False,
        balanced=True,
    ),
    *[
        Case(
            f"BlackboxRecall-{weighting}",
            partial(fr.BlackboxRecall, weighting, lam=2.0),
            partial(rambo.recall, weighting=weighting, lam=2.0, margin=0.2),
            on_ranks=False,
        )
        for weighting in ("log", "loglog")
    ],
    Case(
        "BlackboxAP",
        partial(fr.BlackboxAP, lam=2.0, margin=0.02),
        partial(rambo.average_precision, lam=2.0, margin=0.02),
        on_ranks=False,
    ),
    Case(
        "BlackboxAP-margin",
        partial(fr.BlackboxAP, lam=15.0, margin=0.3),
        partial(rambo.average_precision, lam=15.0, margin=0.3),
        on_ranks=False,
    ),
    Case(
        "blackbox-PNP",
        partial(fr.RankLoss, PenalizedNegatives("I_u"), Blackbox(lam=0.25, margin=0.1)),
        partial(rambo.pnp, variant="I_u", lam=0.25, margin=0.1),
    ),
]
CASES += [
    Case(
        "RecallAtK",
        partial(fr.RecallAtK, ks=(1, 2, 4), temperature=0.1),
        partial(graded.recall_at_k, ks=(1, 2, 4), temperature=0.1, rank_temperature=1.0),
        on_ranks=False,
    ),
    Case("SupAP", fr.SupAP, partial(graded.sup_ap, temperature=0.01, rho=100.0, delta=0.05), on_ranks=False),
    Case(
        "SupAP-wide",
        partial(fr.SupAP, temperature=0.1, rho=3.0, delta=0.3),
        partial(graded.sup_ap, temperature=0.1, rho=3.0, delta=0.3),
        on_ranks=False,
    ),
    Case(
        "SmoothNDCG",
        partial(fr.SmoothNDCG, temperature=0.1),
        partial(graded.ndcg, temperature=0.1),
        smooth=True,
        on_ranks=False,
    ),
    Case(
        "HierarchicalAP",  # of one level: Smooth-AP
        partial(fr.HierarchicalAP, temperature=0.1),
        partial(sigmoid_ranks.smooth_ap, temperature=0.1),
        smooth=True,
        on_ranks=False,
    ),
    Case(
        "sigmoid-mAP@R",
        partial(fr.RankLoss, MeanAveragePrecisionAtR(), Sigmoid(0.1)),
        partial(graded.map_at_r, temperature=0.1),
    ),
    Case("ROADMAP", fr.ROADMAP, graded.roadmap, on_ranks=False),
    Case("PairMargin", fr.PairMargin, partial(graded.pair_margin, positive=0.9, negative=0.6), on_ranks=False),
]
BY_NAME = {case.name: case for case in CASES}
NAMES = list(BY_NAME)


def random_labels(sizes, seed):
    """Labels of classes of these sizes, in a random order; the numbers themselves are arbitrary."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.full((size,), 1000 - 37 * c) for c, size in enumerate(sizes)])
    return labels[torch.randperm(len(labels), generator=generator)]


def random_embeddings(n, seed, dim=6, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator, dtype=torch.float64).to(dtype)


def random_mask(rows, columns, share, seed):
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) < share


def unequal_classes():
    """13 items: classes of 1, 1, 2, 4, 5 in random order."""
    return random_embeddings(13, 1), {"labels": random_labels([1, 1, 2, 4, 5], 2)}


def many_positives():
    """Up to 14 positives for a query."""
    return random_embeddings(20, 3), {"labels": random_labels([15, 4, 1], 4)}


def gallery():
    more = {"ref_emb": random_embeddings(17, 6), "ref_labels": random_labels([5, 1, 0, 9, 2], 7)}
    return random_embeddings(9, 5), {"labels": random_labels([2, 3, 2, 2], 8), **more}


def gallery_of_many_positives():
    more = {"ref_emb": random_embeddings(34, 9), "ref_labels": random_labels([18, 14, 2], 10)}
    return random_embeddings(3, 11), {"labels": random_labels([1, 1, 1], 12), **more}


def relevant():
    matrix = random_mask(11, 11, 0.3, 13)
    matrix[4] = False
    return random_embeddings(11, 14), {"labels": random_labels([4, 4, 3], 15), "relevant": matrix}


def relevant_in_gallery():
    more = {"ref_emb": random_embeddings(12, 16), "relevant": random_mask(7, 12, 0.4, 17)}
    return random_embeddings(7, 18), {"labels": random_labels([4, 3], 19), **more}


def candidates():
    more = {"candidates": random_mask(12, 12, 0.6, 22)}
    return random_embeddings(12, 20), {"labels": random_labels([6, 4, 2], 21), **more}


def relevant_and_candidates():
    masks = {"relevant": random_mask(10, 10, 0.5, 23), "candidates": random_mask(10, 10, 0.7, 24)}
    return random_embeddings(10, 25), {"labels": random_labels([5, 5], 26), **masks}


def many_relevant():
    masks = {"relevant": random_mask(3, 40, 0.6, 27), "candidates": random_mask(3, 40, 0.9, 31)}
    return random_embeddings(3, 28), {
        "labels": random_labels([2, 1], 29),
        "ref_emb": random_embeddings(40, 30),
        **masks,
    }


BATCHES = [
    unequal_classes,
    many_positives,
    gallery,
    gallery_of_many_positives,
    relevant,
    relevant_in_gallery,
    candidates,
    relevant_and_candidates,
    many_relevant,
]


def value_and_gradients(function, embeddings, more):
    """The value of a loss, and its gradients in the embeddings and in ref_emb, if there is one."""
    leaves = {"embeddings": embeddings.detach().clone().requires_grad_()}
    if "ref_emb" in more:
        leaves["ref_emb"] = more["ref_emb"].detach().clone().requires_grad_()
    value = function(**{**more, **leaves})
    return value.detach(), *torch.autograd.grad(value, list(leaves.values()))
