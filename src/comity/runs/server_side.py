"""The server's half of a run before it begins: the method, and what everybody may know. It needs no
data.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from comity import algorithms
from comity.core.algorithm import AnyAlgorithm
from comity.base.key import Key
from comity.core.party import Info
from comity.core.server import cohort
from comity.training.settings import Training
from comity.core.wrapper import chain
from comity.errors import UsageError, unknown
from comity.runs.config import Experiment
from comity.runs.context import RunContext
from comity.names import display_name


def resolve_method(common: RunContext) -> tuple[AnyAlgorithm, Info]:
    """The method and what everybody may know, once it is checked that the method suits these
    parties.
    """
    experiment = common.experiment
    algorithm = algorithms.compose(experiment.algorithm, experiment.set)
    info = _info(common)
    if any(wish is not None for wish in info.peers) and not any(
        a.traits.hears_peers for a in chain(algorithm)
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
    if experiment.init == "own":
        _check_own_start(algorithm, info, display_name(experiment.algorithm))
    info = replace(info, cohort=_cohort(experiment, info))
    algorithm.check(info)
    if info.newcomers:
        algorithm.check(_with_newcomers(common, info))  # they must fit, too
    return algorithm, info


def _check_own_start(algorithm: AnyAlgorithm, info: Info, name: str) -> None:
    """Refuse weights of one's own where a method cannot use them, or where there are none."""
    if why := next((a.traits.common_start for a in chain(algorithm) if a.traits.start_weights is None), ""):
        raise UsageError(f"init=own cannot be: {name} {why}.")
    if algorithm.traits.tried_rounds:
        raise UsageError(
            f"init=own cannot be: {name} tries rounds before the first, each of which would begin"
            " anew."
        )
    for task in {id(task): task for task in info.tasks}.values():
        one, another = (task.network.init(Key(0).fold(text)) for text in ("one", "another"))
        if all(torch.equal(one[k], another[k]) for k in one):
            raise UsageError(
                f"init=own cannot be: {task.network.name} has the same first weights, whatever they"
                " are drawn from."
            )


def _info(common: RunContext) -> Info:
    seats = common.seats
    there = seats.names[: seats.from_start]
    return Info(
        names=there,
        sizes=tuple(common.introductions.parties[name].train for name in there),
        tasks=tuple(common.task(name) for name in there),
        training=_shared_training(common),
        shape=common.introductions.shape,
        newcomers=seats.names[seats.from_start :],
        rounds=common.experiment.rounds,
        peers=tuple(_peers(common, name) for name in seats.names),
        places=seats.places,
        whole=len(seats.invited),
        shared_columns=common.introductions.shared_columns,
    )


def _with_newcomers(common: RunContext, info: Info) -> Info:
    """What would be known if the newcomers had been there from the start."""
    names = common.seats.names
    sizes = tuple(common.introductions.parties[name].train for name in names)
    tasks = tuple(common.task(name) for name in names)
    return replace(info, names=names, sizes=sizes, tasks=tasks, newcomers=(), peers=())


def _shared_training(common: RunContext) -> Training:
    """How the server trains what it trains itself: as the settings say, with batches that every
    network can bear.
    """
    norms = any(common.task(name).network.norms for name in common.seats.names)
    return replace(common.training, min_batch=2 if norms else 1, augment=common.augment)


def _peers(common: RunContext, party: str) -> tuple[int, ...] | None:
    """Whom a party chose to learn from, by number, of those that take part from the start; None if
    it chose nobody.
    """
    own = common.experiment.party.get(party)
    if own is None or own.peers is None:
        return None
    seats = common.seats
    for peer in own.peers:
        if peer not in seats.invited:
            raise unknown("party called", peer, seats.invited)
    there = seats.names[: seats.from_start]
    return tuple(i for i, other in enumerate(there) if other in own.peers and other != party)


def _cohort(experiment: Experiment, info: Info) -> int:
    """How many take part in a round; in the last one, if places of parties that were left out stay
    empty.
    """
    root = Key.root(experiment.seed)
    drawn = (
        len(cohort(root, experiment.participation, info, t))
        for t in range(experiment.rounds, 0, -1)
    )
    return next((many for many in drawn if many), 1)
