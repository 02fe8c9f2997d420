"""Count the kernels and waits of an accelerator on a machine that has none.

    with Count() as count, tiling("cuda"): ...    tensors of the CPU, all counted as if they were on an accelerator
    with Device() as count: x.to(DEVICE) ...      tensors that say they are on one: what is on the host is not counted

kernels: operations that compute; views and empty tensors are none
waits:   results that the host reads, or whose number it must know, before it goes on; and copies that it waits for
bytes:   what the kernels read and write

`Device` knows more, but autograd has no thread for its tensors: it is for what needs no gradient.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = "counted"
_WAITS = {"_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "tolist"}
_WAITS |= {"bincount", "masked_select", "equal", "repeat_interleave"}


class Count(TorchDispatchMode):
    """Counts what is dispatched while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.waits = self.bytes = 0

    def __enter__(self) -> "Count":
        self._tolist = torch.Tensor.tolist

        def tolist(x: torch.Tensor) -> Any:  # of a CPU it does not show
            self.waits += 1
            return self._tolist(x)

        torch.Tensor.tolist = tolist  # type: ignore[method-assign]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        torch.Tensor.tolist = self._tolist  # type: ignore[method-assign]
        super().__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        self.add(function, args, (args, kwargs, out))
        return out

    def add(self, function: Any, args: Any, tensors: Any) -> None:
        """Count an operation, with its arguments and all of its tensors."""
        name = function._schema.name.split("::")[1]
        chosen = args[1] if name in ("index", "index_put_") else ()
        self.waits += name in _WAITS or any(x is not None and x.dtype == torch.bool for x in chosen)
        if not function.is_view and "empty" not in name:
            self.kernels += 1
            self.bytes += sum(x.numel() * x.element_size() for x in tree_leaves(tensors) if isinstance(x, torch.Tensor))


class _Held(torch.Tensor):
    """A tensor of the CPU that says it is on the device."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "_Held":
        like = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        held: _Held = torch.Tensor._make_wrapper_subclass(cls, inner.shape, **like, device=f"{DEVICE}:0")  # type: ignore
        held.inner = inner
        return held

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{function} of a counted tensor, outside of Device()")


class Device(Count):
    """A device of its own, computed on the CPU; tensors move to and from it by `.to(DEVICE)` and `.cpu()`."""

    def __init__(self) -> None:
        super().__init__()
        if not hasattr(torch, DEVICE):
            from torch.utils.backend_registration import _setup_privateuseone_for_python_backend  # of new torch

            _setup_privateuseone_for_python_backend(DEVICE)
            torch.counted.get_amp_supported_dtype = lambda: [torch.float16]  # type: ignore[attr-defined]
            torch.counted.get_rng_state = lambda: None  # type: ignore[attr-defined]  # torch.library.opcheck asks
            torch.counted.set_rng_state = lambda state: None  # type: ignore[attr-defined]

    def __enter__(self) -> "Device":
        TorchDispatchMode.__enter__(self)
        return self

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self, *error)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), function._schema.name.split("::")[1]
        held = {id(x.inner): x for x in tree_leaves((args, kwargs)) if isinstance(x, _Held)}
        target = kwargs.get("device")
        here = bool(held) if target is None else torch.device(target).type == DEVICE
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        inner, more = tree_map(lambda x: x.inner if isinstance(x, _Held) else x, (args, kwargs))
        out = function(*inner, **more)
        if here:
            self.add(function, inner, (inner, more, out))
        if name in ("_to_copy", "copy_"):
            source, blocks = args[name == "copy_"], not kwargs.get("non_blocking", False)
            moves = here != isinstance(source, _Held)
            self.waits += moves and (blocks or not here)
        if not here or name == "_local_scalar_dense":
            return out

        def hold(x: Any) -> Any:  # what an operation wrote to is what it returns
            return held[id(x)] if id(x) in held else _Held(x) if isinstance(x, torch.Tensor) else x

        return tree_map(hold, out)
