"""A user method with one of several mistakes.

Idea: for each mistake, every engine raises the same error message.
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

    def local(self, state: Params, m: Model, party: Party, key: Key) -> Any:
        """With mistake="plain", a function that is no coroutine; otherwise it returns a coroutine."""
        if self.mistake == "plain":
            return state, Model(m.theta)
        return self.local_coroutine(state, m, party, key)

    async def local_coroutine(self, state: Params, m: Model, party: Party, key: Key) -> Any:
        match self.mistake:
            case "foreign":
                await asyncio.sleep(0)
            case "single":
                return Model(m.theta)
            case "three":
                return state, Model(m.theta), 3
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
                request: Any = party.fit(plain, m.theta, key)
                return state, Model(request.theta)  # the author's line
        return state, Model((await party.fit(plain, m.theta, key)).theta)

    def deployed_model(self, state: Params, m: Model, party: Party) -> Any:
        return party.fit(plain, m.theta, Key(0)) if self.mistake == "model" else m.theta | state
