"""The server's side of a run before it starts: the method and the information about parties. It
needs no data.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from comity import algorithms
from comity.base.key import Key
from comity.core.algorithm import AnyAlgorithm
from comity.core.party import Info
from comity.core.server import cohort
from comity.core.wrapper import chain
from comity.errors import UsageError, unknown
from comity.metrics.calibration import check_calibrate
from comity.models.referenced_weights import WeightsReference
from comity.names import display_name
from comity.runs.config import Experiment
from comity.runs.context import RunContext
from comity.training.settings import Training


def resolve_method(context: RunContext) -> tuple[AnyAlgorithm, Info]:
    """The method and the information about parties, after checking that the method suits these
    parties.
    """
    experiment = context.experiment
    algorithm = algorithms.compose(experiment.algorithm, experiment.set)
    info = _info(context)
    if any(peers is not None for peers in info.peers) and not any(
        part.traits.hears_peers for part in chain(algorithm)
    ):
        raise UsageError(
            f"In {display_name(experiment.algorithm)} a party cannot choose its peers: it learns"
            " from everybody or nobody."
        )
    if experiment.min_replies > len(info.names):
        raise UsageError(
            f"min_replies must be at most {len(info.names)}, the number of parties, not"
            f" {experiment.min_replies}."
        )
    check_calibrate(experiment.calibrate, context.party_infos.classes)
    if experiment.init == "random" and experiment.weights:
        raise UsageError(
            "init=random draws all weights, and weights names a file of them: leave out one of the"
            " two."
        )
    if experiment.init == "own":
        _check_own_start(algorithm, info, display_name(experiment.algorithm))
    info = replace(info, cohort=_cohort(experiment, info))
    algorithm.check(info)
    if info.newcomers:
        algorithm.check(_with_newcomers(context, info))  # they must fit, too
    return algorithm, info


def _check_own_start(algorithm: AnyAlgorithm, info: Info, name: str) -> None:
    """Refuse init=own if the method cannot use it, or the network has no random weights."""
    if why := next(
        (a.traits.common_start for a in chain(algorithm) if a.traits.start_weights is None), ""
    ):
        raise UsageError(f"init=own is not supported: {name} {why}.")
    if algorithm.traits.tried_rounds:
        raise UsageError(
            f"init=own is not supported by {name}: its pilot rounds would restart every party from"
            " new weights."
        )
    for task in {id(task): task for task in info.tasks}.values():
        first, second = (task.network.init(Key(0).fold(text)) for text in ("one", "another"))
        if all(torch.equal(first[k], second[k]) for k in first):
            raise UsageError(
                f"init=own has no effect: {task.network.name} has the same initial weights for all"
                " seeds."
            )


def _info(context: RunContext) -> Info:
    roster = context.roster
    names = roster.names[: roster.from_start]
    reference = WeightsReference.read(context.experiment.weights)
    return Info(
        names=names,
        sizes=tuple(context.party_infos.parties[name].train for name in names),
        tasks=tuple(context.task(name) for name in names),
        training=_shared_training(context),
        shape=context.party_infos.shape,
        newcomers=roster.names[roster.from_start :],
        rounds=context.experiment.rounds,
        peers=tuple(_peers(context, name) for name in roster.names),
        places=roster.places,
        whole=len(roster.invited),
        shared_columns=context.party_infos.shared_columns,
        patients=tuple(context.party_infos.parties[name].patients for name in roster.names),
        secure_sums=context.experiment.secure_aggregation,
        weights_file=reference.size if reference else 0,
    )


def _with_newcomers(context: RunContext, info: Info) -> Info:
    """The information if the newcomers took part from the start."""
    names = context.roster.names
    sizes = tuple(context.party_infos.parties[name].train for name in names)
    tasks = tuple(context.task(name) for name in names)
    return replace(info, names=names, sizes=sizes, tasks=tasks, newcomers=(), peers=())


def _shared_training(context: RunContext) -> Training:
    """The training settings of the server, with batches that every network supports."""
    norms = any(context.task(name).network.norms for name in context.roster.names)
    return replace(context.training, min_batch=2 if norms else 1, augment=context.augment)


def _peers(context: RunContext, party: str) -> tuple[int, ...] | None:
    """The peers that a party chose, by number, of those that take part from the start; None if it
    chose none.
    """
    settings = context.experiment.party.get(party)
    if settings is None or settings.peers is None:
        return None
    roster = context.roster
    for peer in settings.peers:
        if peer not in roster.invited:
            raise unknown("party called", peer, roster.invited)
    names = roster.names[: roster.from_start]
    return tuple(i for i, name in enumerate(names) if name in settings.peers and name != party)


def _cohort(experiment: Experiment, info: Info) -> int:
    """The size of a cohort: of the last nonempty one, if parties were left out."""
    root = Key.root(experiment.seed)
    sizes = (
        len(cohort(root, experiment.participation, info, t))
        for t in range(experiment.rounds, 0, -1)
    )
    return next((size for size in sizes if size), 1)
