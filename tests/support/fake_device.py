"""A fake device: its tensors claim to be on `lazy:0`, hold their values on the CPU, and cannot be
mixed with tensors on the CPU.

An operation that would fail on a GPU because its tensors are on different devices also fails here.
As on a GPU, 0-dimensional CPU tensors may be mixed with tensors on the device, and CPU tensors may
index them. The fake device cannot show whether the kernels of a GPU exist, are right, or give equal
bits.
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

FAKE_DEVICE = torch.device("lazy", 0)
aten = torch.ops.aten
INDEXING_OPERATIONS = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
COPIES = {aten.copy_.default, aten._to_copy.default, aten._copy_from.default}


class MixedDevicesError(RuntimeError):
    """An operation mixes tensors on the fake device with tensors on the CPU."""


class FakeDeviceTensor(Tensor):
    """A tensor on the fake device."""

    cpu_values: Tensor

    @staticmethod
    def __new__(cls, cpu_values: Tensor) -> FakeDeviceTensor:
        tensor: FakeDeviceTensor = Tensor._make_wrapper_subclass(
            cls,
            cpu_values.size(),
            strides=cpu_values.stride(),
            storage_offset=cpu_values.storage_offset(),
            dtype=cpu_values.dtype,
            device=FAKE_DEVICE,
        )
        tensor.cpu_values = cpu_values
        return tensor

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"fake-device {self.cpu_values}"

    def numpy(self, **_: Any) -> Any:
        raise TypeError("A tensor on the fake device has no numpy array: call .cpu() first.")

    def tolist(self) -> Any:
        return self.cpu_values.tolist()

    def new_tensor(self, data: Any, *args: Any, **kwargs: Any) -> Tensor:
        return self.cpu_values.new_tensor(data, *args, **kwargs).to(FAKE_DEVICE)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run_operation(func, args, kwargs or {})


def on_cpu(leaf: Any) -> Any:
    """The values of a tensor on the fake device; anything else unchanged."""
    return leaf.cpu_values if isinstance(leaf, FakeDeviceTensor) else leaf


def is_fake(device: Any) -> bool:
    return device is not None and torch.device(device).type == FAKE_DEVICE.type


def check_devices(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Refuse to mix tensors on the fake device with those on the CPU, as a GPU does."""
    operands = [
        leaf
        for leaf in tree_leaves((args[:1] if func in INDEXING_OPERATIONS else args, kwargs))
        if isinstance(leaf, Tensor)
    ]
    if (
        func in INDEXING_OPERATIONS
        # CPU tensors may index both, tensors on the device only those on the device; values must be
        # on the device of the indexed tensor
    ):
        operands += [value for value in args[2:3] if isinstance(value, Tensor)]
        operands += [index for index in args[1] if isinstance(index, FakeDeviceTensor)]
    on_device = [value for value in operands if isinstance(value, FakeDeviceTensor)]
    if (
        on_device
        and any(not isinstance(value, FakeDeviceTensor) and value.dim() for value in operands)
        and func not in COPIES
    ):
        raise MixedDevicesError(f"{func}: tensors on the fake device and on the CPU are mixed.")
    if kwargs.get("generator") is not None and (on_device or is_fake(kwargs.get("device"))):
        raise MixedDevicesError(f"{func}: a CPU generator cannot draw tensors on the fake device.")


def run_operation(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU, and wrap its result if it belongs on the fake device."""
    check_devices(func, args, kwargs)
    cpu_kwargs = dict(kwargs)
    if is_fake(kwargs.get("device")):
        cpu_kwargs["device"] = torch.device("cpu")
    out = func(*tree_map(on_cpu, args), **tree_map(on_cpu, cpu_kwargs))
    written_arguments = [
        argument
        for argument, declaration in zip(args, func._schema.arguments, strict=False)
        if declaration.is_write
    ]
    if written_arguments:
        return (
            None
            if out is None or not func._schema.returns
            else written_arguments[0]
            if len(written_arguments) == 1
            else tuple(written_arguments)
        )
    to_device = (
        is_fake(kwargs["device"])
        if kwargs.get("device") is not None
        else any(isinstance(x, FakeDeviceTensor) for x in tree_leaves(args))
    )
    return (
        tree_map(
            lambda leaf: (
                FakeDeviceTensor(leaf)
                if isinstance(leaf, Tensor) and not isinstance(leaf, FakeDeviceTensor)
                else leaf
            ),
            out,
        )
        if to_device
        else out
    )


class FakeDeviceMode(TorchDispatchMode):
    """Intercepts all operations of torch, so that new tensors can be on the fake device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run_operation(func, args, kwargs or {})


def _placing(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap `torch.tensor` or `torch.as_tensor`, which a dispatch mode does not intercept."""

    def create(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if isinstance(data, FakeDeviceTensor) or not is_fake(device):
            return make(data, *args, **({} if device is None else {"device": device}), **kwargs)
        return make(data, *args, **kwargs).to(FAKE_DEVICE)

    return create


@contextmanager
def fake_device(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the data, states and messages of runs on the fake device."""

    def to_fake_device(data: PartyData, device: torch.device) -> PartyData:
        train, validation, test = (
            Samples(part.x.to(FAKE_DEVICE), part.y.to(FAKE_DEVICE))
            for part in (data.train, data.validation, data.test)
        )
        return replace(data, train=train, validation=validation, test=test)

    item = Tensor.__getitem__
    patch.setattr(torch, "tensor", _placing(torch.tensor))
    patch.setattr(torch, "as_tensor", _placing(torch.as_tensor))
    patch.setattr(
        FakeDeviceTensor,
        "__getitem__",
        lambda self, at: item(self, torch.tensor(at) if isinstance(at, list) else at),
        raising=False,
    )
    patch.setattr(build, "_to_device", to_fake_device)
    patch.setattr(build.SimulatedRun, "device", FAKE_DEVICE)
    with FakeDeviceMode():  # type: ignore[no-untyped-call]
        yield


@cache
def small_federation() -> comity.Federation:
    """Three parties with a few digits each."""
    digits = comity.load("digits")
    cuts = {"north": (0, 18, 24), "east": (24, 38, 44), "south": (44, 53, 59)}
    parties = {
        name: ((digits.x[a:b], digits.y[a:b]), (digits.x[b:c], digits.y[b:c]))
        for name, (a, b, c) in cuts.items()
    }
    return comity.Federation.from_arrays(parties, classes=10)
