"""`comity audit RUN`: all attacks on a run with recorded messages, or on all such runs in a folder,
in one table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from comity.auditing.account_check import check_account
from comity.auditing.canaries import CanaryResult
from comity.auditing.chance import RATES
from comity.auditing.decoding import attack_by_decoder
from comity.auditing.decoding_means import attack_few_means
from comity.auditing.finding import Check, Finding, Outcome, Untried
from comity.auditing.inverting import attack_by_inversion
from comity.auditing.membership_gradients import attack_gradients
from comity.auditing.membership_means import attack_means
from comity.auditing.membership_rows import attack_rows
from comity.auditing.membership_updates import attack_updates
from comity.auditing.membership_weights import attack_weights
from comity.auditing.noise_check import check_noise
from comity.auditing.pictures import sheet
from comity.auditing.private_training import attack_private_training
from comity.auditing.unprotected import attack_samples
from comity.auditing.view import View
from comity.checksums import with_crc
from comity.core.release import RECORD_UNITS
from comity.core.traits import LEAVES
from comity.data import Federation
from comity.errors import UsageError
from comity.metrics.metrics import METRICS
from comity.models import CustomModel
from comity.names import display_name
from comity.privacy.account import INFINITE
from comity.runs.folder import CONFIG, RunFolder
from comity.safe_files import make_folder, write_atomically
from comity.units import size

JSON, PAGE, PICTURES = "audit.json", "audit.html", "audit"
Attack = Callable[[View], list[Outcome]]
ATTACKS: dict[Attack, str] = {
    attack_samples: "samples",
    attack_rows: "representations",
    attack_means: "means",
    attack_updates: "weights",
    attack_weights: "weights",
    attack_gradients: "gradients",
    attack_by_decoder: "representations",
    attack_few_means: "means",
    attack_by_inversion: "gradients",
}
"""The attacks, each with the kind of values that it uses (of `core.algorithm.LEAVES`)."""
HEADS = (
    "method",
    "attack",
    "success",
    "guessing",
    "at 1%",
    "at 0.1%",
    "ε claimed",
    "ε shown",
)
"""The columns before the run's metric and the bytes."""
WORDS = 2
"""How many of these columns are words, not numbers."""
NO_ATTACK = "Nothing was sent that an attack is known for here."
CANNOT = (
    "An attack that succeeds shows that what was sent tells so much. One that fails shows nothing:"
    " a better one may succeed."
)


@dataclass(frozen=True)
class RunAudit:
    """The results of all attacks on one run."""

    folder: Path
    name: str
    """The method, with its seed if there are several."""
    bytes_sent: int
    """Bytes of all messages except those of evaluation."""
    metric: str
    """The metric that the run is judged by."""
    figure: float | None
    """The mean of this metric over the parties."""
    claimed: float | None
    """The epsilon that the run claims; None if it is infinite."""
    unit: str
    """What the claim protects: a record, a row, or a party."""
    delta: float
    findings: tuple[Finding, ...]
    untried: tuple[Untried, ...]
    canaries: CanaryResult | None
    """What canaries show about private training, if there was some."""
    checks: tuple[Check, ...]
    """Comparisons of what the run declares about its privacy with what it did."""
    pictures: dict[str, bytes]
    """PNG files, by attack."""

    @property
    def epsilon_shown(self) -> float | None:
        """The largest epsilon that an attack shows; None if none was measured."""
        results = (*self.findings, self.canaries)
        epsilons = (result.epsilon for result in results if result)
        return max((epsilon for epsilon in epsilons if epsilon is not None), default=None)

    @property
    def sentences(self) -> list[str]:
        """The results, one sentence each."""
        results = (*self.findings, self.canaries, *self.checks, *self.untried)
        sentences = [result.sentence for result in results if result]
        if not sentences:
            sentences.append(NO_ATTACK)
        epsilon = self.epsilon_shown
        claimed = self.claimed if self.unit in RECORD_UNITS else None
        if claimed is not None and epsilon is not None and epsilon > claimed:
            refuted = (
                f"The claim is refuted: epsilon {claimed:g} is claimed, and an attack shows"
                f" {epsilon:.2f}."
            )
            sentences.insert(0, refuted)
        for check in self.checks:
            if check.verdict == "wrong":
                sentences.insert(
                    0, f"What the run declares is wrong: {check.name} ({check.measured})."
                )
        return [f"{self.name}: {text}" for text in sentences]

    def plain(self) -> dict[str, Any]:
        """The results as audit.json has them."""
        return {
            "run": str(self.folder),
            "method": self.name,
            "bytes": self.bytes_sent,
            "metric": self.metric,
            "figure": self.figure,
            "epsilon_claimed": INFINITE if self.claimed is None else self.claimed,
            "unit": self.unit,
            "epsilon_shown": self.epsilon_shown,
            "delta": self.delta,
            "attacks": [finding.plain() for finding in self.findings],
            "canaries": None if self.canaries is None else asdict(self.canaries),
            "checks": [check.plain() for check in self.checks],
            "untried": [{"attack": attack.attack, "why": attack.why} for attack in self.untried],
            "says": self.sentences,
        }

    def rows(self, name_metric: bool = False) -> list[list[str]]:
        """The rows of the table for this run, one for each attack.

        With `name_metric` the run's figure has the name of its metric in front.
        """
        metric = METRICS[self.metric]
        figure = "" if self.figure is None else metric.text(self.figure)
        if figure and name_metric:
            figure = f"{metric.title} {figure}"
        unit = "" if self.unit in ("", "record") else f" ({self.unit})"
        claimed = INFINITE if self.claimed is None else f"{self.claimed:.3g}{unit}"
        size_sent = size(self.bytes_sent)
        rows = [
            [
                self.name,
                finding.attack,
                f"{finding.interval}{'' if finding.power else ' *'}",
                finding.text(finding.prior),
                *(_true_positives(finding.figures, f"tpr_at_{rate:g}") for rate in RATES),
                claimed,
                "" if finding.epsilon is None else f"{finding.epsilon:.2f}",
                figure,
                size_sent,
            ]
            for finding in self.findings
        ]
        if self.canaries:
            epsilon = self.canaries.epsilon
            epsilon_text = "no power *" if epsilon is None else f"{epsilon:.2f}"
            rows.append(
                [self.name, "canaries", "", "", "", "", claimed, epsilon_text, figure, size_sent]
            )
        for check in self.checks:
            result = f"{check.measured}, {check.verdict}"
            rows.append([self.name, check.name, result, "", "", "", claimed, "", figure, size_sent])
        return rows or [[self.name, "none", "", "", "", "", claimed, "", figure, size_sent]]


def table(audits: Sequence[RunAudit]) -> tuple[tuple[str, ...], list[list[str]]]:
    """The heads and the rows of the table of all runs.

    One column has the figure of each run, by the metric that it is judged by. If that is the same
    for all runs, it is the column's head; if not, it is in the cells.
    """
    metrics = {run.metric for run in audits}
    several = len(metrics) > 1
    head = "figure" if several else METRICS[metrics.pop()].title
    rows = [row for run in audits for row in run.rows(several)]
    return (*HEADS, head, "bytes"), rows


def audit(
    folder: str | Path,
    federation: Federation | None = None,
    *,
    model: CustomModel | None = None,
    trust: bool = False,
    report_progress: Callable[[str], None] = lambda text: None,
) -> list[RunAudit]:
    """Attack the run in a folder, or all runs below it that recorded their messages.

    The folder gets audit.json, audit.html and pictures.

    Arguments:
        folder: the folder of a run, or one with several runs
        federation: the data, if they were given from Python
        model: the model, if it was given from Python
        trust: run the Python files that the settings of the runs name
        report_progress: is called with a text about each run that is attacked or left out

    Examples:
        >>> import comity, tempfile
        >>> settings = {"parties": 2, "rounds": 1, "model": "linear", "record_messages": True}
        >>> with tempfile.TemporaryDirectory() as home:
        ...     run = comity.run("fedavg", out=f"{home}/run", **settings)
        ...     [finding.attack for finding in comity.audit(f"{home}/run")[0].findings]
        ['membership: updates', 'membership: weights', 'inversion: updates']
    """
    from comity.auditing.page import page

    place = Path(folder)
    audits = []
    runs = runs_in(place)
    several = len({run.parent for run in runs}) < len(runs)
    for run in runs:
        if not RunFolder(run).recorded and run != place:
            report_progress(f"{run} has no recorded messages, and is left out.")
            continue
        report_progress(f"attacking {run}")
        audits.append(audit_run(run, federation, model, several=several, trust=trust))
    if not audits:
        raise UsageError(
            f"No run in {place} has recorded messages: run it with --record-messages (in Python"
            " record_messages=True)."
        )
    write(place, audits)
    write_atomically(place / PAGE, page(place, audits))
    return audits


def runs_in(place: Path) -> list[Path]:
    """The folder itself if it is that of a run, else the folders of all runs below it."""
    if not place.is_dir():
        raise UsageError(f"There is no folder {place}.")
    if RunFolder(place).has_run:
        return [place]
    inside = sorted(path.parent for path in place.rglob(CONFIG) if RunFolder(path.parent).has_run)
    if not inside:
        raise UsageError(f"{place} holds no run.")
    return inside


def audit_run(
    folder: Path,
    federation: Federation | None = None,
    model: CustomModel | None = None,
    *,
    several: bool = False,
    trust: bool = False,
) -> RunAudit:
    """Make all attacks on one run. With `several` seeds its name includes the seed."""
    view = View(folder, federation, model, trust)
    experiment, summary = view.job.experiment, view.summary
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # bitwise reproducible, as in a run
    try:
        canaries = attack_private_training(view)
        checks = (check_noise(view), check_account(view))
        by_kind = [(kind, outcome) for attack, kind in ATTACKS.items() for outcome in attack(view)]
    finally:
        torch.set_num_threads(threads)
    other_kinds = view.leaves - {kind for kind, _ in by_kind}
    outcomes = [outcome for _, outcome in by_kind]
    outcomes += _without_attack(other_kinds, view.claimed is None)
    findings = tuple(outcome for outcome in outcomes if isinstance(outcome, Finding))
    sheets = {
        finding.attack: sheet(view.job.federation, finding.pictures)
        for finding in findings
        if finding.pictures
    }
    block = summary.get(experiment.metric) or {}
    return RunAudit(
        folder,
        display_name(experiment.algorithm) + (f", seed {experiment.seed}" if several else ""),
        sum(n for kind, n in summary["bytes"].items() if kind in ("up", "down", "peer")),
        experiment.metric,
        block.get("mean"),
        view.claimed,
        view.unit,
        view.delta,
        findings,
        tuple(
            outcome for outcome in (canaries, *checks, *outcomes) if isinstance(outcome, Untried)
        ),
        canaries if isinstance(canaries, CanaryResult) else None,
        tuple(check for check in checks if isinstance(check, Check)),
        {attack: png for attack, png in sheets.items() if png is not None},
    )


def _without_attack(kinds: Collection[str], unprotected: bool) -> list[Outcome]:
    """Why kinds of values that parties send were not attacked.

    `unprotected` says whether some of them are sent without noise.
    """
    return [
        Untried(f"an attack on {LEAVES[kind]}", _why_untried(kind, unprotected))
        for kind in sorted(kinds)
    ]


def _why_untried(kind: str, unprotected: bool) -> str:
    if kind == "class counts" and unprotected:
        return "they are sent as they are, and whoever gets them has them"
    if kind == "class counts":
        return "they are behind noise, or not sent, and no attack on that is known here"
    if kind == "covariances":
        return "no attack on them is implemented, which does not mean that there is none"
    return "the method says that parties send them, but they have no form that is known here"


def _true_positives(figures: Mapping[str, Any], name: str) -> str:
    """The true positive rate at a low false positive rate, if it can be measured."""
    if name not in figures:
        return ""
    return "too few" if figures[name] is None else f"{figures[name][0]:.1%}"


def file_name(run_audit: RunAudit, attack: str) -> str:
    """The name of the file with an attack's pictures."""
    text = f"{run_audit.name} {attack}"
    return "-".join("".join(c if c.isalnum() else " " for c in text).split()) + ".png"


def write(place: Path, audits: list[RunAudit]) -> None:
    """Write audit.json and the pictures into a folder."""
    content = {"runs": [run.plain() for run in audits], "note": CANNOT}
    write_atomically(place / JSON, json.dumps(with_crc(content), indent=2) + "\n")
    for run in audits:
        for attack, png in run.pictures.items():
            make_folder(place / PICTURES)
            write_atomically(place / PICTURES / file_name(run, attack), png)
