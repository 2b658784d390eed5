"""PRBM alone: DBE's personal offset without the mean regulariser (DBE, Table 2). A wrapper.

Idea: z = z^g + z̄^p_i, the offset private and trainable. There is no consensus mean, hence no
exchange before round 1.

At a glance: personal = what the host's is, and an offset of the representation; exchanged = what
the host exchanges; kept = what the host keeps, and the offset; steps = the host's.
Symbols: as in dbe.
Deviations: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Literal

from comity.algorithms.dbe import Dbe
from comity.components.pilot import Mean, PilotedAccounting
from comity.core import *


@algorithm
class Prbm(Dbe):
    kappa: float = field(default=0.0, init=False)
    mu: float = field(default=1.0, init=False)
    half: bool = field(default=True, init=False)
    ema_debias: bool = field(default=False, init=False)
    init_mean: Literal["exact", "ema", "batch"] = field(default="exact", init=False)
    init_epochs: int = field(default=1, init=False)
    noise_s: float = field(default=0.0, init=False)
    noise_q: float = field(default=0.0, init=False)
    pilot_rounds: int = field(default=5, init=False)

    def start(self, s: Wrapped[Mean | None], server: Server) -> Wrapped[Mean | None]:
        return replace(s, host=self.host.start(s.host, server))

    def catch_up(
        self, s: Wrapped[Mean | None], server: Server, ids: Sequence[int]
    ) -> Wrapped[Mean | None]:
        return replace(s, host=self.host.catch_up(s.host, server, ids))

    def join(
        self, s: Wrapped[Mean | None], server: Server, ids: Sequence[int]
    ) -> Wrapped[Mean | None]:
        return replace(s, host=self.host.join(s.host, server, ids))

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(Dbe.traits, also_leaves=(), not_private=None, bytes_formula="the host's")


@accounts_for(Prbm)
class PrbmAccounting(PilotedAccounting[Prbm]):
    """The host's accounting: PRBM alone exchanges nothing more."""
