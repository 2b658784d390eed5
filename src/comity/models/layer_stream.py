"""Random numbers for layers that draw from torch's global generator, such as dropout and users'
modules.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comity.base.key import Key


class LayerStream:
    """A context manager in which torch's global generator is seeded by a key.

    When it is entered again, the stream continues where it stopped. So several party functions can
    take turns, and each keeps its own stream.
    """

    def __init__(self, key: Key) -> None:
        self._states = [key.generator().get_state()]
        if torch.cuda.is_available():
            self._states.append(
                torch.Generator("cuda").manual_seed(key.bits & 0x7FFF_FFFF_FFFF_FFFF).get_state()
            )
        self._outer_states: list[Tensor] = []

    def __enter__(self) -> None:
        self._outer_states = _read_states()
        _set(self._states)

    def __exit__(self, *why: object) -> None:
        self._states = _read_states()
        _set(self._outer_states)


def _read_states() -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state()] if torch.cuda.is_available() else states


def _set(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)
