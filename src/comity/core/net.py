"""The net: what a round may use. Every letter, reply and parcel is charged to a ledger.

A net knows the parties' numbers and names and can ask them to work; where they live, and what they keep, is the engine's
matter. It has no way to a party's state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from comity.core.algorithm import Algorithm
from comity.core.descent import fold, train
from comity.core.fit import Draw, FitRequest, Fitted, FoldRequest, Loss, Working
from comity.core.key import Key
from comity.core.ledger import SERVER, Ledger
from comity.core.party import Info, Party
from comity.core.record import Params, Sealed, payload
from comity.core.samples import Samples
from comity.core.task import Batch, Task
from comity.core.training import Moments, Training
from comity.core.wrapper import chain
from comity.errors import ComityError

L = TypeVar("L")
O = TypeVar("O")  # noqa: E741 - what a loss gets beside its batch
R = TypeVar("R")
S = TypeVar("S")
Edge = tuple[int, int]
"""(sender, recipient), by their numbers."""


class Note(NamedTuple):
    """A row of the metrics."""

    round: int
    party: str
    split: str
    metric: str
    value: float


class NoReplies(ComityError):
    """Nobody answered a call: the round is over, and the server's state stays as it was."""


class Call(NamedTuple):
    """What is asked of parties: the work's name and owner, and what its keys are folded from."""

    work: str
    depth: int
    """How many wrappers are around the work's owner."""
    round: int
    use: int
    """How often this work was asked for in this round before."""


class Answer(NamedTuple):
    """What comes back of a call from one party."""

    reply: Any
    steps: int
    """Gradient steps that it took."""
    remark: str = ""
    """What a user should know of how it was computed."""


class Works(Protocol):
    """What a net needs of an engine: that parties work, and that their answers come back in any order."""

    def work(self, call: Call, letters: Mapping[int, Any], parcels: Mapping[Edge, Sealed]) -> Iterator[tuple[int, Answer]]: ...


def cohort(root: Key, participation: float, info: Info, t: int) -> list[int]:
    """Who is drawn for round t: known beforehand, so that a plan can count exactly.

    The draw is the whole federation's: the place of a party that was left out stays empty, and the others keep their turns.
    """
    if participation >= 1:
        return list(info.parties)
    n = info.whole or len(info.names)
    drawn = set(root.fold("sample", t).choose(max(1, round(participation * n)), n))
    return [i for i in info.parties if info.stream(i) in drawn]


def in_order(ids: Iterable[int], answers: Iterable[tuple[int, R]]) -> Iterator[tuple[int, R]]:
    """Answers in the order of `ids`, however they come: early ones wait for those before them, each is let go at once."""
    due = list(reversed(list(ids)))
    early: dict[int, R] = {}
    for i, answer in answers:
        early[i] = answer
        del answer
        while due and due[-1] in early:
            yield due[-1], early.pop(due.pop())
    for i in sorted(early):
        yield i, early.pop(i)


class Net:
    """What a round may use: who takes part, asking parties to work, training at the server, keys, and notes."""

    def __init__(
        self,
        algorithm: Algorithm[Any, Any, Any],
        info: Info,
        root: Key,
        participation: float,
        works: Works,
        answered: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.info = info
        self.ledger = Ledger()
        self.notes: list[Note] = []
        self.remarks: dict[str, None] = {}
        """What a user should know of how works were computed, each sentence once."""
        self.steps = 0
        self.server_steps = 0
        self.round = 0
        self._root = root
        self._owners = chain(algorithm)
        self._participation = participation
        self._works = works
        self._answered = answered
        self._uses: Counter[tuple[int, str]] = Counter()
        self._unheard = ""
        """The work whose replies a loop is going through."""
        self._heard = 0
        """How many of them it has had."""
        self._layers = info.task.network.layer_stream(self.key("layers"))

    def begin(self, t: int) -> None:
        """Enter round t."""
        self.round = t
        self._uses.clear()
        self._layers = self.info.task.network.layer_stream(self.key("layers"))

    def sample(self, t: int) -> list[int]:
        """The parties that take part in round t."""
        drawn = cohort(self._root, self._participation, self.info, t)
        if not drawn:
            raise NoReplies(f"Nobody who was drawn for round {t} is there.")
        return drawn

    def key(self, *path: int | str) -> Key:
        """A key for the server's own randomness in this round."""
        return self._root.fold("server", self.round, *path)

    def note(self, metric: str, value: float, party: int | None = None, split: str = "train") -> None:
        """Record a diagnostic."""
        name = SERVER if party is None else self.info.name(party)
        self.notes.append(Note(self.round, name, split, metric, float(value)))

    def call(
        self,
        work: Callable[[Any, L, Party, Key], Working[tuple[Any, R]]],
        letters: Mapping[int, L],
        parcels: Mapping[Edge, Sealed] | None = None,
    ) -> dict[int, R]:
        """Ask parties to work; the replies come in party order, and may be fewer than the letters but not none.

        `parcels` delivers sealed ones from earlier replies: (sender, recipient) -> parcel, for this call only.
        """
        return dict(self.replies(work, letters, parcels))

    def replies(
        self,
        work: Callable[[Any, L, Party, Key], Working[tuple[Any, R]]],
        letters: Mapping[int, L],
        parcels: Mapping[Edge, Sealed] | None = None,
    ) -> Iterator[tuple[int, R]]:
        """The same, one reply at a time, so that an average needs the memory of one model: for sums that are taken in passing.

        Parties are asked when the first reply is wanted. A loop over them may not be left before all are heard.
        """
        call = self._call(work)
        parcels = parcels or {}
        for (src, dst), parcel in sorted(parcels.items()):
            self._charge(call.work, self.info.name(src), self.info.name(dst), "peer", parcel.size)
            if dst not in letters:
                raise ComityError(f"A parcel for {self.info.name(dst)} came without a letter to it in {call.work}.")
        ordered = {i: letters[i] for i in sorted(letters)}
        self.charge_letters(call.work, ordered, "down")
        self._unheard = call.work
        self._heard = 0
        answers = in_order(ordered, self._works.work(call, ordered, parcels))
        yield from map(partial(self._accepted, call), answers)  # a loop here would hold on to each reply until the next
        self._unheard = ""
        if ordered and not self._heard:
            raise NoReplies(f"No party answered {call.work} in round {self.round}.")

    def fit(
        self,
        loss: Loss[O],
        theta: Params,
        samples: Samples,
        key: Key,
        own: O,
        *,
        task: Task,
        training: Training,
        before: Moments | None = None,
        draw: Draw[O] | None = None,
    ) -> Fitted:
        """Train a model at the server; `before` continues its optimizer. The rest is as in `Party.fit`."""
        with self._layers:
            done = train(FitRequest(loss, theta, samples, key, training, task, own, before=before, draw=draw))
        self.server_steps += done.steps
        return done

    def fold(self, step: Callable[[S, Batch], S], state: S, samples: Samples, key: Key, training: Training) -> S:
        """A step of the method's own at the server, folded over batches."""
        with self._layers:
            done = fold(FoldRequest(step, state, samples, key, training))
        self.server_steps += training.steps_for(len(samples))
        return done

    def charge_letters(self, work: str, letters: Mapping[int, Any], kind: str) -> None:
        """Write down what goes to parties; most often all get one and the same, which is weighed once."""
        weighed: dict[int, int] = {}
        for i, letter in letters.items():
            if id(letter) not in weighed:
                weighed[id(letter)] = payload(letter)
            self._charge(work, SERVER, self.info.name(i), kind, weighed[id(letter)])

    def charge_reply(self, work: str, i: int, reply: Any, kind: str) -> None:
        """Write down what came from a party."""
        self._charge(work, self.info.name(i), SERVER, kind, payload(reply))
        self._answered(1)

    def charge_introduction(self, ids: Iterable[int]) -> None:
        """Write down what makes up `info`: names, sizes and wishes go up; classes and width come down."""
        for i in ids:
            name = self.info.name(i)
            wish = self.info.peers[i] if i < len(self.info.peers) else None
            self._charge("introduce", name, SERVER, "setup", payload([name, 0, list(wish or ())]))
            self._charge("introduce", SERVER, name, "setup", payload([self.info.task.classes, self.info.width]))

    def take_notes(self) -> list[Note]:
        """The notes since the last call, which are then forgotten."""
        self.check_all_heard()
        notes, self.notes = self.notes, []
        return notes

    def check_all_heard(self) -> None:
        """Refuse a loop over replies that was left early: those who were not heard would be forgotten."""
        if self._unheard:
            raise ComityError(f"Not all replies of {self._unheard} were heard: a loop over net.replies may not be left early.")

    def _call(self, work: Callable[..., Any]) -> Call:
        self.check_all_heard()
        name: str = getattr(work, "__name__", "")
        owner = getattr(work, "__self__", None)
        depth = next((d for d, a in enumerate(self._owners) if a is owner), None)
        if depth is None:
            raise ComityError(f"A work must be a method of the algorithm itself, but {work!r} is not.")
        self._uses[depth, name] += 1
        return Call(name, depth, self.round, self._uses[depth, name] - 1)

    def _accepted(self, call: Call, answered: tuple[int, Answer]) -> tuple[int, Any]:
        """Count and charge an answer; the party's number and its reply."""
        i, answer = answered
        self._heard += 1
        self.steps += answer.steps
        if answer.remark:
            self.remarks[answer.remark] = None
        self.charge_reply(call.work, i, answer.reply, "up")
        return i, answer.reply

    def _charge(self, work: str, src: str, dst: str, kind: str, size: int) -> None:
        self.ledger.charge(self.round, work, src, dst, kind, size)
