"""The calls of the library: `comity.run`, `compare`, `tune` and `leave_one_out`.

Every setting of an experiment is a keyword with its type and its default, so that an editor
completes it and `help(comity.run)` says what it means. They are those of
`experiments.config.Experiment`, which is the one list; a test holds the two together.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Literal

from comity.data import Federation
from comity.errors import UsageError
from comity.measure.caveats import caveats
from comity.metrics.custom_metrics import Function, give
from comity.models import MODULES, OwnModel
from comity.progress import ProgressFactory, show_progress
from comity.runs.build import federation_of, prepare
from comity.runs.call_settings import (
    Option,
    asked,
    check_federation,
    check_options,
    settings_in,
)
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.recording import one_process
from comity.runs.result import Result
from comity.runs.run import check_same, elsewhere, reopen, resume_in, start
from comity.runs.server_run import Progress
from comity.studies import compare as comparing
from comity.studies import leave_one_out as leaving
from comity.studies import tune as tuning
from comity.studies.finished import Comparison, Tuning, comparison_of
from comity.studies.parallel import chosen_jobs
from comity.text import escape_terminal
from comity.track import Tracker, Trackers


def run(
    algorithm: str,
    federation: Federation | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | Progress | None = None,
    track: Sequence[str | Tracker] = (),
    record_messages: bool = False,
    data: str | None = None,
    partition: str | None = None,
    parties: int | None = None,
    model: str | OwnModel = "mlp2",
    rounds: int = 20,
    epochs: int = 1,
    steps: int | None = None,
    batch: int = 10,
    optimizer: str = "sgd",
    lr: float = 0.05,
    participation: float = 1.0,
    test: str | None = None,
    validation: float | None = None,
    eval_every: int = 1,
    eval_share: float = 1.0,
    patience: int | None = None,
    metric: str | Function = "accuracy",
    augment: str = "none",
    bn: Literal["all", "params_only", "none"] = "all",
    init: Literal["common", "own"] = "common",
    cut: str | None = None,
    opt_state: Literal["reset", "keep"] = "reset",
    last_batch: Literal["keep", "drop"] = "keep",
    newcomers: int = 0,
    join_epochs: int = 10,
    without: Sequence[str] | None = None,
    absent: str | None = None,
    min_replies: int = 1,
    on_nonfinite: Literal["drop", "stop"] = "drop",
    budget: str | None = None,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    engine: Literal["auto", "loop", "process", "stacked", "ray"] = "auto",
    workers: int | None = None,
    gpus: float | None = None,
    partial_sums: bool = False,
    set: Mapping[str, Option] | None = None,
    party: Mapping[str, Any] | None = None,
    **options: Option,
) -> Result:
    """Run a method on a federation: `comity.run("fedavg+dbe", fed, rounds=20, seed=0, kappa=50)`.

    A method's own options (kappa, mu) are written in its name, `"fedavg+dbe(kappa=50)"`, in
    `set={"kappa": 50}`, or as further keywords, as above.

    Args:
        algorithm: method, with wrappers: fedavg+dbe, ./mine.py
        federation: the parties with their data; made from `data`, `partition`, `parties` and `seed` if it is not given
        out: the run's folder; without it the folder is temporary and goes with the result
        resume: whether to go on with the run in that folder
        progress: a line that follows the run: in a notebook unless False, elsewhere only if True; or an object of one's own
        track: who else writes its course down: "tensorboard", "mlflow", a user's file, or any Tracker
        tape: whether to keep every message, for `comity.audit`; the parties are then in one process
        data: dataset by name, or a user's file; digits unless told, and always the federation's own if one is given
        partition: how samples are dealt to parties, a saved split.json, or a user's file; auto: the data's own
            parties (persons, sites, sources), or dirichlet(alpha=0.5); auto unless told, and always the federation's
            own if one is given
        parties: number of parties; 10, or as many as the data have of their own; always the federation's own if one
            is given
        model: network by name, a user's file, or one's own: a pair (encoder, head) of modules or a function that
            makes it
        rounds: communication rounds
        epochs: local epochs a round
        steps: local steps a round, instead of epochs
        batch: mini-batch size
        optimizer: sgd, sgd(momentum=0.9,decay=1e-5) or adam
        lr: learning rate
        participation: share of the parties in a round
        test: test protocol: own(0.25), tail(0.25), official, matched or common; own(0.25) unless told, and always the
            federation's own if one is given
        validation: share of a party's training samples held out to choose by; 0.1 unless told, and always the
            federation's own if one is given
        eval_every: rounds between evaluations; the last round is always evaluated
        eval_share: share of the parties that evaluate, others each time; after the last round all do
        patience: end the run when it got no better for so many rounds, judged on validation data (on test data if
            validation is 0)
        metric: what rounds, settings and methods are chosen and judged by: accuracy, balanced_accuracy, macro_f1,
            auc, sensitivity, specificity, r2, a user's file, or a function of (truth, answer)
        augment: random changes to training images, as in flip|crop(pad=4)|rotate(degrees=10)
        bn: which BatchNorm values are shared
        init: the weights that parties start from: the same, or each its own
        cut: stage after which the representation is taken; the model's own unless told
        opt_state: parties' optimizers from round to round: new, or kept
        last_batch: a party's last batch of an epoch, if smaller
        newcomers: parties held out until the end (the last ones), then joined and judged
        join_epochs: epochs of a newcomer's warm-up
        without: parties to leave out, as in p1,p2; the others keep their data and their random streams
        absent: who misses what, to study it: a table as absences.csv, or random(offline=0.1,lost=0.1)
        min_replies: replies that make an exchange count (all, if fewer are asked), else the round is void
        on_nonfinite: a reply with values that are not finite: leave it out, or stop
        budget: the most that a run may give away of a party, as in epsilon=8,delta=1e-5; dp finds its noise by it
        seed: the one seed
        device: where tensors live; auto: a GPU if there is one, but none was ever tested
        engine: where parties live: one after another, in processes, many as one computation, or on a Ray cluster; flare: at
            sites of their own, with --federation
        workers: worker processes; one a core unless told
        gpus: GPUs, or a share of one, that each worker on Ray takes; none was ever tested
        partial_sums: have each worker (of process or ray) add up what its parties reply, where a method only averages
            it: less crosses, and figures differ by rounding
        set: a method's own options
        party: what single parties do their own way
        options: a method's own options, by name

    Examples:
        >>> import comity
        >>> fed = comity.load("digits").partition("dirichlet(alpha=0.1)", parties=3, seed=0)
        >>> result = comity.run("fedavg+dbe", fed, rounds=2, seed=0, model="linear", kappa=50)
        >>> 0 < result.summary["accuracy"]["mean"] <= 1
        True
    """
    told, own = _told(locals())
    check_federation("run", algorithm, federation)
    experiment = asked([algorithm], federation, told, options, run)
    experiment = one_process(experiment) if record_messages else experiment
    if out is None and any(isinstance(one, str) for one in track):
        raise UsageError("A tracker writes beside the run: give the run a folder with out=...")
    trackers = Trackers(track)
    job = prepare(experiment, federation or federation_of(experiment), own)
    for caution in job.warnings():
        warnings.warn(escape_terminal(caution), stacklevel=2)
    keep, folder = _folder(out)
    with show_progress(progress) as watched:
        if resume and RunFolder(folder).begun:
            check_same(folder, job.experiment, record_messages)
            for text in elsewhere(folder, experiment):
                warnings.warn(escape_terminal(text), stacklevel=2)
            again = reopen(folder, federation, own, trust=True)  # the caller has named its code
            result = resume_in(again, folder, watched(comparing.title(experiment, False)), trackers)
        else:
            result = start(
                job,
                folder,
                watched(comparing.title(experiment, False)),
                trackers,
                record_messages=record_messages,
            )
    for text in [*result.summary.get("remarks", ()), *caveats(result.summary)]:
        warnings.warn(escape_terminal(text), stacklevel=2)
    result._keep = keep
    return result


def compare(
    algorithms: Sequence[str],
    federation: Federation | None = None,
    *,
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    progress: bool | ProgressFactory | None = None,
    jobs: int | Literal["auto"] = 1,
    track: Sequence[str | Tracker] = (),
    record_messages: bool = False,
    data: str | None = None,
    partition: str | None = None,
    parties: int | None = None,
    model: str | OwnModel = "mlp2",
    rounds: int = 20,
    epochs: int = 1,
    steps: int | None = None,
    batch: int = 10,
    optimizer: str = "sgd",
    lr: float = 0.05,
    participation: float = 1.0,
    test: str | None = None,
    validation: float | None = None,
    eval_every: int = 1,
    eval_share: float = 1.0,
    patience: int | None = None,
    metric: str | Function = "accuracy",
    augment: str = "none",
    bn: Literal["all", "params_only", "none"] = "all",
    init: Literal["common", "own"] = "common",
    cut: str | None = None,
    opt_state: Literal["reset", "keep"] = "reset",
    last_batch: Literal["keep", "drop"] = "keep",
    newcomers: int = 0,
    join_epochs: int = 10,
    without: Sequence[str] | None = None,
    absent: str | None = None,
    min_replies: int = 1,
    on_nonfinite: Literal["drop", "stop"] = "drop",
    budget: str | None = None,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    engine: Literal["auto", "loop", "process", "stacked", "ray"] = "auto",
    workers: int | None = None,
    gpus: float | None = None,
    partial_sums: bool = False,
    set: Mapping[str, Option] | None = None,
    party: Mapping[str, Any] | None = None,
    **options: Option,
) -> Comparison:
    """Several methods, and SOLO, on the same data: `comity.compare(["fedavg", "fedavg+dbe"], fed,
    rounds=20, seeds=(0, 1, 2))`.

    Settings are those of `comity.run`; an option goes to those of the methods that have it. A seed
    changes initial weights, batches and all other draws. A federation that is given stays as it is
    under every seed, so that a spread over seeds says nothing of other ways to deal the data;
    without one, each seed deals them anew, as on the command line.

    Args:
        algorithms: the methods; SOLO runs beside them, told or not
        federation: the parties with their data; made from `data`, `partition` and `parties` for each seed if it is not given
        seeds: one run of each method for each of these; `seed` alone unless told
        out: the comparison's folder, in which the same call goes on; without it the folder is temporary and goes with the object
        progress: a line that follows the runs: in a notebook unless False, elsewhere only if True; or who watches each run
        jobs: how many runs go on at once, each in a process of its own with one worker; auto: one a core, if memory allows
        track: who else writes their course down, as in `comity.run`
        tape: whether to keep every message, as in `comity.run`

    Examples:
        >>> import comity
        >>> fed = comity.load("digits").partition("dirichlet(alpha=0.1)", parties=3, seed=0)
        >>> made = comity.compare(["fedavg", "fedavg+dbe"], fed, rounds=2, seeds=(0, 1), model="linear", kappa=50)
        >>> sorted(made.results)
        ['fedavg', 'fedavg+dbe', 'solo']
    """
    told, own = _told(locals())
    at_once = chosen_jobs(jobs)
    methods = _methods(algorithms)
    check_federation("compare", methods, federation)
    base = asked(methods, federation, told, options, compare)
    keep, folder = _folder(out)
    every = _seeds(seeds, base)
    trackers = _trackers(track, keep, folder)
    with show_progress(progress, len({comparing.SOLO, *methods}) * len(every), at_once) as watched:
        comparing.compare(
            base,
            methods,
            every,
            folder,
            watched,
            _warn,
            trackers,
            federation,
            own,
            at_once,
            record_messages,
        )
    return comparison_of(
        folder, federation, own, trust=True, keep=keep
    )  # the caller has named its code


def tune(
    algorithm: str,
    federation: Federation | None = None,
    *,
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    progress: bool | ProgressFactory | None = None,
    jobs: int | Literal["auto"] = 1,
    track: Sequence[str | Tracker] = (),
    data: str | None = None,
    partition: str | None = None,
    parties: int | None = None,
    model: str | OwnModel = "mlp2",
    rounds: int = 20,
    epochs: int = 1,
    steps: int | None = None,
    batch: int = 10,
    optimizer: str = "sgd",
    lr: float = 0.05,
    participation: float = 1.0,
    test: str | None = None,
    validation: float | None = None,
    eval_every: int = 1,
    eval_share: float = 1.0,
    patience: int | None = None,
    metric: str | Function = "accuracy",
    augment: str = "none",
    bn: Literal["all", "params_only", "none"] = "all",
    init: Literal["common", "own"] = "common",
    cut: str | None = None,
    opt_state: Literal["reset", "keep"] = "reset",
    last_batch: Literal["keep", "drop"] = "keep",
    newcomers: int = 0,
    join_epochs: int = 10,
    without: Sequence[str] | None = None,
    absent: str | None = None,
    min_replies: int = 1,
    on_nonfinite: Literal["drop", "stop"] = "drop",
    budget: str | None = None,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    engine: Literal["auto", "loop", "process", "stacked", "ray"] = "auto",
    workers: int | None = None,
    gpus: float | None = None,
    partial_sums: bool = False,
    set: Mapping[str, Option] | None = None,
    party: Mapping[str, Any] | None = None,
    **options: Option,
) -> Tuning:
    """Try a grid of settings with equal budgets: `comity.tune("adcol", fed, grid={"mu": [0.1, 1]},
    rounds=20)`.

    The choice is made on validation data. Settings are those of `comity.run`, and seeds mean what
    they mean in `comity.compare`.

    Args:
        algorithm: method, with wrappers
        federation: the parties with their data; made from `data`, `partition` and `parties` for each seed if it is not given
        grid: the values to try, by the name of a setting or of the method's own option; all combinations are tried
        seeds: every value runs once for each of these; `seed` alone unless told
        out: the trials' folder, in which the same call goes on; without it the folder is temporary and goes with the object
        progress: a line that follows the runs: in a notebook unless False, elsewhere only if True; or who watches each run
        jobs: how many runs go on at once, each in a process of its own with one worker; auto: one a core, if memory allows
        track: who else writes their course down, as in `comity.run`
    """
    told, own = _told(locals())
    at_once = chosen_jobs(jobs)
    check_federation("tune", algorithm, federation)
    base = asked([algorithm], federation, told, options, tune)
    points = _grid(grid, federation)
    check_options(
        [algorithm], [name for name in points if name not in Experiment.model_fields], tune
    )
    keep, folder = _folder(out)
    every = _seeds(seeds, base)
    trackers = _trackers(track, keep, folder)
    with show_progress(progress, prod(map(len, points.values())) * len(every), at_once) as watched:
        found = tuning.tune(
            base, points, every, folder, watched, trackers, federation, own, at_once
        )
    return Tuning(folder, algorithm, found, keep)


def leave_one_out(
    algorithms: str | Sequence[str],
    federation: Federation | None = None,
    *,
    leave_out: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    progress: bool | ProgressFactory | None = None,
    jobs: int | Literal["auto"] = 1,
    data: str | None = None,
    partition: str | None = None,
    parties: int | None = None,
    model: str | OwnModel = "mlp2",
    rounds: int = 20,
    epochs: int = 1,
    steps: int | None = None,
    batch: int = 10,
    optimizer: str = "sgd",
    lr: float = 0.05,
    participation: float = 1.0,
    test: str | None = None,
    validation: float | None = None,
    eval_every: int = 1,
    eval_share: float = 1.0,
    patience: int | None = None,
    metric: str | Function = "accuracy",
    augment: str = "none",
    bn: Literal["all", "params_only", "none"] = "all",
    init: Literal["common", "own"] = "common",
    cut: str | None = None,
    opt_state: Literal["reset", "keep"] = "reset",
    last_batch: Literal["keep", "drop"] = "keep",
    newcomers: int = 0,
    join_epochs: int = 10,
    without: Sequence[str] | None = None,
    absent: str | None = None,
    min_replies: int = 1,
    on_nonfinite: Literal["drop", "stop"] = "drop",
    budget: str | None = None,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    engine: Literal["auto", "loop", "process", "stacked", "ray"] = "auto",
    workers: int | None = None,
    gpus: float | None = None,
    partial_sums: bool = False,
    set: Mapping[str, Option] | None = None,
    party: Mapping[str, Any] | None = None,
    **options: Option,
) -> list[leaving.Effect]:
    """Who helps whom: `comity.leave_one_out("fedavg", fed, rounds=20)` runs once more without each
    party.

    Settings are those of `comity.run`, and seeds mean what they mean in `comity.compare`.

    Args:
        algorithms: one method or several
        federation: the parties with their data; made from `data`, `partition` and `parties` for each seed if it is not given
        leave_out: the parties that are left out in turn; all unless told
        seeds: every run once for each of these; `seed` alone unless told
        out: the runs' folder, in which the same call goes on; without it they are temporary
        progress: a line that follows the runs: in a notebook unless False, elsewhere only if True; or who watches each run
        jobs: how many runs go on at once, each in a process of its own with one worker; auto: one a core, if memory allows

    Examples:
        >>> import comity
        >>> fed = comity.load("digits").partition("iid", parties=3, seed=0)
        >>> rows = comity.leave_one_out("fedavg", fed, rounds=1, model="linear", leave_out=["p0"])
        >>> [(row.left_out, row.party) for row in rows]
        [('p0', 'p1'), ('p0', 'p2')]
    """
    told, own = _told(locals())
    at_once = chosen_jobs(jobs)
    methods = [algorithms] if isinstance(algorithms, str) else _methods(algorithms)
    check_federation("leave_one_out", algorithms, federation)
    if own is not None:
        raise UsageError(
            "leave_one_out takes a model by name or as a file: put the function into a ./mine.py"
            " that defines build."
        )
    base = asked(methods, federation, told, options, leave_one_out)
    _, folder = kept = _folder(out)
    every = _seeds(seeds, base)
    with show_progress(
        progress, leaving.count(base, methods, every, leave_out, federation), at_once
    ) as watched:
        found = leaving.effects(
            base, methods, every, folder, watched, leave_out, federation, _warn, at_once
        )
    del kept  # until here, a temporary folder stays
    return found


# What the calls have in common.


def _told(given: Mapping[str, Any]) -> tuple[dict[str, Any], OwnModel | None]:
    """A call's settings out of all it was given, and its own network if it has one; a function is
    known by a name from now on.
    """
    told = settings_in(given)
    own = None if isinstance(told["model"], str) else told["model"]
    if own is not None:
        told["model"] = MODULES
    if not isinstance(told["metric"], str):
        told["metric"] = give(told["metric"])
    return told, own


def _warn(text: str) -> None:
    """Say what a user should know, in the midst of a study."""
    warnings.warn(escape_terminal(text), stacklevel=4)


def _folder(out: str | Path | None) -> tuple[tempfile.TemporaryDirectory[str] | None, Path]:
    """A call's folder; a temporary one lives as long as whatever keeps the first."""
    keep = tempfile.TemporaryDirectory(prefix="comity-") if out is None else None
    return keep, Path(keep.name if keep else out or "")


def _methods(given: Sequence[str]) -> list[str]:
    if isinstance(given, str) or not all(isinstance(one, str) for one in given) or not len(given):
        raise UsageError('Methods are a list of names, as in ["fedavg", "fedavg+dbe"].')
    return list(given)


def _seeds(given: Sequence[int] | None, base: Experiment) -> list[int]:
    if given is None:
        return [base.seed]
    if (
        isinstance(given, int)
        or not len(given)
        or not all(isinstance(seed, int) and seed >= 0 for seed in given)
    ):
        raise UsageError(f"seeds are whole numbers from 0, as in (0, 1, 2), not {given!r}.")
    if len({*given}) < len(given):
        raise UsageError(f"seeds must differ, as in (0, 1, 2), unlike {given!r}.")
    return list(given)


def _trackers(track: Sequence[str | Tracker], keep: object, folder: Path) -> Trackers:
    if keep is not None and any(isinstance(one, str) for one in track):
        raise UsageError("A tracker writes beside the runs: give them a folder with out=...")
    return Trackers(track, folder, _warn)


def _grid(grid: Mapping[str, Sequence[Any]], federation: Federation | None) -> dict[str, list[Any]]:
    """The points of a grid, if they can be tried on a federation that is given."""
    if not isinstance(grid, Mapping) or not grid:
        raise UsageError("tune needs values to try, as in grid={'mu': [0.1, 1]}.")
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
            raise UsageError(
                f"The values of {name} must be a list, as in grid={{'{name}': [0.1, 1]}}."
            )
        if federation is not None and name in (
            "data",
            "partition",
            "parties",
            "test",
            "validation",
        ):
            raise UsageError(
                f"{name} was settled when the federation was made: leave the federation out, or"
                f" {name}."
            )
    return {name: list(values) for name, values in grid.items()}
