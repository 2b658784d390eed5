"""Parameters of sweeps: `make test` runs a few cases of each, `make test-long` the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

FEW = ("fedavg", "scaffold+dbe", "adcol", "fedufo", "fed-sps(attack_steps=2)", "relay", "relay-p2p")
"""The methods of the five papers. Among them: shared weights, party states, two calls a round, a
model at the server, and sealed messages between parties."""


def over_methods(cases: Iterable[Any], quick: tuple[str, ...] = ()) -> list[ParameterSet]:
    """Parameters for a sweep over methods: every case is marked `long` unless its method is in FEW.

    A case is a method's text, or a tuple that begins with one. Methods in `quick` are also run by
    `make quick`.
    """
    parameters = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marks = [] if values[0] in FEW else [pytest.mark.long]
        if values[0] in quick:
            marks.append(pytest.mark.quick)
        parameters.append(pytest.param(*values, marks=marks))
    return parameters
