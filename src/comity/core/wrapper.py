"""Wrappers: algorithms around other algorithms. `fedprox+dbe` is DBE around FedProx."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, cast

from comity.base.key import Key
from comity.base.record import Params, record
from comity.core.accounting import Accounting, accounts_for
from comity.core.algorithm import Algorithm, AnyAlgorithm, PartyFunction
from comity.core.party import Info, Party, Traffic
from comity.core.traits import Traits
from comity.errors import UsageError

if TYPE_CHECKING:
    from comity.core.release import PartyFacts, Releases, Stage
    from comity.core.server import Server
    from comity.training.settings import Training

W = TypeVar("W")
"""What the wrapper adds to a party's state."""
Hosts = Annotated[Any, "what the host sends"]
"""What a wrapper passes on unread: the message that its host's `message_for` returns."""


@record
class Wrapped(Generic[W]):
    """The state of a wrapped party or server: the host's state, and what the wrapper adds."""

    host: Any
    extra: W


class Wrapper(Algorithm[Wrapped[W | None], Wrapped[W], Hosts]):
    """An algorithm around another one, its host. It changes the party's task, and may have its own
    exchanges.

    The host's party functions run unchanged, with the same keys, on the party that `wrap_party`
    returns.
    """

    host: AnyAlgorithm

    @classmethod
    def check_host(cls, host: AnyAlgorithm, name: str, wrapper: str) -> None:
        """Raise UsageError, with the reason, for a host that the wrapper does not support."""

    def extra(self, key: Key, party: Party) -> W:
        """What the wrapper adds to a party's state before round 1. Default: None."""
        nothing: Any = None
        return cast(W, nothing)

    @abstractmethod
    def wrap_party(self, party: Party, extra: W) -> Party:
        """The party with the wrapper's task."""

    def wrap_function(self, function: PartyFunction) -> PartyFunction:
        """A party function of the host, as it runs at a wrapped party."""

        @wraps(function)
        async def run_wrapped(
            state: Wrapped[W], message: Any, party: Party, key: Key
        ) -> tuple[Wrapped[W], Any]:
            host, reply = await function(
                state.host, message, self.wrap_party(party, state.extra), key
            )
            return Wrapped(host, state.extra), reply

        return run_wrapped

    def adjust_traits(self, declared: Traits) -> Traits:
        host = self.host.traits
        not_private = declared.not_private
        if not_private is None:
            not_private = host.why_not_private
        return replace(declared, not_private=not_private, tried_rounds=host.tried_rounds)

    def check(self, info: Info) -> None:
        self.host.check(info)

    def init_server(self, key: Key, info: Info) -> Wrapped[W | None]:
        return Wrapped(self.host.init_server(key, info), None)

    def init_party(self, key: Key, party: Party) -> Wrapped[W]:
        extra = self.extra(key, party)
        return Wrapped(self.host.init_party(key, self.wrap_party(party, extra)), extra)

    def start(self, s: Wrapped[W | None], server: Server) -> Wrapped[W | None]:
        return replace(s, host=self.host.start(s.host, server))

    def catch_up(
        self, s: Wrapped[W | None], server: Server, ids: Sequence[int]
    ) -> Wrapped[W | None]:
        return replace(s, host=self.host.catch_up(s.host, server, ids))

    def round(self, s: Wrapped[W | None], server: Server, t: int) -> Wrapped[W | None]:
        return replace(s, host=self.host.round(s.host, server, t))

    def finish(self, s: Wrapped[W | None], server: Server) -> Wrapped[W | None]:
        return replace(s, host=self.host.finish(s.host, server))

    def join(self, s: Wrapped[W | None], server: Server, ids: Sequence[int]) -> Wrapped[W | None]:
        return replace(s, host=self.host.join(s.host, server, ids))

    def message_for(self, s: Wrapped[W | None], i: int) -> Hosts:
        return self.host.message_for(s.host, i)

    def deployed_model(self, state: Wrapped[W], m: Any, party: Party) -> Params:
        return self.host.deployed_model(state.host, m, self.wrap_party(party, state.extra))

    def party_for(self, party: Party, state: Wrapped[W]) -> Party:
        return self.host.party_for(self.wrap_party(party, state.extra), state.host)


A = TypeVar("A", bound=Wrapper[Any])


@accounts_for(Wrapper)
class WrapperAccounting(Accounting[A]):
    """The accounting of a wrapper: its host's bytes and trainings, and the noise that it adds."""

    @property
    def host(self) -> Accounting[Any]:
        """The accounting of the host."""
        return self.method.host.accounting

    def covers(self, function: str, host: Releases, facts: PartyFacts) -> Releases:
        """The noise through which the reply of a host's party function leaves, given what the
        host's accounting declares. Default: the same.
        """
        return host

    def declared_trainings(self, stage: Stage, how: Training) -> Mapping[str, Sequence[Training]]:
        return self.host.declared_trainings(stage, how)

    def start_traffic(self, info: Info) -> Traffic:
        return self.host.start_traffic(info)

    def finish_traffic(self, info: Info) -> Traffic:
        return self.host.finish_traffic(info)

    def join_traffic(self, info: Info) -> Traffic:
        return self.host.join_traffic(info)

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        return self.host.traffic(info, cohort)


class AsHost(Wrapper[W]):
    """A wrapper that changes nothing of what parties keep, send and deploy."""

    def wrap_party(self, party: Party, extra: W) -> Party:
        return party

    def adjust_traits(self, declared: Traits) -> Traits:
        return as_host(super().adjust_traits(declared), self.host.traits)


def as_host(wrapper: Traits, host: Traits) -> Traits:
    """The traits of a wrapper that changes nothing of what its host sends and deploys."""
    return replace(
        wrapper,
        shares=host.shares,
        also_leaves=host.also_leaves,
        self_contained=host.self_contained,
        one_model=host.one_model,
    )


def chain(outermost: AnyAlgorithm) -> list[AnyAlgorithm]:
    """An algorithm and its hosts, from the outside in."""
    owners = [outermost]
    while isinstance(owners[-1], Wrapper):
        owners.append(owners[-1].host)
    return owners


def party_function(outermost: AnyAlgorithm, depth: int, name: str) -> PartyFunction:
    """The party function `name` of the algorithm at `depth` of the chain, inside all
    wrappers around it.
    """
    owners = chain(outermost)
    function: PartyFunction = getattr(owners[depth], name)
    for wrapper in reversed(owners[:depth]):
        assert isinstance(wrapper, Wrapper)
        function = wrapper.wrap_function(function)
    return function


def party_function_names(cls: type) -> set[str]:
    """The party functions of a class: methods that are marked with `@on_party`, and methods that
    override a marked one.
    """
    return {
        name
        for base in cls.__mro__
        for name, method in vars(base).items()
        if getattr(method, "__on_party__", False)
    }


def is_party_function(outermost: AnyAlgorithm, depth: int, name: str) -> bool:
    """Whether the algorithm at `depth` of the chain has a party function `name`."""
    owners = chain(outermost)
    if type(depth) is not int or type(name) is not str or not 0 <= depth < len(owners):
        return False
    return name in party_function_names(type(owners[depth]))


def check_can_be_summed(outermost: AnyAlgorithm, name: str) -> None:
    """Raise UsageError if a method needs replies one by one, so that workers cannot add them up.

    A method whose parties send nothing passes.
    """
    owners = chain(outermost)
    averaging = [owner for owner in owners if owner.traits.averages]
    if averaging:
        wrapper = type(averaging[0]).__name__.lower()
        raise UsageError(
            f"{name} cannot have partial sums: {wrapper} takes the place of the mean, and needs"
            " each reply by itself."
        )
    if owners[-1].traits.leaves and not getattr(type(owners[-1]).round, "__only_averages__", False):
        raise UsageError(
            f"{name} cannot have partial sums: its rounds do more with replies than average them."
        )


def check_party_function(outermost: AnyAlgorithm, depth: int, name: str) -> None:
    """Raise UsageError unless the algorithm at `depth` has a party function `name`."""
    if is_party_function(outermost, depth, name):
        return
    owners = chain(outermost)
    if type(depth) is not int or not 0 <= depth < len(owners):
        raise UsageError(
            f"There is no algorithm at depth {str(depth)[:20]}: there are {len(owners)} of them,"
            " from 0."
        )
    who = type(owners[depth]).__name__
    raise UsageError(
        f"{who} has no party function {str(name)[:100]!r}: a method that a server may call at"
        " parties needs @on_party above it."
    )
