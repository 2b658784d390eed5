"""What an algorithm is: a party's work as pure functions, and a round as ordinary code over a net."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

import torch
from torch import Tensor

from comity.core.diagnostics import Diagnostic
from comity.core.key import Key
from comity.core.party import Info, Party, Traffic
from comity.core.record import Params, record
from comity.errors import Refusal

if TYPE_CHECKING:
    from comity.core.net import Net

T = TypeVar("T")
C = TypeVar("C", bound=type)
Work = Callable[[Any, Any, "Party", Key], tuple[Any, Any]]
"""(party state, letter, party, key) -> (new party state, reply): all that ever happens at a party."""


def option(default: T, doc: str, minimum: float | None = None, maximum: float | None = None, above: float | None = None) -> T:
    """A method's own constant: its paper's default and what it means, as `comity show` prints them, and its range."""
    bounds = {"at least": minimum, "at most": maximum, "greater than": above}
    return field(default=default, metadata={"doc": doc, "bounds": {k: v for k, v in bounds.items() if v is not None}})


@dataclass_transform(frozen_default=True, field_specifiers=(option, field))
def algorithm(cls: C) -> C:
    """Mark the class that a file in `algorithms/` (or a user's file) is about."""
    made: C = dataclass(frozen=True)(cls)  # type: ignore[assignment]
    made.__algorithm__ = made.__module__  # type: ignore[attr-defined]
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(option, field))
def mixin(cls: C) -> C:
    """Mark options that several methods share, with what they mean."""
    made: C = dataclass(frozen=True)(cls)  # type: ignore[assignment]
    return made


SHARES = {
    "nothing": "shares nothing",
    "body": "shares the extractor and keeps the head at the party",
    "head": "shares the head and keeps the extractor at the party",
    "model": "shares the whole model",
    "generic": "shares a generic model and keeps a head of its own at the party",
    "representations": "shares representations and keeps all weights at the party",
    "gradients": "shares gradients and keeps all weights at the party",
    "data": "pools the data",
}


class Algorithm(ABC):
    """The methods of an algorithm; `round`, `server`, `client`, `view` and `model` are its paper."""

    shares: ClassVar[str] = "model"
    """What crosses the wire, one of SHARES: wrappers look here to know whether they make sense."""
    self_contained: ClassVar[bool] = False
    """Whether `model` needs nothing from the server, so that evaluation sends nothing down."""
    hears_peers: ClassVar[bool] = False
    """Whether a party may choose whom it learns from."""
    feature_skew_only: ClassVar[bool] = False
    """Whether the method is not meant for parties whose labels differ: then a run on such parties says so."""
    stacks: ClassVar[bool] = True
    """Whether parties' local trainings can be one computation: not if a loss draws from its batch's key or trains a model."""
    bytes_formula: ClassVar[str] = ""
    """The closed form that `traffic` computes, as `comity show` prints it."""
    diagnostics: ClassVar[tuple[Diagnostic, ...]] = ()
    """What a report shows of the figures that the method notes, and of the parameters that its parties keep."""

    @property
    def finishes(self) -> bool:
        """Whether `finish` does anything: then models are judged before it, too."""
        return False

    def cautions(self, info: Info) -> list[str]:
        """What a user should know before running the method as it is set."""
        return []

    @property
    def one_model(self) -> bool:
        """Whether every party deploys the same model, so that a global accuracy has a meaning."""
        return False

    def __post_init__(self) -> None:
        holds = {"at least": operator.ge, "at most": operator.le, "greater than": operator.gt}
        for f in fields(self):  # type: ignore[arg-type]
            for words, bound in f.metadata.get("bounds", {}).items():
                if not (math.isfinite(value := getattr(self, f.name)) and holds[words](value, bound)):
                    raise Refusal(f"{f.name} must be {words} {bound:g}, not {value}.")

    def check(self, info: Info) -> None:
        """Refuse, before round 1, what this algorithm cannot do."""

    @abstractmethod
    def server(self, key: Key, info: Info) -> Any:
        """The server's state before round 1."""

    @abstractmethod
    def client(self, key: Key, party: Party) -> Any:
        """A party's state before round 1; `key` is the same for all, so that equal architectures start equal."""

    def start(self, s: Any, net: Net) -> Any:
        """Exchanges before round 1."""
        return s

    @abstractmethod
    def round(self, s: Any, net: Net, t: int) -> Any:
        """One round: ordinary code over `net`."""

    def finish(self, s: Any, net: Net) -> Any:
        """Exchanges after the last round: fine-tuning, for instance."""
        return s

    def join(self, s: Any, net: Net, ids: Sequence[int]) -> Any:
        """Newcomers after training: each gets what the server would send it now, and warms up."""
        net.call(self.welcome, {i: self.view(s, i) for i in ids})
        return s

    def welcome(self, mine: Any, m: Any, party: Party, key: Key) -> tuple[Any, None]:
        """A newcomer's warm-up by the method's own loss; unless told, it takes what it is sent as it is."""
        return mine, None

    @abstractmethod
    def view(self, s: Any, i: int) -> Any:
        """What the server would send party i now."""

    @abstractmethod
    def model(self, mine: Any, m: Any, party: Party) -> Params:
        """What the party would deploy."""

    def at(self, party: Party, mine: Any) -> Party:
        """The party as this algorithm sees it; wrappers put their task here."""
        return party

    def start_traffic(self, info: Info) -> Traffic:
        """Bytes of `start` in closed form."""
        return Traffic()

    def finish_traffic(self, info: Info) -> Traffic:
        """Bytes of `finish` in closed form."""
        return Traffic()

    def join_traffic(self, info: Info) -> Traffic:
        """Bytes of `join` in closed form: to each newcomer what a party gets in a round, unless told."""
        return Traffic(down=len(info.late) * self.traffic(info, [0]).down)

    @abstractmethod
    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        """Bytes of one round with this cohort in closed form."""


@record
class Wrapped:
    """The state of a wrapped party or server: the host's, and the wrapper's own."""

    host: Any
    own: Any


class Wrapper(Algorithm):
    """An algorithm around another: it changes the party's task and may make exchanges of its own.

    The host's works run unchanged, under the same keys, on the party that `lift` returns.
    """

    host: Algorithm

    @classmethod
    def check_host(cls, host: Algorithm, name: str, wrapper: str) -> None:
        """Refuse, with the reason, a host that this wrapper makes no sense around."""

    def own(self, key: Key, party: Party) -> Any:
        """The wrapper's own part of a party's state."""
        return None

    @abstractmethod
    def lift(self, party: Party, own: Any) -> Party:
        """The party with the wrapper's task."""

    def around(self, work: Work) -> Work:
        """A host's work as it runs at a wrapped party."""

        def inside(mine: Wrapped, letter: Any, party: Party, key: Key) -> tuple[Wrapped, Any]:
            host, reply = work(mine.host, letter, self.lift(party, mine.own), key)
            return Wrapped(host, mine.own), reply

        return inside

    def check(self, info: Info) -> None:
        self.host.check(info)

    def server(self, key: Key, info: Info) -> Wrapped:
        return Wrapped(self.host.server(key, info), None)

    def client(self, key: Key, party: Party) -> Wrapped:
        own = self.own(key, party)
        return Wrapped(self.host.client(key, self.lift(party, own)), own)

    def start(self, s: Wrapped, net: Net) -> Wrapped:
        return replace(s, host=self.host.start(s.host, net))

    def round(self, s: Wrapped, net: Net, t: int) -> Wrapped:
        return replace(s, host=self.host.round(s.host, net, t))

    def finish(self, s: Wrapped, net: Net) -> Wrapped:
        return replace(s, host=self.host.finish(s.host, net))

    def join(self, s: Wrapped, net: Net, ids: Sequence[int]) -> Wrapped:
        return replace(s, host=self.host.join(s.host, net, ids))

    def view(self, s: Wrapped, i: int) -> Any:
        return self.host.view(s.host, i)

    def model(self, mine: Wrapped, m: Any, party: Party) -> Params:
        return self.host.model(mine.host, m, self.lift(party, mine.own))

    def at(self, party: Party, mine: Wrapped) -> Party:
        return self.host.at(self.lift(party, mine.own), mine.host)

    def start_traffic(self, info: Info) -> Traffic:
        return self.host.start_traffic(info)

    def finish_traffic(self, info: Info) -> Traffic:
        return self.host.finish_traffic(info)

    def join_traffic(self, info: Info) -> Traffic:
        return self.host.join_traffic(info)

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        return self.host.traffic(info, cohort)


def chain(outermost: Algorithm) -> list[Algorithm]:
    """An algorithm and its hosts, from the outside in."""
    found = [outermost]
    while isinstance(found[-1], Wrapper):
        found.append(found[-1].host)
    return found


def resolve(outermost: Algorithm, depth: int, name: str) -> Work:
    """The work `name` of the algorithm at `depth` of the chain, inside all the wrappers around it."""
    owners = chain(outermost)
    work: Work = getattr(owners[depth], name)
    for wrapper in reversed(owners[:depth]):
        assert isinstance(wrapper, Wrapper)
        work = wrapper.around(work)
    return work


class Averaging:
    """A weighted mean of parameters that come one by one; whole-number buffers come from the first."""

    def __init__(self) -> None:
        self._total = 0.0
        self._sums: list[Tensor] = []
        self._first: Params = {}
        self._floating: list[str] = []

    def add(self, theta: Params, weight: float) -> None:
        """Count one more; nothing of it is kept."""
        if not self._total:
            self._floating = [k for k, v in theta.items() if v.is_floating_point()]
            self._sums = [torch.zeros_like(theta[k]) for k in self._floating]
            self._first = {k: v if k in self._floating else v.clone() for k, v in theta.items()}
            self._first |= dict(zip(self._floating, self._sums, strict=True))
        if self._sums:
            torch._foreach_add_(self._sums, [theta[k] for k in self._floating], alpha=weight)
        self._total += weight

    def value(self) -> Params:
        """The mean of what was added."""
        means = torch._foreach_div(self._sums, self._total) if self._sums else []
        return self._first | dict(zip(self._floating, means, strict=True))


def average(models: Mapping[int, Params], weights: Mapping[int, float]) -> Params:
    """The weighted mean of parameters, summed in party order; whole-number buffers come from the first party."""
    mean = Averaging()
    for i in sorted(models):
        mean.add(models[i], weights[i])
    return mean.value()
