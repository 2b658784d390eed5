"""What secure aggregation costs, and what it leaves the server to see: for `comity plan` before a
run, and for `comity disclose` after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from comity.base.record import payload
from comity.core.party import Traffic
from comity.core.release import planned_calls
from comity.deploy.policy import SitePolicy
from comity.deploy.secure_server import EXPERIMENTAL, Limits
from comity.deploy.secure_terms import (
    check_can_be_secure,
    check_only_floating,
    is_silent,
    least_sites,
    overhead_of,
    strictest_threshold,
)
from comity.errors import UsageError
from comity.names import display_name
from comity.privacy.secagg import (
    Inbox,
    MaskedReply,
    RevealedShares,
    RosterKeys,
    Signatures,
    SiteKeys,
    SiteShares,
    Survivors,
    SurvivorSignature,
)
from comity.privacy.secagg.shamir import SHARE
from comity.privacy.secagg.site import BOTH_SHARES
from comity.runs.build import SimulatedRun
from comity.studies.plan import Plan
from comity.wire.sealing import KEY, TAG

SIGNATURE = 256
"""Bytes of a signature with RSA of 2048 bits, as by the keys in startup kits."""
NOT_HIDDEN = (
    "Secure aggregation does not hide the mean itself, which sites are in it, how many records each"
    " site has, nor figures of evaluations."
)


class SmallestSum(NamedTuple):
    """The records behind the mean of the fewest sites that the server can learn it of."""

    records: int
    """The training records of all sites in it."""
    share: float
    """The share of them that is one site's own."""


def protocol_traffic(names: Sequence[str], signature: int = SIGNATURE) -> Traffic:
    """The bytes of keys, shares and signatures of one call, for all sites together, if none of
    them drops out.

    Arguments:
        names: the names of the sites
        signature: the bytes of a signature
    """
    traffic = Traffic()
    all_keys = [_keys(name, signature) for name in names]
    signed = {name: _hex(signature) for name in names}
    for name in names:
        shares = {other: _hex(BOTH_SHARES + TAG) for other in names if other != name}
        bytes_up = (
            _keys(name, signature),
            SiteShares(name, shares),
            MaskedReply(name, torch.zeros(1, dtype=torch.int32)),
            SurvivorSignature(name, _hex(signature)),
            RevealedShares(name, dict.fromkeys(names, _hex(SHARE)), {}),
        )
        received = (
            RosterKeys(all_keys),
            Inbox(shares),
            Survivors(list(names)),
            Signatures(signed),
        )
        traffic += Traffic(up=sum(map(overhead_of, bytes_up)), down=sum(map(payload, received)))
    return traffic


def _keys(name: str, signature: int) -> SiteKeys:
    return SiteKeys(name, _hex(KEY), _hex(KEY), _hex(KEY), _hex(KEY), _hex(signature))


def _hex(length: int) -> str:
    """As many hexadecimal digits as that number of bytes has."""
    return "0" * (2 * length)


def default_limits(sites: int) -> Limits:
    """The terms of secure aggregation by site policies as they come.

    Raises `UsageError` if there are too few sites.
    """
    colluders, share = SitePolicy.colluders, SitePolicy.threshold
    threshold = strictest_threshold(sites, [share], colluders)
    if threshold > sites:
        raise UsageError(
            f"Secure aggregation of {sites} sites cannot withstand {colluders} colluder, as site"
            f" policies require: at least {least_sites(colluders)} sites must take part."
        )
    return Limits(threshold, colluders)


def smallest_sum(records: int, others: Iterable[int], threshold: int) -> SmallestSum:
    """The records behind the mean of the fewest sites: one site and the smallest other ones.

    Arguments:
        records: the training records of the site
        others: those of each other site
        threshold: the least number of sites in a mean
    """
    total = records + sum(sorted(others)[: threshold - 1])
    return SmallestSum(total, records / total)


def describe_limits(sites: int, limits: Limits) -> str:
    """What the server learns, in one sentence."""
    dropouts = sites - limits.threshold
    return (
        f"the server learns the mean of at least {limits.threshold} of {sites} sites in a round,"
        f" and no single reply, as long as at most {limits.colluders} of them"
        f" {'colludes' if limits.colluders == 1 else 'collude'} with it; {dropouts or 'none'} may"
        " drop out"
    )


def secure_plan(job: SimulatedRun, costs: Plan) -> tuple[Plan, list[str]]:
    """The cost of a run with the messages of secure aggregation, and sentences about what the
    server learns.

    Arguments:
        job: the run, whose parties stand for sites
        costs: its cost without secure aggregation
    """
    check_can_be_secure(job.algorithm, display_name(job.experiment.algorithm))
    check_only_floating(job.algorithm, job.info)
    names, sizes = job.info.names, job.info.sizes
    limits = default_limits(len(names))
    calls = Counter(
        stage
        for stage, depth, function in planned_calls(job.algorithm, job.info.training)
        if not is_silent(job.algorithm, depth, function)
    )
    once = protocol_traffic(names)
    in_round = _times(once, calls["round"])
    outside = _times(once, calls["start"] + calls["finish"])
    with_protocol = replace(
        costs,
        start=costs.start + _times(once, calls["start"]),
        per_round=costs.per_round + in_round,
        total=costs.total + _times(in_round, job.experiment.rounds) + outside,
    )
    largest = max(sizes)
    others = sorted(sizes)[:-1]
    fewest = smallest_sum(largest, others, limits.threshold)
    sentences = [
        f"secure aggregation, by site policies as they come: {describe_limits(len(names), limits)}",
        (
            f"behind the mean of the fewest sites there are {fewest.records:,} training records if"
            f" the largest site is among them, of which {fewest.share:.0%} are its own"
        ),
        (
            f"of the bytes of a round, {in_round.up:,} up and {in_round.down:,} down are keys,"
            " shares and signatures; each call takes five exchanges instead of one"
        ),
        NOT_HIDDEN,
        EXPERIMENTAL,
    ]
    return with_protocol, sentences


def _times(traffic: Traffic, count: int) -> Traffic:
    return Traffic(traffic.up * count, traffic.down * count, traffic.peer * count)
