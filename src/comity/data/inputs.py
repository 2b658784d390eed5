"""Preparation of new samples for a trained model, in the same way as the training samples."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comity.base.samples import Array, Samples, numbers
from comity.data.federation import Preprocess
from comity.data.preparation import Schema, Unusable, encode
from comity.data.sets.common import channels_first
from comity.errors import UsageError

PICTURE = 3
"""Number of dimensions of an image: channels, height, width."""
WHERE = "The new samples"
TABLE = "the new table"


@dataclass(frozen=True)
class Inputs:
    """The preprocessing of one party's samples."""

    shape: tuple[int, ...]
    """Shape of a sample as the model receives it."""
    preprocess: Preprocess
    schema: Schema | None = None

    def prepare(self, x: Any) -> Tensor:
        """Prepare samples for the model.

        Args:
            x: an array, tensor or list of unscaled values, with NaN for missing ones. For a table
                also a pandas frame or a dict of columns by name, with words and missing cells. The
                `Samples` of a federation are already prepared and are returned unchanged.

        Raises:
            UsageError: if the samples do not fit the model.
        """
        if isinstance(x, Samples):
            return x.x
        # Pandas frames are recognised by their methods, because pandas need not be installed.
        if hasattr(x, "to_dict") and hasattr(x, "columns"):
            x = {str(name): x[name].tolist() for name in x.columns} if self.schema else x.to_numpy()
        if self.schema:
            return self._preprocess(torch.from_numpy(self._encode(self.schema, x)))
        if isinstance(x, Mapping):
            raise UsageError(
                "Columns by name need a schema, which these data do not have: give an array with"
                " one row per sample."
            )
        return self._preprocess(self._read_array(x))

    def _encode(self, schema: Schema, x: Any) -> Any:
        """Encode a table by the schema."""
        table = x if isinstance(x, Mapping) else self._name_columns(schema, x)
        if any(
            isinstance(column, str) or not hasattr(column, "__len__") for column in table.values()
        ):
            raise UsageError(
                f"{WHERE} must be columns: a list of cells for each name, as in {{'age': [54,"
                " 61]}."
            )
        lengths = {len(column) for column in table.values()}
        if len(lengths) != 1:
            raise UsageError(f"{WHERE} must have columns of the same length.")
        try:
            encoded = encode(schema, table, lengths.pop(), TABLE)
        except Unusable as error:
            raise UsageError(f"{str(error)[0].upper()}{str(error)[1:]}") from error
        for warning in encoded.warnings:
            warnings.warn(f"{warning[0].upper()}{warning[1:]}", stacklevel=4)
        return encoded.x

    @staticmethod
    def _name_columns(schema: Schema, x: Any) -> dict[str, list[Any]]:
        """Name the columns of an array, which must be those of the schema in its order."""
        rows = (
            x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x, dtype=object)
        ).tolist()
        names = [column.name for column in schema.columns]
        if not rows or any(not isinstance(row, list) or len(row) != len(names) for row in rows):
            raise UsageError(
                f"{WHERE} must be rows of {len(names)} cells: {', '.join(names)}. Or give columns"
                " by name."
            )
        return {name: [row[k] for row in rows] for k, name in enumerate(names)}

    def _read_array(self, x: Array) -> Tensor:
        """Check the shape of an array, and the values of pictures."""
        values = numbers(WHERE, x)
        expected = (self.shape[0] - len(self.preprocess.marked), *self.shape[1:])
        if len(expected) == PICTURE and values.shape[1:] != expected:
            values = channels_first(values) if values.ndim in (PICTURE, PICTURE + 1) else values
        if values.shape[1:] != expected:
            raise UsageError(
                f"{WHERE} have the shape {values.shape[1:]}, but this model takes {expected}."
            )
        if len(expected) == PICTURE:
            self._check_pixels(values)
        return torch.from_numpy(np.ascontiguousarray(values))

    def _check_pixels(self, values: Any) -> None:
        """Refuse pictures that are already normalised."""
        largest = 255 if self.preprocess.divisor != 1 else 1
        is_unscaled = (
            self.preprocess.divisor,
            set(self.preprocess.mean),
            set(self.preprocess.std),
        ) == (1.0, {0.0}, {1.0})
        if len(values) and not is_unscaled and not (values.min() >= 0 and values.max() <= largest):
            raise UsageError(
                f"These pictures have values from {values.min():g} to {values.max():g}, but this"
                f" model takes them as the party has them, from 0 to {largest}. Samples of a"
                " federation are prepared already: give them whole (party.test, not party.test.x)."
            )

    def _preprocess(self, x: Tensor) -> Tensor:
        """Normalise and impute; refuse values that are not finite, if none can be missing."""
        if (
            not self.preprocess.marked
            and x.dim()
            and x.is_floating_point()
            and not x.isfinite().all()
        ):
            raise UsageError(
                f"{WHERE} have values that are not finite, but training samples had none: fill or"
                " remove them."
            )
        return self.preprocess(x)
