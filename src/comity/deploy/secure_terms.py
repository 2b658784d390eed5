"""What the server and all sites of a run know about its secure aggregation: which methods can have
it, how a reply becomes one set of tensors, and the terms of a call.

Both sides compute the terms of a call by themselves. They contain a digest of everything that the
server told the sites: the settings, the description of all parties, and the message of the call.
Sites that were told different things refuse each other's keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import torch

from comity.algorithms.dp import Dp
from comity.base.call import CallId
from comity.base.declared import resolve_field_type
from comity.base.record import Model, Params, is_record_type, payload
from comity.core.algorithm import AnyAlgorithm
from comity.core.party import Info
from comity.core.signature import fields_on_wire, party_functions, signature
from comity.core.wrapper import chain
from comity.deploy.messages import SecureCall
from comity.errors import UsageError
from comity.privacy.secagg import (
    Encoding,
    Layout,
    MaskedReply,
    Terms,
    check_only_averages,
    least_threshold,
)
from comity.privacy.secagg.masks import digest
from comity.privacy.secagg.terms import LEAST_HONEST
from comity.runs import config
from comity.runs.config import Experiment
from comity.runs.context import PartyInfo

BETWEEN = "/"
"""Between the field of a reply and the name of a tensor in it."""


def is_silent(algorithm: AnyAlgorithm, depth: int, function: str) -> bool:
    """Whether nothing leaves with the reply of a party function."""
    return not fields_on_wire(signature(algorithm, depth, function).reply)


def averaged_type(algorithm: AnyAlgorithm, depth: int, function: str) -> type | None:
    """The type of the replies of a party function whose replies a round averages; None if they are
    no records of parameters.
    """
    kind = signature(algorithm, depth, function).reply
    if depth != len(chain(algorithm)) - 1 or not is_record_type(kind) or not fields(kind):
        return None
    holds_parameters = all(resolve_field_type(kind, field) == Params for field in fields(kind))
    return kind if holds_parameters else None


class PartyNoise(NamedTuple):
    """The noise of dp with level=party, of which each site adds a share to its reply."""

    noise: float
    """σ, the standard deviation on the sum, in units of `clip`."""
    clip: float
    """The largest Euclidean norm of a site's change of the model."""


def party_noise(algorithm: AnyAlgorithm) -> PartyNoise | None:
    """The noise that hides sites in a sum of their replies; None without it."""
    return next(
        (
            PartyNoise(layer.sigma, layer.clip)
            for layer in chain(algorithm)
            if isinstance(layer, Dp) and layer.level == "party"
        ),
        None,
    )


def is_private(algorithm: AnyAlgorithm, experiment: Experiment) -> bool:
    """Whether a method bounds what its replies tell the server about a record."""
    if any(layer.traits.protects_records for layer in chain(algorithm)):
        return True
    return experiment.secure_aggregation and party_noise(algorithm) is not None


def check_can_be_secure(algorithm: AnyAlgorithm, name: str) -> None:
    """Raise UsageError if a method needs more of the replies than their mean.

    A method whose parties send nothing passes.
    """
    noise = party_noise(algorithm)
    if noise is None:
        check_only_averages(algorithm, name)
    elif not isinstance(algorithm, Dp) or not noise.noise:
        raise UsageError(
            f"{name} cannot have secure aggregation: dp with level=party must be the last wrapper"
            " there, and its noise above 0."
        )
    else:
        check_only_averages(algorithm.host, name)  # the sites add the noise
        _check_sends_models(algorithm, name)
    for depth, function in party_functions(algorithm):
        if not is_silent(algorithm, depth, function) and not averaged_type(
            algorithm, depth, function
        ):
            raise UsageError(
                f"{name} cannot have secure aggregation: the server reads what each party replies"
                f" to {function}, which is not averaged."
            )


def _check_sends_models(algorithm: AnyAlgorithm, name: str) -> None:
    """Raise UsageError if replies are no models, of which the change is clipped and gets noise."""
    for depth, function in party_functions(algorithm):
        kind = averaged_type(algorithm, depth, function)
        if kind is not None and (kind, signature(algorithm, depth, function).message) != (
            Model,
            Model,
        ):
            raise UsageError(
                f"{name} cannot have secure aggregation: dp with level=party hides changes of"
                f" models, and parties reply something else to {function}."
            )


def check_only_floating(algorithm: AnyAlgorithm, info: Info) -> None:
    """Raise UsageError if integers would be averaged, as the counters of BatchNorm."""
    method = chain(algorithm)[-1]
    private_names = getattr(method, "private_names", None)
    private = private_names(info.task) if private_names else info.task.private
    for name, dtype in info.task.dtypes.items():
        if name not in private and not dtype.is_floating_point:
            raise UsageError(
                f"Secure aggregation averages floating-point numbers, and {name} of"
                f" {info.task.network.name} holds integers: use --bn none, or fedbn."
            )


def flat_reply(reply: Any) -> Params:
    """The tensors of all fields of a reply."""
    return {
        f"{field.name}{BETWEEN}{name}": value
        for field in fields(reply)
        for name, value in getattr(reply, field.name).items()
    }


def summed_tensors(reply: Any, message: Any, noise: PartyNoise | None) -> Params:
    """The tensors of a reply that are added up: with noise, its change of the received model."""
    tensors = flat_reply(reply)
    if noise is None:
        return tensors
    received = flat_reply(message)
    return {name: value - received[name] for name, value in tensors.items()}


def joined_reply(kind: type, tensors: Mapping[str, torch.Tensor]) -> Any:
    """A reply of a type from the tensors of all its fields. Raises UsageError for other fields."""
    values: dict[str, Params] = {field.name: {} for field in fields(kind)}
    for full_name, value in tensors.items():
        field, _, name = full_name.partition(BETWEEN)
        if field not in values:
            raise UsageError(f"{kind.__name__} has no field called {field[:100]!r}.")
        values[field][name] = value
    return kind(**values)


def meta_reply(kind: type, tensors: Mapping[str, list[int]]) -> Any:
    """A reply of a type with tensors of these shapes, without content."""
    if any(side < 0 for shape in tensors.values() for side in shape):
        raise UsageError("A shape in a reply is negative.")
    return joined_reply(
        kind,
        {
            name: torch.empty(shape, dtype=torch.float32, device="meta")
            for name, shape in tensors.items()
        },
    )


def overhead_of(message: object) -> int:
    """The bytes of a site's message in secure aggregation, without those of the reply in it."""
    if not isinstance(message, MaskedReply):
        return payload(message)
    reply = message.values.nbytes - message.values.element_size()  # all but the weight
    return payload(message) - reply


def layout_of(tensors: Mapping[str, Iterable[int]]) -> Layout:
    """The layout of tensors with these shapes."""
    return Layout(tuple((name, tuple(tensors[name])) for name in sorted(tensors)))


@dataclass(frozen=True)
class SecureRun:
    """What does not change from call to call in a run with secure aggregation.

    Arguments:
        run: the run's name
        experiment: the settings
        parties: the descriptions of all parties, as the server sent them to every site
        roster: the names of the sites in each sum, in ascending order
        noise: the noise that the sites add, if there is any
    """

    run: str
    experiment: Experiment
    parties: Mapping[str, PartyInfo]
    roster: tuple[str, ...]
    noise: PartyNoise | None = None

    def weights(self, by_samples: bool) -> dict[str, float]:
        """The weight of each site: its number of training samples, or 1."""
        return {
            name: float(self.parties[name].train) if by_samples else 1.0 for name in self.roster
        }

    def terms(self, head: SecureCall, body: bytes, layout: Layout) -> Terms:
        """The terms of a call.

        Arguments:
            head: the request for the call
            body: the encoded message of the call
            layout: names and shapes of the tensors in a reply
        """
        if self.noise and head.by_samples:
            raise UsageError("With noise of the sites all of them count alike in a mean.")
        descriptions = {name: asdict(info) for name, info in self.parties.items()}
        party_table = digest(
            "comity secure call",
            config.write(self.experiment),
            json.dumps(descriptions),
            str(head.first),
            str(head.by_samples),
            body,
        )
        return Terms(
            self.run,
            CallId(*head.call),
            party_table.hex(),
            self.roster,
            head.threshold,
            head.colluders,
            self._encoding(head, layout),
        )

    def _encoding(self, head: SecureCall, layout: Layout) -> Encoding:
        """How replies are written as integers."""
        sites = len(self.roster)
        if self.noise is None:
            largest_value = self.experiment.secure_aggregation_range
            scale = Encoding.largest_scale(largest_value, sites)
            largest_weight = max(self.weights(head.by_samples).values())
            return Encoding(layout, largest_value, scale, largest_weight)
        noise, clip = self.noise
        scale = Encoding.scale_with_noise(
            clip, noise, layout.size, sites, head.threshold, head.colluders
        )
        return Encoding(layout, clip, scale, noise=noise)


def share_of(sites: int, share: float) -> int:
    """The smallest number of sites that is at least this share of them."""
    return math.ceil(round(share * sites, 9))


def strictest_threshold(sites: int, thresholds: Iterable[float], colluders: int) -> int:
    """The least threshold that all sites accept.

    Arguments:
        sites: the number of sites
        thresholds: the threshold that each site requires, as a share of the sites
        colluders: how many sites may collude with the server
    """
    required = (share_of(sites, share) for share in thresholds)
    return max([least_threshold(sites, colluders), *required])


def least_sites(colluders: int) -> int:
    """The fewest sites that can have secure aggregation with so many colluders among them."""
    return colluders + LEAST_HONEST
