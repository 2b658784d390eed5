"""A device that is far away: its tensors claim to be on `lazy:0`, hold their values here, and
refuse to meet those of the CPU.

What would fail on a GPU because two tensors are on different devices fails here, too, without one.
A CPU number without sides may meet far tensors, and a far tensor may be indexed by a CPU one, as
there. It cannot show whether a GPU's kernels exist, are right, or give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import comity
from comity.core import PartyData, Samples
from comity.runs import build

FAR = torch.device("lazy", 0)
aten = torch.ops.aten
INDEXED = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
COPIES = {aten.copy_.default, aten._to_copy.default, aten._copy_from.default}


class Apart(RuntimeError):
    """Far tensors and the CPU's were to meet."""


class Far(Tensor):
    """A tensor on the far device."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> Far:
        made: Far = Tensor._make_wrapper_subclass(
            cls,
            near.size(),
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=FAR,
        )
        made.near = near
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"far {self.near}"

    def numpy(self, **_: Any) -> Any:
        raise TypeError("A far tensor has no numpy array: .cpu() comes first.")

    def tolist(self) -> Any:
        return self.near.tolist()

    def new_tensor(self, data: Any, *args: Any, **kwargs: Any) -> Tensor:
        return self.near.new_tensor(data, *args, **kwargs).to(FAR)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return dispatched(func, args, kwargs or {})


def near(leaf: Any) -> Any:
    """What a far tensor holds; anything else as it is."""
    return leaf.near if isinstance(leaf, Far) else leaf


def is_far(device: Any) -> bool:
    return device is not None and torch.device(device).type == FAR.type


def check_together(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Refuse to let far tensors and the CPU's meet, where a GPU would."""
    given = [
        leaf
        for leaf in tree_leaves((args[:1] if func in INDEXED else args, kwargs))
        if isinstance(leaf, Tensor)
    ]
    if (
        func in INDEXED
        # a far tensor is indexed by either, a CPU one by CPU ones only; values are where the tensor is
    ):
        given += [value for value in args[2:3] if isinstance(value, Tensor)]
        given += [index for index in args[1] if isinstance(index, Far)]
    far = [value for value in given if isinstance(value, Far)]
    if (
        far
        and any(not isinstance(value, Far) and value.dim() for value in given)
        and func not in COPIES
    ):
        raise Apart(f"{func}: far tensors and the CPU's meet.")
    if kwargs.get("generator") is not None and (far or is_far(kwargs.get("device"))):
        raise Apart(f"{func}: the CPU's generator cannot draw far tensors.")


def dispatched(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation where its tensors are."""
    check_together(func, args, kwargs)
    here = dict(kwargs)
    if is_far(kwargs.get("device")):
        here["device"] = torch.device("cpu")
    out = func(*tree_map(near, args), **tree_map(near, here))
    written = [
        given for given, told in zip(args, func._schema.arguments, strict=False) if told.is_write
    ]
    if written:
        return (
            None
            if out is None or not func._schema.returns
            else written[0]
            if len(written) == 1
            else tuple(written)
        )
    goes_far = (
        is_far(kwargs["device"])
        if kwargs.get("device") is not None
        else any(isinstance(x, Far) for x in tree_leaves(args))
    )
    return (
        tree_map(
            lambda leaf: (
                Far(leaf) if isinstance(leaf, Tensor) and not isinstance(leaf, Far) else leaf
            ),
            out,
        )
        if goes_far
        else out
    )


class Mode(TorchDispatchMode):
    """Everything that torch does, so that new tensors can be far."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, args, kwargs or {})


def _placing(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.tensor` and `torch.as_tensor`, which put values on a device past everybody."""

    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if isinstance(data, Far) or not is_far(device):
            return make(data, *args, **({} if device is None else {"device": device}), **kwargs)
        return make(data, *args, **kwargs).to(FAR)

    return made


@contextmanager
def far_device(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs whose data, states and letters are on the far device."""

    def moved(data: PartyData, device: torch.device) -> PartyData:
        train, validation, test = (
            Samples(part.x.to(FAR), part.y.to(FAR))
            for part in (data.train, data.validation, data.test)
        )
        return replace(data, train=train, validation=validation, test=test)

    item = Tensor.__getitem__
    patch.setattr(torch, "tensor", _placing(torch.tensor))
    patch.setattr(torch, "as_tensor", _placing(torch.as_tensor))
    patch.setattr(
        Far,
        "__getitem__",
        lambda self, at: item(self, torch.tensor(at) if isinstance(at, list) else at),
        raising=False,
    )
    patch.setattr(build, "_to_device", moved)
    patch.setattr(build.SimulatedRun, "device", FAR)
    with Mode():  # type: ignore[no-untyped-call]
        yield


@cache
def few() -> comity.Federation:
    """Three parties with some digits each, of which one comes late."""
    digits = comity.load("digits")
    cuts = {"north": (0, 18, 24), "east": (24, 38, 44), "south": (44, 53, 59)}
    parties = {
        name: ((digits.x[a:b], digits.y[a:b]), (digits.x[b:c], digits.y[b:c]))
        for name, (a, b, c) in cuts.items()
    }
    return comity.Federation.from_arrays(parties, classes=10)
