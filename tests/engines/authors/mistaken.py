"""A user's own file with a mistake in it, one of several.

Idea: whatever its author got wrong, every engine says the same sentence.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import torch

from comity.algorithms.fedavg import FedAvg
from comity.core import Key, Model, Params, Party, algorithm, option, plain


@algorithm
class Mistaken(FedAvg):
    mistake: Literal[
        "plain", "foreign", "single", "three", "no_grad", "inference", "dtype", "forgotten", "model"
    ] = option("plain", "what is wrong")

    def local(self, mine: Params, m: Model, party: Party, key: Key) -> Any:
        """A plain function unless told; then one of the coroutines below."""
        if self.mistake == "plain":
            return mine, Model(m.theta)
        return self.worked(mine, m, party, key)

    async def worked(self, mine: Params, m: Model, party: Party, key: Key) -> Any:
        match self.mistake:
            case "foreign":
                await asyncio.sleep(0)
            case "single":
                return Model(m.theta)
            case "three":
                return mine, Model(m.theta), 3
            case "no_grad":
                with torch.no_grad():
                    await party.fit(plain, m.theta, key)
            case "inference":
                with torch.inference_mode():
                    await party.fit(plain, m.theta, key)
            case "dtype":
                torch.set_default_dtype(torch.float64)
                try:
                    await party.fit(plain, m.theta, key)
                finally:
                    torch.set_default_dtype(torch.float32)
            case "forgotten":
                done: Any = party.fit(plain, m.theta, key)
                return mine, Model(done.theta)  # the author's line
        return mine, Model((await party.fit(plain, m.theta, key)).theta)

    def deployed_model(self, mine: Params, m: Model, party: Party) -> Any:
        return party.fit(plain, m.theta, Key(0)) if self.mistake == "model" else m.theta | mine
