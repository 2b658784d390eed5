"""Commands about finished runs: a report, what was learned in figures, a party's model to take
along.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from comity.cli.options import Out, RunDir, Trust, app, caution
from comity.text import escape_terminal

Some = Annotated[str | None, typer.Option(help="only these, as in a,b")]
Samples = Annotated[int, typer.Option(help="how many samples of all who are measured together")]
Full = Annotated[
    bool, typer.Option("--full", help="description length as its authors measure it: slow")
]
AsJson = Annotated[bool, typer.Option("--json", help="for programs")]


@app.command()
def measure(
    run_dir: RunDir,
    layers: Some = None,
    samples: Samples = 2000,
    party: Annotated[
        str | None, typer.Option("--party", help="only what this party could measure by itself")
    ] = None,
    full: Full = False,
    as_json: AsJson = False,
    trust: Trust = False,
) -> None:
    """A finished run's representations (description length, distances, drift), and its accuracy in
    every paper's convention.
    """
    from comity.cli import screen
    from comity.measure import conventions, mdl, study
    from comity.names import display_name
    from comity.runs.folder import RunFolder

    run = RunFolder(run_dir)
    run.check_begun()
    run.check()
    found = study.study(
        run_dir,
        listed(layers),
        samples,
        mdl=mdl.FULL if full else mdl.CHEAP,
        party=party,
        trust=trust,
        told=measuring,
    )
    if party is not None:  # measures.json is of all parties
        found |= {"accuracy": conventions.of_party(run_dir, party)}
        print(json.dumps(found)) if as_json else show_own_measures(found)
        return
    accuracy = conventions.of_run(run_dir)
    run.write_measures(found | {"accuracy": accuracy})
    if as_json:
        print(json.dumps(found | {"accuracy": accuracy}))
        return
    rows = []
    for layer, entry in found["layers"].items():
        for when in ("before", "after"):
            if when in entry:
                rows.append([layer, when, *_figures(entry[when])])
    heads = ["layer", "training", "MDL nats", "bits", "Fréchet", "told apart", "chance", "drift"]
    screen.table(
        heads,
        rows,
        f"{display_name(found['algorithm'])} on {found['dataset']}, {found['samples']} test"
        " samples",
        words=2,
    )
    shown = [[name, f"{value:.4f}"] for name, value in accuracy.items() if value is not None]
    screen.table(["accuracy", ""], shown)
    screen.out.print(
        "before, after: local training. MDL: description length of the labels, given the"
        " representations. Fréchet: each party's distance to all together. told apart: how often a"
        " probe names the party. drift: distance of class centroids between parties, over the"
        " spread within a class.",
        style="dim",
    )
    screen.out.print(f"Written to {run.measures}", soft_wrap=True)


def show_own_measures(found: dict[str, Any]) -> None:
    """What was measured of one party alone: its table, and a sentence on what could not be."""
    from comity.cli import screen
    from comity.names import display_name

    rows = []
    for layer, entry in found["layers"].items():
        for when in ("before", "after"):
            if when in entry:
                mdl = entry[when]["mdl"] or {}
                moved = (entry.get("moved") or {}) if when == "after" else {}
                figures = [
                    _number(mdl.get("nats"), 0),
                    _number(mdl.get("bits"), 0),
                    _number(moved.get("relative"), 2),
                ]
                rows.append([layer, when, *figures])
    title = (
        f"{display_name(found['algorithm'])} at {found['party']}, {found['samples']} of its test"
        " samples"
    )
    screen.table(["layer", "training", "MDL nats", "bits", "moved"], rows, title, words=2)
    accuracy = {name: value for name, value in found["accuracy"].items() if value is not None}
    screen.table(["accuracy", ""], [[name, f"{value:.4f}"] for name, value in accuracy.items()])
    screen.out.print(
        "before, after: local training. MDL: description length of the labels, given the"
        " representations. moved: how far local training moves the centroids of classes, over the"
        " spread within a class.",
        style="dim",
    )
    for sentence in found["not_measured"]:
        screen.out.print(sentence, soft_wrap=True)


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="the folder of a run, or of several")
    ],
    methods: Annotated[
        str | None,
        typer.Option(help="whose representations to draw, as in a,b; the best unless told"),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="count rounds and bytes to this accuracy; SOLO's unless told"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="only what the files say; no data or models are opened")
    ] = False,
    samples: Annotated[
        bool, typer.Option("--samples/--no-samples", help="show some of the parties' samples")
    ] = True,
    figures: Annotated[
        str | None, typer.Option(help="pdf, svg or png: also every chart as a file, for papers")
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="markdown or latex: print the ranking as that")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="the page's file; DIR/report.html unless told")
    ] = None,
    trust: Trust = False,
) -> None:
    """Write DIR/report.html, one page that shows a run, or a folder of runs."""
    from comity.cli import screen
    from comity.reporting import report as write
    from comity.reporting.static import ranking

    if table is not None:
        print(
            "\n".join(escape_terminal(line) for line in ranking(folder, table, target).split("\n"))
        )
        return
    path = write(
        folder,
        methods=listed(methods),
        target=target,
        quick=quick,
        samples=samples,
        figures=figures,
        out=out,
        trust=trust,
        warn=caution,
        announce=screen.say,
    )
    screen.out.print(f"The report is in {path}", soft_wrap=True)
    if figures is not None:
        screen.out.print(f"The figures are in {folder / 'figures'}", soft_wrap=True)


def listed(names: str | None) -> list[str] | None:
    """`a,b` as a list."""
    return None if names is None else [part.strip() for part in names.split(",")]


def measuring(what: str) -> None:
    """Say what is being measured, where somebody watches."""
    from comity.cli import screen

    if screen.err.is_terminal:
        screen.err.print(what, style="dim")


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
    party: Annotated[str, typer.Option("--party", help="whose model")],
    out: Out = None,
    trust: Trust = False,
) -> None:
    """A party's model to take along: weights, preprocessing, a script that predicts, a card."""
    from comity.cli import screen
    from comity.errors import ComityError
    from comity.runs.folder import RunFolder
    from comity.runs.result import Result
    from comity.runs.run import reopen
    from comity.studies.export import export as write

    job = reopen(run_dir, trust=trust)
    run = RunFolder(run_dir)
    if (summary := run.read_summary()) is None:
        raise ComityError(
            f"The run in {run_dir} is not finished: go on with 'comity resume {run_dir}'."
        )
    run.check()
    folder = out or run_dir / "exported" / party
    warnings = write(Result(run_dir, job, summary), party, folder)
    screen.out.print(f"The model of {party} is in {folder}", soft_wrap=True)
    for warning in warnings:
        screen.out.print(warning, soft_wrap=True)
    if not warnings or (folder / "model.pt2").exists():
        kind = "csv" if job.federation.schema else "npz"
        screen.out.print(
            f"Predict with it, without Comity: python {folder}/predict.py NEW.{kind}",
            soft_wrap=True,
        )


@app.command()
def disclose(
    run_dir: RunDir,
    party: Annotated[str, typer.Option("--party", help="whose page")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="the folder for both files; the run's own unless told"),
    ] = None,
    trust: Trust = False,
) -> None:
    """What left a party in a finished run, on a page for whoever answers for its data: HTML and
    PDF.
    """
    from comity.cli import screen
    from comity.disclosure import disclose as write

    page, sheets = write(run_dir, party, out, trust=trust)
    screen.out.print(
        f"What left {escape_terminal(party)} is in {page} and {sheets}", soft_wrap=True
    )
