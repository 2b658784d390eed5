"""LDP: Duchi, Jordan, Wainwright, Local Privacy and Statistical Minimax Rates, FOCS 2013. A
wrapper.

Idea: what parties send of their representations is bounded, and gets noise before it leaves: nobody
needs to be trusted.

Class means, level=row: (Σ_{y=c} clip_C(z), C·n_c) + N(0, (σ·√2·C)²) for each class c, and their
quotient. Class means, level=party: clip_C(z̄_c) + N(0, (σ·2·C·√K)²) for each class, absent ones as
0; counts do not leave.
Rows: clip_½(z) + N(0, σ²), ADCOL's own noise=gauss_l2.

At a glance: personal = what the host's is; exchanged = what the host exchanges, bounded and with
noise; kept = what the host keeps; steps = the host's.
Symbols: C = clip; σ = noise; z = a row, that is what the party's model makes of a sample; n_c =
samples of class c; K = classes.
Deviations: the noise is Gaussian (Dwork and Roth, The Algorithmic Foundations of Differential
Privacy, 2014). A row is protected given the model. The sample has trained that model, so its record
is protected only if the model tells of no record: relay+ldp+dp. With means, relay's observations
are the class means again, which costs nothing more: n_avg and min_count have no effect.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any, Literal

from comity.components.hidden_means import SendsMeans, release
from comity.core import *
from comity.core.release import NOTHING, PartyFacts, Releases
from comity.core.wrapper import as_host
from comity.privacy.guard import hide_samples
from comity.privacy.options import ROW, TRAINED_OPENLY, PrivateRows
from comity.training.requests import HiddenMeans, Level

HIDES = frozenset({"representations", "means", "class counts"})
UNBOUNDED = "how far a record moves that nobody bounds"


@algorithm
class Ldp(Wrapper[None]):
    host: AnyAlgorithm
    level: Level = option(
        "row", "whom it protects: a row (with +dp around it, the record), or all that a party has"
    )
    noise: float | Literal["auto"] = option(
        "auto",
        "σ, in units of what one row or party can change; auto: as little as the run's budget"
        " allows",
        minimum=0,
    )
    clip: float = option(
        1.0, "C, the norm of a row, or with level=party of a class mean, at most", above=0
    )

    @classmethod
    def check_host(cls, host: AnyAlgorithm, name: str, wrapper: str) -> None:
        if others := sorted(host.traits.leaves - HIDES, reverse=True):
            raise UsageError(
                f"{wrapper} is not supported with {name}: its parties send {LEAVES[others[0]]},"
                " which this noise does not hide."
            )
        if isinstance(host, Wrapper):
            raise UsageError(
                f"{wrapper} goes around a method itself, and others around it, as in"
                f" relay+{wrapper}+dp."
            )
        if not host.traits.leaves:
            raise UsageError(
                f"{wrapper} is not supported with {name}: its parties send nothing that could be"
                " hidden."
            )
        if not isinstance(host, SendsMeans | PrivateRows):
            content = LEAVES[min(host.traits.leaves)]
            raise UsageError(
                f"{wrapper} is not supported with {name}: its parties send {content}, and"
                f" {UNBOUNDED}."
            )
        if isinstance(host, PrivateRows) and host.noise != "none":
            raise UsageError(
                f"{name} has noise={host.noise} already: leave that out, or {wrapper}."
            )
        if getattr(host, "guarded", 0) or getattr(host, "secret", 0):
            raise UsageError(
                f"{wrapper} is not supported with guarded or secret samples of {name}: the noise is"
                " for all of them."
            )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.host, PrivateRows):
            return
        if self.level == "party" or self.clip != 1.0:
            raise UsageError(
                "ldp's level=party and clip are for class means: rows are hidden one by one, and"
                " bounded by ½."
            )
        if self.noise and self.noise != "auto" and self.host.noise == "none":
            object.__setattr__(
                self, "host", self.host.with_row_noise(self.noise)
            )  # the method's own noise, which its loss knows of

    @property
    def sigma(self) -> float:
        if self.noise == "auto":
            raise UsageError(
                "ldp needs to know how much noise: give a budget (--budget epsilon=8,delta=1e-5),"
                " or noise=1."
            )
        return self.noise

    def wrap_party(self, party: Party, extra: None, class_counts: list[int] | None = None) -> Party:
        if not isinstance(self.host, SendsMeans):
            return party
        samples = party.private.samples if party.private else party.data.train
        how = HiddenMeans(
            samples, self.level, self.clip, self.sigma, [] if class_counts is None else class_counts
        )
        return replace(party, data=hide_samples(party.data), hidden_means=how)

    def wrap_function(self, function: PartyFunction) -> PartyFunction:
        @wraps(function)
        async def noisy_function(
            state: Wrapped[None], message: Any, party: Party, key: Key
        ) -> tuple[Wrapped[None], Any]:
            class_counts: list[int] = []
            host_state, reply = await function(
                state.host, message, self.wrap_party(party, None, class_counts), key
            )
            declared = (
                [party.task.classes]
                if isinstance(self.host, SendsMeans) and function.__name__ in self.host.means_in
                else []
            )
            if reply is not None and class_counts != declared:
                raise UsageError(
                    f"{function.__name__} sends other means than its method declares (means_in):"
                    f" {class_counts}, not {declared}."
                )
            return Wrapped(host_state, None), reply

        return noisy_function

    # -- declarations ------------------------------------------------------------------------------

    traits = Traits(start_weights="", not_private="", bytes_formula="the host's")

    def adjust_traits(self, declared: Traits) -> Traits:
        return as_host(super().adjust_traits(declared), self.host.traits)


@accounts_for(Ldp)
class LdpAccounting(WrapperAccounting[Ldp]):
    def warnings(self, info: Info) -> list[str]:
        return (
            []
            if self.method.noise
            else ["with noise=0 nothing is hidden: what leaves is clipped, and that is all."]
        )

    def privacy_warnings(self, info: Info) -> list[str]:
        if isinstance(self.method.host, PrivateRows):
            return []  # it says so itself
        if self.method.level == "row":
            return [f"level=row: {ROW}."]
        return [f"level=party: it {TRAINED_OPENLY}"]

    def covers(self, function: str, releases: Releases, facts: PartyFacts) -> Releases:
        if (
            not isinstance(self.method.host, SendsMeans)
            or function not in self.method.host.means_in
        ):
            return releases
        noise = [
            release(self.method.level, self.method.clip, self.method.sigma, facts.info.task.classes)
        ]
        fields = self.method.host.means_in[function]
        counts = (
            NOTHING if self.method.level == "party" else noise
        )  # which classes there are is then not told at all
        return {
            **releases,
            **dict.fromkeys(fields.means, noise),
            **dict.fromkeys(fields.classes, counts),
        }
