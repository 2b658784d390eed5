"""A user's own partition: a function of labels, number of parties and a generator, from a file or
given from Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from comity.base.samples import Ints
from comity.data.split import check_name
from comity.errors import UsageError, quote
from comity.plugins import from_file
from comity.spec import Spec, call

OwnPartition = Callable[[Ints, int, np.random.Generator], Mapping[str, Any] | Sequence[Any]]
"""From labels, the number of parties and a generator to each party's positions, in a list or by the
parties' names.
"""
GIVEN = "given:"
"""How a split names a function that was given from Python."""


def name_of(function: OwnPartition) -> str:
    """What a split calls a function that was given."""
    if not callable(function):
        raise UsageError(
            "A partition is a text, as in 'dirichlet(alpha=0.5)', or a function of labels, parties"
            " and a generator."
        )
    return GIVEN + str(getattr(function, "__name__", type(function).__name__)).strip("<>")


def deal(
    spec: Spec,
    given: OwnPartition | None,
    y: Ints,
    asked: int | None,
    parties: int,
    rng: np.random.Generator,
) -> dict[str, Ints]:
    """Each party's positions in `y`, as the user's function deals them, if it deals as a partition
    must.
    """
    display_name = (
        f"The partition {spec.name.removeprefix(GIVEN)}" if given else f"partition of {spec.name}"
    )
    try:
        made = (
            given(y, parties, rng)
            if given
            else call(spec, from_file(spec.name, "partition"), y, parties, rng)
        )
    except UsageError:
        raise
    except Exception as why:
        raise UsageError(f"{display_name} failed: {type(why).__name__}: {why}") from why
    if not isinstance(made, Mapping | list | tuple) or not len(made):
        raise UsageError(
            f"{display_name} must return a list with the positions of each party's samples (or a"
            f" dict), not {quote(made)}."
        )
    dealt = (
        dict(made)
        if isinstance(made, Mapping)
        else {f"p{i}": positions for i, positions in enumerate(made)}
    )
    if asked not in (None, len(dealt)):
        raise UsageError(f"{display_name} made {len(dealt)} parties, not {asked}.")
    owner = np.full(len(y), -1)
    for i, (name, positions) in enumerate(dealt.items()):
        check_name(name)
        dealt[name] = mine = _positions(display_name, name, positions, len(y))
        if (owner[mine] >= 0).any() or len(np.unique(mine)) < len(mine):
            first = next(k for k in mine.tolist() if owner[k] >= 0 or (mine == k).sum() > 1)
            other = list(dealt)[owner[first]] if owner[first] >= 0 else name
            twice = f"to {other!r} and to {name!r}" if other != name else f"to {name!r} twice"
            raise UsageError(
                f"{display_name} gave sample {first} {twice}: a sample belongs to one party."
            )
        owner[mine] = i
    return dealt


def _positions(display_name: str, name: str, given: Any, samples: int) -> Ints:
    """One party's positions, if they are some."""
    try:
        found = np.asarray(given)
    except (TypeError, ValueError):
        found = np.empty(0, dtype=object)
    if found.ndim == 1 and not len(found):
        raise UsageError(
            f"{display_name} left party {name!r} empty: give every party samples, or make fewer"
            " parties."
        )
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise UsageError(
            f"{display_name} must give party {name!r} a list of positions (whole numbers), not"
            f" {quote(given)}."
        )
    if found.min() < 0 or found.max() >= samples:
        wrong = int(found.min() if found.min() < 0 else found.max())
        raise UsageError(
            f"{display_name} gave party {name!r} sample {wrong}, but there are samples 0 to"
            f" {samples - 1}."
        )
    return found.astype(np.int64)
