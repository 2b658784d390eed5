"""Commands that run methods: run, resume, compare, tune, and plan before them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comity.cli.options import (
    Algo,
    Out,
    Report,
    RunDir,
    Seeds,
    Settings,
    Track,
    Trust,
    app,
    caution,
    chosen_experiment,
    chosen_seeds,
    free_folder,
    resumable,
    trackers,
    with_experiment,
    write_report,
)
from comity.core.metrics import ACCURACY, EXPLAINED, METRICS, Metric
from comity.errors import Refusal
from comity.experiments.config import Experiment, experiment
from comity.names import called

if TYPE_CHECKING:
    from comity.experiments.build import Progress
    from comity.studies.compare import Comparison
    from comity.studies.standing import Standing


@app.command()
@with_experiment
def run(algo: Algo, settings: Settings, out: Out = None, track: Track = None, trust: Trust = False) -> None:
    """Run one method, or an experiment's file."""
    from comity.cli import screen
    from comity.experiments.build import federation_of, prepare
    from comity.experiments.run import start

    chosen = chosen_experiment(algo, settings, trust)
    job = prepare(chosen, federation_of(chosen))
    for text in job.cautions():
        caution(text)
    folder = out or free_folder(f"{called(chosen.algorithm)}-{Path(chosen.data).stem}-s{chosen.seed}")
    others = trackers(track, folder.parent)
    with resumable(f"comity resume {folder}"):
        _finish(folder, start(job, folder, screen.progress(called(chosen.algorithm)), others).summary)


@app.command()
def resume(
    run_dir: RunDir,
    rounds: Annotated[int | None, typer.Option("--rounds", help="go on to so many, also if the run has ended with fewer")] = None,
    track: Track = None,
    trust: Trust = False,
) -> None:
    """Continue a run that was stopped or killed, or one that is to have more rounds; the result is what it would have been."""
    from comity.cli import screen
    from comity.experiments.folder import RunFolder
    from comity.experiments.longer import ask_for
    from comity.experiments.run import reopen, resume_in

    begun = RunFolder(run_dir)
    begun.check_begun()
    others = trackers(track, run_dir.resolve().parent)
    if rounds is not None:
        ask_for(run_dir, rounds, trust=trust)
        if (run_dir.resolve().parents[1] / "comparison.json").is_file():
            caution(f"{run_dir} is part of a comparison, whose other runs keep the rounds that they have.")
    with resumable(f"comity resume {run_dir}"):
        if (done := begun.read_summary()) is not None:
            begun.check()
        else:
            job = reopen(run_dir, trust=trust)
            done = resume_in(job, run_dir, screen.progress(called(job.experiment.algorithm)), others).summary
        _finish(run_dir, done)


def _finish(folder: Path, summary: dict[str, Any]) -> None:
    """The end of a run on the screen."""
    from comity.cli import screen
    from comity.measure.doubts import doubts

    metric = METRICS[summary["metric"]]
    name = called(summary["algorithm"])
    got = summary.get(metric.name) or {}
    sent = summary["bytes"]
    if got.get("mean") is None:
        screen.out.print(f"{name}: no {metric.title}, as a model has diverged", soft_wrap=True)
    else:
        screen.out.print(
            f"{name}: {metric.title} {got['mean']:.1%} (mean of {_heard(got)} parties), "
            f"worst {got['per_party'][got['worst_party']]:.1%} ({got['worst_party']}), "
            f"best {got['per_party'][got['best_party']]:.1%} ({got['best_party']})",
            soft_wrap=True,
        )
    if others := _others(summary, metric):
        screen.out.print(f"also: {others}", soft_wrap=True)
    if got.get("unfinished") is not None:
        screen.out.print(f"before its last fine-tuning: {got['unfinished']:.1%}")
    for name, new in summary["newcomers"].items():
        screen.out.print(
            f"newcomer {name}: offered {new['offered']:.1%}, after its warm-up {new['joined']:.1%}, "
            f"alone {new['alone']:.1%}: {100 * new['gain']:+.1f} points by joining",
            soft_wrap=True,
        )
    screen.out.print(
        f"up {screen.size(sent['up'])}, down {screen.size(sent['down'])}, peer {screen.size(sent['peer'])}, "
        f"{summary['steps']} steps, {screen.duration(summary['seconds']['total'])}"
    )
    screen.show_curves({name: [folder]}, metric)
    screen.out.print(f"The run is in {folder}", soft_wrap=True)
    for text in [*summary.get("remarks", ()), *doubts(summary)]:
        caution(text)


def _heard(block: dict[str, Any]) -> int:
    """How many parties have a figure."""
    return sum(figure is not None for figure in block["per_party"].values())


def _others(summary: dict[str, Any], metric: Metric) -> str:
    """A run's figures by all metrics but the chosen one."""
    from comity.measure.summary import blocks

    known = [(other, block.get("mean")) for other, block in blocks(summary) if other is not metric]
    return ", ".join(f"{other.title} {other.text(mean)}" for other, mean in known if mean is not None)


@app.command()
@with_experiment
def compare(
    algos: Annotated[list[str], typer.Argument(metavar="ALGO...", help="methods, as in fedavg fedavg+dbe ./mine.py")],
    settings: Settings,
    seeds: Seeds = None,
    leave_one_out: Annotated[bool, typer.Option("--leave-one-out", help="once more without each party: who helps whom?")] = False,
    leave_out: Annotated[str | None, typer.Option("--leave-out", help="only these in turn, as in p1,p2", metavar="NAMES")] = None,
    out: Out = None,
    track: Track = None,
    report: Report = True,
) -> None:
    """Run several methods, and SOLO, on one split; end with a table."""
    from comity.cli import screen
    from comity.cli.leave_one_out import announce, show
    from comity.experiments.folder import RunFolder
    from comity.studies import leave_one_out as left_out
    from comity.studies.compare import SOLO, run_folder
    from comity.studies.compare import compare as compare_runs

    base = experiment(settings)
    every = chosen_seeds(seeds, base.seed)
    folder = out or free_folder(f"compare-{Path(base.data).stem}")
    several = len(every) > 1
    only = None if leave_out is None else [name.strip() for name in leave_out.split(",")]
    if only and not leave_one_out:
        raise Refusal("--leave-out names the parties of --leave-one-out: give both, or --without to leave them out of all runs.")

    def watched(e: Experiment) -> Progress:
        missing = set(e.without or ()) - set(base.without or ())
        return screen.progress(
            called(e.algorithm) + "".join(f" without {p}" for p in missing) + (f" seed {e.seed}" if several else "")
        )

    others = trackers(track, folder)
    with resumable(f"the same command and --out {folder}"):
        if leave_one_out:
            announce(base, algos, every, only)
        made = compare_runs(base, algos, every, folder, watched, caution, others)
        effects = left_out.effects(base, algos, every, folder, watched, only) if leave_one_out else []
    settled = RunFolder(run_folder(folder, SOLO, every[0])).read_experiment()  # where `auto` is settled
    _show_comparison(made.rows, settled, len(every))
    if effects:
        show(effects)
    folders = {row.algorithm: [run_folder(folder, row.algorithm, seed) for seed in every] for row in made.rows}
    screen.show_curves(folders, METRICS[settled.metric])
    _show_answers(made)
    screen.out.print(f"The runs are in {folder}", soft_wrap=True)
    if report:
        write_report(folder)


def _show_comparison(rows: Sequence[Standing], settled: Experiment, seeds: int) -> None:
    """The table of a comparison, and what its columns mean; `settled` are the settings of one of its runs."""
    from comity.cli import screen

    late = ["newcomers"] if settled.newcomers else []
    metric = METRICS[settled.metric]
    beside = [] if metric in (ACCURACY, EXPLAINED) else [ACCURACY.title]
    columns = ["method", metric.title, *beside, "worst", "gained", "hurt", *late, "up", "down", "peer", "time"]
    title = f"{settled.data}, {settled.partition}, {settled.rounds} rounds" + (f", {seeds} seeds" if seeds > 1 else "")
    screen.table(columns, [_cells(row, seeds > 1) for row in rows], title)
    screen.out.print(
        f"worst: the worst party{'' if metric is ACCURACY else f', by {metric.title}'}. "
        "gained, hurt: parties whose 95% interval against SOLO, paired over their test samples, excludes zero."
        + (" newcomers: their accuracy after joining, and what it gave them against training alone." if late else "")
        + (" *: see the notes." if any(row.doubts for row in rows) else ""),
        style="dim",
    )
    for text in (text for row in rows for text in row.doubts):
        caution(text)


def _show_answers(made: Comparison) -> None:
    """What a comparison says to each party."""
    from comity.cli import screen
    from comity.studies.answers import lines

    if not made.answers:
        return
    screen.out.print("Does collaborating help?", style="bold")
    for line in lines(made.answers):
        screen.out.print(line, soft_wrap=True)
    screen.out.print(made.reading, style="dim", soft_wrap=True)


def _cells(row: Standing, several: bool) -> list[str]:
    """A method's line in the table of a comparison."""
    from comity.cli import screen

    return [
        row.algorithm + (" *" if row.doubts else ""),
        "diverged" if row.mean is None else f"{row.mean:.1%}" + (f" ± {100 * row.spread:.1f}" if several else ""),
        *([] if row.metric in (ACCURACY.name, EXPLAINED.name) else [f"{fmean(row.accuracy):.1%}"]),
        "" if row.worst_mean is None else f"{row.worst_mean:.1%}",
        f"{row.gained}/{row.judged}" if row.judged else "",
        f"{row.hurt}/{row.judged}" if row.judged else "",
        *([f"{row.joined:.1%} ({100 * (row.joined_gain or 0):+.1f})"] if row.joined is not None else []),
        *(screen.size(row.bytes[kind]) if row.bytes[kind] else "0" for kind in ("up", "down", "peer")),
        screen.duration(row.seconds or 0.0),
    ]


@app.command()
@with_experiment
def tune(
    algo: Algo,
    settings: Settings,
    grid: Annotated[list[str], typer.Option("--grid", help="values to try: mu=0.1,1", metavar="NAME=V,V")],
    seeds: Seeds = None,
    out: Out = None,
    track: Track = None,
    report: Report = True,
    trust: Trust = False,
) -> None:
    """Try a grid of values with equal budgets; choose on validation data."""
    from statistics import pstdev

    from comity.cli import screen
    from comity.studies.tune import parse_grid
    from comity.studies.tune import tune as tune_runs

    base = chosen_experiment(algo, settings, trust)
    folder = out or free_folder(f"tune-{called(base.algorithm)}")
    points = parse_grid(grid)
    others = trackers(track, folder)
    with resumable(f"the same command and --out {folder}"):
        made = tune_runs(base, points, chosen_seeds(seeds, base.seed), folder, screen.progress, others)

    def over_seeds(figures: Sequence[float]) -> str:
        return f"{fmean(figures):.1%}" + (f" ± {100 * pstdev(figures):.1f}" if len(figures) > 1 else "")

    rows = [
        [
            *(str(v) for v in t.settings.values()),
            over_seeds(t.validations),
            over_seeds(t.tests) + (" *" if t.doubts else ""),
            ", ".join(map(str, t.rounds)),
        ]
        for t in made.trials
    ]
    by = METRICS[made.metric].title
    seeds_of = f", {len(made.seeds)} seeds" if len(made.seeds) > 1 else ""
    title = f"{called(base.algorithm)}: {by}, up to {base.rounds} rounds{seeds_of}, best by validation first"
    screen.table([*points, "validation", "test", "round"], rows, title)
    screen.note(
        "validation, test: the mean over parties, after the round in the last column, which is best on all validation samples"
        + ("; ±: standard deviation over seeds." if len(made.seeds) > 1 else ".")
        + (" *: see the notes." if any(t.doubts for t in made.trials) else "")
    )
    for t in made.trials:
        for text in t.doubts:
            caution(f"{t.name.replace(',', ', ')}, {text}")
    screen.out.print(made.verdict, soft_wrap=True)
    screen.out.print(f"The runs are in {folder}", soft_wrap=True)
    if report:
        write_report(folder)
    else:
        screen.out.print(f"See them all on a page with: comity report {folder}", soft_wrap=True)


@app.command()
@with_experiment
def plan(algo: Algo, settings: Settings, trust: Trust = False) -> None:
    """Bytes, memory and time before a run."""
    from comity.cli import screen
    from comity.experiments.build import federation_of, prepare
    from comity.studies.plan import plan as make

    chosen = chosen_experiment(algo, settings, trust)
    job = prepare(chosen, federation_of(chosen))
    made = make(job)
    bytes_of = ("up", "down", "peer")
    rows = [
        [name, *(screen.size(getattr(part, kind)) for kind in bytes_of)]
        for name, part in (("before round 1", made.start), ("largest round", made.per_round), ("whole run", made.total))
    ]
    screen.table(["bytes", *bytes_of], rows, f"{called(chosen.algorithm)} on {chosen.data}, {len(job.parties)} parties")
    screen.out.print(f"closed form: {job.algorithm.bytes_formula}")
    screen.out.print(
        f"model: {job.info.task.network.name}, {made.parameters:,} values, {screen.size(made.model_bytes)}; "
        f"representation of {job.info.width}"
    )
    screen.out.print(
        f"memory beside torch itself: data {screen.size(made.data_bytes)}, party states {screen.size(made.state_bytes)}, "
        f"messages of a round {screen.size(made.message_bytes)}"
    )
    where = job.experiment.engine + (f" with {job.experiment.workers} workers" if job.experiment.workers else "")
    screen.out.print(
        f"time, scaled from one round tried with one party: training {screen.duration(made.train_seconds)}, evaluation "
        f"{screen.duration(made.evaluate_seconds)}; {made.steps:,} steps on engine {where}"
    )
    if made.counted < chosen.rounds:
        screen.out.print(f"estimated from {made.counted:,} of {chosen.rounds:,} rounds, evenly spread")
