"""Counts the products of a computation, which do not depend on the machine, alone and in shares."""

import threading
from concurrent.futures import ThreadPoolExecutor

from torch.utils._python_dispatch import TorchDispatchMode

from frontrank.ranking.shares import take_share


class Products(TorchDispatchMode):
    """While it is open, `count` grows by rows x columns x length of each product of matrices."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.split("::")[1]
        if name in ("mm", "addmm", "addmm_"):
            first, second = args[-2:]
            self.count += first.numel() * second.shape[1]
        return function(*args, **(kwargs or {}))


def in_shares(parts, function):
    """What function() returns in each of some threads that share the work, as processes do."""
    barrier, held = threading.Barrier(parts, timeout=60), [None] * parts

    def work(part):
        def add(x):
            held[part] = x
            barrier.wait()
            total = sum(held)
            barrier.wait()
            return total

        with take_share(part, parts, add):
            return function()

    with ThreadPoolExecutor(parts) as pool:
        return list(pool.map(work, range(parts)))
