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
from typing import Any

import torch

from comity.algorithms.dp import Dp
from comity.base.call import CallId
from comity.base.declared import resolve_field_type
from comity.base.record import Params, is_record_type, payload
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


def check_can_be_secure(algorithm: AnyAlgorithm, name: str) -> None:
    """Raise UsageError if a method needs more of the replies than their mean.

    A method whose parties send nothing passes.
    """
    if any(isinstance(layer, Dp) and layer.level == "party" for layer in chain(algorithm)):
        raise UsageError(
            f"{name} cannot have secure aggregation: the server adds the noise of dp level=party to"
            " replies that it reads; use level=record, whose noise the sites add."
        )
    check_only_averages(algorithm, name)
    for depth, function in party_functions(algorithm):
        if not is_silent(algorithm, depth, function) and not averaged_type(
            algorithm, depth, function
        ):
            raise UsageError(
                f"{name} cannot have secure aggregation: the server reads what each party replies"
                f" to {function}, which is not averaged."
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
    """

    run: str
    experiment: Experiment
    parties: Mapping[str, PartyInfo]
    roster: tuple[str, ...]

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
        sites = len(self.roster)
        largest_value = self.experiment.secure_aggregation_range
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
            Encoding(
                layout,
                largest_value,
                Encoding.largest_scale(largest_value, sites),
                max(self.weights(head.by_samples).values()),
            ),
        )


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
