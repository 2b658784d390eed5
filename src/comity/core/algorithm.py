"""What an algorithm is: a party's work as pure functions, and a round as ordinary code over a net."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, dataclass_transform

from comity.base.key import Key
from comity.base.record import Params
from comity.core.diagnostics import Diagnostic
from comity.core.party import Info, Party, Traffic
from comity.errors import UsageError
from comity.training.requests import PartyCoroutine
from comity.training.settings import Training
from comity.training.task import LearningTask

if TYPE_CHECKING:
    from comity.core.aggregate import Averaging
    from comity.core.release import Asked, Release, Releases, Stage
    from comity.core.server import Server

T = TypeVar("T")
Class = TypeVar("Class", bound=type)
Method = TypeVar("Method", bound=Callable[..., Any])
S = TypeVar("S")
"""The server's state."""
C = TypeVar("C")
"""A party's state."""
M = TypeVar("M")
"""What the server sends a party."""
PartyFunction = Callable[[Any, Any, Party, Key], PartyCoroutine[tuple[Any, Any]]]
"""async (party state, letter, party, key) -> (new party state, reply): all that ever happens at a
party.
"""

WireShapes = Mapping[str, LearningTask | tuple[int, ...] | None]
"""A tensor's shape (-1: any length), or the network whose weights they are; None for what nobody
knows beforehand.
"""


def option(
    default: T,
    doc: str,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
) -> T:
    """A method's own constant: its paper's default and what it means, as `comity show` prints them,
    and its range.
    """
    bounds = {"at least": minimum, "at most": maximum, "greater than": above}
    return field(
        default=default,
        metadata={"doc": doc, "bounds": {k: v for k, v in bounds.items() if v is not None}},
    )


# `option` is no field specifier: type checkers would look for a keyword `default`, and call every
# option of a method required.
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def algorithm(cls: Class) -> Class:
    """Mark the class that a file in `algorithms/` (or a user's file) is about."""
    made: Class = dataclass(frozen=True)(cls)  # type: ignore[assignment]
    made.__algorithm__ = made.__module__  # type: ignore[attr-defined]
    return made


def on_party(method: Method) -> Method:
    """Mark a method of an algorithm as a work: something that the server may ask parties for.

    Parties that live elsewhere do nothing else for it, whatever they are asked for by name. A
    method that overrides a marked one is a work as well.
    """
    method.__on_party__ = True  # type: ignore[attr-defined]
    return method


def only_averages(round: Method) -> Method:
    """Mark a method's `round` that does nothing with replies but average them, by `server.mean`.

    Then workers may add up what their parties reply (partial sums). A round that overrides a marked
    one says it for itself.
    """
    round.__only_averages__ = True  # type: ignore[attr-defined]
    return round


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def mixin(cls: Class) -> Class:
    """Mark options that several methods share, with what they mean."""
    made: Class = dataclass(frozen=True)(cls)  # type: ignore[assignment]
    return made


SHARES = {
    "nothing": "shares nothing",
    "body": "shares the extractor and keeps the head at the party",
    "head": "shares the head and keeps the extractor at the party",
    "model": "shares the whole model",
    "generic": "shares a generic model and keeps a head of its own at the party",
    "representations": "shares representations and keeps all weights at the party",
    "means": "shares means of representations and keeps all weights at the party",
    "gradients": "shares gradients and keeps all weights at the party",
    "data": "pools the data",
}


LEAVES = {
    "weights": "weights of a model",
    "representations": "representations of single samples",
    "means": "means over a party's samples, or over those of a class",
    "gradients": "gradients",
    "class counts": "how many samples there are of each class",
    "samples": "samples themselves, or near-copies of them",
}
"""The kinds of what methods have parties send, to the server or to each other."""
_LEAVES_BY_SHARES = {"nothing": (), "data": ("samples",)} | {
    name: (name,) for name in ("representations", "means", "gradients")
}


class Algorithm(ABC, Generic[S, C, M]):
    """The methods of an algorithm; `round`, `server`, `client`, `view` and `model` are its paper.

    S is the server's state, C a party's state, M what the server sends a party: records, or dicts
    of tensors.
    """

    shares: ClassVar[str] = "model"
    """What crosses the wire, one of SHARES: wrappers look here to know whether they make sense."""
    also_leaves: ClassVar[tuple[str, ...]] = ()
    """What else parties send, of LEAVES."""
    self_contained: ClassVar[bool] = False
    """Whether `model` needs nothing from the server, so that evaluation sends nothing down."""
    hears_peers: ClassVar[bool] = False
    """Whether a party may choose whom it learns from."""
    feature_skew_only: ClassVar[bool] = False
    """Whether the method is not meant for parties whose labels differ: then a run on such parties
    says so.
    """
    start_weights: ClassVar[str | None] = None
    """Which field of its letters holds the weights that parties train from, "" if none does.

    With `init = "own"` a party's own first weights take their place up to the first round that
    counts. None refuses that.
    """
    common_start: ClassVar[str] = (
        "does not say which field of its letters holds the weights that parties start from"
        " (start_weights)"
    )
    """Why parties must start alike, where `start_weights` is None."""
    bytes_formula: ClassVar[str] = ""
    """The closed form that `traffic` computes, as `comity show` prints it."""
    diagnostics: ClassVar[tuple[Diagnostic, ...]] = ()
    """What a report shows of the figures that the method notes, and of the parameters that its
    parties keep.
    """

    @property
    def finishes(self) -> bool:
        """Whether `finish` does anything: then models are evaluated before it, too."""
        return False

    @property
    def tried_rounds(self) -> tuple[int, ...]:
        """Rounds that `start` tries before the first, by number: with their cohorts a plan counts
        what they cost.
        """
        return ()

    @property
    def needs_validation(self) -> str:
        """Why nothing can be done without validation samples, and what to do about it; empty if
        they are not needed.
        """
        return ""

    @property
    def leaves(self) -> frozenset[str]:
        """The kinds (of LEAVES) of what parties send, be it sealed or not: a site allows each of
        them, or takes no part.
        """
        return frozenset((*_LEAVES_BY_SHARES.get(self.shares, ("weights",)), *self.also_leaves))

    def warnings(self, info: Info) -> list[str]:
        """What a user should know before running the method as it is set."""
        return []

    @property
    def not_private(self) -> str:
        """Why its parties cannot train so that no record tells (`+dp`), where that is known; unless
        told, by what they send.
        """
        others = sorted(self.leaves - {"weights"})
        return f"its parties send {LEAVES[others[0]]}" if others else ""

    def privacy_warnings(self, info: Info) -> list[str]:
        """What its noise does not guarantee, where nothing around it guarantees more."""
        return []

    @property
    def one_model(self) -> bool:
        """Whether every party deploys the same model, so that a global accuracy has a meaning."""
        return False

    def __post_init__(self) -> None:
        holds = {"at least": operator.ge, "at most": operator.le, "greater than": operator.gt}
        for f in fields(self):  # type: ignore[arg-type]
            for words, bound in f.metadata.get("bounds", {}).items():
                value = getattr(self, f.name)
                if not isinstance(value, str) and not (
                    math.isfinite(value) and holds[words](value, bound)
                ):
                    raise UsageError(f"{f.name} must be {words} {bound:g}, not {value}.")

    def check(self, info: Info) -> None:
        """Refuse, before round 1, what this algorithm cannot do."""

    @abstractmethod
    def init_server(self, key: Key, info: Info) -> S:
        """The server's state before round 1."""

    @abstractmethod
    def init_party(self, key: Key, party: Party) -> C:
        """A party's state before round 1; unless `init = "own"`, `key` is the same for all: equal
        architectures start equal.
        """

    def start(self, s: S, server: Server) -> S:
        """Exchanges before round 1."""
        return s

    def catch_up(self, s: S, server: Server, ids: Sequence[int]) -> S:
        """Parties that missed an exchange of `start` and are to take part now: what they need of
        it. Nothing, unless told.
        """
        return s

    @abstractmethod
    def round(self, s: S, server: Server, t: int) -> S:
        """One round: ordinary code over `server`."""

    def finish(self, s: S, server: Server) -> S:
        """Exchanges after the last round: fine-tuning, for instance."""
        return s

    def join(self, s: S, server: Server, ids: Sequence[int]) -> S:
        """Newcomers after training: each gets what the server would send it now, and warms up."""
        server.call(self.warm_up, {i: self.message_for(s, i) for i in ids})
        return s

    @on_party
    async def warm_up(self, mine: C, m: M, party: Party, key: Key) -> tuple[C, None]:
        """A newcomer's warm-up by the method's own loss; unless told, it takes what it is sent as
        it is.
        """
        return mine, None

    @abstractmethod
    def message_for(self, s: S, i: int) -> M:
        """What the server would send party i now."""

    @abstractmethod
    def deployed_model(self, mine: C, m: M, party: Party) -> Params:
        """What the party would deploy: the same each time that it is asked.

        Training is done in works. What is fitted to the party's data each time before it is
        deployed (Per-FedAvg) is fitted here, by `party.adapted`.
        """

    def party_for(self, party: Party, mine: C) -> Party:
        """The party as this algorithm sees it; wrappers put their task here."""
        return party

    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        """Shapes of what crosses the wire beside the model's own weights, by the field that holds
        it, as in "Game.D".
        """
        return {}

    def declared_trainings(self, stage: Stage, how: Training) -> Mapping[str, Sequence[Training]]:
        """The works that each party is asked for once in a stage, and what it trains in them if it
        trains by `how`.

        What leaves behind noise is accounted for by it, before a run and in it. Unless told: one
        training a round.
        """
        return (
            {"local": [how]} if stage == "round" else {"warm_up": [how]} if stage == "join" else {}
        )

    def releases(self, function: str, asked: Asked) -> Releases:
        """Through which noise the fields of a work's reply leave a party; those that are not named
        leave as they are.
        """
        return {}

    def server_release(self, info: Info, cohort: Sequence[int]) -> Release | None:
        """Through which noise of its own a trusted server makes known, in a round, what it learned
        from a cohort; None without.

        Then parties are protected from each other, and not from the server.
        """
        return None

    @property
    def protects_records(self) -> bool:
        """Whether all that leaves a party is bounded in what it tells of a record, whoever reads
        it.
        """
        return False

    @property
    def averages(self) -> bool:
        """Whether a wrapper has a way of its own to average replies (`averaging`): no two of them
        go together.
        """
        return False

    def averaging(self, server: Server) -> Averaging | None:
        """How replies are to be averaged, where a wrapper has a way of its own."""
        return None

    def start_traffic(self, info: Info) -> Traffic:
        """Bytes of `start` in closed form."""
        return Traffic()

    def finish_traffic(self, info: Info) -> Traffic:
        """Bytes of `finish` in closed form."""
        return Traffic()

    def join_traffic(self, info: Info) -> Traffic:
        """Bytes of `join` in closed form: to each newcomer what a party gets in a round, unless
        told.
        """
        return Traffic(down=len(info.late) * self.traffic(info, [0]).down)

    @abstractmethod
    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        """Bytes of one round with this cohort in closed form."""


AnyAlgorithm = Algorithm[Any, Any, Any]
"""Whichever: for code that knows an algorithm's states only as records."""
