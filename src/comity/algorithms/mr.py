"""MR alone: DBE's mean regulariser without the personal offset (DBE, Tables 2 and 6). A wrapper.

Idea: κ · (1/K) Σ_k ½ (m_k − z̄^g_k)² is added to the loss that trains the shared extractor, so it
can also wrap methods that are personalised already (fedper+mr).

At a glance: personal = what the host's is; exchanged = what the host exchanges, and a mean of
representations once, before round 1; kept = what the host keeps, and a running mean; steps = the
host's, and one epoch before round 1.
Symbols: as in dbe.
Deviations: none beyond dbe's.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import ClassVar

from comity.algorithms.dbe import Dbe
from comity.core import *


@algorithm
class Mr(Dbe):
    has_offset: ClassVar[bool] = False
    train_offset: bool = field(default=True, init=False)

    # -- declarations ------------------------------------------------------------------------------

    traits = replace(Dbe.traits, diagnostics=())

    def adjust_traits(self, declared: Traits) -> Traits:
        return replace(super().adjust_traits(declared), one_model=self.host.traits.one_model)
