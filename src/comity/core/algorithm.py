"""The contract of a method: what its author writes.

A method is a frozen dataclass. Its fields are the options, and its methods are the paper: the
states before round 1, a round as ordinary code over `server`, the functions that run at parties,
and the model that a party deploys. What else the rest of Comity needs to know is declared apart:
`traits` (core/traits.py) and `accounting` (core/accounting.py).
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
from comity.training.requests import PartyCoroutine

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
PartyFunction = Callable[[Any, Any, Party, Key], PartyCoroutine[tuple[Any, Any]]]
"""async (party state, message, party, key) -> (new party state, reply)."""

COMPARISONS = {"at least": operator.ge, "at most": operator.le, "greater than": operator.gt}
"""The bounds that an option may have, with the words that error messages use for them."""


def option(
    default: T,
    doc: str,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
) -> T:
    """A constant of a method.

    Args:
        default: the paper's value.
        doc: what it means, as `comity show` prints it.
        minimum: the smallest value that is allowed.
        maximum: the largest value that is allowed.
        above: a value that the option must exceed.
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
    frozen: Class = dataclass(frozen=True)(cls)  # type: ignore[assignment]
    frozen.__algorithm__ = frozen.__module__  # type: ignore[attr-defined]
    _check_finish(frozen)
    return frozen


def _check_finish(cls: type) -> None:
    """Refuse a method whose `finish` would never be called.

    A class with `adjust_traits` decides by its options, so it is not checked.
    """
    if not issubclass(cls, Algorithm) or cls.traits.finishes:
        return
    owner, adjusts = (
        next(base for base in cls.__mro__ if name in vars(base))
        for name in ("finish", "adjust_traits")
    )
    in_core = owner.__module__.startswith("comity.core.")
    if not in_core and adjusts is Algorithm:
        raise UsageError(
            f"{cls.__name__} has a method `finish`, but its traits do not declare it, so it would"
            " never be called: write traits = replace(..., finishes=True)."
        )


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def mixin(cls: Class) -> Class:
    """Mark a class of options that several methods share."""
    frozen: Class = dataclass(frozen=True)(cls)  # type: ignore[assignment]
    return frozen


def on_party(method: Method) -> Method:
    """Mark a method of an algorithm as a party function, which the server may call at parties.

    A party in another process or at another site runs no other function, whatever name it receives.
    A method that overrides a marked one is a party function as well.
    """
    method.__on_party__ = True  # type: ignore[attr-defined]
    return method


def only_averages(round: Method) -> Method:
    """Mark a `round` that does nothing with replies but average them, by `server.mean`.

    Workers may then add up the replies of their parties (partial sums). A round that overrides a
    marked one needs its own mark.
    """
    round.__only_averages__ = True  # type: ignore[attr-defined]
    return round


class Algorithm(ABC, Generic[S, C, M]):
    """A method of collaborative learning.

    Authors write `init_server`, `init_party`, `round` with the party functions that it calls,
    `message_for` and `deployed_model`. They may write `start`, `finish`, `join`, `warm_up`,
    `catch_up` and `check`.

    S is the server's state, C a party's state, and M what the server sends a party: records, or
    dicts of tensors.
    """

    @abstractmethod
    def init_server(self, key: Key, info: Info) -> S:
        """The server's state before round 1."""

    @abstractmethod
    def init_party(self, key: Key, party: Party) -> C:
        """A party's state before round 1.

        All parties get the same `key`, so that equal architectures start from equal weights, unless
        `init = "own"`.
        """

    @abstractmethod
    def round(self, s: S, server: Server, t: int) -> S:
        """Round t: the server's state after it, from the state before."""

    @abstractmethod
    def message_for(self, s: S, i: int) -> M:
        """What the server would send party i now."""

    @abstractmethod
    def deployed_model(self, state: C, m: M, party: Party) -> Params:
        """The model that a party deploys, from its state and a message: each time the same.

        Party functions do the training. Only a model that is fitted to the party's data whenever it
        is deployed (Per-FedAvg) is fitted here, by `party.adapted`.
        """

    def check(self, info: Info) -> None:
        """Raise UsageError, before round 1, for what the method does not support."""

    def start(self, s: S, server: Server) -> S:
        """Exchanges before round 1. Default: none."""
        return s

    def finish(self, s: S, server: Server) -> S:
        """Exchanges after the last round, fine-tuning for instance. Default: none."""
        return s

    def catch_up(self, s: S, server: Server, ids: Sequence[int]) -> S:
        """Exchanges with parties that missed `start` and take part from now on. Default: none."""
        return s

    def join(self, s: S, server: Server, ids: Sequence[int]) -> S:
        """Exchanges with newcomers after training.

        Default: each gets what the server would send it now, and warms up.
        """
        server.call(self.warm_up, {i: self.message_for(s, i) for i in ids})
        return s

    @on_party
    async def warm_up(self, state: C, m: M, party: Party, key: Key) -> tuple[C, None]:
        """A newcomer's training by the method's own loss.

        Default: none, so that the newcomer deploys what it is sent.
        """
        return state, None

    # -- declarations ------------------------------------------------------------------------------

    traits: Traits = Traits()
    """What engines, wrappers, sites and reports need to know about the method.

    A class declares the traits of its default options. An instance has those of its own options
    (`adjust_traits`).
    """
    accounting_class: ClassVar[type[Accounting[Any]]] = Accounting
    """Set by `@accounts_for`."""

    def adjust_traits(self, declared: Traits) -> Traits:
        """The traits of this instance, where they depend on its options or on its host.

        Default: as the class declares them.
        """
        return declared

    @property
    def accounting(self) -> Accounting[Any]:
        """What is counted and declared about the messages of this algorithm."""
        return self.accounting_class(self)

    # -- hooks for wrappers and for methods that extend the network --------------------------------

    def party_for(self, party: Party, state: C) -> Party:
        """The party with the task that this algorithm trains. Default: the party itself."""
        return party

    def averaging(self, server: Server) -> Averaging | None:
        """A replacement for the weighted mean of replies. Default: None."""
        return None

    def __post_init__(self) -> None:
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            for words, bound in f.metadata.get("bounds", {}).items():
                if isinstance(value, str):  # "auto", for instance
                    continue
                if not (math.isfinite(value) and COMPARISONS[words](value, bound)):
                    raise UsageError(f"{f.name} must be {words} {bound:g}, not {value}.")
        object.__setattr__(self, "traits", self.adjust_traits(type(self).traits))


AnyAlgorithm = Algorithm[Any, Any, Any]
"""Any algorithm, for code that does not know the types of its states."""
