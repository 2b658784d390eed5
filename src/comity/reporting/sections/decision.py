"""The rows of the first screen that the verdict of a comparison does not have: a plain model of a
party's own, and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from comity.names import OWN_MODEL, SOLO
from comity.reporting.gather import RunGroup
from comity.studies.method_summary import MethodSummary
from comity.studies.overall_verdict import OverallVerdict, best_on_average
from comity.studies.own_models import MOST_NAMED, count_choices
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
        return (
            "Train each party alone: the methods compared here cost more than they give."
            f"{_own_models(group)}"
        )
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
    return f"Train alone for now, which costs nothing.{_own_models(group)}{more}"


def _own_models(group: RunGroup, only: Sequence[str] | None = None) -> str:
    """Name the own model of each party, or of `only` these, with the commands to get it; empty if
    no plain models were trained.
    """
    own = next((method for method in group.methods if method.name == OWN_MODEL), None)
    choices = count_choices(own.summaries) if own else {}
    parties: dict[str, list[str]] = {}
    for party, counts in choices.items():
        if only is None or party in only:
            parties.setdefault(max(counts, key=lambda name: counts[name]), []).append(party)
    folders = {
        method.name: method.finished[0].folder for method in group.methods if method.finished
    }
    texts = [
        f"{_few(names)} with {model} ({_get(folders[model], model, group.folds)})"
        for model, names in sorted(parties.items(), key=lambda item: -len(item[1]))
        if model in folders
    ]
    return f" The best model of one's own: {'; '.join(texts)}." if texts else ""


def _few(parties: Sequence[str]) -> str:
    return join_names(list(parties)) if len(parties) <= MOST_NAMED else f"{len(parties)} parties"


def _get(run: Path, model: str, folds: int) -> str:
    """Return the commands that export a model of a party's own. Of a plain model, the one that is
    trained for it has seen all samples.
    """
    if folds > 1 and not model.startswith(PLAIN):
        return _train_and_export(run)
    return shell_line("comity", "export", run, "--party", "NAME")


def _train_and_export(run: Path) -> str:
    name = "final" if run.parent.name != SOLO else "final-solo"
    train = shell_line("comity", "run", run / "config.toml", "--test", "own(0.1)", "--out", name)
    return f"{train}, and comity export {name} --party NAME"


def _use(best: MethodSummary, group: RunGroup) -> str:
    """Say how the best method's models are exported, and who should not use them."""
    method = next(method for method in group.methods if method.name == best.algorithm)
    run = method.finished[0].folder
    hurt = [party for party, estimate in best.gains.items() if estimate.hurt]
    keep = ""
    if hurt:
        keep = (
            f" {join_names(hurt)}, clearly hurt, should keep a model of their own."
            f"{_own_models(group, hurt)}"
        )
    if group.folds > 1:  # no run of a fold trains on all samples
        return (
            "Train a final model on nine tenths of all samples, as no fold did, then export it:"
            f" {_train_and_export(run)}.{keep}"
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
