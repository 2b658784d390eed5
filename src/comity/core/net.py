"""The net: the only way out of a party. Every letter, reply and parcel is charged to a ledger."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from comity.core.algorithm import Algorithm, Work, chain
from comity.core.key import Key
from comity.core.party import Info
from comity.core.record import Sealed, payload
from comity.errors import ComityError

SERVER = "server"
Edge = tuple[int, int]


class Charge(NamedTuple):
    """A row of the ledger."""

    round: int
    work: str
    src: str
    dst: str
    kind: str
    bytes: int


class Note(NamedTuple):
    """A row of the metrics."""

    round: int
    party: str
    split: str
    metric: str
    value: float


@dataclass
class Ledger:
    """Every byte that crossed, in order; `total` by kind."""

    rows: list[Charge] = field(default_factory=list)
    total: Counter[str] = field(default_factory=Counter)

    def charge(self, round: int, work: str, src: str, dst: str, kind: str, size: int) -> None:
        """Write a row, unless nothing crossed."""
        if size:
            self.rows.append(Charge(round, work, src, dst, kind, size))
            self.total[kind] += size

    def take(self) -> list[Charge]:
        """The rows since the last call, which are then forgotten; the totals stay."""
        rows, self.rows = self.rows, []
        return rows


class Silence(ComityError):
    """Nobody answered a call: the round is over, and the state stays as it was."""


class Call(NamedTuple):
    """What is asked of parties: the work's name and owner, and what its keys are folded from."""

    work: str
    depth: int
    round: int
    use: int


class Saved(NamedTuple):
    """A party's state on disk."""

    party: int
    file: str
    bytes: int
    crc: int


class Intake:
    """Replies handed on in party order, however they come: early ones wait for those before them."""

    def __init__(self, ids: Iterable[int], each: Callable[[int, Any], None]) -> None:
        self._due = deque(ids)
        self._each = each
        self._early: dict[int, Any] = {}
        self._sizes: dict[int, int] = {}

    def take(self, i: int, reply: Any) -> None:
        """One more is there."""
        self._early[i] = reply
        while self._due and self._due[0] in self._early:
            self._pass(self._due.popleft())

    def end(self) -> dict[int, int]:
        """Nobody else will answer; what each reply weighed."""
        for i in sorted(self._early):
            self._pass(i)
        return self._sizes

    def _pass(self, i: int) -> None:
        reply = self._early.pop(i)
        self._sizes[i] = payload(reply)
        self._each(i, reply)


class Net(ABC):
    """What a round may use. Engines say where the parties live, by `deliver`, `save`, `load`, `state` and `close`."""

    def __init__(self, algorithm: Algorithm, info: Info, root: Key, participation: float) -> None:
        self.algorithm = algorithm
        self.info = info
        self.ledger = Ledger()
        self.notes: list[Note] = []
        self.steps = 0
        self.round = 0
        self._root = root
        self._owners = chain(algorithm)
        self._participation = participation
        self._uses: Counter[tuple[int, str]] = Counter()
        self._intake: Intake | None = None

    def begin(self, t: int) -> None:
        """Enter round t."""
        self.round = t
        self._uses.clear()

    def sample(self, t: int) -> list[int]:
        """The parties that take part in round t."""
        drawn = self.cohort(self._root, self._participation, self.info, t)
        if not drawn:
            raise Silence(f"Nobody who was drawn for round {t} is there.")
        return drawn

    @staticmethod
    def cohort(root: Key, participation: float, info: Info, t: int) -> list[int]:
        """Who is drawn for round t: known beforehand, so that a plan can count exactly.

        The draw is the whole federation's: the place of a party that was left out stays empty, and the others keep their turns.
        """
        if participation >= 1:
            return list(info.parties)
        n = info.whole or len(info.names)
        drawn = set(root.fold("sample", t).choose(max(1, round(participation * n)), n))
        return [i for i in info.parties if info.stream(i) in drawn]

    def key(self, *path: int | str) -> Key:
        """A key for the server's own randomness in this round."""
        return self._root.fold("server", self.round, *path)

    def note(self, metric: str, value: float, party: int | None = None, split: str = "train") -> None:
        """Record a diagnostic."""
        name = SERVER if party is None else self.info.name(party)
        self.notes.append(Note(self.round, name, split, metric, float(value)))

    def call(
        self,
        work: Work,
        mail: Mapping[int, Any],
        post: Mapping[Edge, Sealed] | None = None,
        each: Callable[[int, Any], None] | None = None,
    ) -> dict[int, Any]:
        """Ask parties to work; the replies come in party order, and may be fewer than the letters but not none.

        `post` delivers sealed parcels from earlier replies: (sender, recipient) -> parcel, for this call only. With `each`,
        replies are handed to it in party order, as soon as they are there, and then let go: only None is returned for them.
        """
        name: str = getattr(work, "__name__", "")
        owner = getattr(work, "__self__", None)
        depth = next((d for d, a in enumerate(self._owners) if a is owner), None)
        if depth is None:
            raise ComityError(f"A work must be a method of the algorithm itself, but {work!r} is not.")
        call = Call(name, depth, self.round, self._uses[depth, name])
        self._uses[depth, name] += 1
        parcels = dict(post or {})
        for (src, dst), parcel in sorted(parcels.items()):
            self._charge(name, self.info.name(src), self.info.name(dst), "peer", parcel.size)
            if dst not in mail:
                raise ComityError(f"A parcel for {self.info.name(dst)} came without a letter to it in {name}.")
        return self._exchange(call, mail, parcels, up="up", down="down", each=each)

    def evaluate(self, views: Mapping[int, Any], final: bool) -> dict[int, Any]:
        """Let parties judge their deployable models on their own data; the traffic is charged as `eval`."""
        return self._exchange(Call("evaluate", -1, self.round, int(final)), views, {}, up="eval", down="eval")

    def alone(self, ids: Iterable[int]) -> dict[int, Any]:
        """Let parties judge what they would have without anybody: trained on their own data only; nothing crosses but figures."""
        return self._exchange(Call("alone", -1, self.round, 0), dict.fromkeys(ids), {}, up="eval", down="eval")

    def introduce(self, ids: Iterable[int]) -> None:
        """Charge what makes up `info`: names, sizes and wishes go up; classes and width come down."""
        for i in ids:
            name, wish = self.info.name(i), self.info.peers[i] if i < len(self.info.peers) else None
            self._charge("introduce", name, SERVER, "setup", payload([name, 0, list(wish or ())]))
            self._charge("introduce", SERVER, name, "setup", payload([self.info.task.classes, self.info.width]))

    def _exchange(
        self,
        call: Call,
        mail: Mapping[int, Any],
        post: Mapping[Edge, Sealed],
        up: str,
        down: str,
        each: Callable[[int, Any], None] | None = None,
    ) -> dict[int, Any]:
        letters = {i: mail[i] for i in sorted(mail)}
        weighed: dict[int, int] = {}  # most often all get one and the same
        for i, letter in letters.items():
            size = weighed[id(letter)] = weighed[id(letter)] if id(letter) in weighed else payload(letter)
            self._charge(call.work, SERVER, self.info.name(i), down, size)
        self._intake = Intake(letters, each) if each else None
        answers = self.deliver(call, letters, post)
        if letters and not answers:
            raise Silence(f"No party answered {call.work} in round {self.round}.")
        taken = self._intake.end() if self._intake else {}
        replies = {}
        for i in sorted(answers):
            replies[i], steps = answers[i]
            self.steps += steps
            self._charge(call.work, self.info.name(i), SERVER, up, taken[i] if i in taken else payload(replies[i]))
        return replies

    def arrived(self, i: int, answer: tuple[Any, int]) -> tuple[Any, int]:
        """For engines: what is kept of an answer that is there."""
        if self._intake is None:
            return answer
        self._intake.take(i, answer[0])
        return None, answer[1]

    def _charge(self, work: str, src: str, dst: str, kind: str, size: int) -> None:
        self.ledger.charge(self.round, work, src, dst, kind, size)

    @abstractmethod
    def deliver(self, call: Call, mail: Mapping[int, Any], post: Mapping[Edge, Sealed]) -> dict[int, tuple[Any, int]]:
        """Have each party work: number -> (reply, gradient steps made)."""

    @abstractmethod
    def save(self, folder: Path, t: int) -> list[Saved]:
        """Write the party states that changed since the last save."""

    @abstractmethod
    def load(self, folder: Path, states: Iterable[Saved]) -> None:
        """Put saved states back."""

    @abstractmethod
    def state(self, i: int) -> Any:
        """A party's state, for whoever acts on that party's behalf: never for a round."""

    def close(self) -> None:
        """Let go of processes and connections."""
