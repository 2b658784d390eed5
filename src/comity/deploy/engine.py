"""Parties at sites of their own: what is asked of them goes through a courier, and their states
stay where they are.

A letter names the state that it is for, so a site needs no other word to go on, be it after a
restart, a lost reply or a round that did not count. A site that says nothing in time, or refuses,
is a party that was not heard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comity.base.call import CallId, Edge, EvaluationRequest, Message, PartyResult
from comity.base.record import Sealed
from comity.core.validate import MessageValidator
from comity.deploy.messages import (
    ANSWERED,
    Answered,
    Committed,
    Done,
    Evaluate,
    EvaluateAlone,
    Failed,
    RunCall,
    named,
    pack,
    unpack,
)
from comity.deploy.transport import Transport
from comity.engines.engine import Engine, inboxes
from comity.engines.saved import Saved
from comity.errors import ComityError
from comity.metrics.evaluation import Answers, Evaluation, Gained, Score
from comity.metrics.metrics import metrics_for
from comity.runs.server_run import ServerRun
from comity.text import escape_terminal
from comity.wire.codec import decode, encode

FIGURES = frozenset((Evaluation, Score, Answers, Gained))


MOST_WORDS = 500
"""Letters of what a site says that are written down."""


class SitesEngine(Engine):
    """The parties of a run that are elsewhere, by their names."""

    def __init__(
        self,
        transport: Transport,
        server_run: ServerRun,
        run: str,
        deadline: float,
        most_bytes: int,
    ) -> None:
        self._courier = transport
        self._outline = server_run
        self._names = server_run.context.roster.names
        self._run = run
        self._deadline = deadline
        self._most = most_bytes
        self._gates = [
            MessageValidator(
                server_run.algorithm, server_run.context.task(name), len(self._names), most_bytes
            )
            for name in self._names
        ]
        self._round = 0
        self._warnings: dict[str, None] = {}

    def run(
        self, call: CallId, messages: Mapping[int, Message], sealed_messages: Mapping[Edge, Sealed]
    ) -> Iterator[tuple[int, PartyResult]]:
        self._round = call.round
        boxes = inboxes(sealed_messages)
        heads = {
            i: RunCall(
                self._run,
                (call.function, call.depth, call.round, call.occurrence),
                named(message.after),
                message.first,
                boxes.get(i, {}),
            )
            for i, message in messages.items()
        }
        for i, head, body in self._asked(
            heads, {i: message.content for i, message in messages.items()}, Answered
        ):
            try:
                reply = decode(
                    body,
                    sealed_messages=True,
                    most_bytes=self._most,
                    records=self._gates[i].records,
                )
                self._gates[i].check_reply(call, reply)
                _check_told(head, boxes.get(i, {}))
            except ComityError as why:
                self._remark(i, str(why))
                continue
            yield (
                i,
                PartyResult(
                    reply, head.steps, head.keeps, head.ruined, told(head.warning), head.unusable
                ),
            )

    def evaluate(
        self, messages: Mapping[int, Message], look: EvaluationRequest
    ) -> Iterator[tuple[int, Evaluation]]:
        self._round = look.round
        heads = {
            i: Evaluate(self._run, named(message.after), *look) for i, message in messages.items()
        }
        return self._evaluated(
            self._asked(heads, {i: message.content for i, message in messages.items()}, Done)
        )

    def evaluate_solo(self, ids: Iterable[int], t: int) -> Iterator[tuple[int, Evaluation]]:
        return self._evaluated(self._asked({i: EvaluateAlone(self._run, t) for i in ids}, {}, Done))

    def _evaluated(
        self, answers: Iterator[tuple[int, Any, bytes]]
    ) -> Iterator[tuple[int, Evaluation]]:
        for i, _, body in answers:
            try:
                found = decode(body, most_bytes=self._most, records=FIGURES)
                _check_figures(found, self._outline, i)
            except ComityError as why:
                self._remark(i, str(why))
                continue
            yield i, found

    def commit(self, versions: Mapping[int, CallId | None]) -> None:
        """Nothing is to be said: the next letter names the state that counts."""

    def save(self, folder: Path, t: int) -> list[Saved]:
        """Nothing is to be written here: sites have written each state before the reply left that
        came of it.
        """
        return []

    def checkpoint_written(self, versions: Mapping[int, CallId]) -> None:
        heads = {i: Committed(self._run, named(version)) for i, version in versions.items()}
        for _ in self._asked(heads, {}, Done):
            pass  # who does not hear of it keeps more than it needs to

    def load(
        self,
        folder: Path,
        states: Iterable[Saved],
        versions: Mapping[int, CallId],
        workers_by_party: Mapping[int, int],
    ) -> None:
        """Nothing is to be sent: the next letters name the states."""

    @property
    def warnings(self) -> list[str]:
        return list(self._warnings)

    def _asked(
        self, heads: Mapping[int, Any], contents: Mapping[int, Any], kind: type
    ) -> Iterator[tuple[int, Any, bytes]]:
        """Ask sites; the heads of this kind that they answer, and what is behind them. One letter
        for many is encoded once.
        """
        bodies: dict[int, bytes] = {}
        for content in contents.values():
            if id(content) not in bodies:
                bodies[id(content)] = encode(content)
        there = {self._names[i]: i for i in heads}
        requests = {
            name: pack(heads[i], bodies[id(contents[i])] if i in contents else b"")
            for name, i in there.items()
        }
        for name, answer in self._courier.ask(requests, self._deadline):
            i = there[name]
            if answer is None:
                continue  # who was asked and says nothing is written down by the net
            try:
                head, body = unpack(answer, ANSWERED, self._most)
            except ComityError as why:
                self._remark(i, str(why))
                continue
            if isinstance(head, kind):
                yield i, head, body
            else:
                self._remark(
                    i,
                    head.why
                    if isinstance(head, Failed)
                    else "it answered something else than it was asked.",
                )

    def _remark(self, i: int, why: str) -> None:
        self._warnings[f"{self._names[i]} was not heard in round {self._round}: {told(why)}"] = None


def told(text: str) -> str:
    """What a site says, on one line of a length that anybody reads."""
    text = escape_terminal(text[: 2 * MOST_WORDS])
    return text if len(text) <= MOST_WORDS else f"{text[:MOST_WORDS]}..."


def _check_told(head: Answered, inbox: Mapping[int, Sealed]) -> None:
    """Refuse what a site says of a work that it cannot have done, and of parcels that it did not
    get.
    """
    if head.steps < 0:
        raise ComityError(f"it says that it took {head.steps} steps.")
    if not set(head.unusable) <= inbox.keys():
        raise ComityError("it complains of parcels that it was not sent.")


def _check_figures(found: Any, server_run: ServerRun, i: int) -> None:
    """Refuse figures that no evaluation of a party's samples could bring. That they are true nobody
    but the party can know.
    """
    if not isinstance(found, Evaluation):
        raise ComityError("it sent something else than an evaluation.")
    said, classes = server_run.party_infos[i], server_run.info.task.classes
    known = {metric.name for metric in (*metrics_for(classes), server_run.metric)}
    for score, samples in ((found.validation, said.validation), (found.test, said.test)):
        if (
            score.count not in (0, samples)
            or not 0 <= score.correct <= score.count
            or not score.figures.keys() <= known
        ):
            raise ComityError("it sent figures that its samples cannot have.")
    if (answers := found.answers) is not None:
        columns = [
            answers.truth,
            answers.given,
            *([] if answers.score is None else [answers.score]),
        ]
        if any(column.shape != (said.test,) for column in columns):
            raise ComityError("it sent answers for other samples than its own.")
        if classes and not all(_is_class(column, classes) for column in columns[:2]):
            raise ComityError("it sent answers that are no classes.")


def _is_class(column: Tensor, classes: int) -> bool:
    return column.dtype == torch.int32 and bool(((column >= 0) & (column < classes)).all())
