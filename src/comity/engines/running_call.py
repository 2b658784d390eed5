"""A running party function: a coroutine that awaits trainings and receives their results. There is
no event loop.
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
from comity.engines.purity import WriteCheck
from comity.errors import ComityError
from comity.training.descent import fold, train
from comity.training.gradient_count import GradientCount
from comity.training.requests import FitRequest, Fitted, FoldRequest, PartyCoroutine, Request
from comity.training.settings import Moments


@dataclass
class KeptMoments:
    """Optimizer states that a party keeps from round to round, by the position of the training in
    its party function.
    """

    moments: dict[str, Moments]
    function: str
    trainings: int = 0

    def recall(self, params: Params) -> tuple[str, Moments | None]:
        """The position of the next training in the party function, and the state kept there if it
        has the same tensors.
        """
        place = f"{self.function}.{self.trainings}"
        self.trainings += 1
        moments = self.moments.get(place)
        shapes = {k: v.shape for k, v in params.items()}
        if moments and {k: v.shape for k, v in moments.first.items()} != shapes:
            moments = None
        return place, moments


class RunningCall:
    """A party function from one request to the next, until it returns.

    `request` is the request that it awaits, or None when it has returned; then `result` is what it
    returned.
    """

    def __init__(
        self,
        function: PartyCoroutine[tuple[Any, Any]],
        call: CallId,
        moments: KeptMoments,
        layers: AbstractContextManager[object],
        unusable: tuple[int, ...] = (),
        writes: WriteCheck | None = None,
    ) -> None:
        self.call = call
        self.unusable = unusable
        """The senders of ignored sealed messages."""
        self.request: Request | None = None
        self.result: tuple[Any, Any] = None, None
        self.kept_moments = moments
        self.steps = 0
        """The gradient evaluations up to now (see `gradient_count`)."""
        self.warning = ""
        self._coroutine = function
        self._name = call.function
        self._layers = layers
        self._writes = writes
        self._place = ""
        self._modes = _modes()
        if not iscoroutine(function):
            raise ComityError(f"{call.function} must be an `async def`, even if it awaits nothing.")
        self._resume(function.send, None)

    def resume_with(self, result: Fitted) -> None:
        """Continue with the result of the requested training, up to the next request."""
        if self._place and result.moments:
            self.kept_moments.moments[self._place] = result.moments
        self.steps += result.gradients
        self._resume(self._coroutine.send, result)

    def train(self) -> None:
        """Run the requested training for this party alone.

        An error is raised inside the party function, so that the traceback names its author's line.
        """
        request = self.request
        assert request
        try:
            with self._layers, GradientCount() as count:
                result = fold(request) if isinstance(request, FoldRequest) else train(request)
        except Exception as why:
            self._resume(self._coroutine.throw, why)
            return
        if isinstance(request, FoldRequest):
            if request.training.precision != "float32":
                self.warning = (
                    f"{self._name} takes steps of its own, which stay in float32: precision="
                    f"{request.training.precision} has no effect on them."
                )
            self.steps += count.total
            self._resume(self._coroutine.send, result)
        else:
            self.resume_with(result)

    def _resume(self, go: Callable[[Any], Any], value: Any) -> None:
        """Continue the coroutine (`go` sends or throws) up to its next request or its end."""
        self.request, self._place = None, ""
        count = GradientCount()
        try:
            with self._layers, count:
                request = go(value)
        except StopIteration as end:
            self._check_writes()
            self.result = self._check_result(end.value)
            return
        finally:
            self.steps += count.total
        self._check_writes()
        if error := self._request_error(request):
            self._resume(self._coroutine.throw, ComityError(error))
            return
        if isinstance(request, FitRequest) and request.training.keep:
            self._place, before = self.kept_moments.recall(
                {k: request.begin[k] for k in request.names}
            )
            request = replace(request, before=request.before or before)
        self.request = request

    def _check_writes(self) -> None:
        if self._writes:
            self._writes.check()

    def _request_error(self, request: Any) -> str:
        """Why a request is refused; empty if it is valid."""
        if not isinstance(request, FitRequest | FoldRequest):
            return (
                f"{self._name} awaits {request!r}, but only party.fit(...), party.fold(...) and its"
                " own methods can be awaited."
            )
        if _modes() != self._modes:
            return (
                f"{self._name} awaits a training inside torch.no_grad() or another mode of torch:"
                " leave the mode first, since it would also apply to other parties."
            )
        return ""

    def _check_result(self, result: Any) -> tuple[Any, Any]:
        if not isinstance(result, tuple) or len(result) != 2:
            raise ComityError(
                f"{self._name} must return (its new state, a reply), but returned a"
                f" {type(result).__name__}."
            )
        return result


def _modes() -> tuple[object, ...]:
    """Torch's modes, which apply to everything that runs in this process."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
    )
