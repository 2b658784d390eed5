"""Samples as a party has them, on their way into a network: what training did to its own is done to
them.
"""

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
from comity.data.sets.common import planes
from comity.errors import UsageError

PICTURE = 3  # sides of a sample: channels, height, width
WHERE = "The new samples"
TABLE = "the new table"


@dataclass(frozen=True)
class Inputs:
    """What one party's samples go through before its network sees them."""

    shape: tuple[int, ...]
    """Of a sample as the network sees it."""
    preprocess: Preprocess
    schema: Schema | None = None

    def prepared(self, x: Any) -> Tensor:
        """Samples as the network wants them.

        `x` is an array, tensor or list as the party has it (unscaled, missing values as NaN); of a
        table also a pandas frame or a dict of columns by name, with words and missing cells. A
        federation's own `Samples` are prepared already.
        """
        if isinstance(x, Samples):
            return x.x
        if hasattr(x, "to_dict") and hasattr(
            x, "columns"
        ):  # a pandas frame, which need not be installed
            x = {str(name): x[name].tolist() for name in x.columns} if self.schema else x.to_numpy()
        if self.schema:
            return self._finished(torch.from_numpy(self._encoded(self.schema, x)))
        if isinstance(x, Mapping):
            raise UsageError(
                "Columns by name need a schema, which these data have not: give an array with a row"
                " a sample."
            )
        return self._finished(self._values(x))

    def _encoded(self, schema: Schema, x: Any) -> Any:
        table = x if isinstance(x, Mapping) else self._by_place(schema, x)
        if any(
            isinstance(column, str) or not hasattr(column, "__len__") for column in table.values()
        ):
            raise UsageError(
                f"{WHERE} must be columns: a list of cells for each name, as in {{'age': [54,"
                " 61]}."
            )
        lengths = {len(column) for column in table.values()}
        if len(lengths) != 1:
            raise UsageError(f"{WHERE} must have columns of one length.")
        try:
            made = encode(schema, table, lengths.pop(), TABLE)
        except Unusable as why:
            raise UsageError(f"{str(why)[0].upper()}{str(why)[1:]}") from why
        for warning in made.warnings:
            warnings.warn(f"{warning[0].upper()}{warning[1:]}", stacklevel=4)
        return made.x

    @staticmethod
    def _by_place(schema: Schema, x: Any) -> dict[str, list[Any]]:
        """An array's columns by name: they must be those of the schema, in its order."""
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

    def _values(self, x: Array) -> Tensor:
        """An array as samples of the right shape, if its values can be what the party has."""
        given = numbers(WHERE, x)
        expected = (self.shape[0] - len(self.preprocess.marked), *self.shape[1:])
        if len(expected) == PICTURE and given.shape[1:] != expected:
            given = planes(given) if given.ndim in (PICTURE, PICTURE + 1) else given
        if given.shape[1:] != expected:
            raise UsageError(
                f"{WHERE} have the shape {given.shape[1:]}, but this model takes {expected}."
            )
        if len(expected) == PICTURE:
            self._check_pixels(given)
        return torch.from_numpy(np.ascontiguousarray(given))

    def _check_pixels(self, given: Any) -> None:
        most = 255 if self.preprocess.divisor != 1 else 1
        identity = (
            self.preprocess.divisor,
            set(self.preprocess.mean),
            set(self.preprocess.std),
        ) == (1.0, {0.0}, {1.0})
        if len(given) and not identity and not (given.min() >= 0 and given.max() <= most):
            raise UsageError(
                f"These pictures have values from {given.min():g} to {given.max():g}, but this"
                f" model takes them as the party has them, from 0 to {most}. Samples of a"
                " federation are prepared already: give them whole (party.test, not party.test.x)."
            )

    def _finished(self, x: Tensor) -> Tensor:
        if (
            not self.preprocess.marked
            and x.dim()
            and x.is_floating_point()
            and not x.isfinite().all()
        ):
            raise UsageError(
                f"{WHERE} have values that are not finite, which never was so in training: fill or"
                " remove them."
            )
        return self.preprocess(x)
