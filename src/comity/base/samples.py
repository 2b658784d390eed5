"""Samples: inputs with labels, and the validation of arrays from users."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comity.errors import UsageError, quote

Array = NDArray[Any] | Tensor | Sequence[Any]
Ints = NDArray[np.int64]
Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """Inputs `x` (float32, one row per sample) and labels `y` (int64 classes, or float32
    targets).
    """

    x: Tensor
    y: Tensor
    rows: dict[str, Tensor] = field(default_factory=dict)
    """Further values per sample, row by row (a teacher's logits, for instance). Batches contain the
    rows of their samples.
    """

    @staticmethod
    def of(whose: str, x: Array, y: Array, *, amounts: bool = False) -> Samples:
        """Checked copies of `x` and `y`.

        `whose` ("party 'north'") names the owner in error messages. Labels are class numbers or,
        with `amounts`, real numbers (float32).
        """
        inputs, labels = numbers(f"The x of {whose}", x), numbers(f"The y of {whose}", y)
        if labels.ndim != 1:
            raise UsageError(
                f"The y of {whose} must hold one label a sample, but its shape is {labels.shape}."
            )
        if inputs.ndim == 0 or len(inputs) != len(labels):
            raise UsageError(
                f"The x and y of {whose} must be of one length, but their shapes are {inputs.shape}"
                f" and {labels.shape}."
            )
        if len(labels) == 0:
            raise UsageError(f"There are no samples in {whose}; leave it out or give it some.")
        if inputs.ndim == 1 or inputs.size == 0:
            raise UsageError(
                f"The x of {whose} must hold a row of numbers for each sample, but its shape is"
                f" {inputs.shape}; reshape it to (samples, features) or (samples, channels, height,"
                " width)."
            )
        check_channels_first(whose, inputs.shape[1:])
        with np.errstate(over="ignore"):  # overflows become infinite and are refused below
            inputs = np.array(inputs, dtype=np.float32, order="C")
        rows = np.flatnonzero(~np.isfinite(inputs.reshape(len(inputs), -1)).all(axis=1))
        if len(rows):
            raise UsageError(
                f"The x of {whose} holds values that are not finite (first in sample {rows[0]});"
                " remove or fill them."
            )
        if amounts:
            return Samples(torch.from_numpy(inputs), _amounts(whose, labels))
        if not np.isfinite(labels).all() or (labels != np.floor(labels)).any():
            raise UsageError(
                f"The labels of {whose} must be whole numbers; number the classes 0, 1, 2, ..."
            )
        if labels.min() < 0 or labels.max() >= 2**31:
            raise UsageError(
                f"The labels of {whose} run from {labels.min()} to {labels.max()}; number the"
                " classes 0, 1, 2, ..."
            )
        return Samples(torch.from_numpy(inputs), torch.from_numpy(np.array(labels, dtype=np.int64)))

    def __repr__(self) -> str:
        return f"<{len(self):,} samples of shape {self.shape}>"

    def __len__(self) -> int:
        return self.y.shape[0]  # len() of a tensor is a call through Python

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    def take(self, indices: Sequence[int] | Ints | Tensor) -> Samples:
        """The samples at `indices`, in that order, copied."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        return Samples(
            self.x[index], self.y[index], {name: rows[index] for name, rows in self.rows.items()}
        )

    def digest(self) -> str:
        """A short digest of exactly these values."""
        digest = blake2b(repr(tuple(self.x.shape)).encode(), digest_size=16)
        for tensor in (self.x, self.y):
            digest.update(np.ascontiguousarray(tensor.numpy()).data)
        return digest.hexdigest()


def _amounts(whose: str, labels: NDArray[Any]) -> Tensor:
    """Labels that are real numbers, as float32."""
    with np.errstate(over="ignore"):
        targets = np.array(labels, dtype=np.float32)
    if not np.isfinite(targets).all():
        raise UsageError(
            f"The y of {whose} holds values that are not finite (first in sample"
            f" {int(np.argmin(np.isfinite(targets)))})."
        )
    return torch.from_numpy(targets)


@dataclass(frozen=True, eq=False)
class PartyData:
    """One party's training, validation and test samples. Validation may be empty."""

    train: Samples
    validation: Samples
    test: Samples
    unit: float = 1.0
    """What a difference of 1 in scaled real-valued labels is in their original unit."""
    scaled: tuple[tuple[float, ...], tuple[float, ...]] = ((0.0,), (1.0,))
    """Mean and standard deviation that its inputs were normalised with: one number each, or one per
    channel.
    """
    patients: Tensor | None = None
    """The number of the patient of each training sample, from 0 in the order of their first
    samples; None if the data name no patients.
    """
    held_out_patients: tuple[int, int] | None = None
    """How many patients the validation and the test samples are of; None if the data name no
    patients.
    """

    @property
    def patient_count(self) -> int | None:
        """How many patients the training samples are of; None if the data name no patients."""
        return None if self.patients is None else int(self.patients.max()) + 1

    def group_size(self, split: Split) -> int:
        """How many patients the samples of a split are of, or how many samples there are if the
        data name no patients.
        """
        if self.patient_count is None or self.held_out_patients is None:
            return len(getattr(self, split))
        validation, test = self.held_out_patients
        return {"train": self.patient_count, "validation": validation, "test": test}[split]


def check_channels_first(whose: str, shape: tuple[int, ...]) -> None:
    """Refuse pictures of height x width x channels: a convolution would take rows for channels."""
    if len(shape) != 3 or shape[2] not in (1, 3, 4) or min(shape[:2]) <= 4:
        return
    height, width, channels = shape
    if channels > 1 or height == width:
        raise UsageError(
            f"A sample of {whose} has the shape {height} x {width} x {channels}, which looks like"
            " height x width x channels: give channels x height x width, as x.transpose(0, 3, 1, 2)"
            " of a numpy array, or x.permute(0, 3, 1, 2) of a tensor."
        )


def combine(parts: Iterable[object]) -> str:
    """One digest of several digests or settings."""
    return blake2b(repr(list(parts)).encode(), digest_size=16).hexdigest()


def numbers(what: str, values: Array) -> NDArray[Any]:
    """`values` as a numpy array of real numbers; `what` names it in error messages."""
    if isinstance(values, torch.utils.data.Dataset):
        raise UsageError(
            f"{what} is a torch dataset, but arrays are needed: x, y = zip(*dataset), then"
            " torch.stack(x) and torch.tensor(y)."
        )
    try:
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    except (TypeError, ValueError) as error:  # ragged lists; tensors that numpy cannot hold
        raise UsageError(
            f"{what} must be an array of numbers with rows of equal length."
        ) from error
    if array.dtype.kind in "OSU" and array.ndim == 1 and what.startswith("The y of"):
        raise UsageError(
            f"{what} holds words ({quote(str(array[0]))}, for instance): number the classes from 0,"
            " as in names, y = numpy.unique(y, return_inverse=True), with the same names at all"
            " parties."
        )
    if array.dtype.kind not in "fiub":
        raise UsageError(
            f"{what} must be an array of numbers, but it holds values of type {array.dtype}."
        )
    return array
