"""The command `comity demo`: three federations are asked whether collaborating helps them.

Networks, rounds and step sizes are the same for all methods of a federation. Other constants are
those of the papers, except that Fed-SPS asks four peers a round among twenty sites. The first and
the third federation leave out FedUFO and Fed-SPS to save time; `examples/five.sh` runs them, too.
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
from comity.units import duration

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
        ("fedavg", "fedavg+dbe", "adcol", "relay"),
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
    """Ask three federations whether collaborating helps them: two to three minutes, no download.

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
            findings, warnings = compare_methods(federation, out, rounds)
            advice = find_advice(federation, out, rounds, upcoming)
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
    federation: DemoFederation, out: Path, rounds: int | None
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
    progress = RunsProgress(planned_runs(federation), ADVICE_STAGE)
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


def find_advice(federation: DemoFederation, out: Path, rounds: int | None, upcoming: str) -> Advice:
    """Return the advice for a federation, as `comity advise` gives it, two runs at once.

    `upcoming` is what comes after it.
    """
    from comity.reporting.advice_page import write_advice_page
    from comity.runs.config import experiment
    from comity.studies.advise.advise import RACE_FOLDER, advise
    from comity.studies.advise.race import RaceRule, longest_course
    from comity.studies.advise.runner import count_finished
    from comity.studies.parallel import parse_jobs

    settings = settings_of(federation, rounds)
    folder = out / federation.folder / RACE_FOLDER
    jobs = parse_jobs("auto")
    course = longest_course(len(federation.candidates), RaceRule(folds=federation.advice_folds))
    progress = RunsProgress(
        [(f"{ADVICE_STAGE}, {stage}", cost) for stage, cost in course],
        upcoming,
        count_finished(folder),
        jobs,
    )
    try:
        advice = advise(
            experiment(settings | {"test": f"folds({federation.advice_folds})", "engine": "auto"}),
            folder,
            progress,
            lambda text: None,
            methods=federation.candidates,
            jobs=jobs,
            settings=settings,
        )
    finally:
        progress.close()
    write_advice_page(advice)
    return advice


# --- Progress ---------------------------------------------------------------------------------

ADVICE_STAGE = "advice"
"""What the progress line calls the runs behind an advice."""


def planned_runs(federation: DemoFederation) -> list[tuple[str, float]]:
    """Return the name and the cost of each run of a federation's comparison."""
    methods = [display_name(method) for method in (SOLO, *federation.methods)]
    folds = federation.folds
    return [
        (method + (f", fold {k} of {folds}" if folds > 1 else ""), 1.0)
        for k in range(1, len(federation.seeds) + 1)
        for method in methods
    ]


class RunsProgress:
    """The progress of some runs: which is running, what comes next, and the time left.

    Two lines that are rewritten on a terminal, elsewhere a line every few seconds.
    """

    redraw_interval = 0.1
    line_interval = 3.0
    least_share = 0.03
    """The share of all work after which the time left is shown."""

    def __init__(
        self, runs: Sequence[tuple[str, float]], after: str, finished_runs: int = 0, jobs: int = 1
    ) -> None:
        """Begin.

        Args:
            runs: the name of each run, and what it takes relative to the others, in order
            after: what comes after the last one
            finished_runs: how many of them are known to be finished, and will not be begun
            jobs: how many take place at once
        """
        from comity.cli import screen

        self._runs = runs
        self._after = after
        self._jobs = jobs
        self._begun_runs = finished_runs
        self._shares = [1.0] * finished_runs + [0.0] * max(0, len(runs) - finished_runs)
        """How far each run is."""
        self._begin = time.monotonic()
        self._first_share: float | None = None
        self._last_output = 0.0
        self._console = screen.err
        self._live = (
            Live(console=screen.err, auto_refresh=False, transient=True)
            if screen.err.is_terminal
            else None
        )

    def __call__(self, title: str) -> _RunProgress:
        """Return the progress of the next run."""
        k = self._begun_runs
        self._begun_runs += 1
        self._shares += [0.0] * (self._begun_runs - len(self._shares))
        before = k + 1 - self._jobs  # runs before it have ended, also those that were not computed
        self._shares[:before] = [1.0] * max(0, before)
        return _RunProgress(self, k, title)

    @property
    def share(self) -> float:
        """How much of the work is done."""
        costs = [cost for _, cost in self._runs]
        finished_cost = sum(share * cost for share, cost in zip(self._shares, costs, strict=False))
        return min(1.0, finished_cost / sum(costs))

    def seconds_left(self) -> float | None:
        """Return the time left; None if it is too early to tell.

        Runs that were finished before say nothing about it.
        """
        if self._first_share is None or self.share - self._first_share < self.least_share:
            return None
        elapsed = time.monotonic() - self._begin
        return elapsed * (1 - self.share) / (self.share - self._first_share)

    def update(self, run: _RunProgress, t: int, rounds: int, share: float) -> None:
        """Show round `t` of a run, which is that far."""
        if self._first_share is None:
            self._begin, self._first_share = time.monotonic(), self.share
        self._shares[run.place] = share
        interval = self.redraw_interval if self._live else self.line_interval
        now = time.monotonic()
        if now - self._last_output < interval:
            return
        self._last_output = now
        count = f"run {run.place + 1} of {max(self._begun_runs, len(self._runs))}"
        left = self.seconds_left()
        if left is not None:
            time_left = f"{max(1, round(left))} s" if left < 59 else duration(left)
            count += f", about {time_left} left"
        self._print(count, f"{self._name(run)}, round {t} of {rounds}", self._next(run.place))

    def end(self, place: int) -> None:
        """Note that a run has ended, and after the last one show what is computed from them.

        Plain models on tables and bootstrap intervals take as long as some runs.
        """
        self._shares[place] = 1.0
        if self._begun_runs >= len(self._runs) and min(self._shares) == 1.0:
            count = f"all {len(self._runs)} runs are finished"
            self._print(count, "plain models on tables, and intervals", self._after)

    def _print(self, count: str, current: str, upcoming: str) -> None:
        """Print the line, or rewrite the lines of the terminal."""
        if self._live is None:
            self._console.print(f"{count}: {current}; next: {upcoming}", soft_wrap=True)
            return
        bar = "=" if self._console.encoding.lower()[:3] != "utf" else "━"
        filled = round(24 * self.share)
        lines = Text.assemble(
            (bar * filled, "green"),
            (bar * (24 - filled), "bright_black"),
            f"  {count}\n",
            escape_terminal(current),
            (escape_terminal(f"; next: {upcoming}"), "dim"),
        )
        lines.no_wrap, lines.overflow = True, "ellipsis"
        self._live.start()
        self._live.update(lines, refresh=True)

    def _name(self, run: _RunProgress) -> str:
        name, _ = self._runs[min(run.place, len(self._runs) - 1)]
        return f"{ADVICE_STAGE}: {run.title}" if name.startswith(ADVICE_STAGE) else name

    def _next(self, place: int) -> str:
        """Return what comes next: the next run, or stage of several runs, of another name."""
        current, _ = self._runs[min(place, len(self._runs) - 1)]
        names = [name for name, _ in self._runs[place + 1 :] if name != current]
        return names[0] if names else self._after

    def close(self) -> None:
        """Remove the lines from the terminal."""
        if self._live is not None:
            self._live.stop()


class _RunProgress:
    """The progress of one run among several."""

    def __init__(self, runs: RunsProgress, place: int, title: str) -> None:
        self._runs = runs
        self.place = place
        self.title = title

    def begin(self, job: ServerRun, first_round: int) -> None:
        """Show the run."""
        self._first, self._rounds = first_round, job.experiment.rounds
        self._show(first_round)

    def add_replies(self, count: int) -> None:
        """Do nothing: rounds are short."""

    def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
        """Show a finished round."""
        self._show(t)

    def _show(self, t: int) -> None:
        share = (t - self._first) / max(1, self._rounds - self._first)
        self._runs.update(self, t, self._rounds, share)

    def end(self) -> None:
        """Note that the run has ended."""
        self._runs.end(self.place)


# --- One screen for each federation -----------------------------------------------------------

INDENT = 10
"""Characters before the text of a labelled sentence, for its label."""
COMMAND_INDENT = "  "
"""What is before a line of a command, which has long words."""
ALWAYS = ("gained", "hurt", "sent")
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
    print_labelled("Evidence", findings.overall.whom)
    print_labelled("", findings.overall.sure)
    if count:
        print_labelled("", on_warnings)
    print_labelled("Advice", advice.verdict.sentence)
    print_labelled("", explain_advice(federation, findings, advice))
    if advice.command:
        print_command(advice.command)
    else:
        print_labelled("", f"How it was found: {advice.folder / PAGE}", "cyan")


def explain_advice(federation: DemoFederation, findings: Findings, advice: Advice) -> str:
    """Return why the advice and the answer above it have other figures, and may disagree."""
    assert findings.overall is not None
    folds = federation.advice_folds
    methods = [display_name(method) for method in federation.candidates]
    best = findings.overall.method
    others = "other one" if folds == 2 else f"other {folds - 1}"
    text = "This is a test of its own, so its figures differ from the answer: "
    if len(methods) == 1:
        text += f"{methods[0]} was tested on {folds - 1} of {folds} folds."
    else:
        text += (
            f"{', '.join(methods[:-1])} and {methods[-1]} were tried on the first of {folds} folds,"
            f" and the best of them was tested on the {others}."
        )
    if best not in methods:
        text += f" {best} was left out to save time."
    before, now = _best_gain(findings), advice.verdict.gain
    if before is None or now is None:
        return text
    if (before.helped and now.hurt) or (before.hurt and now.helped):
        text += " The two tests contradict each other: compare with more seeds before you decide."
    elif (before.helped, before.hurt) != (now.helped, now.hurt):
        text += (
            " Where an interval includes zero, the test is too small to tell; it does not"
            " contradict the other."
        )
    return text


def print_command(command: str) -> None:
    """Print a command. On a terminal it is continued over lines in a way that a shell reads."""
    import shlex

    from comity.cli import screen

    if not screen.out.is_terminal:
        screen.out.print(command, soft_wrap=True)
        return
    room = max(screen.out.width - len(COMMAND_INDENT) - 2, 20)
    lines: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):
        if lines and cell_len(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    for k, line in enumerate(lines):
        more = " \\" if k < len(lines) - 1 else ""
        text = escape_terminal(f"{COMMAND_INDENT}{line}{more}")
        screen.out.print(Text(text, "cyan"), soft_wrap=True)


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
    from comity.studies.estimate import OVER_SOLO

    cells = [row.cells(several=False) for row in rows]
    over = next((row.baseline for row in rows if row.gain), OVER_SOLO)
    names = ["method", METRICS[rows[0].metric].title, f"over {over}", *ALWAYS]
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
