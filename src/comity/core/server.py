"""The server: what the code of a round may use. It charges every message, reply and sealed message
to the ledger.

The server knows the numbers and names of the parties and calls party functions through an engine.
It has no access to party states. But it knows which state of each party counts: the one after the
last call whose reply was accepted. Each message names that call, so that a party discards the state
after a reply that was lost. A round counts as a whole or is undone as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from comity.base.call import CallId, Edge, Message, PartyResult
from comity.base.finite import not_finite
from comity.base.key import Key
from comity.base.record import Params, Sealed
from comity.base.samples import Samples
from comity.core.aggregate import AveragedReplies, Averaging, Mean
from comity.core.algorithm import Algorithm
from comity.core.charging import Charging
from comity.core.participation import CallParticipation, NoReplies, Participation, Rules
from comity.core.party import Info, Party, WatchedInfo
from comity.core.release import Spending
from comity.core.runner import PartialSums, PartyRunner, RunsParties, SumsReplies, in_order
from comity.core.wrapper import chain
from comity.errors import ComityError
from comity.training.descent import fold, train
from comity.training.gradient_count import GradientCount
from comity.training.requests import (
    Draw,
    FitRequest,
    Fitted,
    FoldRequest,
    Loss,
    PartyCoroutine,
    Private,
)
from comity.training.settings import Moments, Training
from comity.training.task import Batch, LearningTask
from comity.wire.ledger import ADDED_UP, SERVER

L = TypeVar("L")
O = TypeVar("O")  # noqa: E741 - the type of a loss's aux argument
R = TypeVar("R")
S = TypeVar("S")
PartyFunctionOf = Callable[[Any, L, Party, Key], PartyCoroutine[tuple[Any, R]]]
"""A party function that receives messages L and returns replies R."""


class Note(NamedTuple):
    """A row of the metrics."""

    round: int
    party: str
    split: str
    metric: str
    value: float


def cohort(root: Key, participation: float, info: Info, t: int) -> list[int]:
    """The parties of round t, which depend on the key only, so that a plan knows them beforehand.

    The sample is drawn from the whole federation: a party that was left out may be drawn, and then
    the cohort is smaller. So leaving out a party does not change when the others are drawn.
    """
    if participation >= 1:
        return list(info.parties)
    n = info.whole or len(info.names)
    places = set(root.fold("sample", t).choose(max(1, round(participation * n)), n))
    return [i for i in info.parties if info.stream(i) in places]


class Server(Charging):
    """What the code of a round may use: cohorts, calls of party functions, training at the server,
    random keys, and notes.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any, Any, Any],
        info: Info,
        root: Key,
        participation: float,
        runner: PartyRunner,
        report_replies: Callable[[int], None] = lambda count: None,
        rules: Rules | None = None,
        account: Spending | None = None,
        summer: SumsReplies | None = None,
    ) -> None:
        self.length_fields: set[str] = set()
        """The fields of `info` that the method has read and that depend on the number of rounds."""
        super().__init__(WatchedInfo.of(info, self.length_fields), report_replies, account)
        self.participation_log = Participation(info, rules or Rules())
        self.versions: dict[int, CallId] = {}
        """By party: the last call that changed its state and whose reply was accepted."""
        self.notes: list[Note] = []
        self.warnings: dict[str, int | None] = {}
        """Warnings about how the run was computed, and the round in which each was first known."""
        if self.ledger.summed:
            self.warn(ADDED_UP)
        self.withholding: set[int] = set()
        """The parties that sent no score of their test samples in the last evaluation."""
        self.steps = 0
        self.server_steps = 0
        self.first = 1
        """The first round that counts. Up to it, the server has its initial state."""
        self._root = root
        self._owners = chain(algorithm)
        self._averaging_owners = [
            owner for owner in self._owners if type(owner).averaging is not Algorithm.averaging
        ]
        self._participation = participation
        self._runner = runner
        self._summer = summer
        """The engine, if its workers or sites add up replies that are only averaged."""
        self._occurrences: Counter[tuple[int, str]] = Counter()
        self._open_loop = ""
        """The party function over whose replies a loop is running; empty if there is none."""
        self._called_parties: set[int] = set()
        """The parties that were called since the current exchanges began."""
        self._before: tuple[dict[int, CallId], int] = {}, 0
        """The versions and the number of notes when the current exchanges began."""
        self._layers = info.task.network.layer_stream(self.key("layers"))

    def begin(self, t: int) -> None:
        """Begin round t."""
        self.round = t
        self._occurrences.clear()
        self._layers = self.info.task.network.layer_stream(self.key("layers"))

    def begin_exchanges(self, quorum: int = 1) -> None:
        """Begin exchanges that count as a whole or not at all. Each call needs `quorum` replies, or
        all if fewer parties are called.
        """
        self.participation_log.begin(quorum)
        self._called_parties = set()
        self._before = dict(self.versions), len(self.notes)

    def commit(self) -> dict[int, CallId | None]:
        """End exchanges that count. Returns the state that each called party keeps, by the call
        after which it had it.
        """
        self.check_loops_ended()
        return {i: self.versions.get(i) for i in self._called_parties}

    def undo(self) -> dict[int, CallId | None]:
        """End exchanges that do not count. Returns the state that each called party returns to.

        Bytes and gradient steps stay charged.
        """
        self.versions, notes = self._before
        del self.notes[notes:]
        self._open_loop = ""
        return {i: self.versions.get(i) for i in self._called_parties}

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Pilot exchanges before round 1: they are charged, but their notes are removed. Parties
        that missed a call so far are not called.
        """
        self.participation_log.waiting |= self.participation_log.missed
        notes = len(self.notes)
        yield
        del self.notes[notes:]

    def sample(self, t: int) -> list[int]:
        """The parties of round t."""
        ids = cohort(self._root, self._participation, self.info, t)
        if not ids:
            raise NoReplies(f"No party of this run was drawn for round {t}.")
        return ids

    def key(self, *path: int | str) -> Key:
        """A key for random draws of the server in this round."""
        return self._root.fold("server", self.round, *path)

    def note(
        self, metric: str, value: float, party: int | None = None, split: str = "train"
    ) -> None:
        """Add a row to `metrics.csv`: a value of the server, or of a party."""
        self.notes.append(
            Note(
                self.round,
                SERVER if party is None else self.info.name(party),
                split,
                metric,
                float(value),
            )
        )

    def warn(self, text: str) -> None:
        """Add a warning for the user, if it is new: it is shown at the end of the run and saved."""
        self.warnings.setdefault(text, self.round)

    def call(
        self,
        function: PartyFunctionOf[L, R],
        messages: Mapping[int, L],
        sealed_messages: Mapping[Edge, Sealed] | None = None,
    ) -> dict[int, R]:
        """Call a party function at each party that has a message. Returns the replies that count,
        in party order.

        There may be fewer replies than messages, but at least one. `sealed_messages` are sealed
        messages of earlier replies, by (sender, recipient). They are delivered for this call only.
        """
        return dict(self.replies(function, messages, sealed_messages))

    def replies(
        self,
        function: PartyFunctionOf[L, R],
        messages: Mapping[int, L],
        sealed_messages: Mapping[Edge, Sealed] | None = None,
    ) -> Iterator[tuple[int, R]]:
        """As `call`, but one reply at a time, so that an average needs the memory of one model.

        Parties are called when the loop begins. A loop over the replies must go through all of
        them.
        """
        return self._accepted_replies(function, messages, sealed_messages or {}, self._runner.run)

    def mean(
        self,
        function: PartyFunctionOf[L, R],
        messages: Mapping[int, L],
        weights: Sequence[float] | None = None,
    ) -> Mean[R]:
        """Call a party function and return the mean of the replies, field by field. For rounds that
        do nothing else with replies.

        Replies are records of parameters. `weights` are by party number; without them all replies
        have the same weight. Replies are averaged in party order. With partial sums, each worker
        adds up the replies of its parties, and the sums are averaged. With secure aggregation, the
        sites do so without telling the server single replies.
        """
        mean = AveragedReplies[R](self.averaging)
        weight_of = {i: 1.0 if weights is None else weights[i] for i in messages}
        if self._summer:
            sums = PartialSums(self._summer, weight_of, self.participation_log.will_lose_reply)
            try:
                replies = self._accepted_replies(function, messages, {}, sums.run)
                sums.add_to(mean, [i for i, _ in replies])
            finally:
                self._charge_overhead(function.__name__, self._summer)
            self.warn(self._summer.sum_warning)
        else:
            for i, reply in self._accepted_replies(function, messages, {}, self._runner.run):
                mean.add(i, reply, weight_of[i])
                del reply  # the next party trains in its memory, which is still in the cache
        return mean.value()

    def _charge_overhead(self, function: str, summer: SumsReplies) -> None:
        """Charge what crossed for a sum of replies beside them."""
        for overhead in summer.take_overhead():
            party = self.info.name(overhead.party)
            src, dst = (party, SERVER) if overhead.from_party else (SERVER, party)
            self._charge(
                function, src, dst, "up" if overhead.from_party else "down", overhead.bytes
            )

    def evaluation_call(self) -> CallId:
        """The id of an evaluation, which leaves party states as they are."""
        self.check_loops_ended()
        self._occurrences[-1, "evaluate"] += 1
        return CallId("evaluate", -1, self.round, self._occurrences[-1, "evaluate"] - 1)

    def fit(
        self,
        loss: Loss[O],
        theta: Params,
        samples: Samples,
        key: Key,
        aux: O,
        *,
        task: LearningTask,
        training: Training,
        before: Moments | None = None,
        draw: Draw[O] | None = None,
        private: Private | None = None,
    ) -> Fitted:
        """Train a model at the server. `before` is the optimizer state to continue from; the other
        arguments are those of `Party.fit`.
        """
        with self._layers:
            result = train(
                FitRequest(
                    loss,
                    theta,
                    samples,
                    key,
                    training,
                    task,
                    aux,
                    before=before,
                    draw=draw,
                    private=private,
                )
            )
        self.server_steps += result.gradients
        return result

    def fold(
        self,
        step: Callable[[S, Batch], S],
        state: S,
        samples: Samples,
        key: Key,
        training: Training,
    ) -> S:
        """Fold a method's own step over batches, at the server."""
        with self._layers, GradientCount() as count:
            result = fold(
                FoldRequest(step, state, samples, key, training, self.info.training.batch)
            )
        self.server_steps += count.total
        return result

    def averaging(self) -> Averaging:
        """A new mean of parameters that are added one by one: a wrapper's replacement for the mean,
        or the weighted mean.
        """
        replacements = [mean for owner in self._averaging_owners if (mean := owner.averaging(self))]
        if len(replacements) > 1:
            raise ComityError(
                "Two wrappers would take the place of the mean, and one of them would be without"
                " effect."
            )
        return replacements[0] if replacements else Averaging()

    def take_notes(self) -> list[Note]:
        """Return and remove the notes since the last call."""
        self.check_loops_ended()
        notes, self.notes = self.notes, []
        return notes

    def check_loops_ended(self) -> None:
        """Refuse a loop over replies that was left early: its other replies would be ignored."""
        if self._open_loop:
            raise ComityError(
                f"A loop over the replies of {self._open_loop} was left early: a loop over"
                " server.replies must go through all replies."
            )

    def _call(self, function: Callable[..., Any]) -> CallId:
        """The id of a call of a party function."""
        self.check_loops_ended()
        name: str = getattr(function, "__name__", "")
        owner = getattr(function, "__self__", None)
        depth = next((d for d, a in enumerate(self._owners) if a is owner), None)
        if depth is None:
            raise ComityError(
                f"A party function must be a method of the algorithm, but {function!r} is not."
            )
        self._occurrences[depth, name] += 1
        return CallId(name, depth, self.round, self._occurrences[depth, name] - 1)

    def _accepted_replies(
        self,
        function: Callable[..., Any],
        messages: Mapping[int, Any],
        sealed_messages: Mapping[Edge, Sealed],
        run: RunsParties,
    ) -> Iterator[tuple[int, Any]]:
        """Call parties through `run`. All results are charged, and the replies that count are
        yielded in party order.
        """
        call = self._call(function)
        participation = self.participation_log.begin_call(call, messages)
        deliveries = (
            self._deliveries(participation, messages, sealed_messages) if sealed_messages else {}
        )
        contents = {i: messages[i] for i in participation.reachable}
        if self.account:
            self.account.charge_call(call, contents)
        self.charge_messages(call.function, contents, "down")
        self._open_loop = call.function
        self._called_parties |= contents.keys()
        addressed = {
            i: Message(content, self.versions.get(i), self.round <= self.first)
            for i, content in contents.items()
        }
        results = in_order(addressed, run(call, addressed, deliveries))
        # `map`, because the variable of a loop would keep each reply until the next one comes.
        yield from filter(None, map(partial(self._accept, participation), results))
        self._open_loop = ""
        participation.close()

    def _deliveries(
        self,
        participation: CallParticipation,
        messages: Mapping[int, Any],
        sealed_messages: Mapping[Edge, Sealed],
    ) -> dict[Edge, Sealed]:
        """The sealed messages whose recipients can be called, each charged."""
        deliveries: dict[Edge, Sealed] = {}
        reachable = set(participation.reachable)
        function = participation.call.function
        for (src, dst), sealed in sorted(sealed_messages.items()):
            if dst not in messages:
                raise ComityError(
                    f"{function} has a sealed message for {self.info.name(dst)}, but no message:"
                    " give messages to all recipients of sealed messages."
                )
            if dst in reachable:
                self._charge(
                    function, self.info.name(src), self.info.name(dst), "peer", sealed.size
                )
                deliveries[src, dst] = sealed
        return deliveries

    def _accept(
        self, participation: CallParticipation, item: tuple[int, PartyResult]
    ) -> tuple[int, Any] | None:
        """Charge a party's result. Returns the party's number and its reply, or None if the reply
        does not count.
        """
        i, result = item
        if not participation.arrives(i):
            return None
        call = participation.call
        self.steps += result.steps
        if result.warning:
            self.warn(result.warning)
        self.charge_reply(call.function, i, result.reply, "up")
        if self.account:
            self.account.note_reply(call, i, result.reply)
        for sender in result.unusable:
            self.participation_log.record_not_finite(
                call, sender, f"a sealed message for {self.info.name(i)}"
            )
        unfit = not_finite(result.reply) if result.unfit is None else result.unfit
        if not participation.counts(i, unfit, result.ruined):
            return None
        if result.keeps:
            self.versions[i] = call
        return i, result.reply
