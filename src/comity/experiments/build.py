"""An experiment made concrete: parties with their tasks and data, the algorithm, and the engine they meet on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F

from comity import models
from comity.core.algorithm import AnyAlgorithm
from comity.core.attendance import Rules
from comity.core.key import Key
from comity.core.ledger import Ledger
from comity.core.metrics import ACCURACY, EXPLAINED, METRICS, Metric, check_fits
from comity.core.net import Net, cohort
from comity.core.own_metrics import is_own, use
from comity.core.party import Info, Party
from comity.core.samples import PartyData, Samples
from comity.core.wrapper import chain
from comity.data import Federation
from comity.data import load as load_dataset
from comity.data.dataset import AUTO
from comity.engines.engine import Engine, Scheduler
from comity.engines.loop import LoopEngine, OneByOne
from comity.engines.process import ProcessEngine
from comity.engines.ray_cluster import Recipe, check_installed
from comity.engines.ray_engine import RayEngine
from comity.engines.site_store import SiteStore
from comity.engines.stacked.scheduler import SideBySide, gains_by_stacking
from comity.errors import Refusal
from comity.experiments import config
from comity.experiments.absent import PlannedAbsences, planned
from comity.experiments.common import CommonGround, Introductions
from comity.experiments.config import Experiment
from comity.experiments.environment import cores
from comity.experiments.party_side import make_party
from comity.experiments.server_side import agree
from comity.experiments.trust import code_of
from comity.models.modules import Modules
from comity.names import called
from comity.plugins import digest
from comity.spec import split


@runtime_checkable
class Progress(Protocol):
    """Whoever watches a run."""

    def begin(self, job: Job, first_round: int) -> None:
        """A run begins, or goes on: rounds up to the first one given are over."""

    def answered(self, count: int) -> None:
        """So many more parties have answered what they were asked in this round."""

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """Round t is over; the mean of the chosen metric, if it was evaluated, and all bytes that crossed so far."""

    def end(self) -> None:
        """The run has ended, one way or another."""


class Quiet:
    """Nobody watches."""

    def begin(self, job: Job, first_round: int) -> None:
        pass

    def answered(self, count: int) -> None:
        pass

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        pass

    def end(self) -> None:
        pass


COUNTED_ROUNDS, COUNTED_DRAWS = 1_000, 100_000  # rounds, and parties in them, that are counted one by one


@dataclass(frozen=True)
class Job:
    """An experiment made concrete: its algorithm, its parties with their tasks, and what everybody may know."""

    experiment: Experiment
    federation: Federation
    algorithm: AnyAlgorithm
    parties: list[Party]
    info: Info
    absent: PlannedAbsences = field(default_factory=PlannedAbsences)
    """Who is to miss what."""

    @cached_property
    def root(self) -> Key:
        """The key of all randomness in the run."""
        return Key.root(self.experiment.seed)

    @property
    def metric(self) -> Metric:
        """What rounds, settings and methods are judged by."""
        return METRICS[self.experiment.metric]

    @property
    def device(self) -> torch.device:
        """Where tensors live."""
        return torch.device(self.experiment.device)

    def cohort(self, t: int) -> list[int]:
        """The parties of round t."""
        return cohort(self.root, self.experiment.participation, self.info, t)

    def cautions(self) -> list[str]:
        """What a user should know before this run, a sentence each: of the data, and of the method on them."""
        return [*self.federation.notes, *self.method_cautions()]

    def method_cautions(self) -> list[str]:
        """What a user should know of the method on these data."""
        name = called(self.experiment.algorithm)
        said = [f"{name}: {text}" for a in chain(self.algorithm) for text in a.cautions(self.info)]
        said += [f"{name}: {text}" for text in self.absent.without_effect(self.algorithm)]
        if self.experiment.device != "cpu":
            said.append(f"Nothing was ever tested on {self.experiment.device}: compare a few rounds with --device cpu first.")
        if any(a.feature_skew_only for a in chain(self.algorithm)) and (skew := label_skew(self.federation)) > SKEWED:
            said.append(
                f"{name} is meant for parties whose inputs differ, but here their labels do "
                f"(on average {skew:.0%} of a party's labels would have to change to match the others'): expect it to lose."
            )
        return said

    def judged(self, split: str) -> list[str]:
        """The parties whose samples of a split (validation, test) have a figure by the chosen metric."""
        metric = self.metric
        there = (self.parties[i] for i in self.info.parties)
        return [party.name for party in there if len(y := getattr(party.data, split).y) and metric.needs(y)]

    @cached_property
    def counted(self) -> dict[int, list[int]]:
        """The cohorts of the rounds that are looked at to know what all will cost: of all rounds, or if these are too many, of
        some, evenly spread, with the last among them."""
        rounds = self.experiment.rounds
        most = max(COUNTED_ROUNDS, COUNTED_DRAWS // len(self.parties))
        looked = range(1, rounds + 1) if rounds <= most else [1 + k * (rounds - 1) // (most - 1) for k in range(most)]
        return {t: self.cohort(t) for t in looked}

    def in_all_rounds(self, count: int) -> int:
        """What was found in the `counted` rounds, for all rounds: exact where these are all, or all alike."""
        return count * self.experiment.rounds // len(self.counted)

    def steps(self) -> int:
        """Gradient steps of all parties in all rounds, if each work trains once."""
        each = [p.training.steps_for(len(p.data.train)) for p in self.parties]
        late = sum(each[i] for i in self.info.late)
        tried = sum(each[i] for t in self.algorithm.tried_rounds for i in self.cohort(t))
        return late + tried + self.in_all_rounds(sum(each[i] for cohort in self.counted.values() for i in cohort))

    def seconds(self) -> float:
        """A guess at how long one worker trains: a step takes some 0.2 ms, and six flops a parameter and sample."""
        weights = sum(size for _, size in self.info.task.shapes.values()) / 4
        return self.steps() * (2e-4 + 6 * weights * self.experiment.batch / 2e10)

    def engine(self) -> Engine:
        """The engine that the experiment names, with all parties on it."""
        engine = self.experiment.engine
        workers = self.experiment.workers or 1
        scheduler: Scheduler = SideBySide() if engine == "stacked" else OneByOne()
        if engine == "ray":
            return RayEngine(self.recipe(), {p.id: len(p.data.train) for p in self.parties}, workers)
        if engine == "process" or workers > 1:
            return ProcessEngine(self.algorithm, self.parties, self.root, scheduler, workers)
        return LoopEngine(SiteStore(self.algorithm, self.parties, self.root), scheduler)

    def recipe(self) -> Recipe:
        """What makes the same parties elsewhere, where the same data lie."""
        code = {file: digest(file) or "" for file in code_of(self.experiment)}
        settings = config.write(self.experiment.but(absent=None))  # who is absent is the server's to know
        return Recipe(settings, self.federation.split.to_json(), code)

    def net(self, engine: Engine, progress: Progress) -> Net:
        """What rounds use to reach the parties on an engine."""
        rules = Rules(self.experiment.min_replies, self.experiment.on_nonfinite == "stop", self.absent)
        return Net(self.algorithm, self.info, self.root, self.experiment.participation, engine, progress.answered, rules)


SKEWED = 0.25


def label_skew(federation: Federation) -> float:
    """The mean total variation distance between a party's class shares and everybody's: 0 alike, towards 1 disjoint.

    0 where there are no classes.
    """
    counts = federation.counts().double()
    own = counts / counts.sum(1, keepdim=True)
    everybody = counts.sum(0) / counts.sum()
    return float((own - everybody).abs().sum(1).mean() / 2)


def federation_of(experiment: Experiment) -> Federation:
    """The data that an experiment names, dealt to its parties."""
    return load_dataset(experiment.data).partition(
        experiment.partition,
        parties=None if experiment.partition.endswith(".json") else experiment.parties,
        seed=experiment.seed,
        test=experiment.test,
        validation=experiment.validation,
    )


def prepare(
    experiment: Experiment, federation: Federation, model: models.OwnModel | None = None, absent: str | None = None
) -> Job:
    """Check that everything fits together, before anything starts: both halves of a run, for a simulation that has all data.

    `absent` is the table of planned absences as a run that was begun before has kept it.
    """
    experiment = judged_by(experiment, federation)
    use(experiment.metric)
    check_fits(experiment.metric, federation.classes)
    common = CommonGround(experiment, Introductions.of(federation), model)
    algorithm, info = agree(common)
    device = _device(experiment.device)
    there = federation.without(experiment.without or ())
    data = [_moved(there.parties[name], device) for name in common.seats.names]
    parties = [make_party(common, number, own) for number, own in enumerate(data)]
    plan = planned(experiment.absent, experiment.seed, common.introductions.names, absent)
    job = Job(experiment, there, algorithm, parties, info, plan)
    _check_judged(job)
    return replace(job, experiment=_settled(job, device))


def judged_by(experiment: Experiment, federation: Federation) -> Experiment:
    """The same experiment, judged by what suits labels that are numbers, where nothing else was chosen."""
    if federation.classes or experiment.metric != ACCURACY.name:
        return experiment
    return experiment.but(metric=EXPLAINED.name)


def _check_judged(job: Job) -> None:
    """Refuse a metric that none of the parties has a figure by, where one is needed."""
    metric = job.metric
    validated = any(len(party.data.validation) for party in job.parties)
    needed = ["test", *(["validation"] if job.experiment.patience and validated else [])]
    judged = any(len(job.parties[i].data.validation) for i in job.info.parties)
    if not judged and (why := next(filter(None, (a.needs_validation for a in chain(job.algorithm))), "")):
        raise Refusal(f"{called(job.experiment.algorithm)}: {why}.")
    if metric is not ACCURACY and (lacking := next((split for split in needed if not job.judged(split)), None)):
        raise Refusal(
            f"No party's {lacking} samples have a figure by metric {metric.name} ({metric.about}): choose another metric."
        )
    if is_own(job.experiment.metric):  # what breaks its contract is found before anything starts
        for y in (data.test.y for party in job.parties if metric.needs((data := party.data).test.y)):
            for answer in (y, y.flip(0), torch.zeros_like(y)):
                metric.of(F.one_hot(answer, job.info.task.classes), y)


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

    if device.type == "cpu":
        return data
    return replace(data, train=move(data.train), validation=move(data.validation), test=move(data.test))


FEW = 4  # parties of a worker that are faster one by one than stacked


def _stacks(job: Job) -> bool:
    """Whether parties' trainings are faster as one computation."""
    return all(gains_by_stacking(p.task.network) for p in job.parties)


def _engine(job: Job, device: torch.device) -> tuple[str, int]:
    """The engine that suits the job, unless the experiment names one, and how many workers it has."""
    experiment = job.experiment
    workers = experiment.workers or min(cores(), len(job.parties))
    if experiment.engine != "auto":
        return experiment.engine, workers
    if device.type != "cpu" or job.seconds() <= 1.0:  # forking workers costs a tenth of a second
        workers = 1
    if device.type == "cpu" and _stacks(job) and job.info.cohort >= FEW * workers:
        return "stacked", workers
    return ("process" if workers > 1 else "loop"), workers


def _settled(job: Job, device: torch.device) -> Experiment:
    """The settings with what `auto` means here, of engine and partition: saved with the run, so that resume uses the same."""
    experiment = job.experiment
    engine, workers = _engine(job, device)
    if engine != "loop" and device.type != "cpu":
        raise Refusal(f"The {engine} engine works on the CPU: use --engine loop with another device.")
    if engine == "ray":
        check_installed()
        _check_found_elsewhere(job)
    auto = split(experiment.partition, "|")[0].strip() == AUTO
    own = {"partition": job.federation.split.partition} if auto else {}
    dealt = len(job.parties) + len(experiment.without or ())
    return experiment.but(engine=engine, workers=None if engine == "loop" else workers, device=device.type, parties=dealt, **own)


def _check_found_elsewhere(job: Job) -> None:
    """Refuse what was given from Python: workers on a cluster load data and network by their names."""
    if job.federation.split.dataset == "arrays" or any(isinstance(party.task.network, Modules) for party in job.parties):
        raise Refusal(
            "The ray engine loads data and networks where its workers are, by their names: data given as arrays and networks "
            "given as modules cannot be found there. Import the data (comity import), give the network as a file, or use "
            "another engine."
        )
