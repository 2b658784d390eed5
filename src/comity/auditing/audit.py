"""`comity audit RUN`: all attacks on a run that kept its messages, or on all such runs in a folder,
in one table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from comity.auditing.canaries import Shown
from comity.auditing.chance import RATES
from comity.auditing.decoding import decoded
from comity.auditing.finding import Finding, Outcome, Untried
from comity.auditing.inverting import inverted
from comity.auditing.membership_gradients import by_gradients
from comity.auditing.membership_means import by_means
from comity.auditing.membership_rows import by_rows
from comity.auditing.membership_updates import by_updates
from comity.auditing.membership_weights import by_weights
from comity.auditing.pictures import sheet
from comity.auditing.private_training import private_training
from comity.auditing.unprotected import in_the_open
from comity.auditing.view import View
from comity.checksums import with_crc
from comity.core.traits import LEAVES
from comity.data import Federation
from comity.errors import UsageError
from comity.models import CustomModel
from comity.names import display_name
from comity.runs.checkpoint import write_atomically
from comity.runs.folder import CONFIG, RunFolder
from comity.units import size

JSON, PAGE, PICTURES = "audit.json", "audit.html", "audit"
Attack = Callable[[View], list[Outcome]]
ATTACKS: dict[Attack, str] = {
    in_the_open: "samples",
    by_rows: "representations",
    by_means: "means",
    by_updates: "weights",
    by_weights: "weights",
    by_gradients: "gradients",
    decoded: "representations",
    inverted: "gradients",
}
"""Each attack, and the kind of what it is made on (of `core.algorithm.LEAVES`)."""
HEADS = (
    "method",
    "attack",
    "success",
    "guessing",
    "at 1%",
    "at 0.1%",
    "ε claimed",
    "ε shown",
    "accuracy",
    "bytes",
)
WORDS = 2
"""How many of these columns are words."""
CANNOT = (
    "An attack that succeeds shows that what was sent tells so much. One that fails shows nothing:"
    " a better one may succeed."
)


@dataclass(frozen=True)
class Audited:
    """What attacks on one run found."""

    folder: Path
    name: str
    """The method, with its seed where there are several."""
    sent: int
    """Bytes, without those of evaluation."""
    accuracy: float | None
    claimed: float | None
    """The epsilon that the run claims; None: infinite."""
    unit: str
    """Whom that protects: a record, a row, a party."""
    delta: float
    findings: tuple[Finding, ...]
    untried: tuple[Untried, ...]
    canaries: Shown | None
    """What canaries show of private training, if there was some."""
    pictures: dict[str, bytes]
    """PNG files, by attack."""

    @property
    def shown(self) -> float | None:
        """The largest epsilon that an attack shows; None if none was measured."""
        return max(
            (
                one.epsilon
                for one in (*self.findings, self.canaries)
                if one and one.epsilon is not None
            ),
            default=None,
        )

    @property
    def says(self) -> list[str]:
        """What came out, a sentence each."""
        said = [one.says for one in (*self.findings, self.canaries, *self.untried) if one]
        if not said:
            said.append("Nothing was sent that an attack is known for here.")
        if (
            self.claimed is not None
            and self.unit == "record"
            and self.shown is not None
            and self.shown > self.claimed
        ):
            said.insert(
                0,
                f"The claim is refuted: epsilon {self.claimed:g} is claimed, and an attack shows"
                f" {self.shown:.2f}.",
            )
        return [f"{self.name}: {text}" for text in said]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "run": str(self.folder),
            "method": self.name,
            "bytes": self.sent,
            "accuracy": self.accuracy,
            "epsilon_claimed": "infinite" if self.claimed is None else self.claimed,
            "unit": self.unit,
            "epsilon_shown": self.shown,
            "delta": self.delta,
            "attacks": [one.plain() for one in self.findings],
            "canaries": None if self.canaries is None else asdict(self.canaries),
            "untried": [{"attack": one.attack, "why": one.why} for one in self.untried],
            "says": self.says,
        }

    def rows(self) -> list[list[str]]:
        """Its lines of the table, one an attack."""
        accuracy = "" if self.accuracy is None else f"{self.accuracy:.1%}"
        claimed = (
            "infinite"
            if self.claimed is None
            else f"{self.claimed:.3g}" + (f" ({self.unit})" * (self.unit not in ("", "record")))
        )
        made = [
            [
                self.name,
                one.attack,
                f"{one.text(one.success)} ({one.text(one.low)} to {one.text(one.high)})"
                + ("" if one.power else " *"),
                one.text(one.prior),
                *(_found(one.figures, f"tpr_at_{rate:g}") for rate in RATES),
                claimed,
                "" if one.epsilon is None else f"{one.epsilon:.2f}",
                accuracy,
                size(self.sent),
            ]
            for one in self.findings
        ]
        if self.canaries:
            shown = (
                "no power *" if self.canaries.epsilon is None else f"{self.canaries.epsilon:.2f}"
            )
            made.append(
                [self.name, "canaries", "", "", "", "", claimed, shown, accuracy, size(self.sent)]
            )
        return made or [[self.name, "none", "", "", "", "", claimed, "", accuracy, size(self.sent)]]


def audit(
    folder: str | Path,
    federation: Federation | None = None,
    *,
    model: CustomModel | None = None,
    trust: bool = False,
    told: Callable[[str], None] = lambda text: None,
) -> list[Audited]:
    """Attack the run in a folder, or all runs in it that kept their messages; leaves audit.json,
    audit.html and pictures there.

    Data and models that were given from Python are given again. `trust` lets the files run that a
    stranger's run names. `told` hears what is being done, and of runs that are left out.

    Examples:
        >>> import comity, tempfile
        >>> with tempfile.TemporaryDirectory() as home:
        ...     done = comity.run("fedavg", parties=2, rounds=1, model="linear", record_messages=True, out=f"{home}/run")
        ...     [found.attack for found in comity.audit(f"{home}/run")[0].findings]
        ['membership: updates', 'membership: weights', 'inversion: updates']
    """
    from comity.auditing.page import page

    place = Path(folder)
    found = []
    runs = runs_in(place)
    several = len({run.parent for run in runs}) < len(runs)
    for run in runs:
        if not RunFolder(run).recorded and run != place:
            told(f"{run} has no tape, and is left out.")
            continue
        told(f"attacking {run}")
        found.append(audit_run(run, federation, model, several=several, trust=trust))
    if not found:
        raise UsageError(
            f"No run in {place} has a tape: messages are kept by runs with --record-messages (in"
            " Python record_messages=True)."
        )
    write(place, found)
    write_atomically(place / PAGE, page(place, found))
    return found


def runs_in(place: Path) -> list[Path]:
    """The folder itself if it is a run's, else all runs below it."""
    if not place.is_dir():
        raise UsageError(f"There is no folder {place}.")
    if RunFolder(place).begun:
        return [place]
    inside = sorted(path.parent for path in place.rglob(CONFIG) if RunFolder(path.parent).begun)
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
) -> Audited:
    """All attacks on one run; one of several seeds is called by its own."""
    view = View(folder, federation, model, trust)
    experiment, summary = view.job.experiment, view.summary
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # equal bits, as in a run
    try:
        canaries = private_training(view)
        by_kind = [(kind, one) for attack, kind in ATTACKS.items() for one in attack(view)]
    finally:
        torch.set_num_threads(threads)
    outcomes = [one for _, one in by_kind] + _without(
        view.leaves - {kind for kind, _ in by_kind}, view.claimed is None
    )
    findings = tuple(one for one in outcomes if isinstance(one, Finding))
    drawn = {
        one.attack: sheet(view.job.federation, one.pictures) for one in findings if one.pictures
    }
    block = summary.get(experiment.metric) or {}
    return Audited(
        folder,
        display_name(experiment.algorithm) + (f", seed {experiment.seed}" if several else ""),
        sum(n for kind, n in summary["bytes"].items() if kind in ("up", "down", "peer")),
        block.get("mean"),
        view.claimed,
        view.unit,
        view.delta,
        findings,
        tuple(one for one in (canaries, *outcomes) if isinstance(one, Untried)),
        canaries if isinstance(canaries, Shown) else None,
        {attack: made for attack, made in drawn.items() if made is not None},
    )


def _without(kinds: Collection[str], bare: bool) -> list[Outcome]:
    """What is said of kinds of values that parties send, `bare` if some without noise, and that no
    attack was made on.
    """
    return [Untried(f"an attack on {LEAVES[kind]}", _why(kind, bare)) for kind in sorted(kinds)]


def _why(kind: str, bare: bool) -> str:
    if kind == "class counts" and bare:
        return "they are sent as they are, and whoever gets them has them"
    if kind == "class counts":
        return "they are behind noise, or not told, and no attack on that is known here"
    return "the method says that parties send them, but they have no form that is known here"


def _found(figures: Mapping[str, Any], name: str) -> str:
    """True positives where false ones are few, if they can be measured."""
    if name not in figures:
        return ""
    return "too few" if figures[name] is None else f"{figures[name][0]:.1%}"


def file_name(audited: Audited, attack: str) -> str:
    """What a picture's file is called."""
    text = f"{audited.name} {attack}"
    return "-".join("".join(c if c.isalnum() else " " for c in text).split()) + ".png"


def write(place: Path, found: list[Audited]) -> None:
    """Leave figures and pictures in a folder."""
    told = {"runs": [one.plain() for one in found], "note": CANNOT}
    write_atomically(place / JSON, json.dumps(with_crc(told), indent=2) + "\n")
    for one in found:
        for attack, blob in one.pictures.items():
            (place / PICTURES).mkdir(exist_ok=True)
            (place / PICTURES / file_name(one, attack)).write_bytes(blob)
