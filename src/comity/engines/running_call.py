"""A work under way: a coroutine that asks for trainings and is sent what comes of them. There is no
event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from inspect import iscoroutine
from typing import Any

import torch

from comity.base.call import CallId
from comity.base.record import Params
from comity.errors import ComityError
from comity.training.descent import fold, train
from comity.training.requests import FitRequest, Fitted, FoldRequest, Request, Working
from comity.training.settings import Moments


@dataclass
class KeptMoments:
    """What a party's optimizers remember from round to round: found again by the training's place
    in its work.
    """

    moments: dict[str, Moments]
    function: str
    uses: int = 0

    def recall(self, params: Params) -> tuple[str, Moments | None]:
        """The place of the next training of this work, and what was kept there if it trains the
        same tensors.
        """
        place = f"{self.function}.{self.uses}"
        self.uses += 1
        kept = self.moments.get(place)
        known = kept and {k: v.shape for k, v in kept.first.items()} == {
            k: v.shape for k, v in params.items()
        }
        return place, kept if known else None


class RunningCall:
    """A work from its beginning to its next request, and so on to its end.

    `request` is what it waits for; None when it is done, and then `result` is what it returned.
    """

    def __init__(
        self,
        function: Working[tuple[Any, Any]],
        call: CallId,
        kept: KeptMoments,
        layers: AbstractContextManager[object],
        unusable: tuple[int, ...] = (),
    ) -> None:
        self.call = call
        self.unusable = unusable
        """Whose parcels were left closed."""
        self.request: Request | None = None
        self.result: tuple[Any, Any] = None, None
        self.kept = kept
        self.steps = 0
        self.warning = ""
        self._coroutine = function
        self._name = call.function
        self._layers = layers
        self._place = ""
        self._modes = _modes()
        if not iscoroutine(function):
            raise ComityError(f"{call.function} must be an `async def`, even if it awaits nothing.")
        self._resume(function.send, None)

    def answer(self, done: Fitted) -> None:
        """The training that was asked for is done: the work goes on to its next request."""
        if self._place and done.moments:
            self.kept.moments[self._place] = done.moments
        self.steps += done.steps
        self._resume(self._coroutine.send, done)

    def train(self) -> None:
        """Do what is asked for, for this party by itself.

        An error is raised where the work awaits, so that a traceback names its author's line.
        """
        request = self.request
        assert request
        try:
            with self._layers:
                done = fold(request) if isinstance(request, FoldRequest) else train(request)
        except Exception as why:
            self._resume(self._coroutine.throw, why)
            return
        if isinstance(request, FoldRequest):
            self.steps += request.training.steps_for(len(request.samples))
            self._resume(self._coroutine.send, done)
        else:
            self.answer(done)

    def _resume(self, go: Callable[[Any], Any], value: Any) -> None:
        self.request, self._place = None, ""
        try:
            with self._layers:
                asked = go(value)
        except StopIteration as end:
            self.result = self._checked(end.value)
            return
        if wrong := self._wrong(asked):
            self._resume(self._coroutine.throw, ComityError(wrong))
            return
        if isinstance(asked, FitRequest) and asked.training.keep:
            self._place, before = self.kept.recall({k: asked.begin[k] for k in asked.names})
            asked = replace(asked, before=asked.before or before)
        self.request = asked

    def _wrong(self, asked: Any) -> str:
        """Why a request is not to be answered, if there is a reason."""
        if not isinstance(asked, FitRequest | FoldRequest):
            return (
                f"{self._name} awaits {asked!r}, but only party.fit(...), party.fold(...) and its"
                " own methods can be awaited."
            )
        if _modes() != self._modes:
            return (
                f"{self._name} awaits a training inside torch.no_grad() or another of torch's"
                " modes: leave it first, as it would hold for other parties too."
            )
        return ""

    def _checked(self, result: Any) -> tuple[Any, Any]:
        if not isinstance(result, tuple) or len(result) != 2:
            raise ComityError(
                f"{self._name} must return (its new state, a reply), but returned a"
                f" {type(result).__name__}."
            )
        return result


def _modes() -> tuple[object, ...]:
    """Torch's modes, which hold for all that runs in this process."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
    )
