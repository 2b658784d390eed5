"""An experiment made concrete: parties with their tasks and data, the algorithm, and the engine
they meet on.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F

from comity import models
from comity.base.key import Key, SecretKey
from comity.base.samples import PartyData, Samples, combine
from comity.core.party import Party
from comity.core.wrapper import check_can_be_summed
from comity.data import Federation
from comity.data import load as load_dataset
from comity.data.dataset import AUTO
from comity.data.split import Split
from comity.engines.engine import Engine, Scheduler
from comity.engines.loop import LoopEngine, Sequential
from comity.engines.process import ProcessEngine
from comity.engines.ray_cluster import BuiltSites, Recipe, check_installed
from comity.engines.ray_engine import RayEngine
from comity.engines.site_store import SiteStore
from comity.engines.stacked.scheduler import Batched, gains_by_stacking
from comity.errors import UsageError
from comity.metrics.custom_metrics import is_own, use
from comity.metrics.metrics import METRICS, check_fits
from comity.models.low_rank import base_file
from comity.models.modules import Modules
from comity.names import display_name
from comity.plugins import digest
from comity.runs import config
from comity.runs.config import WHERE, Experiment
from comity.runs.context import PartyInfos, RunContext
from comity.runs.environment import cores
from comity.runs.party_side import make_party
from comity.runs.planned_absences import planned
from comity.runs.server_run import ServerRun, judged_by
from comity.runs.server_side import resolve_method
from comity.runs.trust import code_of
from comity.spec import split


@dataclass(frozen=True, kw_only=True)
class SimulatedRun(ServerRun):
    """A simulated run: its parties are here, with their tasks and data."""

    federation: Federation
    parties: list[Party]

    @cached_property
    def root(self) -> Key:
        """The key of all randomness. Noise is that of these settings and data: no other run with
        the same seed has it.

        How long a run goes on, who misses what in it and where it is computed are left out: its
        rounds stay what they are.
        """
        same = self.experiment.model_dump(
            exclude=WHERE | {"rounds", "eval_every", "eval_share", "patience", "absent"}
        )
        secret = combine([repr(sorted(same.items())), self.federation.fingerprint()]).encode()
        return SecretKey(Key.root(self.experiment.seed).bits, secret)

    def warnings(self) -> list[str]:
        """What a user should know before this run, a sentence each: of the data, and of the method
        on them.
        """
        return [*self.federation.notes, *self.method_warnings()]

    def engine(self) -> Engine:
        """The engine that the experiment names, with all parties on it."""
        engine = self.experiment.engine
        workers = self.experiment.workers or 1
        scheduler: Scheduler = Batched() if engine == "stacked" else Sequential()
        if engine == "ray":
            loads = {p.id: len(p.data.train) for p in self.parties}
            return RayEngine(self.recipe(), loads, workers, self.experiment.gpus or 0)
        if engine == "process" or workers > 1:
            return ProcessEngine(self.algorithm, self.parties, self.root, scheduler, workers)
        return LoopEngine(SiteStore(self.algorithm, self.parties, self.root), scheduler)

    def recipe(self) -> Recipe:
        """What makes the same parties elsewhere, where the same data lie."""
        named = [
            self.experiment.model,
            *(party.model for party in self.experiment.party.values() if party.model),
        ]
        bases = [str(file) for model in named if (file := base_file(model))]
        code = {file: digest(file) or "" for file in (*code_of(self.experiment), *bases)}
        # To a worker its parties are in a loop; who is absent is the server's to know.
        here = self.experiment.but(
            engine="loop", workers=None, gpus=None, partial_sums=False, absent=None
        )
        settings = config.write(here)
        return Recipe(f"{__name__}.build_sites", settings, self.federation.split.to_json(), code)


@dataclass(frozen=True)
class _LoadedData:
    """A dataset with a split, as a worker elsewhere keeps it from run to run."""

    dataset: str
    split: str
    federation: Federation


def build_sites(settings: str, split: str, code: Mapping[str, str], data: object) -> BuiltSites:
    """Build the parties of a run where the data are: a `Builder` of the Ray engine.

    Refuses users' files (`code`: digests by path) that differ from those of the run.
    """
    experiment = config.experiment(tomllib.loads(settings))
    other = next((file for file, expected in code.items() if digest(file) != expected), None)
    if other:
        raise UsageError(f"{other} is not the same file there as here.")
    on_gpu = experiment.device != "cpu"
    if on_gpu and not torch.cuda.is_available():
        raise UsageError("Ray has given it a GPU, or a share of one, but torch finds none there.")
    dataset_and_split = (experiment.data, split)
    if not isinstance(data, _LoadedData) or (data.dataset, data.split) != dataset_and_split:
        data = None  # frees the earlier data before others are loaded
        federation = load_dataset(experiment.data).split(Split.from_json(split))
        data = _LoadedData(experiment.data, split, federation)
    job = prepare(experiment, data.federation)
    return BuiltSites(SiteStore(job.algorithm, job.parties, job.root), on_gpu, data)


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
    experiment: Experiment,
    federation: Federation,
    model: models.OwnModel | None = None,
    absent: str | None = None,
) -> SimulatedRun:
    """Check that everything fits together, before anything starts: both halves of a run, for a
    simulation that has all data.

    `absent` is the table of planned absences as a run that was begun before has kept it.
    """
    if experiment.engine == "flare":
        raise UsageError(
            "Parties at sites of their own are reached with --federation, and their runs reopened"
            " there."
        )
    experiment = judged_by(experiment, federation.classes)
    use(experiment.metric)
    check_fits(experiment.metric, federation.classes)
    common = RunContext(experiment, PartyInfos.of(federation, METRICS[experiment.metric]), model)
    algorithm, info = resolve_method(common)
    device = torch.device("cpu") if experiment.engine == "ray" else _device(experiment.device)
    there = federation.without(experiment.without or ())
    data = [_moved(there.parties[name], device) for name in common.seats.names]
    parties = [make_party(common, number, own) for number, own in enumerate(data)]
    plan = planned(experiment.absent, experiment.seed, common.introductions.names, absent)
    job = SimulatedRun(experiment, common, algorithm, info, plan, federation=there, parties=parties)
    job.check_judged()
    if experiment.partial_sums:
        check_can_be_summed(algorithm, display_name(experiment.algorithm))
    _check_own_metric(job)
    settings, algorithm = job.with_noise()
    job = replace(job, experiment=settings, algorithm=algorithm)
    return replace(job, experiment=_settled(job, device))


def _check_own_metric(job: SimulatedRun) -> None:
    """Try a metric of the user's own on the parties' labels: what breaks its contract is found
    before anything starts.
    """
    metric = job.metric
    if is_own(job.experiment.metric):
        for y in (
            data.test.y for party in job.parties if metric.needs((data := party.data).test.y)
        ):
            for answer in (y, y.flip(0), torch.zeros_like(y)):
                metric.of(F.one_hot(answer, job.info.task.classes), y)


def _device(wish: str) -> torch.device:
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if wish == "auto":
        return torch.device(next(d for d in ("cuda", "mps", "cpu") if available[d]))
    if not available[wish]:
        raise UsageError(f"There is no {wish} device here: use --device auto or cpu.")
    return torch.device(wish)


def _moved(data: PartyData, device: torch.device) -> PartyData:
    def move(samples: Samples) -> Samples:
        return Samples(samples.x.to(device), samples.y.to(device))

    if device.type == "cpu":
        return data
    return replace(
        data, train=move(data.train), validation=move(data.validation), test=move(data.test)
    )


FEW = 4  # parties of a worker that are faster one by one than stacked


def _stacks(job: SimulatedRun) -> bool:
    """Whether parties' trainings are faster as one computation."""
    return all(gains_by_stacking(p.task.network) for p in job.parties)


def _engine(job: SimulatedRun, device: torch.device) -> tuple[str, int]:
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


def _settled(job: SimulatedRun, device: torch.device) -> Experiment:
    """The settings with what `auto` means here, of engine and partition: saved with the run, so
    that resume uses the same.
    """
    experiment = job.experiment
    engine, workers = _engine(job, device)
    if engine not in ("loop", "ray") and device.type != "cpu":
        raise UsageError(
            f"The {engine} engine works on the CPU: use --engine loop with another device."
        )
    where = device.type
    if engine == "ray":
        check_installed()
        _check_found_elsewhere(job)
        where = _at_workers(experiment)
    auto = split(experiment.partition, "|")[0].strip() == AUTO
    own = {"partition": job.federation.split.partition} if auto else {}
    dealt = len(job.parties) + len(experiment.without or ())
    return experiment.but(
        engine=engine,
        workers=None if engine == "loop" else workers,
        device=where,
        parties=dealt,
        **own,
    )


def _at_workers(experiment: Experiment) -> str:
    """The device of workers on a cluster: they have a GPU if they are to take one, or a share of
    one.
    """
    if not experiment.gpus and experiment.device not in ("auto", "cpu"):
        raise UsageError(
            "Workers on Ray compute on the CPU unless --gpus says how much of a GPU each takes."
        )
    return "cuda" if experiment.gpus else "cpu"


def _check_found_elsewhere(job: SimulatedRun) -> None:
    """Refuse what was given from Python: workers on a cluster load data and network by their names."""
    if job.federation.split.dataset == "arrays" or any(
        isinstance(party.task.network, Modules) for party in job.parties
    ):
        raise UsageError(
            "The ray engine loads data and networks where its workers are, by their names: data"
            " given as arrays and networks given as modules cannot be found there. Import the data"
            " (comity import), give the network as a file, or use another engine."
        )
