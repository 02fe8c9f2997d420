"""The integral of a user's derivative, exact to 1e-8 and fast: pnp's "choose f', integrate to get f".

[0, limit] is cut into panels until Gauss-Legendre quadrature agrees on a panel and on its two
parts; narrow panels gather where f' is sharp. A value then costs the sum of the whole panels
before it, read from a table, and one quadrature over the part of its own panel.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from frontrank.errors import InputError, InputTypeError

Derivative = Callable[[Tensor], Tensor]

_POINTS = 16
_TOLERANCE = 1e-11  # of a panel, absolute and relative: many panels together stay below 1e-8
_CUT = 0.382  # not in the middle: by symmetry the two sides of a jump could agree there
_MAX_PANELS = 20_000


def check_derivative(f_prime: Derivative) -> Derivative:
    """Return the derivative, or raise if it is not callable, elementwise, finite and at least 0 on a grid."""
    if not callable(f_prime):
        raise InputTypeError(
            f"f_prime must be a function of a tensor, got {type(f_prime).__name__}; example: lambda r: 1 / (1 + r)"
        )
    grid = torch.cat([torch.zeros(1), torch.logspace(-6, 6, 61)]).double()
    values = _evaluate(f_prime, grid)
    wrong = ~(torch.isfinite(values) & (values >= 0))
    if wrong.any():
        at = int(wrong.nonzero()[0])
        raise InputError(
            f"f_prime must be finite and at least 0 for every R >= 0, but f_prime({grid[at]:g}) = {values[at]:g}; "
            "a ranking loss must not fall while more negatives come before a positive"
        )
    return f_prime


def _evaluate(f_prime: Derivative, r: Tensor) -> Tensor:
    try:
        values = f_prime(r)
    except Exception as error:
        why = str(error).split("\n", 1)[0]
        raise InputError(f"f_prime failed on a tensor of ranks: {why}; write it with torch operations") from error
    if not isinstance(values, Tensor | int | float):
        raise InputTypeError(
            f"f_prime must return a tensor, got {type(values).__name__}; write it with torch operations"
        )
    values = torch.as_tensor(values, dtype=r.dtype, device=r.device).detach()
    if values.dim() and values.shape != r.shape:
        raise InputError(
            f"f_prime must return a tensor of its input's shape {tuple(r.shape)}, got {tuple(values.shape)}; "
            "write it elementwise"
        )
    return values.expand(r.shape)


class Integral:
    """f(r) = integral of f' from 0 to r, for any r >= 0.

    >>> f = Integral(lambda r: 1 / (1 + r))
    >>> f(torch.tensor([0.0, 1.0], dtype=torch.float64))
    tensor([0.0000, 0.6931], dtype=torch.float64)
    """

    def __init__(self, f_prime: Derivative) -> None:
        self._f_prime = f_prime
        nodes, weights = np.polynomial.legendre.leggauss(_POINTS)
        self._nodes = torch.from_numpy((nodes + 1) / 2)  # on [0, 1]
        self._weights = torch.from_numpy(weights / 2)
        self._edges = torch.zeros(1, dtype=torch.float64)
        self._sums = torch.zeros(1, dtype=torch.float64)  # f at the edges

    def derivative(self, r: Tensor) -> Tensor:
        return _evaluate(self._f_prime, r)

    def __call__(self, r: Tensor) -> Tensor:
        if r.numel() == 0:
            return r.clone()
        wide = r.detach().to("cpu", torch.float64).contiguous()
        self._extend(float(wide.max()))
        panel = torch.searchsorted(self._edges, wide, right=True) - 1
        start = self._edges[panel]
        return (self._sums[panel] + self._quadrature(start, wide)).to(r.device, r.dtype)

    def _quadrature(self, start: Tensor, stop: Tensor) -> Tensor:
        width = (stop - start)[..., None]
        return (_evaluate(self._f_prime, start[..., None] + width * self._nodes) * self._weights * width).sum(-1)

    def _extend(self, limit: float) -> None:
        """Make the table reach the limit, doubling from where it ends."""
        while (end := float(self._edges[-1])) <= limit:
            edges, sums = self._panels(end, max(1.0, 2 * end))
            self._edges = torch.cat([self._edges, edges])
            self._sums = torch.cat([self._sums, self._sums[-1] + sums.cumsum(0)])

    def _panels(self, start: float, stop: float) -> tuple[Tensor, Tensor]:
        """The upper edges and the integrals of panels that cover [start, stop]."""
        lows = torch.tensor([start], dtype=torch.float64)
        highs = torch.tensor([stop], dtype=torch.float64)
        done_highs, done_sums, count = [], [], 0
        while len(lows):
            middles = lows + _CUT * (highs - lows)
            whole = self._quadrature(lows, highs)
            parts = self._quadrature(lows, middles), self._quadrature(middles, highs)
            total = parts[0] + parts[1]
            good = (whole - total).abs() <= _TOLERANCE * total.clamp(min=1)
            good |= (highs - lows) <= 1e-14 * highs  # a jump: the panel is as narrow as a float allows
            done_highs += [middles[good], highs[good]]  # in parts: a jump may be right at the cut
            done_sums += [part[good] for part in parts]
            count += int(good.sum()) + 2 * int((~good).sum())
            if count > _MAX_PANELS:
                raise InputError(
                    f"f_prime changes too wildly between R = {start:g} and R = {stop:g} to be integrated; "
                    "give a smoother derivative"
                )
            lows, highs = torch.cat([lows[~good], middles[~good]]), torch.cat([middles[~good], highs[~good]])
        edges, order = torch.cat(done_highs).sort()
        return edges, torch.cat(done_sums)[order]
