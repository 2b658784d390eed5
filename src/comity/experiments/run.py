"""A run from beginning to end: rounds follow each other, and everything lands in the run's folder."""

from __future__ import annotations

import contextlib
import gc
import json
import platform
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comity import models
from comity.core.algorithm import chain
from comity.core.evaluation import Judgement
from comity.core.fit import METER, Meter
from comity.core.net import Charge, Net, Note, Silence
from comity.core.record import Empty, Params, on_device
from comity.core.task import Task, in_chunks
from comity.data import Federation
from comity.data import load as load_dataset
from comity.engines.allocator import freed_memory_kept
from comity.engines.site import Site
from comity.errors import ComityError, Refusal, unknown
from comity.experiments import config
from comity.experiments.build import Job, Progress, Quiet, cores, federation_of, prepare
from comity.experiments.checkpoint import Checkpoints, interval, locked, write_atomically
from comity.experiments.config import Experiment
from comity.experiments.environment import code
from comity.experiments.folder import Tables, read_ledger, read_metrics
from comity.measure import summarise
from comity.measure.memory import peak_memory
from comity.track import Tracker, Trackers

HOW = {"engine", "workers", "device"}  # where a run is computed does not change what it computes, but for rounding
FILES = {"metrics.csv", "ledger.csv", "timing.csv", "outcomes.csv", "summary.json", "checkpoints", "tensorboard", "mlflow.json"}


@dataclass(frozen=True)
class Deployed:
    """A party's model as it would be used."""

    task: Task
    theta: Params

    def logits(self, x: Tensor) -> Tensor:
        """Scores for each class."""
        return in_chunks(lambda part: self.task.logits(self.theta, part), x)

    def predict(self, x: Tensor) -> Tensor:
        """The most likely class of each sample."""
        return self.logits(x).argmax(1)


@dataclass
class Result:
    """A finished run."""

    folder: Path
    job: Job
    summary: dict[str, Any]
    _keep: Any = None

    @cached_property
    def metrics(self) -> list[Note]:
        """Rows of metrics.csv: (round, party, split, metric, value)."""
        return read_metrics(self.folder)

    @cached_property
    def ledger(self) -> list[Charge]:
        """Rows of ledger.csv: (round, work, src, dst, kind, bytes)."""
        return read_ledger(self.folder)

    def model(self, party: str) -> Deployed:
        """What that party would deploy after the last round."""
        i, checkpoints, mine = self._kept(party)
        letter, who = self.job.algorithm.view(checkpoints.server_state(), i), self.job.parties[i]
        return Deployed(self.job.algorithm.at(who, mine).task, self.job.algorithm.model(mine, letter, who))

    def state(self, party: str) -> Any:
        """What the method keeps at that party."""
        return self._kept(party)[2]

    def _kept(self, party: str) -> tuple[int, Checkpoints, Any]:
        """A party's number, the checkpoints, and its state there."""
        everyone = self.job.info.names + self.job.info.newcomers
        if party not in everyone:
            raise unknown("party called", party, everyone)
        checkpoints = Checkpoints(self.folder / "checkpoints")
        if checkpoints.load() is None:
            raise ComityError(f"{self.folder} holds no checkpoint.")
        i = everyone.index(party)
        saved = checkpoints.party_state(i)
        mine = Site(self.job.algorithm, self.job.parties[i], self.job.root).mine if saved is None else saved.mine
        return i, checkpoints, mine


@contextlib.contextmanager
def _at_work(folder: Path) -> Iterator[None]:
    """A run's surroundings: its folder held, one thread, and a quiet garbage collector."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one thread everywhere: equal bits, and faster on a busy machine
    gc.freeze()  # what is loaded by now stays: without it each full collection walks all of torch, a tenth of a second
    try:
        with locked(folder), freed_memory_kept():
            yield
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)


def resume_in(job: Job, folder: Path, progress: Progress, track: Trackers | None = None) -> Result:
    """Go on with the run in a folder, from its last checkpoint."""
    with _at_work(folder):
        return _execute(job, folder, progress, track or Trackers(), resume=True)


def _execute(job: Job, folder: Path, progress: Progress, track: Trackers, resume: bool) -> Result:
    begin = time.perf_counter()
    algorithm, rounds = job.algorithm, job.experiment.rounds
    tables, checkpoints = Tables(folder), Checkpoints(folder / "checkpoints")
    manifest = checkpoints.load() if resume else None
    device = job.parties[0].data.train.x.device
    seconds = defaultdict(float, manifest.counters["seconds"] if manifest else {})
    net, server, course = job.net(progress), Meter(), Course(rounds, job.experiment.patience)
    summary = None
    try:
        if manifest:
            net.load(checkpoints.folder, manifest.parties.values())
            net.ledger.total.update(manifest.counters["bytes"])
            net.steps, server.steps = manifest.counters["steps"], manifest.counters["server_steps"]
            s, done = on_device(checkpoints.server_state(), device), manifest.round
            course.load(manifest.counters.get("course", {}))  # runs of earlier versions have none
            tables.cut(manifest.lengths)  # last: a damaged checkpoint must not cost any rows
        else:
            tables.create()
            s, done = on_device(algorithm.server(job.root.fold("init"), job.info), device), -1
        seconds["setup"] += time.perf_counter() - begin
        track.begin(job, folder)
        progress.begin(job, max(done, 0))
        t = done
        while t < (last := course.rounds + bool(job.info.newcomers)):
            t += 1
            last = course.enter(t) + bool(job.info.newcomers)
            rounds = course.rounds
            tick = time.perf_counter()
            net.begin(t)
            with _serving(job, net, server):
                if t == 0:
                    net.introduce(job.info.parties)
                    s = algorithm.start(s, net)
                elif t <= rounds:
                    s = _round(job, net, s, t)
                else:
                    s = _join(job, net, s)
                if t == rounds and any(a.finishes for a in chain(algorithm)):
                    _evaluate(job, net, s, None, suffix="-unfinished")
                    s = algorithm.finish(s, net)
            trained = time.perf_counter()
            accuracy = None
            if (t % job.experiment.eval_every == 0 and t <= rounds) or t == rounds:
                accuracy, chosen_by = _evaluate(job, net, s, folder if t == rounds else None)
                course.seen(t, chosen_by)
            evaluated = time.perf_counter()
            notes = net.notes.copy()
            net.notes.clear()
            tables.add("metrics.csv", notes)
            tables.add("ledger.csv", net.ledger.take())
            seconds["train"] += trained - tick
            seconds["evaluate"] += evaluated - trained
            counters = {"bytes": dict(net.ledger.total), "seconds": dict(seconds), **_steps(net, server)}
            counters["course"] = course.dump()
            spent = checkpoints.seconds
            if checkpoints.due() or t == last:
                checkpoints.save(t, s, net, dict(tables.lengths), counters)
            row = (trained - tick, evaluated - trained, checkpoints.seconds - spent)
            tables.add("timing.csv", [(t, *(f"{value:.4f}" for value in row), peak_memory())])
            if t <= rounds:
                progress.round(t, accuracy, net.ledger)
            track.round(t, notes, net.ledger.total)
        seconds["total"] = seconds["setup"] + seconds["train"] + seconds["evaluate"] + checkpoints.seconds
        made = {"rounds": course.rounds, **_steps(net, server)}
        summary = summarise(job, read_metrics(folder), net.ledger.total, made, dict(seconds))
        write_atomically(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
        return Result(folder, job, summary)
    finally:
        net.close()
        progress.end()
        track.end(summary)


@dataclass
class Course:
    """How long a run goes on: its rounds, or fewer when it got no better for `patience` of them; then one more is the last."""

    rounds: int
    patience: int | None
    best: float = -1.0
    best_round: int = 0
    judged: int = 0
    """The last round that was evaluated: what nobody looked at did not get worse."""

    def enter(self, t: int) -> int:
        """Begin round t, which may turn out to be the last; returns the number of rounds as far as is known."""
        if self.patience is not None and t <= self.rounds and self.judged - self.best_round >= self.patience:
            self.rounds = t
        return self.rounds

    def seen(self, t: int, accuracy: float) -> None:
        """Remember the best round so far."""
        self.judged = t
        if accuracy > self.best:
            self.best, self.best_round = accuracy, t

    def dump(self) -> dict[str, Any]:
        """For the checkpoint."""
        return asdict(self)

    def load(self, saved: Mapping[str, Any]) -> None:
        """Back from a checkpoint."""
        for name, value in saved.items():
            setattr(self, name, value)


def _steps(net: Net, server: Meter) -> dict[str, int]:
    return {"steps": net.steps, "server_steps": server.steps}


@contextlib.contextmanager
def _serving(job: Job, net: Net, server: Meter) -> Iterator[None]:
    """Where the algorithm's code runs at the server: its steps are counted, its layers draw from the round's key."""
    token = METER.set(server)
    try:
        with job.info.task.network.drawing(net.key("layers")):
            yield
    finally:
        METER.reset(token)


def _round(job: Job, net: Net, s: Any, t: int) -> Any:
    """One round; where nobody answers, the state stays as it was."""
    try:
        return job.algorithm.round(s, net, t)
    except Silence:
        net.note("silence", 1.0)
        return s


def _note(net: Net, judged: Mapping[int, Judgement], suffix: str = "") -> None:
    for i, judgement in judged.items():
        for split, score in (("validation", judgement.validation), ("test", judgement.test)):
            if score.count:
                net.note("accuracy", score.correct / score.count, i, split + suffix)
                net.note("loss", score.loss, i, split + suffix)


def _letters(job: Job, s: Any, ids: Iterable[int]) -> dict[int, Any]:
    return {i: Empty() if job.algorithm.self_contained else job.algorithm.view(s, i) for i in ids}


def _join(job: Job, net: Net, s: Any) -> Any:
    """Newcomers after the last round: what each is offered, what it has after its warm-up, and what it would have alone."""
    late = job.info.late
    net.introduce(late)
    _note(net, net.evaluate(_letters(job, s, late), final=False), "-offered")
    _note(net, net.alone(late), "-alone")
    s = job.algorithm.join(s, net, late)
    _note(net, net.evaluate(_letters(job, s, late), final=False), "-joined")
    return s


def _evaluate(job: Job, net: Net, s: Any, final: Path | None, suffix: str = "") -> tuple[float | None, float]:
    """Each party judges its own model; the mean test accuracy, and the accuracy that rounds are chosen by.

    At the end also which test samples were right.
    """
    judged: Mapping[int, Judgement] = net.evaluate(_letters(job, s, job.info.parties), final is not None)
    _note(net, judged, suffix)
    if suffix:
        return None, 0.0
    right = count = 0
    accuracies = []
    for judgement in judged.values():
        accuracies.append(judgement.test.correct / judgement.test.count)
        right, count = right + judgement.test.correct, count + judgement.test.count
    if job.algorithm.one_model and not any(task.private for task in job.info.tasks):
        net.note("accuracy", right / count, None, "pooled")
    if final is not None:
        lines = ["party,sample,correct"]
        for i, judgement in judged.items():
            if judgement.auc is not None:
                net.note("auc" if job.federation.classes == 2 else "auc_micro", judgement.auc, i, "test")
            assert judgement.outcomes is not None
            lines += [f"{job.info.names[i]},{k},{int(ok)}" for k, ok in enumerate(judgement.outcomes.tolist())]
        write_atomically(final / "outcomes.csv", "\n".join(lines) + "\n")
    known = [j.validation for j in judged.values() if j.validation.count] or [j.test for j in judged.values()]
    chosen_by = sum(score.correct for score in known) / max(1, sum(score.count for score in known))
    return (sum(accuracies) / len(accuracies) if accuracies else None), chosen_by


def start(job: Job, folder: Path, progress: Progress, track: Trackers | None = None) -> Result:
    """A new run in a folder of its own; a folder that holds a run already is refused."""
    if (folder / "config.toml").exists():
        raise Refusal(f"{folder} already holds a run: continue it with 'comity resume {folder}', or choose another --out.")
    interval()  # a wrong COMITY_CHECKPOINT_SECONDS is refused before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    with _at_work(folder):
        if taken := sorted({p.name for p in folder.iterdir()} & FILES):
            raise Refusal(f"{folder} already has a {taken[0]}: choose another --out.")
        settings = config.write(job.experiment)
        write_atomically(folder / "split.json", job.federation.split.to_json())
        write_atomically(folder / "env.json", json.dumps(_environment(job, settings), indent=2) + "\n")
        write_atomically(folder / "config.toml", settings)
        return _execute(job, folder, progress, track or Trackers(), resume=False)


def check_same(folder: Path, experiment: Experiment) -> None:
    """Refuse to go on with other settings than a folder's run has, all settled by `prepare`; where it is computed may differ."""
    before = config.read(folder / "config.toml")
    if before.model_dump(exclude=HOW) != experiment.model_dump(exclude=HOW):
        raise Refusal(f"{folder} holds a run with other settings: choose another --out.")


def reopen(folder: Path, federation: Federation | None = None, model: models.Pair | None = None) -> Job:
    """The job of a run's folder; data given as arrays, and models given as modules, must be given again."""
    check_run(folder)
    experiment = config.read(folder / "config.toml")
    if federation is None and experiment.data == "arrays":
        raise Refusal(f"The data of {folder} were given as arrays: resume it from Python with the same federation.")
    job = prepare(experiment, federation or load_dataset(experiment.data).split(folder / "split.json"), model)
    try:
        before = json.loads((folder / "env.json").read_text(encoding="utf-8"))
        data, settings = before["fingerprint"], before["config"]
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise ComityError(f"{folder / 'env.json'} cannot be read.") from why
    if settings != digest((folder / "config.toml").read_text(encoding="utf-8")):
        raise Refusal(f"{folder / 'config.toml'} has changed since the run was started: start a new run with it instead.")
    if data != job.federation.fingerprint():
        raise Refusal(f"The data of {folder} have changed since it was started.")
    return job


def check_run(folder: Path) -> None:
    """Refuse a folder that holds no run."""
    try:
        found = (folder / "config.toml").is_file()
    except OSError:  # a name that no file can have
        found = False
    if not found:
        raise Refusal(f"{folder} holds no run: it has no config.toml.")


def digest(text: str) -> str:
    """A short name for exactly these settings: a run knows those that it was started with."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _environment(job: Job, settings: str) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "comity": version("comity"),
        "code": code(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": cores(),
        "fingerprint": job.federation.fingerprint(),
        "config": digest(settings),
    }


def run(
    algorithm: str,
    federation: Federation | None = None,
    *,
    model: str | models.Pair | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    track: Sequence[str | Tracker] = (),
    **settings: Any,
) -> Result:
    """Run a method on a federation: `comity.run("fedavg+dbe", fed, rounds=20, seed=0, kappa=50)`.

    Settings are the experiment's (rounds, lr, batch, ...) or, failing that, the method's own (kappa, mu, ...). Without `out`
    the run's folder is temporary and goes with the result. `track` lists who else writes its course down: "tensorboard",
    "mlflow", a user's file, or any Tracker.
    """
    pair = None if isinstance(model, str) else model
    if model is not None:
        settings["model"] = model if isinstance(model, str) else "modules"
    experiment = asked(algorithm, federation, settings)
    if out is None and any(isinstance(one, str) for one in track):
        raise Refusal("A tracker writes beside the run: give the run a folder with out=...")
    trackers = Trackers(track)
    job = prepare(experiment, federation or federation_of(experiment), pair)
    for caution in job.cautions():
        warnings.warn(caution, stacklevel=2)
    keep = tempfile.TemporaryDirectory(prefix="comity-") if out is None else None
    folder = Path(keep.name if keep else out or "")
    if resume and (folder / "config.toml").exists():
        check_same(folder, job.experiment)
        result = resume_in(reopen(folder, federation, pair), folder, progress or Quiet(), trackers)
    else:
        result = start(job, folder, progress or Quiet(), trackers)
    result._keep = keep
    return result


def asked(algorithm: str, federation: Federation | None, settings: Mapping[str, Any]) -> Experiment:
    """The experiment that a call from Python names: settings are the experiment's own or, failing that, the method's."""
    chosen: dict[str, Any] = {"algorithm": algorithm, "set": dict(settings.get("set", {}))}
    chosen |= {name: value for name, value in settings.items() if name in Experiment.model_fields and name != "set"}
    chosen["set"] |= {name: value for name, value in settings.items() if name not in Experiment.model_fields}
    if federation is not None:
        split = federation.split
        known = {"data": federation.name, "parties": len(federation.names), "partition": split.partition}
        known |= {"test": split.test, "validation": split.validation}
        for name, value in known.items():
            if settings.get(name, value) != value:
                raise Refusal(f"{name} was settled when the federation was made: it is {value!r}, not {settings[name]!r}.")
        chosen |= known
    return config.experiment(chosen)
