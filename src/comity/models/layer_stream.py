"""Randomness for layers that take it from nowhere but torch's global generator: dropout, and
whatever a user's modules do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comity.base.key import Key


class LayerStream:
    """Torch's global generator, lent to a key while this is entered.

    Entered again it goes on where it was left, so that a work can be interrupted by others' and
    keep its stream.
    """

    def __init__(self, key: Key) -> None:
        self._mine = [key.generator().get_state()]
        if torch.cuda.is_available():
            self._mine.append(
                torch.Generator("cuda").manual_seed(key.bits & 0x7FFF_FFFF_FFFF_FFFF).get_state()
            )
        self._others: list[Tensor] = []

    def __enter__(self) -> None:
        self._others = _states()
        _set(self._mine)

    def __exit__(self, *why: object) -> None:
        self._mine = _states()
        _set(self._others)


def _states() -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state()] if torch.cuda.is_available() else states


def _set(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)
