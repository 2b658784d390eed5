"""The training that a party function requests, found by running the function up to its trainings.

The audit must know how a party trained: from which weights, with which optimizer, clipping norm and
noise. Messages do not contain that. So the party function itself is called, with the first messages
that the party got, and its requests are read. No training is run: the function gets numbers that
are easy to recognise in place of trained weights, and the reply shows which of them leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from comity.auditing.observed import params_in
from comity.auditing.view import View
from comity.base.call import CallId, Message
from comity.base.record import Params
from comity.engines.running_call import RunningCall
from comity.engines.site import Site
from comity.training.requests import FitRequest, Fitted


@dataclass(frozen=True)
class LocalTraining:
    """A private training that a party function requests."""

    call: CallId
    request: FitRequest[Any]
    sent_as: dict[str, frozenset[str]]
    """By field of the reply: the names of the trained weights that leave in it unchanged."""


def local_trainings(view: View, i: int) -> list[LocalTraining]:
    """The private trainings of the first call in which a party trains; empty if there is none, or
    if a call depends on sealed messages.
    """
    site = Site(view.job.algorithm, view.party(i), view.job.root)
    after: CallId | None = None
    for message in view.messages():
        if message.kind == "sealed" and i in message.to:
            return []
        if message.kind != "message" or i not in message.to:
            continue
        running = site.begin(message.call, Message(message.content, after, first=True), {})
        if running.request is not None:
            return _requested(view, i, running)
        if site.end(running).keeps:
            after = message.call
    return []


def _requested(view: View, i: int, running: RunningCall) -> list[LocalTraining]:
    """The trainings of a running party function, which gets random numbers as their results."""
    source = view.key.fold("markers").generator()
    requests: list[FitRequest[Any]] = []
    markers: list[Params] = []
    while (request := running.request) is not None:
        if not isinstance(request, FitRequest) or request.private is None:
            return []
        marker = {
            name: torch.rand(request.begin[name].shape, generator=source) for name in request.names
        }
        requests.append(request)
        markers.append(marker)
        size = len(request.private.samples)
        steps = request.training.steps_for(size)
        request.private.trainings.append((min(1.0, request.training.batch / size), steps))
        theta = {name: value.clone() for name, value in request.begin.items()} | marker
        running.resume_with(Fitted(theta, None, steps, steps, torch.zeros(()), {}))
    replied = params_in(running.result[1], view.party(i).task)
    return [
        LocalTraining(
            running.call,
            request,
            {
                field: frozenset(
                    name
                    for name in theta.keys() & marker.keys()
                    if torch.equal(theta[name], marker[name])
                )
                for field, theta in replied.items()
            },
        )
        for request, marker in zip(requests, markers, strict=True)
    ]
