"""Commands that run methods: run, resume, compare, tune, and plan before them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comity.cli.at_sites import (
    AtSites,
    Deadline,
    Wait,
    check_at_sites,
    compare_sites,
    conduct,
    order,
)
from comity.cli.options import (
    Algo,
    Jobs,
    Out,
    Report,
    RunDir,
    Seeds,
    Settings,
    Tape,
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
from comity.errors import UsageError
from comity.metrics.metrics import ACCURACY, METRICS, Metric
from comity.names import display_name
from comity.runs.config import Experiment, experiment

if TYPE_CHECKING:
    from comity.studies.compare import Findings
    from comity.studies.method_summary import MethodSummary


@app.command()
@with_experiment
def run(
    algo: Algo,
    settings: Settings,
    out: Out = None,
    track: Track = None,
    record_messages: Tape = False,
    trust: Trust = False,
    federation: AtSites = None,
    deadline: Deadline = 600,
    wait: Wait = 60,
) -> None:
    """Run one method, or an experiment's file."""
    from comity.cli import screen
    from comity.runs.build import federation_of, prepare
    from comity.runs.recording import one_process
    from comity.runs.run import start

    chosen = chosen_experiment(algo, settings, trust)
    if federation is not None:
        check_no_tape(record_messages)
        order(chosen, settings, federation, out, track, deadline, wait)
        return
    chosen = one_process(chosen) if record_messages else chosen
    job = prepare(chosen, federation_of(chosen))
    for text in job.warnings():
        caution(text)
    folder = out or free_folder(
        f"{display_name(chosen.algorithm)}-{Path(chosen.data).stem}-s{chosen.seed}"
    )
    others = trackers(track, folder.parent)
    with resumable(f"comity resume {folder}"):
        finish(
            folder,
            start(
                job,
                folder,
                screen.progress(display_name(chosen.algorithm)),
                others,
                record_messages=record_messages,
            ).summary,
        )


@app.command()
def resume(
    run_dir: RunDir,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", help="go on to so many, also if the run has ended with fewer"),
    ] = None,
    track: Track = None,
    trust: Trust = False,
) -> None:
    """Continue a run that was stopped or killed, or one that is to have more rounds; the result is
    what it would have been.
    """
    from comity.cli import screen
    from comity.deploy.job_submission import SubmittedJob, was_submitted
    from comity.runs.extend import ask_for
    from comity.runs.folder import RunFolder
    from comity.runs.run import reopen, resume_in

    if was_submitted(run_dir):
        conduct(SubmittedJob.read(run_dir), run_dir)
        return
    begun = RunFolder(run_dir)
    begun.check_begun()
    others = trackers(track, run_dir.resolve().parent)
    if rounds is not None:
        ask_for(run_dir, rounds, trust=trust)
        if (run_dir.resolve().parents[1] / "comparison.json").is_file():
            caution(
                f"{run_dir} is part of a comparison, whose other runs keep the rounds that they"
                " have."
            )
    with resumable(f"comity resume {run_dir}"):
        if (done := begun.read_summary()) is not None:
            begun.check()
        else:
            job = reopen(run_dir, trust=trust)
            done = resume_in(
                job, run_dir, screen.progress(display_name(job.experiment.algorithm)), others
            ).summary
        finish(run_dir, done)


def finish(folder: Path, summary: dict[str, Any]) -> None:
    """The end of a run on the screen."""
    from comity.cli import screen
    from comity.measure.caveats import caveats
    from comity.measure.summary import has_diverged
    from comity.privacy.account import describe_guarantees
    from comity.runs.folder import RunFolder
    from comity.runs.run_metric import metric_of

    metric = metric_of(RunFolder(folder), RunFolder(folder).read_experiment())
    name = display_name(summary["algorithm"])
    got = summary.get(metric.name) or {}
    sent = summary["bytes"]
    if got.get("mean") is None:
        why = "as a model has diverged" if has_diverged(got) else "as no party told one"
        screen.out.print(f"{name}: no {metric.title}, {why}", soft_wrap=True)
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
    if gained := summary.get("gained"):
        told = {
            name: [f"{100 * one[part]:+.1f}" for part in ("gain", "low", "high")]
            for name, one in gained.items()
        }
        said = ", ".join(
            f"{name} {gain} ({low} to {high})" for name, (gain, low, high) in told.items()
        )
        screen.out.print(
            f"over training alone, in points, each site's own judgement (95% interval): {said}",
            soft_wrap=True,
        )
    for name, new in summary["newcomers"].items():
        screen.out.print(
            f"newcomer {name}: offered {new['offered']:.1%}, after its warm-up {new['joined']:.1%},"
            f" alone {new['alone']:.1%}: {100 * new['gain']:+.1f} points by joining",
            soft_wrap=True,
        )
    screen.out.print(
        f"up {screen.size(sent['up'])}, down {screen.size(sent['down'])}, peer"
        f" {screen.size(sent['peer'])}, {summary['steps']} steps,"
        f" {screen.duration(summary['seconds']['total'])}"
    )
    for text in describe_guarantees(summary.get("privacy")):
        screen.out.print(text, soft_wrap=True)
    screen.show_curves({name: [folder]}, metric)
    screen.out.print(f"The run is in {folder}", soft_wrap=True)
    if RunFolder(folder).recorded:
        say_tape(folder, [folder])
    for text in [*summary.get("remarks", ()), *caveats(summary)]:
        caution(text)


def _heard(block: dict[str, Any]) -> int:
    """How many parties have a figure."""
    return sum(figure is not None for figure in block["per_party"].values())


def _others(summary: dict[str, Any], metric: Metric) -> str:
    """A run's figures by all metrics but the chosen one."""
    from comity.measure.summary import blocks

    known = [(other, block.get("mean")) for other, block in blocks(summary) if other is not metric]
    return ", ".join(
        f"{other.title} {other.text(mean)}" for other, mean in known if mean is not None
    )


Algos = Annotated[
    list[str] | None,
    typer.Argument(metavar="ALGO...", help="methods, as in fedavg fedavg+dbe ./mine.py"),
]


@app.command()
@with_experiment
def compare(
    settings: Settings,
    algos: Annotated[
        list[str] | None,
        typer.Argument(metavar="ALGO...", help="methods, as in fedavg fedavg+dbe ./mine.py"),
    ] = None,
    every_one: Annotated[
        bool, typer.Option("--all", help="all methods, and all wrappers around fedavg")
    ] = False,
    seeds: Seeds = None,
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out", help="once more without each party: who helps whom?")
    ] = False,
    leave_out: Annotated[
        str | None,
        typer.Option("--leave-out", help="only these in turn, as in p1,p2", metavar="NAMES"),
    ] = None,
    jobs: Jobs = "1",
    out: Out = None,
    track: Track = None,
    record_messages: Tape = False,
    report: Report = True,
    federation: AtSites = None,
    deadline: Deadline = 600,
    wait: Wait = 60,
) -> None:
    """Run several methods, and SOLO, on one split; end with a table."""
    from comity.cli import screen
    from comity.cli.leave_one_out import announce, show
    from comity.runs.folder import RunFolder
    from comity.studies import leave_one_out as left_out
    from comity.studies.compare import SOLO, run_folder
    from comity.studies.compare import compare as compare_runs
    from comity.studies.parallel import chosen_jobs

    at_once = chosen_jobs(jobs)
    base = experiment(settings)
    every = chosen_seeds(seeds, base.seed)
    if federation is not None:
        if leave_one_out or at_once > 1 or every_one:
            raise UsageError(
                "Between sites named methods follow each other, with everybody: leave --all,"
                " --leave-one-out and --jobs away."
            )
        check_at_sites(settings, track)
        check_no_tape(record_messages)
        compare_sites(federation, base, chosen_methods(algos), every, out, deadline, wait)
        return
    algos = chosen_methods(algos, base.but(seed=every[0]) if every_one else None)
    folder = out or free_folder(f"compare-{Path(base.data).stem}")
    only = None if leave_out is None else [name.strip() for name in leave_out.split(",")]
    if only and not leave_one_out:
        raise UsageError(
            "--leave-out names the parties of --leave-one-out: give both, or --without to leave"
            " them out of all runs."
        )

    others = trackers(track, folder)
    with resumable(f"the same command and --out {folder}"):
        more = announce(base, algos, every, only) if leave_one_out else 0
        watched = screen.several(len({SOLO, *algos}) * len(every) + more, at_once)
        made = compare_runs(
            base,
            algos,
            every,
            folder,
            watched,
            caution,
            others,
            jobs=at_once,
            record_messages=record_messages,
        )
        effects = (
            left_out.effects(base, algos, every, folder, watched, only, jobs=at_once)
            if leave_one_out
            else []
        )
    settled = RunFolder(
        run_folder(folder, SOLO, every[0])
    ).read_experiment()  # where `auto` is settled
    show_comparison(made.rows, settled, len(every))
    if effects:
        show(effects)
    folders = {
        row.algorithm: [run_folder(folder, row.algorithm, seed) for seed in every]
        for row in made.rows
    }
    screen.show_curves(folders, METRICS[settled.metric])
    show_answers(made)
    screen.out.print(f"The runs are in {folder}", soft_wrap=True)
    if record_messages:
        say_tape(
            folder, [run_folder(folder, row.algorithm, seed) for row in made.rows for seed in every]
        )
    if report:
        write_report(folder)


def chosen_methods(named: list[str] | None, every_as: Experiment | None = None) -> list[str]:
    """The methods that are compared: those `named`, and with `every_as` all that can be run so; the
    others are said.
    """
    from comity.runs.build import federation_of
    from comity.studies.compare import every_method

    if every_as is None:
        if not named:
            raise UsageError(
                "Which methods? Name some, as in: comity compare fedavg fedavg+dbe, or say --all."
            )
        return named
    able, left_out = every_method(every_as, federation_of(every_as))
    for why in left_out:
        caution(why)
    return [*able, *(named or ())]


def check_no_tape(record_messages: bool) -> None:
    """Refuse to keep what passes between sites."""
    if record_messages:
        raise UsageError(
            "A tape keeps all that a server sees, for study: between real sites there is none, only"
            " in a simulation."
        )


def say_tape(folder: Path, runs: Sequence[Path]) -> None:
    """How large the tape is that runs have left, and what to do with it."""
    from comity.cli import screen
    from comity.runs.folder import RunFolder
    from comity.runs.recording import SAID

    large = sum(RunFolder(run).record_messages.stat().st_size for run in runs)
    screen.out.print(
        f"{SAID} It is {screen.size(large)}. See what can be learned from it: comity audit"
        f" {folder}",
        soft_wrap=True,
    )


def show_comparison(rows: Sequence[MethodSummary], settled: Experiment, seeds: int) -> None:
    """The table of a comparison, and what its columns mean; `settled` are the settings of one of
    its runs.
    """
    from comity.cli import screen
    from comity.studies.method_summary import columns

    metric = METRICS[settled.metric]
    title = f"{settled.data}, {settled.partition}, {settled.rounds} rounds" + (
        f", {seeds} seeds" if seeds > 1 else ""
    )
    screen.table(*columns(row.cells(seeds > 1) for row in rows), title)
    joint = sum(row.gain is not None for row in rows)
    wide = f" and wide enough for the best of {joint} methods to be picked" if joint > 1 else ""
    screen.note(
        "over SOLO: points more than by training alone, mean over parties, with its 95% interval."
        f" gained, hurt: parties whose own interval, paired over their test samples{wide}, excludes"
        f" zero. worst: the worst party{'' if metric is ACCURACY else f', by {metric.title}'}."
        " sent: all bytes that cross in a run but those of evaluation."
        + (
            " newcomers: their accuracy after joining, and what it gave them against training"
            " alone."
            if settled.newcomers
            else ""
        )
        + (" *: see the notes." if any(row.caveats for row in rows) else "")
    )
    for text in (text for row in rows for text in row.caveats):
        caution(text)


def show_answers(made: Findings) -> None:
    """What a comparison says of everybody together, and to each party."""
    from comity.cli import screen
    from comity.studies.party_verdicts import lines

    for question, said in made.overall.questions.items() if made.overall else ():
        screen.out.print(question, style="bold")
        screen.say(said)
    if not made.answers:
        return
    screen.out.print("Party by party:", style="bold")
    for line in lines(made.answers):
        screen.say(line)
    screen.note(made.reading)


@app.command()
@with_experiment
def tune(
    algo: Algo,
    settings: Settings,
    grid: Annotated[
        list[str], typer.Option("--grid", help="values to try: mu=0.1,1", metavar="NAME=V,V")
    ],
    seeds: Seeds = None,
    jobs: Jobs = "1",
    out: Out = None,
    track: Track = None,
    report: Report = True,
    trust: Trust = False,
) -> None:
    """Try a grid of values with equal budgets; choose on validation data."""
    from math import prod

    from comity.cli import screen
    from comity.studies.parallel import chosen_jobs
    from comity.studies.tune import parse_grid
    from comity.studies.tune import tune as tune_runs
    from comity.units import spread

    at_once = chosen_jobs(jobs)
    base = chosen_experiment(algo, settings, trust)
    folder = out or free_folder(f"tune-{display_name(base.algorithm)}")
    points = parse_grid(grid)
    others = trackers(track, folder)
    with resumable(f"the same command and --out {folder}"):
        every = chosen_seeds(seeds, base.seed)
        count = prod(map(len, points.values())) * len(every)
        made = tune_runs(
            base, points, every, folder, screen.several(count, at_once), others, jobs=at_once
        )
    rows = [
        [
            *(str(v) for v in t.settings.values()),
            spread(t.validations),
            spread(t.tests) + (" *" if t.caveats else ""),
            ", ".join(map(str, t.rounds)),
        ]
        for t in made.trials
    ]
    by = METRICS[made.metric].title
    seeds_of = f", {len(made.seeds)} seeds" if len(made.seeds) > 1 else ""
    title = (
        f"{display_name(base.algorithm)}: {by}, up to {base.rounds} rounds{seeds_of}, best by"
        " validation first"
    )
    screen.table([*points, "validation", "test", "round"], rows, title)
    screen.note(
        "validation, test: the mean over parties, after the round in the last column, which is best"
        " on all validation samples"
        + ("; ±: standard deviation over seeds." if len(made.seeds) > 1 else ".")
        + (" *: see the notes." if any(t.caveats for t in made.trials) else "")
    )
    for t in made.trials:
        for text in t.caveats:
            caution(f"{t.name.replace(',', ', ')}, {text}")
    screen.say(made.verdict)
    screen.out.print(f"The runs are in {folder}", soft_wrap=True)
    if report:
        write_report(folder)
    else:
        screen.out.print(f"See them all on a page with: comity report {folder}", soft_wrap=True)


@app.command()
@with_experiment
def plan(algo: Algo, settings: Settings, trust: Trust = False) -> None:
    """Bytes, memory, time and privacy before a run."""
    from comity.cli import screen
    from comity.privacy.account import describe_guarantees
    from comity.runs.build import federation_of, prepare
    from comity.studies.plan import plan as make

    chosen = chosen_experiment(algo, settings, trust)
    job = prepare(chosen, federation_of(chosen))
    made = make(job)
    bytes_of = ("up", "down", "peer")
    rows = [
        [name, *(screen.size(getattr(part, kind)) for kind in bytes_of)]
        for name, part in (
            ("before round 1", made.start),
            ("largest round", made.per_round),
            ("whole run", made.total),
        )
    ]
    screen.table(
        ["bytes", *bytes_of],
        rows,
        f"{display_name(chosen.algorithm)} on {chosen.data}, {len(job.parties)} parties",
    )
    screen.out.print(f"closed form: {job.algorithm.bytes_formula}")
    screen.out.print(
        f"model: {job.info.task.network.name}, {made.parameters:,} values,"
        f" {screen.size(made.model_bytes)}; representation of {job.info.width}"
    )
    screen.out.print(
        f"memory beside torch itself: data {screen.size(made.data_bytes)}, party states"
        f" {screen.size(made.state_bytes)}, messages of a round {screen.size(made.message_bytes)}"
    )
    for text in describe_guarantees(job.planned_privacy(), always=True):
        screen.out.print(text, soft_wrap=True)
    for name, unit in (("dp", "the clipping norm"), ("ldp", "what one row or party can change")):
        if noise := job.experiment.set.get(f"{name}.noise"):
            screen.out.print(f"noise of {name}: {noise:g} times {unit}")
    where = job.experiment.engine + (
        f" with {job.experiment.workers} workers" if job.experiment.workers else ""
    )
    screen.out.print(
        "time, scaled from one round tried with one party: training"
        f" {screen.duration(made.train_seconds)}, evaluation"
        f" {screen.duration(made.evaluate_seconds)}; {made.steps:,} steps on engine {where}"
    )
    if made.counted < chosen.rounds:
        screen.out.print(
            f"estimated from {made.counted:,} of {chosen.rounds:,} rounds, evenly spread"
        )
