"""The noise through which each field of a message leaves a party, and whom that noise protects.

A method declares it (`Accounting.releases`), and a wrapper may add to it
(`WrapperAccounting.covers`). A field that nobody declares leaves without noise: there is no bound
on what it tells, and the account of a run says so (`privacy/account.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from comity.core.accounting import Accounting
from comity.core.signature import fields_on_wire, party_functions, signature
from comity.core.wrapper import WrapperAccounting, chain

if TYPE_CHECKING:
    from comity.base.call import CallId
    from comity.core.algorithm import AnyAlgorithm
    from comity.core.party import Info
    from comity.training.settings import Training

Unit = Literal["row", "record", "patient", "party"]
UNITS: dict[Unit, str] = {
    "row": "a row (what a given model makes of one sample)",
    "record": "a training record",
    "patient": "a patient with all its training records",
    "party": "all that a party has",
}
"""What is protected, from the weakest: who protects a record protects its rows, who protects a
patient each of its records, and who protects a party all its patients.
"""
RECORD_UNITS: tuple[Unit, ...] = ("record", "patient")
"""The units of training records: they are not protected if one record changes the inputs of
others.
"""
Neighbours = Literal["blank", "replaced"]
NEIGHBOURS: dict[Neighbours, str] = {
    "blank": "one is replaced by a blank one, which adds nothing",
    "replaced": "one is replaced by any other",
}
"""Which two sets of data must look alike. How many there are is the same in both, and so is no
secret.
"""
Stage = Literal["start", "round", "finish", "join"]
STAGES: tuple[Stage, ...] = ("start", "round", "finish", "join")


@dataclass(frozen=True)
class Release:
    """A mechanism through which something leaves, and how often: noise on what can change by
    `sensitivity` at most.
    """

    unit: Unit
    mechanism: Literal["gaussian", "laplace", "discrete gaussian"]
    sensitivity: float
    """By how much one unit changes it: in the ℓ2 norm before Gaussian noise, also before discrete
    Gaussian noise on integers, in the ℓ1 norm before Laplace's.
    """
    noise: float
    """Standard deviation of a Gaussian, scale of a Laplace distribution."""
    neighbours: Neighbours = "blank"
    rate: float = 1.0
    """The chance that a unit has any part in a step (Poisson sampling)."""
    steps: int = 1
    drawn_of: int = 0
    """Instead of `rate`: `drawn` units of so many take part, drawn anew each time without
    replacement.
    """
    drawn: int = 0

    @property
    def multiplier(self) -> float:
        """Noise in units of the sensitivity: all that an account needs to know of both."""
        return self.noise / self.sensitivity if self.sensitivity else float("inf")


NOTHING: tuple[Release, ...] = ()
"""How what does not depend on a party's data is declared: it leaves through no mechanism, and tells
nothing.
"""
Releases = Mapping[str, Sequence[Release]]
"""By field of a reply, as in "Reps.z": through which mechanisms it leaves. Fields that leave as
they are, are not named.
"""


@dataclass(frozen=True)
class PartyFacts:
    """What is known of a party before one of its functions is called."""

    info: Info
    party: int
    size: int
    """How many training samples it has."""
    training: Training
    patients: int | None = None
    """How many patients these samples are of; None if its data name no patients."""


class Spending(Protocol):
    """What a server needs of the account of a run."""

    def charge_call(self, call: CallId, ids: Iterable[int]) -> None: ...
    def note_reply(self, call: CallId, i: int, reply: Any) -> None: ...
    def note_open(self, round: int, function: str, i: int, name: str) -> None: ...
    def charge_server(
        self, round: int, name: str, release: Release | None, ids: Iterable[int]
    ) -> None: ...


def planned_calls(outermost: AnyAlgorithm, how: Training) -> Iterator[tuple[Stage, int, str]]:
    """The calls of a party that trains by `how`, from the start to the end: stage, depth in the
    chain, and name of the party function.

    A function of several algorithms in the chain is the innermost one's.
    """
    owners = chain(outermost)
    for stage in STAGES[:3]:
        for function in outermost.accounting.declared_trainings(stage, how):
            yield (
                stage,
                max(depth for depth, owner in enumerate(owners) if hasattr(owner, function)),
                function,
            )


def declares(outermost: AnyAlgorithm, depth: int) -> bool:
    """Whether the method at `depth` of the chain, or somebody around it, has anything to
    declare.
    """
    owners = chain(outermost)
    around = any(
        wrapper.accounting_class.covers is not WrapperAccounting.covers  # type: ignore[attr-defined]
        for wrapper in owners[:depth]
    )
    return around or owners[depth].accounting_class.releases is not Accounting.releases


def releases_of(
    outermost: AnyAlgorithm, depth: int, function: str, facts: PartyFacts
) -> dict[str, Sequence[Release] | None]:
    """The mechanisms through which each field of a party function's reply leaves; None for a field
    that leaves without noise.

    The result of a training in a function without a reply may leave later, with the next training:
    it stands under KEPT.
    """
    owners = chain(outermost)
    releases = owners[depth].accounting.releases(function, facts)
    for wrapper in reversed(owners[:depth]):
        assert isinstance(wrapper.accounting, WrapperAccounting)
        releases = wrapper.accounting.covers(function, releases, facts)
    by_field: dict[str, Sequence[Release] | None] = {}
    for name in reply_fields(outermost, depth, function):
        by_field[name] = releases.get(name, releases.get(ALL))
    stays_at_party = (
        not by_field
        and ALL in releases
        and any(reply_fields(outermost, *place) for place in party_functions(outermost))
    )
    return {KEPT: releases[ALL]} if stays_at_party else by_field


ALL, KEPT = "*", "what it keeps"
"""Names all fields that are not named themselves; and what a party keeps of a work in which nothing
leaves.
"""


def reply_fields(outermost: AnyAlgorithm, depth: int, function: str) -> list[str]:
    """The fields of a party function's reply, sealed ones among them."""
    hint: Any = signature(outermost, depth, function).reply
    return fields_on_wire(hint)
