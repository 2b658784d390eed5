"""The commands about finished runs: measure, report, export and disclose."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from comity.cli.options import Out, RunDir, Trust, app, print_warning
from comity.errors import UsageError
from comity.text import escape_terminal, shell_line

Some = Annotated[str | None, typer.Option(help="only these, as in a,b")]
Samples = Annotated[
    int, typer.Option(help="number of test samples, over all parties that are measured")
]
Full = Annotated[
    bool, typer.Option("--full", help="measure description length as in its paper (slow)")
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.command()
def measure(
    run_dir: RunDir,
    layers: Some = None,
    samples: Samples = 2000,
    party: Annotated[
        str | None, typer.Option("--party", help="only what this party can measure by itself")
    ] = None,
    full: Full = False,
    as_json: AsJson = False,
    trust: Trust = False,
) -> None:
    """Measure the representations of a finished run, and its accuracy by each paper's convention.

    The measures are description length, Fréchet distance, separability of parties, and drift.
    """
    from comity.cli import screen
    from comity.measure import conventions, mdl, study
    from comity.names import display_name
    from comity.runs.folder import RunFolder

    run = RunFolder(run_dir)
    run.check_begun()
    run.check()
    measures = study.study(
        run_dir,
        split_names(layers),
        samples,
        mdl=mdl.FULL if full else mdl.CHEAP,
        party=party,
        trust=trust,
        progress=show_progress,
    )
    if party is not None:  # not written: measures.json is for all parties
        measures |= {"accuracy": conventions.party_figures(run_dir, party)}
        if as_json:
            print(json.dumps(measures))
        else:
            show_party_measures(measures)
        return
    accuracy = conventions.run_figures(run_dir)
    run.write_measures(measures | {"accuracy": accuracy})
    if as_json:
        print(json.dumps(measures | {"accuracy": accuracy}))
        return
    rows = []
    for layer, entry in measures["layers"].items():
        for when in ("before", "after"):
            if when in entry:
                rows.append([layer, when, *_figures(entry[when])])
    heads = ["layer", "training", "MDL nats", "bits", "Fréchet", "told apart", "chance", "drift"]
    screen.table(
        heads,
        rows,
        f"{display_name(measures['algorithm'])} on {measures['dataset']},"
        f" {measures['samples']} test samples",
        words=2,
    )
    figures = [[name, f"{value:.4f}"] for name, value in accuracy.items() if value is not None]
    screen.table(["accuracy", ""], figures)
    screen.out.print(
        "training: before or after local training. MDL: description length of the labels, given the"
        " representations. Fréchet: mean distance between a party and all parties pooled. told"
        " apart: accuracy of a probe that predicts the party. drift: distance of class centroids"
        " between parties, divided by the spread within a class.",
        style="dim",
    )
    screen.out.print(f"Written to {run.measures}", soft_wrap=True)


def show_party_measures(measures: dict[str, Any]) -> None:
    """Print the measures of one party, and what a single party cannot measure."""
    from comity.cli import screen
    from comity.names import display_name

    rows = []
    for layer, entry in measures["layers"].items():
        for when in ("before", "after"):
            if when in entry:
                mdl = entry[when]["mdl"] or {}
                movement = (entry.get("moved") or {}) if when == "after" else {}
                figures = [
                    _number(mdl.get("nats"), 0),
                    _number(mdl.get("bits"), 0),
                    _number(movement.get("relative"), 2),
                ]
                rows.append([layer, when, *figures])
    title = (
        f"{display_name(measures['algorithm'])} at {measures['party']},"
        f" {measures['samples']} of its test samples"
    )
    screen.table(["layer", "training", "MDL nats", "bits", "moved"], rows, title, words=2)
    accuracy = {name: value for name, value in measures["accuracy"].items() if value is not None}
    screen.table(["accuracy", ""], [[name, f"{value:.4f}"] for name, value in accuracy.items()])
    screen.out.print(
        "training: before or after local training. MDL: description length of the labels, given the"
        " representations. moved: distance by which local training moves class centroids, divided"
        " by the spread within a class.",
        style="dim",
    )
    for sentence in measures["not_measured"]:
        screen.out.print(sentence, soft_wrap=True)


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="folder of a run, or of several runs")
    ],
    methods: Annotated[
        str | None,
        typer.Option(help="methods whose representations are drawn, as in a,b; default: the best"),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="count rounds and bytes up to this accuracy; default: that of SOLO"),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="use only the files of runs, without opening data or models"),
    ] = False,
    samples: Annotated[
        bool, typer.Option("--samples/--no-samples", help="show some of the parties' samples")
    ] = True,
    figures: Annotated[
        str | None, typer.Option(help="also write every chart as a file: pdf, svg or png")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(help="only print the ranking, as markdown, latex or siunitx (S columns)"),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="columns of that table, as in accuracy,worst", metavar="A,B")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="name of a method in tables and figures", metavar="METHOD=LABEL"),
    ] = None,
    wins: Annotated[
        bool,
        typer.Option(
            "--wins", help="only print wins, ties and losses between methods over all federations"
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="file of the page; default: DIR/report.html")
    ] = None,
    trust: Trust = False,
) -> None:
    """Write a report of a run, or of a folder of runs, as one HTML page."""
    from comity.cli import screen
    from comity.reporting import report as write
    from comity.reporting.static import ranking

    labels = _parse_labels(label or ())
    if table is not None or wins:
        kind = table or "markdown"
        text = ranking(folder, kind, target, split_names(columns), labels, wins)
        for line in text.split("\n"):
            print(escape_terminal(line))
        return
    path = write(
        folder,
        methods=split_names(methods),
        target=target,
        quick=quick,
        samples=samples,
        figures=figures,
        labels=labels,
        out=out,
        trust=trust,
        warn=print_warning,
        announce=screen.print_sentence,
    )
    screen.out.print(f"The report is in {path}", soft_wrap=True)
    if figures is not None:
        screen.out.print(f"The figures are in {folder / 'figures'}", soft_wrap=True)


def _parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """Return names of methods such as `mine=Ours`. A name may contain options, and so `=`."""
    labels = {}
    for text in texts:
        name, equals, label = text.rpartition("=")
        if not equals or not name or not label:
            raise UsageError(f"--label takes METHOD=LABEL, as in mine=Ours, not {text!r}.")
        labels[name] = label
    return labels


def split_names(names: str | None) -> list[str] | None:
    """Return names such as `a,b` as a list."""
    return None if names is None else [part.strip() for part in names.split(",")]


def show_progress(text: str) -> None:
    """Print what is being measured, if stderr is a terminal."""
    from comity.cli import screen

    if screen.err.is_terminal:
        screen.err.print(text, style="dim")


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _figures(entry: dict[str, Any]) -> list[str]:
    mdl = entry["mdl"] or {}
    spread = entry["frechet"] or {}
    probe = entry["separability"] or {}
    drift = entry["drift"] or {}
    return [
        _number(mdl.get("nats"), 0),
        _number(mdl.get("bits"), 0),
        _number(spread.get("mean")),
        _number(probe.get("accuracy"), 3),
        _number(probe.get("chance"), 3),
        _number(drift.get("relative"), 2),
    ]


@app.command()
def export(
    run_dir: RunDir,
    party: Annotated[str, typer.Option("--party", help="name of the party")],
    out: Out = None,
    trust: Trust = False,
) -> None:
    """Export a party's model: weights, preprocessing, a script that predicts, and a model card.

    Of a comparison's plain models, one is trained again on the party's rows: RUN is then
    DIR/plain-linear/seed-0, or DIR/own-model/seed-0 for the one that the party has chosen.
    """
    from comity.cli import screen
    from comity.errors import ComityError
    from comity.runs.folder import RunFolder
    from comity.runs.result import Result
    from comity.runs.run import reopen
    from comity.studies.export import export as write
    from comity.studies.export_plain import chosen_run, is_plain, open_plain

    run_dir = chosen_run(run_dir, party)
    folder = out or run_dir / "exported" / party
    if is_plain(run_dir):
        result = open_plain(run_dir, trust=trust)
    else:
        job = reopen(run_dir, trust=trust)
        run = RunFolder(run_dir)
        if (summary := run.read_summary()) is None:
            raise ComityError(
                f"The run in {run_dir} is not finished: resume it with"
                f" '{shell_line('comity', 'resume', run_dir)}'."
            )
        run.check()
        result = Result(run_dir, job, summary)
    warnings = write(result, party, folder)
    screen.out.print(f"The model of {party} is in {folder}", soft_wrap=True)
    for warning in warnings:
        screen.out.print(warning, soft_wrap=True)
    if (folder / "model.pt2").exists():
        kind = "csv" if result.job.federation.schema else "npz"
        screen.out.print(
            "Predict with it, without Comity:"
            f" {shell_line('python', folder / 'predict.py', f'NEW.{kind}')}",
            soft_wrap=True,
        )


@app.command()
def disclose(
    run_dir: RunDir,
    party: Annotated[str, typer.Option("--party", help="name of the party")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="folder for both files; default: the folder of the run"),
    ] = None,
    operator: Annotated[
        str, typer.Option("--operator", help="who runs the server; default: as in site.toml")
    ] = "",
    trust: Trust = False,
) -> None:
    """Write what left a party in a finished run, as HTML and PDF for the party's data officer."""
    from comity.cli import screen
    from comity.disclosure import disclose as write

    page, pdf = write(run_dir, party, out, trust=trust, operator=operator)
    screen.out.print(f"What left {escape_terminal(party)} is in {page} and {pdf}", soft_wrap=True)
