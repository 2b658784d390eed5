"""The commands that run methods: run, resume, compare, tune and plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from comity.cli.options import (
    Algo,
    Folds,
    Jobs,
    Out,
    PlainModels,
    RecordMessages,
    Repeats,
    Report,
    RunDir,
    Seeds,
    Settings,
    Track,
    Trust,
    app,
    chosen_experiment,
    chosen_seeds,
    free_folder,
    print_warning,
    resumable,
    trackers,
    with_experiment,
    write_report,
)
from comity.cli.site_runs import (
    AtSites,
    Deadline,
    Wait,
    check_at_sites,
    compare_sites,
    resume_run,
    submit_run,
)
from comity.errors import ComityError, UsageError
from comity.metrics.metrics import ACCURACY, METRICS, Metric
from comity.names import OWN_MODELS, SOLO, display_data, display_name
from comity.runs.config import Experiment, experiment
from comity.text import shell_line

if TYPE_CHECKING:
    from comity.studies.against import AgainstEach
    from comity.studies.compare import Findings
    from comity.studies.estimate import Baseline
    from comity.studies.method_summary import MethodSummary


@app.command()
@with_experiment
def run(
    algo: Algo,
    settings: Settings,
    out: Out = None,
    track: Track = None,
    record_messages: RecordMessages = False,
    trust: Trust = False,
    federation: AtSites = None,
    deadline: Deadline = 600,
    wait: Wait = 60,
) -> None:
    """Run a method, or the experiment of a TOML file."""
    from comity.cli import screen
    from comity.runs.auto_model import resolve_auto_model
    from comity.runs.build import federation_of, prepare
    from comity.runs.recording import one_process
    from comity.runs.run import start

    base = chosen_experiment(algo, settings, trust)
    if federation is not None:
        check_not_recorded(record_messages)
        submit_run(base, settings, federation, out, track, deadline, wait)
        return
    base = one_process(base) if record_messages else base
    federation_here = federation_of(base)
    base, reason = resolve_auto_model(base, federation_here)
    job = prepare(base, federation_here)
    job = replace(job, auto_model=reason)
    for text in job.warnings():
        print_warning(text)
    for initial in job.context.initial_weights:
        if not initial.is_partial:  # otherwise it is among the warnings
            screen.out.print(initial.text, soft_wrap=True)
    name = display_name(base.algorithm)
    folder = out or free_folder(f"{name}-{Path(base.data).stem}-s{base.seed}")
    run_trackers = trackers(track, folder.parent)
    with resumable(shell_line("comity", "resume", folder)):
        progress = screen.progress(name)
        result = start(job, folder, progress, run_trackers, record_messages=record_messages)
        show_result(folder, result.summary)


@app.command()
def resume(
    run_dir: RunDir,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", help="continue to this number of rounds, even if the run has finished"
        ),
    ] = None,
    engine: Annotated[
        Literal["loop", "process", "ray"] | None,
        typer.Option("--engine", help="continue on another engine, with the same results"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="continue with another number of workers"),
    ] = None,
    track: Track = None,
    trust: Trust = False,
) -> None:
    """Resume an interrupted run, or extend a finished one with --rounds.

    The result is the same as that of an uninterrupted run.
    """
    from comity.cli import screen
    from comity.deploy.job_submission import SubmittedJob, was_submitted
    from comity.runs.extend import extend
    from comity.runs.folder import RunFolder
    from comity.runs.relocate import relocate
    from comity.runs.run import reopen, resume_in

    if was_submitted(run_dir):
        options = {"--track": track, "--rounds": rounds, "--engine": engine, "--workers": workers}
        if unsupported := [name for name, value in options.items() if value]:
            raise UsageError(
                f"{unsupported[0]} is not supported for a run between sites:"
                f" '{shell_line('comity', 'resume', run_dir)}' completes it as it was submitted."
            )
        resume_run(SubmittedJob.read(run_dir), run_dir)
        return
    folder = RunFolder(run_dir)
    folder.check_begun()
    run_trackers = trackers(track, run_dir.resolve().parent)
    if rounds is not None:
        extend(run_dir, rounds, trust=trust)
        if (run_dir.resolve().parents[1] / "comparison.json").is_file():
            print_warning(
                f"{run_dir} is part of a comparison; the other runs keep their number of rounds."
            )
    if engine is not None or workers is not None:
        relocate(run_dir, engine, workers, trust=trust)
    with resumable(shell_line("comity", "resume", run_dir)):
        if (summary := folder.read_summary()) is not None:
            folder.check()
        else:
            job = reopen(run_dir, trust=trust)
            progress = screen.progress(display_name(job.experiment.algorithm))
            summary = resume_in(job, run_dir, progress, run_trackers).summary
        show_result(run_dir, summary)


def show_result(folder: Path, summary: dict[str, Any]) -> None:
    """Print the result of a finished run."""
    from comity.cli import screen
    from comity.privacy.account import describe_guarantees
    from comity.runs.folder import RunFolder
    from comity.runs.run_metric import metric_of
    from comity.runs.run_warnings import warning_texts
    from comity.runs.summary import has_diverged, no_round_counted

    metric = metric_of(RunFolder(folder), RunFolder(folder).read_experiment())
    name = display_name(summary["algorithm"])
    figures = summary.get(metric.name) or {}
    traffic = summary["bytes"]
    if figures.get("mean") is None:
        reason = "a model has diverged" if has_diverged(figures) else "no party reported it"
        screen.out.print(f"{name}: no {metric.title}: {reason}", soft_wrap=True)
    else:
        per_party, worst, best = (figures[k] for k in ("per_party", "worst_party", "best_party"))
        screen.out.print(
            f"{name}: {metric.title} {figures['mean']:.1%} (mean of {_count_figures(figures)}"
            f" parties), worst {per_party[worst]:.1%} ({worst}),"
            f" best {per_party[best]:.1%} ({best})",
            soft_wrap=True,
        )
    if others := _other_metrics(summary, metric):
        screen.out.print(f"also: {others}", soft_wrap=True)
    if figures.get("unfinished") is not None:
        screen.out.print(f"before the method's last step (finish): {figures['unfinished']:.1%}")
    if gains := summary.get("gained"):
        points = {
            site: [f"{100 * gain[part]:+.1f}" for part in ("gain", "low", "high")]
            for site, gain in gains.items()
        }
        intervals = ", ".join(
            f"{site} {gain} ({low} to {high})" for site, (gain, low, high) in points.items()
        )
        screen.out.print(
            "gain over training alone, in points, measured by each site (95% interval):"
            f" {intervals}",
            soft_wrap=True,
        )
    for newcomer, result in summary["newcomers"].items():
        screen.out.print(
            f"newcomer {newcomer}: {result['offered']:.1%} with the offered model,"
            f" {result['joined']:.1%} after its warm-up, {result['alone']:.1%} alone:"
            f" {100 * result['gain']:+.1f} points by joining",
            soft_wrap=True,
        )
    screen.out.print(
        f"up {screen.size(traffic['up'])}, down {screen.size(traffic['down'])}, peer"
        f" {screen.size(traffic['peer'])}, {_steps(summary)},"
        f" {screen.duration(summary['seconds']['total'])}"
    )
    for text in describe_guarantees(summary.get("privacy")):
        screen.out.print(text, soft_wrap=True)
    screen.show_curves({name: [folder]}, metric)
    screen.out.print(f"The run is in {folder}", soft_wrap=True)
    if RunFolder(folder).recorded:
        print_recording_size(folder, [folder])
    for text in warning_texts(summary, "during", "after"):
        print_warning(text)
    if no_round_counted(summary):
        raise ComityError(
            f"No round of {name} counted: the models in {folder} are the initial ones."
        )


def _steps(summary: dict[str, Any]) -> str:
    """Return the gradient evaluations of a party, and of the server if it takes any, as text."""
    from comity.studies.method_summary import steps_of_party

    server = summary.get("server_steps", 0)
    return f"{steps_of_party(summary):,.0f} steps a party" + (
        f" ({server:,} at the server)" if server else ""
    )


def _count_figures(figures: dict[str, Any]) -> int:
    """Return the number of parties that have a figure."""
    return sum(figure is not None for figure in figures["per_party"].values())


def _other_metrics(summary: dict[str, Any], metric: Metric) -> str:
    """Return the means by all metrics except the metric of the run, as text."""
    from comity.runs.summary import blocks

    means = [(other, block.get("mean")) for other, block in blocks(summary) if other is not metric]
    return ", ".join(
        f"{other.title} {other.text(mean)}" for other, mean in means if mean is not None
    )


@app.command()
@with_experiment
def compare(
    settings: Settings,
    algos: Annotated[
        list[str] | None,
        typer.Argument(metavar="ALGO...", help="methods, as in fedavg fedavg+dbe ./mine.py"),
    ] = None,
    all_methods: Annotated[
        bool, typer.Option("--all", help="all methods, and all wrappers around fedavg")
    ] = False,
    seeds: Seeds = None,
    equal_steps: Annotated[
        bool,
        typer.Option(
            "--equal-steps",
            help="scale each method's rounds, so that parties take equally many gradient"
            " evaluations",
        ),
    ] = False,
    tuned: Annotated[
        list[Path] | None,
        typer.Option(
            "--tuned",
            help="also the method of this tuning, with the chosen settings; without --seeds, on"
            " seeds that no tuning used",
            metavar="DIR",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference", help="compare this method with each of the others", metavar="METHOD"
        ),
    ] = None,
    folds: Folds = None,
    repeats: Repeats = 1,
    plain: PlainModels = "auto",
    leave_one_out: Annotated[
        bool,
        typer.Option("--leave-one-out", help="also run without each party in turn: who helps whom"),
    ] = False,
    leave_out: Annotated[
        str | None,
        typer.Option(
            "--leave-out", help="only these parties in turn, as in p1,p2", metavar="NAMES"
        ),
    ] = None,
    jobs: Jobs = "1",
    out: Out = None,
    track: Track = None,
    record_messages: RecordMessages = False,
    report: Report = True,
    federation: AtSites = None,
    deadline: Deadline = 600,
    wait: Wait = 60,
) -> None:
    """Compare methods, and SOLO, on the same split."""
    from comity.cli import screen
    from comity.cli.folds import with_folds
    from comity.cli.leave_one_out import announce, show
    from comity.runs.folder import RunFolder
    from comity.studies import leave_one_out as left_out
    from comity.studies.compare import compare as compare_runs
    from comity.studies.compare import run_folder
    from comity.studies.method_settings import take_solo
    from comity.studies.parallel import parse_jobs

    job_count = parse_jobs(jobs)
    base = experiment(settings)
    algos, seed_list = _with_tuned(algos, tuned, base, settings, seeds)
    folds = 1 if tuned and folds is None else folds  # tunings choose the seeds
    base, seed_list = with_folds(base, settings, seed_list, seeds, folds, repeats, federation)
    if federation is not None:
        if leave_one_out or job_count > 1 or all_methods or equal_steps or reference:
            raise UsageError(NOT_AT_SITES)
        check_at_sites(settings, track)
        check_not_recorded(record_messages)
        compare_sites(
            federation, base, chosen_methods(algos), seed_list, out, deadline, wait, plain
        )
        return
    algos = chosen_methods(algos, base.but(seed=seed_list[0]) if all_methods else None)
    folder = out or free_folder(f"compare-{Path(base.data).stem}")
    only = _parties_to_leave_out(leave_out, leave_one_out)
    run_trackers = trackers(track, folder)
    with resumable(f"the same command and {shell_line('--out', folder)}", always=True):
        more_runs = announce(base, algos, seed_list, only) if leave_one_out else 0
        run_count = len(take_solo(algos, SOLO)[0]) * len(seed_list) + more_runs
        progress = screen.progress_of_runs(run_count, job_count)
        findings = compare_runs(
            base,
            algos,
            seed_list,
            folder,
            progress,
            print_warning,
            track=run_trackers,
            jobs=job_count,
            record_messages=record_messages,
            equal_steps=equal_steps,
            reference=reference,
            plain=plain,
        )
        # the settings of a run have no `auto`
        resolved = RunFolder(run_folder(folder, SOLO, seed_list[0])).read_experiment()
        effects = []
        if leave_one_out:
            algos, rounds = _compared_methods(algos, findings, folder, seed_list[0])
            effects = left_out.measure_effects(
                base.but(model=resolved.model),
                algos,
                seed_list,
                folder,
                progress,
                only,
                jobs=job_count,
                rounds=rounds,
            )
    show_comparison(findings, resolved)
    if findings.against:
        show_against(findings.against)
    if effects:
        show(effects)
    _show_runs(findings, resolved, folder, record_messages)
    if report:
        write_report(folder)
    _check_trained(findings.rows)


def _show_runs(
    findings: Findings, resolved: Experiment, folder: Path, record_messages: bool
) -> None:
    """Print the curves of all runs, the answers, and where the runs are."""
    from comity.cli import screen
    from comity.studies.compare import run_folder

    folders = {
        row.algorithm: [run_folder(folder, row.algorithm, seed) for seed in findings.seeds]
        for row in findings.rows
    }
    screen.show_curves(folders, METRICS[resolved.metric])
    show_answers(findings)
    screen.out.print(f"The runs are in {folder}", soft_wrap=True)
    if record_messages:
        print_recording_size(folder, [run for runs in folders.values() for run in runs])


def _compared_methods(
    algos: Sequence[str], findings: Findings, folder: Path, seed: int
) -> tuple[list[str], dict[str, int]]:
    """Return the methods that were not left out of a comparison, and their numbers of rounds, in
    which they differ with --equal-steps.
    """
    from comity.runs.folder import RunFolder
    from comity.studies.compare import run_folder

    compared = {row.algorithm for row in findings.rows}
    methods = [method for method in algos if display_name(method) in compared]
    rounds = {
        method: RunFolder(run_folder(folder, method, seed)).read_experiment().rounds
        for method in methods
    }
    return methods, rounds


def _parties_to_leave_out(typed: str | None, leave_one_out: bool) -> list[str] | None:
    """Return the typed parties; None means all."""
    if typed and not leave_one_out:
        raise UsageError(
            "--leave-out needs --leave-one-out: give both, or use --without to leave parties out of"
            " all runs."
        )
    return None if typed is None else [name.strip() for name in typed.split(",")]


NOT_AT_SITES = (
    "--all, --equal-steps, --leave-one-out and --jobs are not available in a comparison at sites,"
    " nor is --reference: name the methods, which run one after another with all sites."
)


def _with_tuned(
    algos: list[str] | None,
    folders: list[Path] | None,
    base: Experiment,
    settings: Settings,
    seeds: str | None,
) -> tuple[list[str], list[int]]:
    """Return the typed methods with those of tunings, and the seeds of the comparison.

    Without typed seeds, these are seeds that no tuning used: settings that were chosen on a split
    are better on that split than on others.
    """
    from comity.cli import screen
    from comity.studies.method_settings import other_seeds, read_tuned, shared_seeds

    methods = [read_tuned(folder) for folder in folders or ()]
    if methods and seeds is None and "seed" not in settings:
        seed_list = other_seeds(methods)
        numbers = ", ".join(map(str, seed_list))
        word = "seed" if len(seed_list) == 1 else "seeds"
        screen.out.print(f"Compared on {word} {numbers}, which no tuning used.", soft_wrap=True)
    else:
        seed_list = chosen_seeds(seeds, base.seed)
    unequal = [text for method in methods for text in method.differences(base)]
    for text in (*shared_seeds(methods, seed_list), *unequal):
        print_warning(text)
    return [*(algos or ()), *(method.method for method in methods)], seed_list


def _check_trained(rows: Sequence[MethodSummary]) -> None:
    """Raise ComityError if no round of a method counted."""
    if untrained := [row.algorithm for row in rows if row.untrained]:
        raise ComityError(
            f"Under some seed, no round of {', '.join(untrained)} counted: such a method is not"
            " ranked."
        )


def chosen_methods(
    typed_methods: list[str] | None, all_with: Experiment | None = None
) -> list[str]:
    """Return the methods to compare.

    Args:
        typed_methods: the typed methods
        all_with: if set, all methods that can run with these settings are added. A warning names
            the others.
    """
    from comity.runs.build import federation_of
    from comity.studies.compare import runnable_methods

    if all_with is None:
        if not typed_methods:
            raise UsageError(
                "Name the methods to compare, as in: comity compare fedavg fedavg+dbe, or use"
                " --all."
            )
        return typed_methods
    runnable, reasons = runnable_methods(all_with, federation_of(all_with))
    for method, reason in reasons.items():
        print_warning(f"{method} is left out: {reason}")
    return [*runnable, *(typed_methods or ())]


def check_not_recorded(record_messages: bool) -> None:
    """Raise `UsageError` if messages between sites are to be recorded."""
    if record_messages:
        raise UsageError(
            "--record-messages is only available in simulations: messages between real sites are"
            " not recorded."
        )


def print_recording_size(folder: Path, runs: Sequence[Path]) -> None:
    """Print the size of the recorded messages of runs, and how to audit them."""
    from comity.cli import screen
    from comity.runs.folder import RunFolder
    from comity.runs.recording import RECORDED

    recorded = [run_folder for run_folder in map(RunFolder, runs) if run_folder.recorded]
    total = sum(run_folder.messages.stat().st_size for run_folder in recorded)
    screen.out.print(
        f"{RECORDED} It is {screen.size(total)}. See what can be learned from it:"
        f" {shell_line('comity', 'audit', folder)}",
        soft_wrap=True,
    )


def show_comparison(findings: Findings, resolved: Experiment) -> None:
    """Print the table of a comparison and the meaning of its columns.

    `resolved` has the settings of one of the runs, without `auto`.
    """
    from comity.cli import screen
    from comity.studies.estimate import CUT
    from comity.studies.method_summary import (
        EPSILON,
        SERVER_STEPS,
        columns,
        optional_columns,
    )

    rows = findings.rows
    metric = METRICS[resolved.metric]
    length = "equal steps" if findings.equal_steps else f"{resolved.rounds} rounds"
    title = f"{display_data(resolved.data, resolved.partition)}, {length}"
    if findings.runs_phrase:
        title += f", {findings.runs_phrase}"
    optional = optional_columns(rows)
    screen.table(*columns(row.cells(findings.repeats > 1, optional) for row in rows), title)
    compared = sum(
        row.gain is not None and row.algorithm not in (SOLO, *OWN_MODELS) for row in rows
    )
    correction = ""
    if compared > 1:
        correction = f" and Bonferroni-corrected for choosing the best of {compared} methods"
    by_metric = "" if metric is ACCURACY else f" by {metric.title}"
    legend = [
        *_explain_gains(findings.baseline, correction),
        *([CUT] if any(row.gain and row.gain.is_cut for row in rows) else []),
        f"worst: the worst party{by_metric}.",
        "steps: gradient evaluations of a party in the run, mean over parties.",
        "sent: all bytes sent in a run, without evaluation.",
    ]
    if SERVER_STEPS in optional:
        legend.append("server steps: those of the server in the run.")
    if EPSILON in optional:
        legend.append(_explain_epsilon(findings.baseline))
    if resolved.newcomers:
        legend.append("newcomers: accuracy after joining, and the gain over training alone.")
    if any(row.untrained for row in rows):
        legend.append("no round: no round counted, so that the method is not ranked.")
    if any(row.caveats for row in rows):
        legend.append("*: see the warnings.")
    screen.print_legend(" ".join(legend))
    for text in _explain_training_alone(findings):
        screen.print_legend(text)
    for text in (text for row in rows for text in row.caveats):
        print_warning(text)


def _explain_training_alone(findings: Findings) -> list[str]:
    """Return the settings of SOLO, if it has its own, and which model each party has as its own."""
    from comity.studies.own_models import describe_choices

    texts = []
    if alone := findings.settings.get(SOLO):
        settings_text = ", ".join(f"{name}={value}" for name, value in alone.items())
        texts.append(f"solo is trained with {settings_text}.")
    if findings.own_models:
        texts.append(describe_choices(findings.own_models))
    return texts


def _explain_gains(baseline: Baseline, correction: str) -> list[str]:
    """Return the meaning of the columns about gains."""
    from comity.studies.estimate import OVER_OWN_MODEL

    over = "over SOLO: gain over training alone"
    if baseline == OVER_OWN_MODEL:
        over = (
            "over own model: gain over each party's own model, the best of those that it trains"
            " alone by cross-validation on its training samples,"
        )
    return [
        f"{over} in points, mean over parties, with its 95% interval.",
        f"gained, hurt: parties whose interval, paired over their test samples{correction},"
        " excludes zero.",
    ]


def _explain_epsilon(baseline: Baseline) -> str:
    """Return the meaning of the column epsilon."""
    from comity.studies.estimate import OVER_OWN_MODEL

    alone = "SOLO is trained without noise, because nothing of it leaves the party: a difference to"
    it = "it"
    if baseline == OVER_OWN_MODEL:
        alone = (
            "SOLO, plain models and own models are trained without noise, because nothing of them"
            " leaves the party: a difference to"
        )
        it = "them"
    return (
        "epsilon: the largest privacy loss of a party (infinite: something leaves without noise)."
        f" {alone} {it} contains the price of privacy."
    )


def show_against(against: AgainstEach) -> None:
    """Print the differences between one method and each of the others."""
    from comity.cli import screen
    from comity.studies.against import HEADS

    screen.table(HEADS, against.rows, f"{against.method} against each")
    screen.print_legend(against.reading)


def show_answers(findings: Findings) -> None:
    """Print the overall verdict of a comparison and the verdict for each party."""
    from comity.cli import screen
    from comity.studies.party_verdicts import format_verdicts

    for question, answer in findings.overall.questions.items() if findings.overall else ():
        screen.out.print(question, style="bold")
        screen.print_sentence(answer)
    if not findings.answers:
        return
    screen.out.print("Party by party:", style="bold")
    for line in format_verdicts(findings.answers):
        screen.print_sentence(line)
    screen.print_legend(findings.reading)


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
    """Try a grid of values, each for the same number of rounds; choose on validation data."""
    from math import prod

    from comity.cli import screen
    from comity.studies.parallel import parse_jobs
    from comity.studies.tune import parse_grid
    from comity.studies.tune import tune as tune_runs
    from comity.units import spread

    job_count = parse_jobs(jobs)
    base = chosen_experiment(algo, settings, trust)
    folder = out or free_folder(f"tune-{display_name(base.algorithm)}")
    points = parse_grid(grid)
    run_trackers = trackers(track, folder)
    with resumable(f"the same command and {shell_line('--out', folder)}", always=True):
        seed_list = chosen_seeds(seeds, base.seed)
        run_count = prod(map(len, points.values())) * len(seed_list)
        progress = screen.progress_of_runs(run_count, job_count)
        tuning = tune_runs(base, points, seed_list, folder, progress, run_trackers, jobs=job_count)
    rows = [
        [
            *(str(v) for v in trial.settings.values()),
            spread(trial.validations),
            spread(trial.tests) + (" *" if trial.caveats else ""),
            ", ".join(map(str, trial.rounds)),
            _spread_or_diverged(trial.lasts),
            f"{trial.mean_steps:,.0f}",
        ]
        for trial in tuning.trials
    ]
    metric = METRICS[tuning.metric].title
    several_seeds = len(tuning.seeds) > 1
    seed_count = f", {len(tuning.seeds)} seeds" if several_seeds else ""
    title = (
        f"{display_name(base.algorithm)}: {metric}, up to {base.rounds} rounds{seed_count}, best by"
        " validation first"
    )
    screen.table([*points, "validation", "test", "round", "test at end", "steps"], rows, title)
    legend = (
        "validation, test: mean over parties after the round in the column round, which is the best"
        " round on all validation samples"
    )
    legend += "; test at end: after the last round, as 'comity compare' reports it"
    legend += "; ±: sample standard deviation over seeds." if several_seeds else "."
    legend += " steps: gradient evaluations of a party in the run, mean over parties."
    if any(trial.caveats for trial in tuning.trials):
        legend += " *: see the warnings."
    screen.print_legend(legend)
    for trial in tuning.trials:
        for text in trial.caveats:
            print_warning(f"{trial.name.replace(',', ', ')}, {text}")
    if tuning.unequal_steps:
        print_warning(tuning.unequal_steps)
    screen.print_sentence(tuning.verdict)
    screen.out.print(f"The runs are in {folder}", soft_wrap=True)
    if report:
        write_report(folder)
    else:
        command = shell_line("comity", "report", folder)
        screen.out.print(f"Write a report of all runs with: {command}", soft_wrap=True)


def _spread_or_diverged(figures: Sequence[float | None]) -> str:
    """Return the mean and spread of figures as text, or that one of them is missing."""
    from comity.units import spread

    present = [figure for figure in figures if figure is not None]
    return spread(present) if len(present) == len(figures) else "diverged"


@app.command()
@with_experiment
def plan(algo: Algo, settings: Settings, trust: Trust = False) -> None:
    """Estimate the bytes, memory, time and privacy loss of a run."""
    from comity.cli import screen
    from comity.privacy.account import describe_guarantees
    from comity.runs.build import federation_of, prepare
    from comity.studies.plan import plan as estimate
    from comity.studies.plan import sent_weights

    base = chosen_experiment(algo, settings, trust)
    job = prepare(base, federation_of(base), only_planned=True)
    costs = estimate(job)
    about_aggregation: list[str] = []
    if base.secure_aggregation:
        from comity.deploy.secure_costs import secure_plan

        costs, about_aggregation = secure_plan(job, costs)
    directions = ("up", "down", "peer")
    rows = [
        [name, *(screen.size(getattr(part, direction)) for direction in directions)]
        for name, part in (
            ("before round 1", costs.start),
            ("largest round", costs.per_round),
            ("whole run", costs.total),
        )
    ]
    screen.table(
        ["bytes", *directions],
        rows,
        f"{display_name(base.algorithm)} on {base.data}, {len(job.parties)} parties",
    )
    screen.out.print(f"closed form: {job.algorithm.traits.bytes_formula}")
    screen.out.print(
        f"model: {job.info.task.network.name}, {costs.parameters:,} parameters,"
        f" {screen.size(costs.model_bytes)}; representation of {job.info.width}"
    )
    screen.out.print(
        f"memory in addition to torch: data {screen.size(costs.data_bytes)}, party states"
        f" {screen.size(costs.state_bytes)}, messages of a round {screen.size(costs.message_bytes)}"
    )
    if weights := sent_weights(base):
        screen.out.print(
            f"initial weights: between sites the file is sent once to each, {screen.size(weights)}"
        )
    privacy = describe_guarantees(job.privacy.guarantees(), always=True)
    for text in (*privacy, *about_aggregation):
        screen.out.print(text, soft_wrap=True)
    for name, unit in (("dp", "the clipping norm"), ("ldp", "the sensitivity to one row or party")):
        if noise := job.experiment.set.get(f"{name}.noise"):
            screen.out.print(f"noise of {name}: {noise:g} times {unit}")
    where = job.experiment.engine + (
        f" with {job.experiment.workers} workers" if job.experiment.workers else ""
    )
    screen.out.print(
        "time, extrapolated from one round of one party: training"
        f" {screen.duration(costs.train_seconds)}, evaluation"
        f" {screen.duration(costs.evaluate_seconds)}; {costs.steps:,} steps on engine {where}"
    )
    if costs.counted_rounds < base.rounds:
        screen.out.print(
            f"estimated from {costs.counted_rounds:,} of {base.rounds:,} rounds at equal distances"
        )
