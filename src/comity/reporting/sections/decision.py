"""The rows of the first screen that the verdict of a comparison does not have: a plain model of a
party's own, and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from comity.names import SOLO
from comity.reporting.gather import RunGroup
from comity.studies.method_summary import MethodSummary
from comity.studies.overall_verdict import OverallVerdict, best_on_average
from comity.studies.power import Power
from comity.text import join_names, shell_line

PLAIN_QUESTION = "What does a plain model of one's own do?"
NEXT = "What to do next?"
PLAIN = ("plain-", "own-model")
"""How the names of models begin that each party trains alone, without a network."""


def plain_models(rows: Sequence[MethodSummary]) -> str:
    """Return the figures of plain models beside training the network alone and the best method;
    empty if no plain model was trained.
    """
    own = [row for row in rows if row.algorithm.startswith(PLAIN) and row.mean is not None]
    if not own:
        return ""
    best = max(own, key=lambda row: row.goodness)
    joint = best_on_average([row for row in rows if row not in own and row.algorithm != SOLO])
    others = [row for row in rows if row.algorithm == SOLO or (joint and row is joint[0])]
    beside = [f"{row.algorithm} {row.mean:.1%}" for row in others if row.mean is not None]
    text = f"{best.algorithm} has {best.mean:.1%}, on average over parties"
    return f"{text} ({', '.join(beside)})." if beside else f"{text}."


def next_step(
    verdict: OverallVerdict, rows: Sequence[MethodSummary], group: RunGroup, folder: Path
) -> str:
    """Return what a person who decides should do, with the command."""
    best = next(row for row in rows if row.algorithm == verdict.method)
    gain = best.gain
    assert gain is not None
    if group.site:
        return ""
    if gain.hurt:
        return "Train each party alone: the methods compared here cost more than they give."
    if gain.helped:
        return _use(best, group)
    power = Power.of(gain, samples_tested(group))
    if power and power.repeats:
        seeds = ",".join(map(str, range(power.repeats)))
        option = f"--repeats {power.repeats}" if group.folds > 1 else f"--seeds {seeds}"
        return (
            f"Repeat the same command with {option} {shell_line('--out', folder)}: finished runs"
            " are kept."
        )
    gaining = [party for party, estimate in best.gains.items() if estimate.helped]
    if gaining:
        return f"Only {join_names(gaining)} can expect to gain. {_use(best, group)}"
    more = " Or collect more samples, and compare again." if power and power.more_samples else ""
    return f"Train alone for now, which costs nothing.{more}"


def _use(best: MethodSummary, group: RunGroup) -> str:
    """Say how the best method's models are exported, and who should not use them."""
    method = next(method for method in group.methods if method.name == best.algorithm)
    run = method.finished[0].folder
    hurt = [party for party, estimate in best.gains.items() if estimate.hurt]
    keep = f" {join_names(hurt)}, clearly hurt, should keep a model of their own." if hurt else ""
    if group.folds > 1:  # no run of a fold trains on all samples
        train = shell_line(
            "comity", "run", run / "config.toml", "--test", "own(0.1)", "--out", "final"
        )
        return (
            "Train a final model on nine tenths of all samples, as no fold did, then export it:"
            f" {train}, and comity export final --party NAME.{keep}"
        )
    command = shell_line("comity", "export", run, "--party", "NAME")
    return f"Export a party's model: {command}.{keep}"


def samples_tested(group: RunGroup) -> int:
    """Return the number of samples of all parties that are tested on; under cross-validation, in
    all folds together.
    """
    runs = [run for method in group.methods[:1] for run in method.finished]
    tested = sum(part["test"] for run in runs for part in run.amounts.values())
    return round(tested * group.folds / len(runs)) if runs else 0
