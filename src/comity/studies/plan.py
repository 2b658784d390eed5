"""Before a run: what it will send, keep and take, from the closed forms and one round tried with
one party.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from comity.base.call import EvaluationRequest, Message
from comity.base.record import payload
from comity.core.party import Traffic
from comity.engines.site import Site
from comity.runs.build import SimulatedRun
from comity.runs.planned_absences import PlannedAbsences
from comity.runs.server_run import Quiet


@dataclass(frozen=True)
class Plan:
    """What a run will cost."""

    parameters: int
    model_bytes: int
    start: Traffic
    per_round: Traffic
    """The largest of all rounds that were counted."""
    total: Traffic
    counted: int
    """How many rounds were counted one by one; if not all, `total`, `steps` and the seconds are
    scaled from these.
    """
    steps: int
    data_bytes: int
    state_bytes: int
    message_bytes: int
    train_seconds: float
    evaluate_seconds: float


def traffic(job: SimulatedRun) -> tuple[Traffic, list[Traffic]]:
    """Bytes in closed form: before round 1, and of each round; the last has what follows it,
    newcomers excepted.
    """
    return _before(job), _of_rounds(
        job, {t: job.cohort(t) for t in range(1, job.experiment.rounds + 1)}
    )


def _before(job: SimulatedRun) -> Traffic:
    """Bytes before round 1, with the rounds that are tried there."""
    tried = (
        job.algorithm.accounting.traffic(replace(job.info, round=t), job.cohort(t))
        for t in job.algorithm.traits.tried_rounds
    )
    return sum(tried, job.algorithm.accounting.start_traffic(job.info))


def _of_rounds(job: SimulatedRun, cohorts: Mapping[int, list[int]]) -> list[Traffic]:
    """Bytes of each of these rounds, whose last is the run's."""
    # Where nobody is there, nothing is sent.
    rounds = [
        job.algorithm.accounting.traffic(replace(job.info, round=t), drawn) if drawn else Traffic()
        for t, drawn in cohorts.items()
    ]
    rounds[-1] += job.algorithm.accounting.finish_traffic(job.info)
    return rounds


def _total(job: SimulatedRun, start: Traffic, rounds: list[Traffic]) -> Traffic:
    """Bytes of the whole run."""
    finish = job.algorithm.accounting.finish_traffic(job.info)
    counted = sum(rounds, Traffic())
    scaled = {
        kind: job.in_all_rounds(n - getattr(finish, kind)) for kind, n in vars(counted).items()
    }
    return (
        start
        + Traffic(**scaled)
        + finish
        + (job.algorithm.accounting.join_traffic(job.info) if job.info.newcomers else Traffic())
    )


@dataclass(frozen=True)
class Held:
    """Bytes of memory that a run holds beside torch itself: its data, what all parties keep, and
    the messages of a round.
    """

    data: int
    states: int
    messages: int


def held(job: SimulatedRun) -> Held:
    """What a run holds, counted."""
    samples = [part for p in job.parties for part in (p.data.train, p.data.validation, p.data.test)]
    largest = _largest(_of_rounds(job, job.counted))
    return Held(
        data=sum(part.x.nbytes + part.y.nbytes for part in samples),
        states=payload(Site(job.algorithm, job.parties[0], job.root).mine) * len(job.parties),
        messages=largest.up + largest.peer,
    )


def _largest(rounds: list[Traffic]) -> Traffic:
    return max(rounds, key=lambda r: r.up + r.down + r.peer)


def plan(job: SimulatedRun) -> Plan:
    """Count what can be counted and try the rest."""
    start = _before(job)
    rounds = _of_rounds(job, job.counted)
    task = job.info.task
    known = held(job)
    train, evaluate = _try(job)
    return Plan(
        parameters=sum(torch.Size(shape).numel() for shape, _ in task.shapes.values()),
        model_bytes=task.bytes(),
        start=start,
        per_round=_largest(rounds),
        total=_total(job, start, rounds),
        counted=len(rounds),
        steps=job.steps(),
        data_bytes=known.data,
        state_bytes=known.states,
        message_bytes=known.messages,
        train_seconds=train,
        evaluate_seconds=evaluate,
    )


TRIED = 16  # parties that a plan trains together


def _try(job: SimulatedRun) -> tuple[float, float]:
    """Seconds of training and of evaluation in all rounds, scaled from one with the largest party.

    Parties that are trained together are tried together.
    """
    sizes = job.info.sizes
    stacked = job.experiment.engine == "stacked"
    largest = sorted(range(len(sizes)), key=lambda i: -sizes[i])[
        : min(TRIED, job.info.cohort) if stacked else 1
    ]
    where = {
        "engine": "stacked" if stacked else "loop",
        "workers": 1 if stacked else None,
        "gpus": None,
        "partial_sums": False,
    }
    here = job.experiment.but(**where)
    one = _round_with(replace(job, experiment=here, absent=PlannedAbsences()), sorted(largest))
    workers = job.experiment.workers or 1
    tried = sum(sizes[i] for i in largest)
    seen = job.in_all_rounds(sum(sizes[i] for cohort in job.counted.values() for i in cohort))
    seen += sum(sizes[i] for t in job.algorithm.traits.tried_rounds for i in job.cohort(t))
    scale = seen / tried / workers if one.steps else job.experiment.rounds
    often = job.experiment.rounds // job.experiment.eval_every * job.experiment.eval_share + 1
    evaluations = often * len(sizes) / len(largest) / workers
    return one.train * scale, one.evaluate * evaluations


@dataclass(frozen=True)
class _Tried:
    """What one round took: seconds, and gradient steps of the parties."""

    train: float
    evaluate: float
    steps: int


def _round_with(job: SimulatedRun, ids: list[int]) -> _Tried:
    """One round in which these parties take part, and nobody else."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a run
    engine = job.engine()
    server = job.server(engine, Quiet())
    server.sample = lambda t: ids  # type: ignore[method-assign]
    try:
        s = job.algorithm.init_server(job.root.fold("init"), job.info)
        if job.algorithm.traits.shares == "data":
            s = job.algorithm.start(s, server)
        begin = time.perf_counter()
        server.begin(1)
        s = job.algorithm.round(s, server, 1)
        trained = time.perf_counter()
        messages = {
            i: Message(job.algorithm.message_for(s, i), server.versions.get(i)) for i in ids
        }
        evaluated_by = dict(engine.evaluate(messages, EvaluationRequest(1, False)))
        assert len(evaluated_by) == len(ids)
        evaluated = time.perf_counter()
    finally:
        torch.set_num_threads(threads)
    return _Tried(trained - begin, evaluated - trained, server.steps)
