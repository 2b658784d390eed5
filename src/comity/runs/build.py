"""Builds simulated runs: parties with their tasks and data, the method, and the engine."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F

from comity import models
from comity.base.key import Key
from comity.base.samples import PartyData, Samples, combine
from comity.core.party import Party
from comity.core.wrapper import check_can_be_summed
from comity.data import Federation
from comity.data import load as load_dataset
from comity.data.dataset import AUTO
from comity.data.protocols import folds_of
from comity.data.split import Split
from comity.engines.engine import Engine, Scheduler
from comity.engines.loop import LoopEngine, Sequential
from comity.engines.process import ProcessEngine
from comity.engines.ray_cluster import BuiltSites, Recipe, check_installed
from comity.engines.ray_engine import RayEngine
from comity.engines.site import hides_training_samples
from comity.engines.site_store import SiteStore
from comity.engines.stacked.scheduler import Batched, gains_by_stacking
from comity.engines.watched import Watched
from comity.errors import UsageError
from comity.machine import can_fork, computes_bfloat16
from comity.metrics.calibration import calibration_split
from comity.metrics.custom_metrics import is_custom, load_metric
from comity.metrics.metrics import LEAST, LEAST_OF_CLASS, METRICS, TWO, check_fits
from comity.models.named_files import named_files
from comity.models.pretrained import Pretrained
from comity.names import OWN_MODELS, display_name
from comity.plugins import digest
from comity.runs import config
from comity.runs.config import WHERE, Experiment, is_calibrated
from comity.runs.context import PartyInfos, RunContext
from comity.runs.environment import cores
from comity.runs.party_side import make_party
from comity.runs.planned_absences import read_plan
from comity.runs.represented_parties import with_representations
from comity.runs.server_run import ServerRun, judged_by
from comity.runs.server_side import resolve_method
from comity.runs.trust import code_of
from comity.spec import split
from comity.text import join_names


@dataclass(frozen=True, kw_only=True)
class SimulatedRun(ServerRun):
    """A simulated run, which has its parties with their tasks and data."""

    federation: Federation
    parties: list[Party]
    setting_warnings: tuple[str, ...] = ()
    """Sentences about settings that have no effect."""
    auto_model: str = ""
    """Why `model=auto` has chosen this network."""

    @cached_property
    def root(self) -> Key:
        """The key of all randomness. The noise depends on these settings and data, so another run
        with the same seed has other noise.

        The number of rounds, absences, the engine and the calibration after the last round are
        excluded: they do not change the rounds themselves. Secure aggregation is for runs between
        sites.
        """
        # The values in a file of weights count, and not where it is.
        settings = self.experiment.model_dump(
            exclude=WHERE
            | {"weights", "rounds", "eval_every", "eval_share", "patience", "absent"}
            | {"secure_aggregation", "secure_aggregation_range", "calibrate"}
        )
        if settings["precision"] == "float32":  # keys of runs from before this setting stay
            del settings["precision"]
        networks = {id(task): task.network for task in self.info.tasks}.values()
        digests = [n.given_digest + n.digest for n in networks if isinstance(n, Pretrained)]
        secret = combine(
            [repr(sorted(settings.items())), self.federation.fingerprint(), *digests]
        ).encode()
        return Key.root(self.experiment.seed, secret)

    def method_warnings(self) -> list[str]:
        texts = [*super().method_warnings(), *self._calibration_warnings()]
        return [*texts, self.auto_model] if self.auto_model else texts

    def _calibration_warnings(self) -> list[str]:
        """A sentence about parties whose models are calibrated on other than validation samples, or
        not at all.
        """
        if not is_calibrated(self.experiment):
            return []
        only_validation = hides_training_samples(self.algorithm)
        splits = {
            party.name: calibration_split(
                party.data, self.info.task.classes, only_validation=only_validation
            )
            for party in self.parties[: len(self.info.names)]
        }
        few = (
            f"fewer than {LEAST_OF_CLASS} of a class"
            if self.info.task.classes == TWO
            else f"fewer than {LEAST}"
        )
        how = f"calibrate={self.experiment.calibrate}"
        advice = "a larger --validation has more"
        texts = []
        if on_training := [name for name, split in splits.items() if split == "train"]:
            texts.append(
                f"{how} is fitted on the training samples of {join_names(on_training)}, as there"
                f" are too few validation samples ({few}): {advice}."
            )
        if left_out := [name for name, split in splits.items() if split is None]:
            hidden = (
                ", and the noise of the method hides the training samples"
                if only_validation
                else ", and training samples of one class only"
            )
            texts.append(
                f"{how} leaves the models of {join_names(left_out)} as they are: there are too few"
                f" validation samples ({few}){hidden}; {advice}."
            )
        if self.info.newcomers:
            texts.append(f"{how} leaves the models of newcomers as they are.")
        return texts

    def warnings(self) -> list[str]:
        """Warnings for the user before this run, a sentence each: about the data, and about the
        method on them.
        """
        partial = [start.text for start in self.context.initial_weights if start.is_partial]
        return [
            *self.federation.warnings,
            *self.method_warnings(),
            *self.setting_warnings,
            *partial,
        ]

    def engine(self) -> Engine:
        """The engine that the experiment names, with all parties."""
        engine = self.experiment.engine
        workers = self.experiment.workers or 1
        scheduler: Scheduler = Watched(Batched() if engine == "stacked" else Sequential())
        if engine == "ray":
            loads = {p.id: len(p.data.train) for p in self.parties}
            return RayEngine(self.recipe(), loads, workers, self.experiment.gpus or 0)
        if engine == "process" or workers > 1:
            return ProcessEngine(
                self.algorithm, self.trained_parties(), self.root, scheduler, workers
            )
        return LoopEngine(SiteStore(self.algorithm, self.trained_parties(), self.root), scheduler)

    def trained_parties(self) -> list[Party]:
        """The parties as engines get them: with representations instead of samples where the
        encoder is frozen.
        """
        if not self.experiment.cache:
            return self.parties
        return with_representations(self.parties, self.algorithm)

    def recipe(self) -> Recipe:
        """How to build the same parties elsewhere, where the same data are."""
        networks = [
            self.experiment.model,
            *(party.model for party in self.experiment.party.values() if party.model),
        ]
        weight_files = [str(file) for model in networks for file in named_files(model)]
        if self.experiment.weights:
            weight_files.append(self.experiment.weights)
        code = {file: digest(file) or "" for file in (*code_of(self.experiment), *weight_files)}
        # A worker runs its parties in a loop. The server handles absences.
        settings = self.experiment.but(
            engine="loop", workers=None, gpus=None, partial_sums=False, absent=None
        )
        text = config.write(settings)
        return Recipe(f"{__name__}.build_sites", text, self.federation.split.to_json(), code)


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
    return BuiltSites(SiteStore(job.algorithm, job.trained_parties(), job.root), on_gpu, data)


def federation_of(experiment: Experiment, federation: Federation | None = None) -> Federation:
    """The federation that an experiment names, or the one that was given in Python.

    Under cross-validation, a given federation is tested on one fold of its parties' samples, which
    the seed chooses.
    """
    if federation is None:
        return load_dataset(experiment.data).partition(
            experiment.partition,
            parties=None if experiment.partition.endswith(".json") else experiment.parties,
            seed=experiment.seed,
            test=experiment.test,
            validation=experiment.validation,
        )
    tested = (federation.split.test, federation.split.seed)
    if folds_of(experiment.test) == 1 or tested == (experiment.test, experiment.seed):
        return federation
    return federation.under_folds(experiment.test, experiment.seed)


def prepare(
    experiment: Experiment,
    federation: Federation,
    model: models.CustomModel | None = None,
    absent: str | None = None,
    *,
    only_planned: bool = False,
) -> SimulatedRun:
    """Build a simulated run, and check that everything fits together before anything starts.

    `model` replaces the network that the settings name. `absent` is the table of planned absences
    as an existing run saved it. A run that is `only_planned` may have settings for sites.
    """
    if experiment.engine == "flare":
        raise UsageError(
            "Parties at sites of their own are reached with --federation, and their runs reopened"
            " there."
        )
    if experiment.secure_aggregation and not only_planned:
        raise UsageError(
            "secure_aggregation hides replies from the server of a run between sites, and a"
            " simulation has all data in one place: add --federation, or leave it out."
        )
    if experiment.algorithm in OWN_MODELS:
        raise UsageError(
            f"{experiment.algorithm} is not a method: 'comity compare' trains the models that each"
            " party has alone, beside the methods that it compares."
        )
    experiment = judged_by(experiment, federation.classes)
    load_metric(experiment.metric)
    check_fits(experiment.metric, federation.classes)
    context = RunContext(experiment, PartyInfos.of(federation, METRICS[experiment.metric]), model)
    algorithm, info = resolve_method(context)
    device = torch.device("cpu") if experiment.engine == "ray" else _device(experiment.device)
    federation = federation.without(experiment.without or ())
    data = [_to_device(federation.parties[name], device) for name in context.roster.names]
    parties = [make_party(context, number, party_data) for number, party_data in enumerate(data)]
    absences = read_plan(experiment.absent, experiment.seed, context.party_infos.names, absent)
    job = SimulatedRun(
        experiment, context, algorithm, info, absences, federation=federation, parties=parties
    )
    job.check_metric()
    if experiment.partial_sums:
        check_can_be_summed(algorithm, display_name(experiment.algorithm))
    _check_custom_metric(job)
    settings, algorithm = job.privacy.with_noise()
    job = replace(job, experiment=settings, algorithm=algorithm)
    return replace(
        job,
        experiment=_resolve_auto(job, device),
        setting_warnings=(*_without_effect(experiment), *_precision_warnings(job, device)),
    )


def _without_effect(experiment: Experiment) -> tuple[str, ...]:
    """A sentence for each setting that has no effect beside the others."""
    workers = experiment.workers or 1
    if experiment.engine == "loop" and workers > 1:
        return (
            f"workers={workers} has no effect with engine=loop, which runs one party after another:"
            " use engine=process.",
        )
    if (experiment.engine == "process" or workers > 1) and not _has_workers(experiment):
        return (
            "This system cannot fork worker processes: parties are run in one process instead, one"
            " after another, with the same results.",
        )
    return ()


def _precision_warnings(job: SimulatedRun, device: torch.device) -> list[str]:
    """What to know about a run whose networks compute in bfloat16, a sentence each."""
    experiment = job.experiment
    if experiment.precision == "float32":
        return []
    texts = []
    name = f"precision={experiment.precision}"
    if device.type == "cpu" and not computes_bfloat16():
        texts.append(
            f"This processor has no instructions for bfloat16, so that {name} is slower than"
            " precision=float32."
        )
    if experiment.engine == "auto" and _engine(job, device)[0] != "stacked" and _stacks(job):
        in_float32 = replace(job, experiment=experiment.but(precision="float32"))
        if _engine(in_float32, device)[0] == "stacked":
            texts.append(
                f"{name} is not supported on engine stacked, which is the fastest for these"
                f" networks: {_engine(job, device)[0]} is used."
            )
    return texts


def _has_workers(experiment: Experiment) -> bool:
    """Whether the experiment can have worker processes here."""
    return experiment.engine == "ray" or can_fork()


def _check_custom_metric(job: SimulatedRun) -> None:
    """Try a user's metric on the parties' labels, so that errors in it are found before anything
    starts.
    """
    metric = job.metric
    if not is_custom(job.experiment.metric):
        return
    for party in job.parties:
        y = party.data.test.y
        if metric.is_defined(y):
            for prediction in (y, y.flip(0), torch.zeros_like(y)):
                metric.of(F.one_hot(prediction, job.info.task.classes), y)


def _device(name: str) -> torch.device:
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if name == "auto":
        return torch.device(next(d for d in ("cuda", "mps", "cpu") if available[d]))
    if not available[name]:
        raise UsageError(f"There is no {name} device here: use --device auto or cpu.")
    return torch.device(name)


def _to_device(data: PartyData, device: torch.device) -> PartyData:
    def move(samples: Samples) -> Samples:
        return Samples(samples.x.to(device), samples.y.to(device))

    if device.type == "cpu":
        return data
    return replace(
        data, train=move(data.train), validation=move(data.validation), test=move(data.test)
    )


MIN_STACKED = 4  # with fewer parties per worker, sequential training is faster than stacked


def _stacks(job: SimulatedRun) -> bool:
    """Whether batched training of the parties is faster."""
    return all(gains_by_stacking(p.task.network) for p in job.parties)


def _engine(job: SimulatedRun, device: torch.device) -> tuple[str, int]:
    """The engine and its number of workers, chosen for the job if the experiment names none."""
    experiment = job.experiment
    workers = experiment.workers or min(cores(), len(job.parties))
    if not _has_workers(experiment):
        workers = 1
        if experiment.engine == "process":
            return "loop", workers
    if experiment.engine != "auto":
        return experiment.engine, workers
    if (
        device.type != "cpu" or job.cost.seconds() <= 1.0
    ):  # forking workers costs a tenth of a second
        workers = 1
    can_stack = device.type == "cpu" and experiment.precision == "float32"
    if can_stack and _stacks(job) and job.info.cohort >= MIN_STACKED * workers:
        return "stacked", workers
    return ("process" if workers > 1 else "loop"), workers


def _resolve_auto(job: SimulatedRun, device: torch.device) -> Experiment:
    """The settings with `auto` resolved for engine, device and partition. They are saved with the
    run, so that resume uses the same.
    """
    experiment = job.experiment
    engine, workers = _engine(job, device)
    if engine not in ("loop", "ray") and device.type != "cpu":
        raise UsageError(
            f"The {engine} engine works on the CPU: use --engine loop with another device."
        )
    device_name = device.type
    if engine == "ray":
        check_installed()
        _check_loadable_elsewhere(job)
        device_name = _worker_device(experiment)
    partition_is_auto = split(experiment.partition, "|")[0].strip() == AUTO
    partition = {"partition": job.federation.split.partition} if partition_is_auto else {}
    parties = len(job.parties) + len(experiment.without or ())
    return experiment.but(
        engine=engine,
        workers=None if engine == "loop" else workers,
        device=device_name,
        parties=parties,
        **partition,
    )


def _worker_device(experiment: Experiment) -> str:
    """The device of workers on a cluster: a GPU if they take one, or a fraction of one."""
    if not experiment.gpus and experiment.device not in ("auto", "cpu"):
        raise UsageError(
            "Workers on Ray compute on the CPU unless --gpus says how much of a GPU each takes."
        )
    return "cuda" if experiment.gpus else "cpu"


def _check_loadable_elsewhere(job: SimulatedRun) -> None:
    """Refuse data and networks that were given as Python objects: workers on a cluster load them by
    name.
    """
    if job.federation.split.dataset == "arrays" or job.context.modules is not None:
        raise UsageError(
            "The ray engine loads data and networks where its workers are, by their names: data"
            " given as arrays and networks given as modules cannot be found there. Import the data"
            " (comity data import), give the network as a file, or use another engine."
        )
