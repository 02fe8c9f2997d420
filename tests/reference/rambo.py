"""RaMBO (CVPR 2020): Algorithm 1 taken literally, by sorting the full list, for the loss of one query."""

from functools import wraps

import torch

from tests.reference.sigmoid_ranks import pnp_f


def ranks(y, is_positive):
    """rk(y): 1 is the highest score; of equal scores the negatives come first."""
    order = sorted(range(len(y)), key=lambda i: (-float(y[i]), bool(is_positive[i])))
    rk = torch.empty_like(y)
    for place, i in enumerate(order):
        rk[i] = place + 1
    return rk


class Ranker(torch.autograd.Function):
    """Algorithm 1."""

    @staticmethod
    def forward(ctx, y, is_positive, lam):
        rk = ranks(y, is_positive)
        ctx.save_for_backward(y, is_positive, rk)
        ctx.lam = lam
        return rk

    @staticmethod
    def backward(ctx, in_rk):
        y, is_positive, rk = ctx.saved_tensors
        moved = y + ctx.lam * in_rk
        return -(1 / ctx.lam) * (rk - ranks(moved, is_positive)), None, None


def ranked(one, lam, margin):
    """rk_a(y) at the positives, and rk_a(y+), which is a constant (Eq. 14, 15, 17)."""
    p, n = len(one.positive), len(one.negative)
    y = torch.cat([one.positive - margin / 2, one.negative + margin / 2])
    is_positive = torch.cat([torch.ones(p, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)])
    in_all = Ranker.apply(y, is_positive, lam)[:p]
    in_positives = ranks(y[:p].detach(), is_positive[:p])
    return in_all, in_positives


def per_query(of_list):
    """Let Algorithm 1 see the loss of its own list only: a mean or a weight scales the gradient, never the move.

    Without it (`__wrapped__`), what a mean makes of the loss takes part in the move.
    """

    @wraps(of_list)
    def call(one, *args, **settings):
        loss = of_list(one, *args, **settings)
        if not loss.requires_grad:
            return loss
        scores = [each for each in (one.positive, one.negative) if each.requires_grad]
        slopes = torch.autograd.grad(loss, scores, retain_graph=True)
        return loss.detach() + sum(((y - y.detach()) * g).sum() for y, g in zip(scores, slopes, strict=True))

    return call


@per_query
def recall(one, weighting, lam, margin):
    """Mean over positives of l(r) or l(l(r)) (Eq. 20)."""
    in_all, in_positives = ranked(one, lam, margin)
    loss = torch.log(1 + in_all - in_positives)
    return (torch.log(1 + loss) if weighting == "loglog" else loss).mean()


@per_query
def average_precision(one, lam, margin):
    """1 - AP, AP = mean over positives of rk(y+)_i / rk(y)_i (Eq. 21, 22)."""
    in_all, in_positives = ranked(one, lam, margin)
    return 1 - (in_positives / in_all).mean()


@per_query
def pnp(one, variant, lam, margin, alpha=4.0, b=2.0):
    """Mean over positives of PNP's f(r), on the same ranks."""
    in_all, in_positives = ranked(one, lam, margin)
    return pnp_f(in_all - in_positives, variant, alpha, b).mean()
