"""The cost of a run before it starts: bytes from closed forms, seconds from one round that is tried
with a few parties.
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
from comity.models.named_files import without_weights
from comity.models.weight_files import as_safetensors
from comity.runs.build import SimulatedRun
from comity.runs.config import Experiment
from comity.runs.planned_absences import PlannedAbsences
from comity.runs.server_run import Quiet


@dataclass(frozen=True)
class Plan:
    """The expected cost of a run."""

    parameters: int
    model_bytes: int
    start: Traffic
    per_round: Traffic
    """The bytes of the largest of the counted rounds."""
    total: Traffic
    counted_rounds: int
    """The number of rounds counted one by one. If these are not all, `total`, `steps` and the
    seconds are scaled from them.
    """
    steps: int
    data_bytes: int
    state_bytes: int
    message_bytes: int
    train_seconds: float
    evaluate_seconds: float


def traffic(job: SimulatedRun) -> tuple[Traffic, list[Traffic]]:
    """Return the bytes in closed form: before round 1, and of each round.

    The last round includes what follows it, except for newcomers.
    """
    return _before(job), _of_rounds(
        job, {t: job.cohort(t) for t in range(1, job.experiment.rounds + 1)}
    )


def _before(job: SimulatedRun) -> Traffic:
    """Return the bytes before round 1, with those of pilot rounds."""
    tried = (
        job.algorithm.accounting.traffic(replace(job.info, round=t), job.cohort(t))
        for t in job.algorithm.traits.tried_rounds
    )
    return sum(tried, job.algorithm.accounting.start_traffic(job.info))


def _of_rounds(job: SimulatedRun, cohorts: Mapping[int, list[int]]) -> list[Traffic]:
    """Return the bytes of these rounds; the last of them must be the last of the run."""
    # An empty cohort sends nothing.
    rounds = [
        job.algorithm.accounting.traffic(replace(job.info, round=t), cohort)
        if cohort
        else Traffic()
        for t, cohort in cohorts.items()
    ]
    rounds[-1] += job.algorithm.accounting.finish_traffic(job.info)
    return rounds


def _total(job: SimulatedRun, start: Traffic, rounds: list[Traffic]) -> Traffic:
    """Return the bytes of the whole run."""
    finish = job.algorithm.accounting.finish_traffic(job.info)
    counted_traffic = sum(rounds, Traffic())
    scaled = {
        kind: job.cost.in_all_rounds(n - getattr(finish, kind))
        for kind, n in vars(counted_traffic).items()
    }
    return (
        start
        + Traffic(**scaled)
        + finish
        + (job.algorithm.accounting.join_traffic(job.info) if job.info.newcomers else Traffic())
    )


@dataclass(frozen=True)
class Memory:
    """Bytes of memory of a run, without torch itself: data, party states, messages of a round."""

    data: int
    states: int
    messages: int


def memory_of(job: SimulatedRun) -> Memory:
    """Count the memory of a run."""
    samples = [part for p in job.parties for part in (p.data.train, p.data.validation, p.data.test)]
    largest = _largest(_of_rounds(job, job.cost.counted_cohorts))
    return Memory(
        data=sum(part.x.nbytes + part.y.nbytes for part in samples),
        states=payload(Site(job.algorithm, job.parties[0], job.root).mine) * len(job.parties),
        messages=largest.up + largest.peer,
    )


def _largest(rounds: list[Traffic]) -> Traffic:
    return max(rounds, key=lambda r: r.up + r.down + r.peer)


def plan(job: SimulatedRun) -> Plan:
    """Return the expected cost of a run; it tries one round to measure the time."""
    start = _before(job)
    rounds = _of_rounds(job, job.cost.counted_cohorts)
    task = job.info.task
    memory = memory_of(job)
    train, evaluate = _try(job)
    return Plan(
        parameters=sum(torch.Size(shape).numel() for shape, _ in task.shapes.values()),
        model_bytes=task.bytes(),
        start=start,
        per_round=_largest(rounds),
        total=_total(job, start, rounds),
        counted_rounds=len(rounds),
        steps=job.cost.steps(),
        data_bytes=memory.data,
        state_bytes=memory.states,
        message_bytes=memory.messages,
        train_seconds=train,
        evaluate_seconds=evaluate,
    )


def sent_weights(experiment: Experiment) -> int:
    """Return the bytes of initial weights that each site of a federation would be sent; 0 if they
    are in no file.
    """
    file = without_weights(experiment.model)[1] or experiment.weights
    return len(as_safetensors(file)) if file else 0


TRIED = 16  # the most parties that are batched in the tried round


def _try(job: SimulatedRun) -> tuple[float, float]:
    """Return the seconds of training and of evaluation in all rounds.

    They are scaled from one round with the largest party, or the largest parties where the engine
    batches them.
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
        "secure_aggregation": False,
    }
    local = job.experiment.but(**where)
    trial = _round_with(replace(job, experiment=local, absences=PlannedAbsences()), sorted(largest))
    workers = job.experiment.workers or 1
    tried = sum(sizes[i] for i in largest)
    total = job.cost.in_all_rounds(
        sum(sizes[i] for cohort in job.cost.counted_cohorts.values() for i in cohort)
    )
    total += sum(sizes[i] for t in job.algorithm.traits.tried_rounds for i in job.cohort(t))
    scale = total / tried / workers if trial.steps else job.experiment.rounds
    times = job.experiment.rounds // job.experiment.eval_every * job.experiment.eval_share + 1
    evaluations = times * len(sizes) / len(largest) / workers
    return trial.train * scale, trial.evaluate * evaluations


@dataclass(frozen=True)
class _Trial:
    """The seconds of one round, and the gradient steps of its parties."""

    train: float
    evaluate: float
    steps: int


def _round_with(job: SimulatedRun, ids: list[int]) -> _Trial:
    """Run one round with these parties only."""
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
        training_end = time.perf_counter()
        messages = {
            i: Message(job.algorithm.message_for(s, i), server.versions.get(i)) for i in ids
        }
        evaluated_by = dict(engine.evaluate(messages, EvaluationRequest(1, False)))
        assert len(evaluated_by) == len(ids)
        evaluation_end = time.perf_counter()
    finally:
        torch.set_num_threads(threads)
    return _Trial(training_end - begin, evaluation_end - training_end, server.steps)
