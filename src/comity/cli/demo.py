"""The command `comity demo`: three federations are asked whether collaborating helps them.

Networks, rounds and step sizes are the same for all methods of a federation. Other constants are
those of the papers, except that Fed-SPS asks four peers a round among twenty sites. The third
federation leaves out FedUFO and Fed-SPS to save time; `examples/five.sh` runs them, too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len
from rich.live import Live
from rich.text import Text

from comity.cli.options import app, resumable, write_report
from comity.errors import UsageError
from comity.names import SOLO, display_name
from comity.text import escape_terminal, shell_line

if TYPE_CHECKING:
    from comity.runs.server_run import ServerRun
    from comity.studies.advise.advise import Advice
    from comity.studies.compare import Findings
    from comity.studies.estimate import Estimate
    from comity.studies.method_summary import MethodSummary
    from comity.wire.ledger import Ledger


@dataclass(frozen=True)
class DemoFederation:
    """A federation of the demo, and how it is compared."""

    folder: str
    title: str
    question: str
    methods: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    folds: int = 1
    """The number of folds of cross-validation in the comparison."""
    candidates: tuple[str, ...] = ()
    """The methods that the advice chooses from."""
    advice_folds: int = 4
    """The number of folds of the advice."""

    @property
    def seeds(self) -> list[int]:
        """The seed of each run of a method."""
        from comity.studies.cross_validation import fold_seeds

        return fold_seeds(self.folds, 1)


FEDERATIONS = (
    DemoFederation(
        "1-hospitals",
        "Four real hospitals predict heart disease",
        "Do four hospitals with 123 to 303 patients each predict heart disease better together than"
        " alone? (AUC, 5-fold cross-validation)",
        ("fedavg", "fedavg+dbe", "adcol", "fedufo", "fed-sps", "relay"),
        {"data": "heart", "metric": "auc"},
        folds=5,
        candidates=("fedavg", "fedavg+dbe"),
    ),
    DemoFederation(
        "2-few-labels",
        "Twenty sites with few labels",
        "Do twenty sites with 25 labelled samples each, of some digits more than of others, read"
        " digits better together than alone?",
        ("fedavg", "fedavg+dbe", "adcol", "fedufo", "fed-sps(peers=4)", "relay"),
        {"partition": "dirichlet(alpha=1,min=35)|keep(samples=25)", "parties": 20, "rounds": 30},
        candidates=("fedavg", "fedavg+dbe", "relay"),
    ),
    DemoFederation(
        "3-sensors",
        "Twelve sites with six kinds of sensor",
        "Do twelve sites with six kinds of sensor and 50 labelled samples each read digits better"
        " together? And if each keeps its own statistics (fedbn, bn=params_only)?",
        ("fedavg", "fedbn", "fedavg(bn=params_only)+dbe", "adcol", "relay"),
        {
            "partition": "iid|keep(samples=50)|shift(kinds=none,invert,rotate,noise,contrast,blur)",
            "parties": 12,
            "engine": "process",
            "model": "fedbn-cnn(scale=0.125)",
            "batch": 16,
            "lr": 0.02,
            "epochs": 2,
            "rounds": 30,
        },
        candidates=("fedavg", "fedbn"),
        advice_folds=3,
    ),
)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="folder for the runs and the page")] = Path(
        "demo"
    ),
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=1, help="rounds of each run, for a quicker look"),
    ] = None,
) -> None:
    """Ask three federations whether collaborating helps them: two minutes, no download.

    The same command continues after an interruption.
    """
    from comity.cli import screen

    check_folder(out)
    if all((out / federation.folder / "comparison.json").is_file() for federation in FEDERATIONS):
        screen.print_sentence(
            f"The runs in {out} are finished, and are shown again. For new ones:"
            f" {shell_line('comity', 'demo', '--out', f'{out}-2')}"
        )
    folder_words = ["--out", out] if out != Path("demo") else []
    again = shell_line("comity", "demo", *folder_words, *(["--rounds", rounds] if rounds else []))
    answers = []
    with resumable(again, always=True):
        for number, federation in enumerate(FEDERATIONS, 1):
            upcoming = FEDERATIONS[number].title if number < len(FEDERATIONS) else "the page"
            heading = f"{number} of {len(FEDERATIONS)}: {federation.title}"
            screen.out.print(heading, style="bold")
            progress = FederationProgress(federation, upcoming)
            findings, warnings = compare_methods(federation, out, rounds, progress)
            advice = find_advice(federation, out, rounds)
            show_screen(federation, findings, warnings, advice)
            screen.out.print()
            answers.append((federation, findings))
    show_end(answers, out)


def check_folder(out: Path) -> None:
    """Refuse a folder with files that are not the demo's, which its page could replace."""
    if out.is_dir() and any(out.iterdir()) and not (out / FEDERATIONS[0].folder).is_dir():
        raise UsageError(
            f"{out} has files that are not of a demo: choose another folder, as in"
            f" {shell_line('comity', 'demo', '--out', f'{out}-2')}"
        )
    if out.exists() and not out.is_dir():
        command = shell_line("comity", "demo", "--out", f"{out.stem}-2")
        raise UsageError(f"{out} is a file: choose a folder, as in {command}")


def compare_methods(
    federation: DemoFederation,
    out: Path,
    rounds: int | None,
    progress: FederationProgress,
) -> tuple[Findings, list[str]]:
    """Run the comparison of a federation; finished runs are used, others continued.

    Returns its result and its warnings.
    """
    from comity.runs.config import experiment
    from comity.studies.compare import compare

    settings = settings_of(federation, rounds)
    if federation.folds > 1:
        settings["test"] = f"folds({federation.folds})"
    warnings: list[str] = []
    try:
        findings = compare(
            experiment(settings),
            federation.methods,
            federation.seeds,
            out / federation.folder,
            progress,
            warnings.append,
        )
    finally:
        progress.close()
    return findings, warnings


def settings_of(federation: DemoFederation, rounds: int | None) -> dict[str, Any]:
    """Return the settings of a federation, with the rounds that the user chose."""
    return federation.settings | ({} if rounds is None else {"rounds": rounds})


def find_advice(federation: DemoFederation, out: Path, rounds: int | None) -> Advice:
    """Return the advice for a federation, as `comity advise` gives it, two runs at once."""
    from comity.cli import screen
    from comity.reporting.advice_page import write_advice_page
    from comity.runs.config import experiment
    from comity.runs.server_run import Quiet
    from comity.studies.advise.advise import RACE_FOLDER, advise
    from comity.studies.parallel import parse_jobs

    screen.err.print(f"Testing on {federation.advice_folds} folds which method to advise ...")
    settings = settings_of(federation, rounds)
    test = f"folds({federation.advice_folds})"
    advice = advise(
        experiment(settings | {"test": test, "engine": "auto"}),
        out / federation.folder / RACE_FOLDER,
        lambda title: Quiet(),
        lambda text: None,
        methods=federation.candidates,
        jobs=parse_jobs("auto"),
        settings=settings,
    )
    write_advice_page(advice)
    return advice


# --- Progress ---------------------------------------------------------------------------------


class FederationProgress:
    """The progress of a federation's runs: which is running, and what comes next.

    Two lines that are rewritten on a terminal, elsewhere a line every few seconds.
    """

    redraw_interval = 0.1
    line_interval = 3.0

    def __init__(self, federation: DemoFederation, after: str) -> None:
        from comity.cli import screen

        methods = [display_name(method) for method in (SOLO, *federation.methods)]
        self._runs = [
            method + (f", fold {k} of {federation.folds}" if federation.folds > 1 else "")
            for k in range(1, len(federation.seeds) + 1)
            for method in methods
        ]
        self._after = after
        self._number = 0
        self._begin = time.monotonic()
        self._last_output = 0.0
        self._console = screen.err
        self._live = (
            Live(console=screen.err, auto_refresh=False, transient=True)
            if screen.err.is_terminal
            else None
        )

    def __call__(self, title: str) -> _RunProgress:
        """Return the progress of the next run."""
        self._number += 1
        return _RunProgress(self)

    def update(self, t: int, rounds: int) -> None:
        """Show round `t` of the present run."""
        now = time.monotonic()
        interval = self.redraw_interval if self._live else self.line_interval
        if now - self._last_output < interval:
            return
        self._last_output = now
        run = self._runs[self._number - 1]
        next_one = self._runs[self._number] if self._number < len(self._runs) else self._after
        share = (self._number - 1 + t / rounds) / len(self._runs)
        count = f"run {self._number} of {len(self._runs)}, {now - self._begin:.0f} s"
        if self._live is None:
            line = f"{count}: {run}, round {t} of {rounds}; next: {next_one}"
            self._console.print(line, soft_wrap=True)
            return
        bar = "=" if self._console.encoding.lower()[:3] != "utf" else "━"
        filled = round(24 * share)
        lines = Text.assemble(
            (bar * filled, "green"),
            (bar * (24 - filled), "bright_black"),
            f"  {count}\n",
            escape_terminal(f"{run}, round {t} of {rounds}"),
            (escape_terminal(f"; next: {next_one}"), "dim"),
        )
        lines.no_wrap, lines.overflow = True, "ellipsis"
        self._live.start()
        self._live.update(lines, refresh=True)

    def close(self) -> None:
        """Remove the lines from the terminal."""
        if self._live is not None:
            self._live.stop()


class _RunProgress:
    """The progress of one run among those of a federation."""

    def __init__(self, runs: FederationProgress) -> None:
        self._runs = runs

    def begin(self, job: ServerRun, first_round: int) -> None:
        """Show the run."""
        self._rounds = job.experiment.rounds
        self._runs.update(first_round, self._rounds)

    def add_replies(self, count: int) -> None:
        """Do nothing: rounds are short."""

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """Show a finished round."""
        self._runs.update(t, self._rounds)

    def end(self) -> None:
        """Do nothing: the next run takes the lines."""


# --- One screen for each federation -----------------------------------------------------------

INDENT = 10
"""Characters before the text of a labelled sentence, for its label."""
ALWAYS = ("over SOLO", "gained", "hurt", "sent")
WHERE_THEY_FIT = ("steps", "worst", "time")
"""Columns of the table of methods, in addition to the method and its metric."""


def print_labelled(label: str, text: str, style: str = "") -> None:
    """Print a sentence after its label. On a terminal it is wrapped between words."""
    import textwrap

    from comity.cli import screen

    if not screen.out.is_terminal:
        screen.out.print(f"{label}: {text}" if label else text, soft_wrap=True)
        return
    lines = textwrap.wrap(
        escape_terminal(text),
        max(screen.out.width - INDENT, 20),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for k, line in enumerate(lines):
        head = (label if k == 0 else "").ljust(INDENT)
        screen.out.print(Text.assemble((head, "bold"), (line, style)), soft_wrap=True)


def show_screen(
    federation: DemoFederation, findings: Findings, warnings: Sequence[str], advice: Advice
) -> None:
    """Print a federation's question, the answer, the evidence and the advice."""
    from comity.reporting.advice_page import PAGE

    print_labelled("Question", federation.question)
    if findings.overall is None:
        print_labelled("Answer", "No method could be compared with training alone.", "yellow")
        return
    print_labelled("Answer", findings.overall.helps, _style(findings))
    print_methods(findings.rows)
    about_methods = sum(len(row.caveats) for row in findings.rows)
    count = len(warnings) + about_methods
    on_warnings = f"{count} warning{'s are' if count > 1 else ' is'} on the page"
    on_warnings += " (*: about this method)." if about_methods else "."
    evidence = [findings.overall.whom, findings.overall.sure, on_warnings if count else ""]
    print_labelled("Evidence", " ".join(filter(None, evidence)))
    print_labelled("Advice", advice.verdict.sentence)
    print_labelled("", advice.command or f"How it was found: {advice.folder / PAGE}", "cyan")


def _best_gain(findings: Findings) -> Estimate | None:
    """Return the gain by the method that the verdict is about."""
    overall = findings.overall
    return next((r.gain for r in findings.rows if overall and r.algorithm == overall.method), None)


def _style(findings: Findings) -> str:
    """Return the colour of an answer; its first words say the same."""
    gain = _best_gain(findings)
    if gain is None:
        return ""
    return "green" if gain.helped else "red" if gain.hurt else "yellow"


def print_methods(rows: Sequence[MethodSummary]) -> None:
    """Print the table of methods, with as many columns as the screen has space for."""
    from comity.cli import screen
    from comity.metrics.metrics import METRICS

    cells = [row.cells(several=False) for row in rows]
    names = ["method", METRICS[rows[0].metric].title, *ALWAYS]
    for name in WHERE_THEY_FIT:
        wider = [*names[:-1], name, names[-1]]
        if not screen.out.is_terminal or _width(wider, cells) <= screen.out.width:
            names = wider
    screen.table(names, [[line.get(name, "") for name in names] for line in cells])


def _width(names: Sequence[str], cells: Sequence[dict[str, str]]) -> int:
    """Return the width of a table of these columns."""
    widths = [max(cell_len(text) for text in (n, *(c.get(n, "") for c in cells))) for n in names]
    return sum(widths) + 2 * (len(widths) - 1)


def show_end(answers: Sequence[tuple[DemoFederation, Findings]], out: Path) -> None:
    """Write the page, and print the answers once more and what to try next."""
    from comity.cli import screen

    screen.out.print(f"{len(answers)} federations, {len(answers)} answers", style="bold")
    for federation, findings in answers:
        if findings.overall is not None:
            answer = findings.overall.helps.partition(":")[0]
            print_labelled("", f"{federation.title}: {answer.lower()}.", _style(findings))
    write_report(out)
    print_labelled("Next", "Your own data: comity data import FOLDER --out mine")
    print_labelled("", "then: comity compare fedavg fedavg+dbe --data mine", "cyan")
    print_labelled("", "or: comity advise --data mine", "cyan")
