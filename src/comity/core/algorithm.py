"""What an algorithm is: a party's work as pure functions, and a round as ordinary code over a
net.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, dataclass_transform

from comity.base.key import Key
from comity.base.record import Params
from comity.core.accounting import Accounting
from comity.core.party import Info, Party
from comity.core.traits import Traits
from comity.errors import UsageError
from comity.training.requests import Working

if TYPE_CHECKING:
    from comity.core.aggregate import Averaging
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
PartyFunction = Callable[[Any, Any, Party, Key], Working[tuple[Any, Any]]]
"""async (party state, letter, party, key) -> (new party state, reply): all that ever happens at a
party.
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


class Algorithm(ABC, Generic[S, C, M]):
    """The methods of an algorithm; `round`, `server`, `client`, `view` and `model` are its paper.

    S is the server's state, C a party's state, M what the server sends a party: records, or dicts
    of tensors.
    """

    traits: Traits = Traits()
    """What engines, wrappers, sites and reports need to know about the method.

    A class declares them for its default options; an instance has those of its own options
    (`adjust_traits`).
    """
    accounting_class: ClassVar[type[Accounting[Any]]] = Accounting

    @property
    def accounting(self) -> Accounting[Any]:
        """What is counted and declared about the messages of this algorithm."""
        return self.accounting_class(self)

    def adjust_traits(self, declared: Traits) -> Traits:
        """The traits of this instance, where they depend on its options or on its host.

        Default: as the class declares them.
        """
        return declared

    def __post_init__(self) -> None:
        holds = {"at least": operator.ge, "at most": operator.le, "greater than": operator.gt}
        for f in fields(self):  # type: ignore[arg-type]
            for words, bound in f.metadata.get("bounds", {}).items():
                value = getattr(self, f.name)
                if not isinstance(value, str) and not (
                    math.isfinite(value) and holds[words](value, bound)
                ):
                    raise UsageError(f"{f.name} must be {words} {bound:g}, not {value}.")
        object.__setattr__(self, "traits", self.adjust_traits(type(self).traits))

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

    def averaging(self, server: Server) -> Averaging | None:
        """How replies are to be averaged, where a wrapper has a way of its own."""
        return None


AnyAlgorithm = Algorithm[Any, Any, Any]
"""Whichever: for code that knows an algorithm's states only as records."""
