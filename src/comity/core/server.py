"""The net: what a round may use. Every letter, reply and parcel is charged to a ledger.

A net knows the parties' numbers and names and can ask them to work; where they live, and what they
keep, is the engine's matter. It has no way to a party's state, but it knows which one counts: that
after the last call whose reply was accepted. Each letter names it, so that a party forgets what
came of a reply that was lost. A round is settled as a whole or undone as a whole.
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
from comity.core.runner import SUMMED, PartialSums, PartyRunner, RunsParties, SumsReplies, in_order
from comity.core.wrapper import chain
from comity.errors import ComityError
from comity.training.descent import fold, train
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
O = TypeVar("O")  # noqa: E741 - what a loss gets beside its batch
R = TypeVar("R")
S = TypeVar("S")
PartyFunctionOf = Callable[[Any, L, Party, Key], PartyCoroutine[tuple[Any, R]]]
"""A work that gets letters L and gives replies R."""


class Note(NamedTuple):
    """A row of the metrics."""

    round: int
    party: str
    split: str
    metric: str
    value: float


def cohort(root: Key, participation: float, info: Info, t: int) -> list[int]:
    """Who is drawn for round t: known beforehand, so that a plan can count exactly.

    The draw is the whole federation's: the place of a party that was left out stays empty, and the
    others keep their turns.
    """
    if participation >= 1:
        return list(info.parties)
    n = info.whole or len(info.names)
    drawn = set(root.fold("sample", t).choose(max(1, round(participation * n)), n))
    return [i for i in info.parties if info.stream(i) in drawn]


class Server(Charging):
    """What a round may use: who takes part, asking parties to work, training at the server, keys,
    and notes.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any, Any, Any],
        info: Info,
        root: Key,
        participation: float,
        works: PartyRunner,
        answered: Callable[[int], None] = lambda count: None,
        rules: Rules | None = None,
        account: Spending | None = None,
        adds: SumsReplies | None = None,
    ) -> None:
        self.looked: set[str] = set()
        """What the method has looked at that depends on how many rounds there are to be."""
        super().__init__(WatchedInfo.of(info, self.looked), answered, account)
        self.participation_log = Participation(info, rules or Rules())
        self.versions: dict[int, CallId] = {}
        """By party: the last call that changed what it keeps and whose reply was accepted."""
        self.notes: list[Note] = []
        self.warnings: dict[str, None] = dict.fromkeys([ADDED_UP] if self.ledger.summed else [])
        """What a user should know of how works were computed, each sentence once."""
        self.withholding: set[int] = set()
        """The parties that told no figure of their test samples when they last evaluated."""
        self.steps = 0
        self.server_steps = 0
        self.first = 1
        """The first round that counts, or is to: up to it the server has nothing but what it began
        with.
        """
        self._root = root
        self._owners = chain(algorithm)
        self._participation = participation
        self._runner = works
        self._sums = adds
        """Who adds up replies that are only averaged, if somebody is to."""
        self._occurrences: Counter[tuple[int, str]] = Counter()
        self._unheard = ""
        """The work whose replies a loop is going through."""
        self._asked: set[int] = set()
        """Who was called since the exchanges began that are not settled yet."""
        self._before: tuple[dict[int, CallId], int] = {}, 0
        """The versions, and how many notes there were, when they began."""
        self._layers = info.task.network.layer_stream(self.key("layers"))

    def begin(self, t: int) -> None:
        """Enter round t."""
        self.round = t
        self._occurrences.clear()
        self._layers = self.info.task.network.layer_stream(self.key("layers"))

    def open(self, quorum: int = 1) -> None:
        """Exchanges begin that count as a whole or not at all; each needs `quorum` replies, or all
        if fewer are asked.
        """
        self.participation_log.begin(quorum)
        self._asked = set()
        self._before = dict(self.versions), len(self.notes)

    def settle(self) -> dict[int, CallId | None]:
        """They count: which state each party that was called keeps now."""
        self.check_all_heard()
        return {i: self.versions.get(i) for i in self._asked}

    def undo(self) -> dict[int, CallId | None]:
        """They do not count: which state each party goes back to. What crossed, and the work that
        was done, stays charged.
        """
        self.versions, notes = self._before
        del self.notes[notes:]
        self._unheard = ""
        return {i: self.versions.get(i) for i in self._asked}

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Exchanges that are tried before round 1: charged, but nothing of them is noted; who
        missed one so far is left out.
        """
        self.participation_log.waiting |= self.participation_log.missed
        notes = len(self.notes)
        yield
        del self.notes[notes:]

    def sample(self, t: int) -> list[int]:
        """The parties that take part in round t."""
        if not (drawn := cohort(self._root, self._participation, self.info, t)):
            raise NoReplies(f"Nobody who was drawn for round {t} is there.")
        return drawn

    def key(self, *path: int | str) -> Key:
        """A key for the server's own randomness in this round."""
        return self._root.fold("server", self.round, *path)

    def note(
        self, metric: str, value: float, party: int | None = None, split: str = "train"
    ) -> None:
        """Record a diagnostic."""
        self.notes.append(
            Note(
                self.round,
                SERVER if party is None else self.info.name(party),
                split,
                metric,
                float(value),
            )
        )

    def call(
        self,
        function: PartyFunctionOf[L, R],
        messages: Mapping[int, L],
        sealed_messages: Mapping[Edge, Sealed] | None = None,
    ) -> dict[int, R]:
        """Call a party function; the replies come in party order. There may be fewer replies than
        messages, but not none.

        `sealed_messages` delivers sealed ones from earlier replies, by (sender, recipient), for
        this call only.
        """
        return dict(self.replies(function, messages, sealed_messages))

    def replies(
        self,
        function: PartyFunctionOf[L, R],
        messages: Mapping[int, L],
        sealed_messages: Mapping[Edge, Sealed] | None = None,
    ) -> Iterator[tuple[int, R]]:
        """The same, one reply at a time, so that an average needs the memory of one model: for sums
        that are taken in passing.

        Parties are asked when the first reply is wanted. A loop over them may not be left before
        all are heard.
        """
        return self._heard(function, messages, sealed_messages or {}, self._runner.run)

    def mean(
        self,
        function: PartyFunctionOf[L, R],
        messages: Mapping[int, L],
        weights: Sequence[float] | None = None,
    ) -> Mean[R]:
        """Call a party function; the mean of the replies, field by field, for rounds that do
        nothing else with them.

        Replies are records of parameters. All count alike, unless `weights` says by party how much
        each does. They are averaged in party order; with partial sums each worker adds up those of
        its parties, and sums are averaged.
        """
        mean = AveragedReplies[R](self.averaging)
        counting = {i: 1.0 if weights is None else weights[i] for i in messages}
        if self._sums:
            sums = PartialSums(self._sums, counting, self.participation_log.will_be_lost)
            sums.add_to(mean, [i for i, _ in self._heard(function, messages, {}, sums.run)])
            self.warnings[SUMMED] = None
        else:
            for i, reply in self.replies(function, messages):
                mean.add(i, reply, counting[i])
                del reply  # the next party trains in its memory, which is still in the cache
        return mean.value()

    def looking(self) -> CallId:
        """A call that asks for nothing but how good models are: it leaves parties as they are."""
        self.check_all_heard()
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
        """Train a model at the server; `before` continues its optimizer. The rest is as in
        `Party.fit`.
        """
        with self._layers:
            done = train(
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
        self.server_steps += done.steps
        return done

    def fold(
        self,
        step: Callable[[S, Batch], S],
        state: S,
        samples: Samples,
        key: Key,
        training: Training,
    ) -> S:
        """A step of the method's own at the server, folded over batches."""
        with self._layers:
            done = fold(FoldRequest(step, state, samples, key, training))
        self.server_steps += training.steps_for(len(samples))
        return done

    def averaging(self) -> Averaging:
        """A mean of replies that come one by one: as a wrapper wants it taken, or plain."""
        wanted = [way for owner in self._owners if (way := owner.averaging(self))]
        if len(wanted) > 1:
            raise ComityError(
                "Two wrappers would take the place of the mean, and one of them would be without"
                " effect."
            )
        return wanted[0] if wanted else Averaging()

    def take_notes(self) -> list[Note]:
        """The notes since the last call, which are then forgotten."""
        self.check_all_heard()
        notes, self.notes = self.notes, []
        return notes

    def check_all_heard(self) -> None:
        """Refuse a loop over replies that was left early: those who were not heard would be
        forgotten.
        """
        if self._unheard:
            raise ComityError(
                f"Not all replies of {self._unheard} were heard: a loop over server.replies may not"
                " be left early."
            )

    def _call(self, function: Callable[..., Any]) -> CallId:
        self.check_all_heard()
        name: str = getattr(function, "__name__", "")
        owner = getattr(function, "__self__", None)
        depth = next((d for d, a in enumerate(self._owners) if a is owner), None)
        if depth is None:
            raise ComityError(
                f"A work must be a method of the algorithm itself, but {function!r} is not."
            )
        self._occurrences[depth, name] += 1
        return CallId(name, depth, self.round, self._occurrences[depth, name] - 1)

    def _heard(
        self,
        function: Callable[..., Any],
        messages: Mapping[int, Any],
        sealed_messages: Mapping[Edge, Sealed],
        ask: RunsParties,
    ) -> Iterator[tuple[int, Any]]:
        """Ask parties by `ask`; all that comes back is charged, and what counts of it is handed on
        in party order.
        """
        call = self._call(function)
        roll = self.participation_log.begin_call(call, messages)
        delivered = self._delivered(roll, messages, sealed_messages)
        sent = {i: messages[i] for i in roll.there}
        if self.account:
            self.account.charge_call(call, sent)
        self.charge_messages(call.function, sent, "down")
        self._unheard = call.function
        self._asked |= sent.keys()
        addressed = {
            i: Message(message, self.versions.get(i), self.round <= self.first)
            for i, message in sent.items()
        }
        answers = in_order(addressed, ask(call, addressed, delivered))
        # Mapped, as a loop here would hold on to each reply until the next.
        yield from filter(None, map(partial(self._accepted, roll), answers))
        self._unheard = ""
        roll.close()

    def _delivered(
        self,
        roll: CallParticipation,
        messages: Mapping[int, Any],
        sealed_messages: Mapping[Edge, Sealed],
    ) -> dict[Edge, Sealed]:
        """The parcels that get to their recipients, each charged."""
        found: dict[Edge, Sealed] = {}
        there = set(roll.there)
        for (src, dst), sealed in sorted(sealed_messages.items()):
            if dst not in messages:
                raise ComityError(
                    f"A parcel for {self.info.name(dst)} came without a letter to it in"
                    f" {roll.call.function}."
                )
            if dst in there:
                self._charge(
                    roll.call.function,
                    self.info.name(src),
                    self.info.name(dst),
                    "peer",
                    sealed.size,
                )
                found[src, dst] = sealed
        return found

    def _accepted(
        self, roll: CallParticipation, came: tuple[int, PartyResult]
    ) -> tuple[int, Any] | None:
        """Count and charge an answer; the party's number and its reply, or nothing if it does not
        count.
        """
        i, answer = came
        if not roll.arrives(i):
            return None
        self.steps += answer.steps
        if answer.warning:
            self.warnings[answer.warning] = None
        self.charge_reply(roll.call.function, i, answer.reply, "up")
        if self.account:
            self.account.note_reply(roll.call, i, answer.reply)
        for sender in answer.unusable:
            self.participation_log.not_usable(
                roll.call, sender, f"a parcel for {self.info.name(i)}"
            )
        unfit = not_finite(answer.reply) if answer.unfit is None else answer.unfit
        if not roll.counts(i, unfit, answer.ruined):
            return None
        if answer.keeps:
            self.versions[i] = roll.call
        return i, answer.reply
