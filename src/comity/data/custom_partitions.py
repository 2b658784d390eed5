"""Custom partitions: functions of users, from a Python file or passed from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from comity.base.samples import Ints
from comity.data.split import check_name
from comity.errors import UsageError, quote
from comity.plugins import from_file
from comity.spec import Spec, call

CustomPartition = Callable[[Ints, int, np.random.Generator], Mapping[str, Any] | Sequence[Any]]
"""A function of the labels, the number of parties and a generator. It returns each party's
positions, as a list, or as a dict by party name.
"""
PYTHON_PREFIX = "given:"
"""Prefix of the name, in a split, of a function that was passed from Python."""


def custom_partition_name(function: CustomPartition) -> str:
    """The name of a custom partition function in a split."""
    if not callable(function):
        raise UsageError(
            "A partition must be a text, as in 'dirichlet(alpha=0.5)', or a function of the labels,"
            " the number of parties and a generator."
        )
    return PYTHON_PREFIX + str(getattr(function, "__name__", type(function).__name__)).strip("<>")


def apply_custom_partition(
    spec: Spec,
    function: CustomPartition | None,
    y: Ints,
    requested: int | None,
    parties: int,
    rng: np.random.Generator,
) -> dict[str, Ints]:
    """Call a custom partition and check its result.

    Args:
        spec: the partition as written; names the file if `function` is None.
        function: the function that was passed from Python, if any.
        y: labels of the samples to assign.
        requested: the number of parties that the user asked for, if any.
        parties: the number of parties that the function receives.
        rng: generator for the function.

    Returns:
        Each party's positions in `y`.

    Raises:
        UsageError: if the function fails, or its result is not a valid partition.
    """
    display_name = (
        f"The partition {spec.name.removeprefix(PYTHON_PREFIX)}"
        if function
        else f"partition of {spec.name}"
    )
    try:
        result = (
            function(y, parties, rng)
            if function
            else call(spec, from_file(spec.name, "partition"), y, parties, rng)
        )
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{display_name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(result, Mapping | list | tuple) or not len(result):
        raise UsageError(
            f"{display_name} must return a list with the positions of each party's samples (or a"
            f" dict), not {quote(result)}."
        )
    positions_by_party = (
        dict(result)
        if isinstance(result, Mapping)
        else {f"p{i}": positions for i, positions in enumerate(result)}
    )
    if requested not in (None, len(positions_by_party)):
        raise UsageError(
            f"{display_name} returned {len(positions_by_party)} parties, not {requested}."
        )
    owner = np.full(len(y), -1)
    for i, (name, positions) in enumerate(positions_by_party.items()):
        check_name(name)
        positions_by_party[name] = party_positions = _check_positions(
            display_name, name, positions, len(y)
        )
        if (owner[party_positions] >= 0).any() or len(np.unique(party_positions)) < len(
            party_positions
        ):
            first = next(
                k
                for k in party_positions.tolist()
                if owner[k] >= 0 or (party_positions == k).sum() > 1
            )
            other = list(positions_by_party)[owner[first]] if owner[first] >= 0 else name
            twice = f"to {other!r} and to {name!r}" if other != name else f"to {name!r} twice"
            raise UsageError(
                f"{display_name} gave sample {first} {twice}: a sample belongs to one party."
            )
        owner[party_positions] = i
    return positions_by_party


def _check_positions(display_name: str, name: str, value: Any, samples: int) -> Ints:
    """One party's positions as an array; refuse anything else."""
    try:
        positions = np.asarray(value)
    except (TypeError, ValueError):
        positions = np.empty(0, dtype=object)
    if positions.ndim == 1 and not len(positions):
        raise UsageError(
            f"{display_name} left party {name!r} empty: give every party samples, or make fewer"
            " parties."
        )
    if positions.ndim != 1 or positions.dtype.kind not in "iu":
        raise UsageError(
            f"{display_name} must give party {name!r} a list of positions (whole numbers), not"
            f" {quote(value)}."
        )
    if positions.min() < 0 or positions.max() >= samples:
        wrong = int(positions.min() if positions.min() < 0 else positions.max())
        raise UsageError(
            f"{display_name} gave party {name!r} sample {wrong}, but there are samples 0 to"
            f" {samples - 1}."
        )
    return positions.astype(np.int64)
