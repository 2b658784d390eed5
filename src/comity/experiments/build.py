"""An experiment made concrete: parties with their tasks and data, the algorithm, and the engine they meet on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch

from comity import algorithms, models
from comity.core.algorithm import AnyAlgorithm
from comity.core.key import Key
from comity.core.ledger import Ledger
from comity.core.net import Net, cohort
from comity.core.party import Info, Party
from comity.core.samples import PartyData, Samples
from comity.core.task import Task, batchnorm_private
from comity.core.wrapper import chain
from comity.data import Federation
from comity.data import load as load_dataset
from comity.data.augment import Augment
from comity.data.dataset import AUTO
from comity.engines.engine import Engine, Scheduler
from comity.engines.loop import LoopEngine, OneByOne
from comity.engines.process import ProcessEngine
from comity.engines.site_store import SiteStore
from comity.engines.stacked.scheduler import SideBySide, gains_by_stacking
from comity.errors import Refusal, unknown
from comity.experiments.config import Experiment
from comity.spec import split


class Progress(Protocol):
    """Whoever watches a run."""

    def begin(self, job: Job, first_round: int) -> None: ...
    def parties(self, count: int) -> None: ...
    def round(self, t: int, accuracy: float | None, ledger: Ledger) -> None: ...
    def end(self) -> None: ...


class Quiet:
    """Nobody watches."""

    def begin(self, job: Job, first_round: int) -> None:
        pass

    def parties(self, count: int) -> None:
        pass

    def round(self, t: int, accuracy: float | None, ledger: Ledger) -> None:
        pass

    def end(self) -> None:
        pass


@dataclass(frozen=True)
class Job:
    """An experiment made concrete: its algorithm, its parties with their tasks, and what everybody may know."""

    experiment: Experiment
    federation: Federation
    algorithm: AnyAlgorithm
    parties: list[Party]
    info: Info

    @cached_property
    def root(self) -> Key:
        """The key of all randomness in the run."""
        return Key.root(self.experiment.seed)

    def cohort(self, t: int) -> list[int]:
        """The parties of round t."""
        return cohort(self.root, self.experiment.participation, self.info, t)

    def cautions(self) -> list[str]:
        """What a user should know before this run, a sentence each."""
        said = [*self.federation.notes]
        said += [f"{self.experiment.algorithm}: {text}" for a in chain(self.algorithm) for text in a.cautions(self.info)]
        if any(a.feature_skew_only for a in chain(self.algorithm)) and (skew := label_skew(self.federation)) > SKEWED:
            said.append(
                f"{self.experiment.algorithm} is meant for parties whose inputs differ, but here their labels do "
                f"(on average {skew:.0%} of a party's labels would have to change to match the others'): expect it to lose."
            )
        return said

    def steps(self) -> int:
        """Gradient steps of all parties in all rounds, if each work trains once."""
        each = [p.training.steps_for(len(p.data.train)) for p in self.parties]
        late = sum(each[i] for i in self.info.late)
        return late + sum(each[i] for t in range(1, self.experiment.rounds + 1) for i in self.cohort(t))

    def engine(self) -> Engine:
        """The engine that the experiment names, with all parties on it."""
        engine, workers = self.experiment.engine, self.experiment.workers or 1
        scheduler: Scheduler = SideBySide() if engine == "stacked" else OneByOne()
        if engine == "process" or workers > 1:
            return ProcessEngine(self.algorithm, self.parties, self.root, scheduler, workers)
        return LoopEngine(SiteStore(self.algorithm, self.parties, self.root), scheduler)

    def net(self, engine: Engine, progress: Progress) -> Net:
        """What rounds use to reach the parties on an engine."""
        return Net(self.algorithm, self.info, self.root, self.experiment.participation, engine, progress.parties)


SKEWED = 0.25


def label_skew(federation: Federation) -> float:
    """The mean total variation distance between a party's class shares and everybody's: 0 alike, towards 1 disjoint."""
    counts = torch.stack([torch.bincount(d.train.y, minlength=federation.classes) for d in federation.parties.values()]).double()
    own, all_ = counts / counts.sum(1, keepdim=True), counts.sum(0) / counts.sum()
    return float((own - all_).abs().sum(1).mean() / 2)


def cores() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def federation_of(experiment: Experiment) -> Federation:
    """The data that an experiment names, dealt to its parties."""
    return load_dataset(experiment.data).partition(
        experiment.partition,
        parties=None if experiment.partition.endswith(".json") else experiment.parties,
        seed=experiment.seed,
        test=experiment.test,
        validation=experiment.validation,
    )


def prepare(experiment: Experiment, federation: Federation, model: models.Pair | None = None) -> Job:
    """Check that everything fits together, before anything starts."""
    algorithm = algorithms.compose(experiment.algorithm, experiment.set)
    for name in experiment.party:
        if name not in federation.names:
            raise unknown("party called", name, federation.names)
    if experiment.newcomers >= len(federation.names):
        raise Refusal(f"All {len(federation.names)} parties would be newcomers: at least one must be there from the start.")
    everybody = federation.names
    first_late = len(everybody) - experiment.newcomers
    federation = federation.without(experiment.without or ())
    places = [k for k, name in enumerate(everybody) if name in federation.parties]
    there = sum(place < first_late for place in places)
    if not there:
        raise Refusal("Without these parties nobody is there from the start: leave out fewer.")
    device = _device(experiment.device)
    training = experiment.training()
    augment = Augment.read(experiment.augment, federation.preprocess.black, federation.shape)
    parties = []
    tasks: dict[str, Task] = {}
    for i, (name, data) in enumerate(federation.parties.items()):
        own = experiment.party.get(name)
        which = (own and own.model) or experiment.model
        if which not in tasks:
            chosen = model if model is not None and not (own and own.model) else which
            network = models.build(chosen, federation.shape, federation.classes)
            private = batchnorm_private(network, experiment.bn)
            tasks[which] = Task(network, federation.classes, experiment.cut or network.cut, private)
        task = tasks[which]
        changes = own.model_dump(exclude={"model", "peers"}, exclude_none=True) if own else {}
        if "epochs" in changes:
            changes["steps"] = None  # a party's own epochs come before the experiment's steps
        if i >= there:
            changes |= {"epochs": experiment.join_epochs, "steps": None}
        how = replace(training, augment=augment, **changes)
        least = min(how.batch, len(data.train)) if experiment.last_batch == "drop" else 1
        how = replace(how, min_batch=max(least, 2 if task.network.norms else 1))
        if how.batch < how.min_batch:
            raise Refusal(f"{task.network.name} has BatchNorm, which needs batches of at least 2: raise --batch.")
        parties.append(Party(i, name, task, how, _moved(data, device), there, place=places[i]))
    shared = replace(training, min_batch=2 if any(p.task.network.norms for p in parties) else 1, keep=False, augment=augment)
    names, tasks_there = tuple(federation.names), tuple(p.task for p in parties[:there])
    sizes = tuple(federation.sizes[:there])
    peers = tuple(_peers(experiment, name, names[:there], everybody[:first_late]) for name in names)
    if any(wish is not None for wish in peers) and not any(a.hears_peers for a in chain(algorithm)):
        raise Refusal(f"In {experiment.algorithm} a party cannot choose its peers: it learns from everybody or nobody.")
    info = Info(
        names[:there],
        sizes,
        tasks_there,
        shared,
        federation.shape,
        names[there:],
        experiment.rounds,
        peers=peers,
        places=tuple(places),
        whole=first_late,
    )
    info = replace(info, cohort=_cohort(experiment, info))
    algorithm.check(info)
    if info.newcomers:  # they must fit, too
        tasks_all = tuple(p.task for p in parties)
        algorithm.check(replace(info, names=names, sizes=tuple(federation.sizes), tasks=tasks_all, newcomers=(), peers=()))
    job = Job(experiment, federation, algorithm, parties, info)
    return replace(job, experiment=_with_engine(job, device))


def _cohort(experiment: Experiment, info: Info) -> int:
    """How many take part in a round; in the last one, if places of parties that were left out stay empty."""
    root, share = Key.root(experiment.seed), experiment.participation
    return next((many for t in range(experiment.rounds, 0, -1) if (many := len(cohort(root, share, info, t)))), 1)


def _peers(experiment: Experiment, name: str, names: Sequence[str], known: Sequence[str]) -> tuple[int, ...] | None:
    """Whom a party chose to learn from, by number; some of the `known` may be left out."""
    own = experiment.party.get(name)
    if own is None or own.peers is None:
        return None
    for peer in own.peers:
        if peer not in known:
            raise unknown("party called", peer, known)
    return tuple(i for i, other in enumerate(names) if other in own.peers and other != name)


def _device(wish: str) -> torch.device:
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wish == "auto":
        return torch.device(next(d for d in ("cuda", "mps", "cpu") if available[d]))
    if not available[wish]:
        raise Refusal(f"There is no {wish} device here: use --device auto or cpu.")
    return torch.device(wish)


def _moved(data: PartyData, device: torch.device) -> PartyData:
    def move(samples: Samples) -> Samples:
        return Samples(samples.x.to(device), samples.y.to(device))

    return data if device.type == "cpu" else PartyData(move(data.train), move(data.validation), move(data.test))


FEW = 4  # parties of a worker that are faster one by one than stacked


def _stacks(job: Job) -> bool:
    """Whether parties' trainings can be one computation, and are faster so."""
    networks = [p.task.network for p in job.parties]
    return all(map(gains_by_stacking, networks))


def _with_engine(job: Job, device: torch.device) -> Experiment:
    """What `auto` means here, of engine and partition; it is saved with the run, so that resume uses the same."""
    experiment = job.experiment
    engine: str = experiment.engine
    workers = experiment.workers or min(cores(), len(job.parties))
    if engine == "auto":
        # Forking workers costs a tenth of a second; a step some 0.2 ms and six flops a parameter and sample.
        weights = sum(size for _, size in job.info.task.shapes.values()) / 4
        seconds = job.steps() * (2e-4 + 6 * weights * experiment.batch / 2e10)
        if device.type != "cpu" or seconds <= 1.0:
            workers = 1
        engine = "process" if workers > 1 else "loop"
        if device.type == "cpu" and _stacks(job) and job.info.cohort >= FEW * workers:
            engine = "stacked"
    if engine != "loop" and device.type != "cpu":
        raise Refusal(f"The {engine} engine works on the CPU: use --engine loop with another device.")
    auto = split(experiment.partition, "|")[0].strip() == AUTO
    own = {"partition": job.federation.split.partition} if auto else {}
    dealt = len(job.parties) + len(experiment.without or ())
    return experiment.but(engine=engine, workers=None if engine == "loop" else workers, device=device.type, parties=dealt, **own)
