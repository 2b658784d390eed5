"""The engine of a run between sites: calls go through a transport, and states stay at the sites.

A message names the state that it continues from. A site therefore needs no other information after
a restart, a lost reply or a discarded round. A site that does not reply in time, or refuses, counts
as a party that was not heard. With secure aggregation, replies that are averaged arrive as one sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comity.base.call import CallId, Edge, EvaluationRequest, Message, PartyResult
from comity.base.record import Sealed
from comity.core.aggregate import PartialSum
from comity.core.runner import Overhead
from comity.core.validate import MessageValidator
from comity.deploy.messages import (
    REPLIES,
    Answered,
    Committed,
    Done,
    Evaluate,
    EvaluateAlone,
    Failed,
    PackedRequests,
    RunCall,
    call_name,
    unpack_view,
)
from comity.deploy.secure_server import EXPERIMENTAL, Limits, SecureSums, SumFiles
from comity.deploy.secure_terms import SecureRun, party_noise
from comity.deploy.transport import Transport
from comity.engines.engine import Engine, inboxes
from comity.engines.saved import Saved
from comity.errors import ComityError
from comity.metrics.evaluation import Answers, Evaluation, Gained, Score
from comity.metrics.metrics import metrics_for
from comity.runs.server_run import ServerRun
from comity.text import escape_terminal
from comity.wire.codec import decode, encode

EVALUATION_RECORDS = frozenset((Evaluation, Score, Answers, Gained))
"""The records that an evaluation may contain."""
MAX_TEXT = 500
"""How many characters of a site's text are kept."""


class SitesEngine(Engine):
    """Runs party functions and evaluations at the sites of a run.

    Arguments:
        transport: carries the requests
        server_run: the run, as the server knows it
        run: the run's name
        deadline: how many seconds a site has for a reply
        most_bytes: the largest reply
        secure: the terms of secure aggregation that all sites accept, in a run that has it
        sums: the folder for sums of replies that no checkpoint contains
    """

    def __init__(
        self,
        transport: Transport,
        server_run: ServerRun,
        run: str,
        deadline: float,
        most_bytes: int,
        secure: Limits | None = None,
        sums: Path | None = None,
    ) -> None:
        self._transport = transport
        self._server_run = server_run
        self._names = server_run.context.roster.names
        self._run = run
        self._deadline = deadline
        self._most_bytes = most_bytes
        self._validators = [
            MessageValidator(
                server_run.algorithm, server_run.context.task(name), len(self._names), most_bytes
            )
            for name in self._names
        ]
        self._round = 0
        self._warnings: dict[str, int] = {}
        self._secure: SecureSums | None = None
        if secure is not None:
            assert sums is not None
            secure_run = SecureRun(
                run,
                server_run.experiment,
                server_run.context.party_infos.parties,
                tuple(sorted(server_run.info.names)),
                party_noise(server_run.algorithm),
            )
            self._secure = SecureSums(
                secure_run,
                secure,
                self._names,
                self._validators,
                SumFiles(sums),
                self._ask,
                self._warn,
            )

    def run(
        self, call: CallId, messages: Mapping[int, Message], sealed_messages: Mapping[Edge, Sealed]
    ) -> Iterator[tuple[int, PartyResult]]:
        self._round = call.round
        boxes = inboxes(sealed_messages)
        heads = {
            i: RunCall(
                self._run,
                (call.function, call.depth, call.round, call.occurrence),
                call_name(message.after),
                message.first,
                boxes.get(i, {}),
            )
            for i, message in messages.items()
        }
        contents = {i: message.content for i, message in messages.items()}
        for i, head, body in self._ask(heads, contents, Answered):
            validator = self._validators[i]
            try:
                reply = decode(
                    body,
                    sealed_messages=True,
                    most_bytes=self._most_bytes,
                    records=validator.records,
                )
                validator.check_reply(call, reply)
                _check_answer(head, boxes.get(i, {}))
            except ComityError as why:
                self._warn(i, str(why))
                continue
            result = PartyResult(
                reply, head.steps, head.keeps, head.ruined, one_line(head.warning), head.unusable
            )
            yield i, result

    def sum_replies(
        self, call: CallId, messages: Mapping[int, Message], weights: Mapping[int, float]
    ) -> Iterator[tuple[dict[int, PartyResult], PartialSum | None]]:
        """Run a party function at sites that add up their replies by secure aggregation; see
        `core.runner.SumsReplies`.
        """
        assert self._secure is not None
        self._round = call.round
        if weights:
            yield self._secure.sum(call, messages, weights)

    @property
    def sum_warning(self) -> str:
        return EXPERIMENTAL

    def take_overhead(self) -> list[Overhead]:
        assert self._secure is not None
        overhead, self._secure.overhead = self._secure.overhead, []
        return overhead

    def evaluate(
        self, messages: Mapping[int, Message], look: EvaluationRequest
    ) -> Iterator[tuple[int, Evaluation]]:
        self._round = look.round
        heads = {
            i: Evaluate(self._run, call_name(message.after), *look)
            for i, message in messages.items()
        }
        contents = {i: message.content for i, message in messages.items()}
        return self._evaluations(self._ask(heads, contents, Done))

    def evaluate_solo(self, ids: Iterable[int], t: int) -> Iterator[tuple[int, Evaluation]]:
        heads = {i: EvaluateAlone(self._run, t) for i in ids}
        return self._evaluations(self._ask(heads, {}, Done))

    def _evaluations(
        self, replies: Iterator[tuple[int, Any, memoryview]]
    ) -> Iterator[tuple[int, Evaluation]]:
        for i, _, body in replies:
            try:
                evaluation = decode(body, most_bytes=self._most_bytes, records=EVALUATION_RECORDS)
                _check_evaluation(evaluation, self._server_run, i)
            except ComityError as why:
                self._warn(i, str(why))
                continue
            yield i, evaluation

    def commit(self, versions: Mapping[int, CallId | None]) -> None:
        """Does nothing: the next message names the state to continue from."""

    def save(self, folder: Path, t: int) -> list[Saved]:
        """Does nothing: a site writes each state to its own disk before the reply leaves."""
        return []

    def checkpoint_written(self, versions: Mapping[int, CallId]) -> None:
        heads = {i: Committed(self._run, call_name(version)) for i, version in versions.items()}
        for _ in self._ask(heads, {}, Done):
            pass  # a site that does not get this keeps more states than it needs
        if self._secure:
            self._secure.files.forget()

    def load(
        self,
        folder: Path,
        states: Iterable[Saved],
        versions: Mapping[int, CallId],
        workers_by_party: Mapping[int, int],
    ) -> None:
        """Does nothing: the next messages name the states to continue from."""

    @property
    def warnings(self) -> Mapping[str, int]:
        return self._warnings

    def _ask(
        self, heads: Mapping[int, Any], contents: Mapping[int, Any], kind: type
    ) -> Iterator[tuple[int, Any, memoryview]]:
        """Send requests to sites, and yield the replies as (party, head, body).

        Arguments:
            heads: the head of each party's request
            contents: the message in each request; a message to many parties is encoded once
            kind: the type of the expected replies; others become warnings
        """
        bodies: dict[int, bytes] = {}
        for content in contents.values():
            if id(content) not in bodies:
                bodies[id(content)] = encode(content)
        numbers = {self._names[i]: i for i in heads}
        requests = PackedRequests(
            {
                name: (heads[i], bodies[id(contents[i])] if i in contents else b"")
                for name, i in numbers.items()
            }
        )
        for name, reply in self._transport.ask(requests, self._deadline):
            i = numbers[name]
            if reply is None:
                continue  # the server records the absence
            try:
                head, body = unpack_view(reply, REPLIES, self._most_bytes)
            except ComityError as why:
                self._warn(i, str(why))
                continue
            if isinstance(head, kind):
                yield i, head, body
            elif isinstance(head, Failed):
                self._warn(i, head.why)
            else:
                self._warn(i, "it answered something else than it was asked.")

    def _warn(self, i: int | None, why: str) -> None:
        """Add a warning about a party, or about the secure aggregation of all."""
        who = "Secure aggregation failed" if i is None else f"{self._names[i]} was not heard"
        warning = f"{who} in round {self._round}: {one_line(why)}"
        self._warnings.setdefault(warning, self._round)


def one_line(text: str) -> str:
    """A text from a site as one line of limited length, without control characters."""
    text = escape_terminal(text[: 2 * MAX_TEXT])
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def _check_answer(head: Answered, inbox: Mapping[int, Sealed]) -> None:
    """Refuse a negative number of steps, and complaints about messages that were not sent."""
    if head.steps < 0:
        raise ComityError(f"it says that it took {head.steps} steps.")
    if not set(head.unusable) <= inbox.keys():
        raise ComityError("it complains of sealed messages that it was not sent.")


def _check_evaluation(evaluation: Any, server_run: ServerRun, i: int) -> None:
    """Refuse scores that are impossible for the party's samples. Whether they are true cannot be
    checked.
    """
    if not isinstance(evaluation, Evaluation):
        raise ComityError("it sent something else than an evaluation.")
    party, classes = server_run.party_infos[i], server_run.info.task.classes
    metrics = {metric.name for metric in (*metrics_for(classes), server_run.metric)}
    for score, samples in (
        (evaluation.validation, party.validation),
        (evaluation.test, party.test),
    ):
        if (
            score.count not in (0, samples)
            or not 0 <= score.correct <= score.count
            or not score.figures.keys() <= metrics
        ):
            raise ComityError("it sent figures that its samples cannot have.")
    if (answers := evaluation.answers) is not None:
        columns = [answers.truth, answers.given]
        if answers.score is not None:
            columns.append(answers.score)
        if any(column.shape != (party.test,) for column in columns):
            raise ComityError("it sent answers for other samples than its own.")
        if classes and not all(_are_classes(column, classes) for column in columns[:2]):
            raise ComityError("it sent answers that are no classes.")


def _are_classes(column: Tensor, classes: int) -> bool:
    return column.dtype == torch.int32 and bool(((column >= 0) & (column < classes)).all())
