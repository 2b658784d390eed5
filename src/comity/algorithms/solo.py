"""SOLO: every party for itself. The baseline: does collaborating help each party?

Idea: E epochs a round on the party's own data, from the same initial weights as every other method;
no exchange.

At a glance: personal = the whole model; exchanged = nothing; kept = the party's model; steps = E
epochs.
Symbols: F_i = the party's own model.
Deviations: none.
Compared: the same as PFLlib's and HtFLlib's. See docs/results/methods-beside.md.
"""

from __future__ import annotations

from comity.core import *


@algorithm
class Solo(Algorithm[Empty, Params, Empty]):
    def init_server(self, key: Key, info: Info) -> Empty:
        return Empty()

    def init_party(self, key: Key, party: Party) -> Params:
        return party.task.init(key)

    def message_for(self, s: Empty, i: int) -> Empty:
        return Empty()

    def round(self, s: Empty, server: Server, t: int) -> Empty:
        server.call(self.local, {i: Empty() for i in server.sample(t)})
        return s

    @on_party
    async def local(self, F_i: Params, m: Empty, party: Party, key: Key) -> tuple[Params, Empty]:
        return (await party.fit(plain, F_i, key)).theta, Empty()

    @on_party
    async def warm_up(self, F_i: Params, m: Empty, party: Party, key: Key) -> tuple[Params, None]:
        F_i, _ = await self.local(F_i, m, party, key)
        return F_i, None

    def deployed_model(self, F_i: Params, m: Empty, party: Party) -> Params:
        return F_i

    # -- declarations ------------------------------------------------------------------------------

    traits = Traits(shares="nothing", self_contained=True, start_weights="", bytes_formula="0")
