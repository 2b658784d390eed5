"""Caveats of a run's figures: missed calls, discarded replies and rounds, withheld figures,
diverged models, and sites where the run was not completed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from comity.core.participation import ABSENT, NOT_FINITE
from comity.metrics.calibration import NONE
from comity.metrics.metrics import LEAST
from comity.runs.run_warnings import RunWarning, add_warnings
from comity.spec import parse
from comity.text import join_names


def caveats(summary: Mapping[str, Any]) -> list[str]:
    """Return the caveats of a summary, a sentence each.

    The list is empty if every party answered every call with finite values.
    """
    absent: Mapping[str, Mapping[str, int]] = summary.get("absent", {})
    withheld: Sequence[str] = summary.get("withheld", ())
    as_of: Mapping[str, int | None] = summary["accuracy"].get("as_of", {})
    return [
        *_not_completed(summary.get("failed_endings", {})),
        *_not_heard(absent),
        *_left_out(absent),
        *_discarded(summary.get("discarded", summary.get("void", ()))),
        *_withheld(withheld, as_of),
        *_at_the_end({party: t for party, t in as_of.items() if party not in withheld}),
        *_diverged(summary.get("diverged", ())),
        *one_class(summary),
    ]


def add_caveats(summary: dict[str, Any]) -> None:
    """Add the caveats of a summary to its warnings."""
    add_warnings(summary, [RunWarning("after", text) for text in caveats(summary)])


def _not_heard(absent: Mapping[str, Mapping[str, int]]) -> list[str]:
    missed = {
        party: {kind: n for kind, n in kinds.items() if kind in ABSENT}
        for party, kinds in absent.items()
    }
    parties = [
        f"{party} {sum(kinds.values())} ({', '.join(f'{n} {kind}' for kind, n in kinds.items())})"
        for party, kinds in missed.items()
        if kinds
    ]
    return [f"Calls that were missed: {join_names(parties)}."] if parties else []


def _left_out(absent: Mapping[str, Mapping[str, int]]) -> list[str]:
    parties = [
        f"{party} {kinds[NOT_FINITE]}" for party, kinds in absent.items() if kinds.get(NOT_FINITE)
    ]
    return (
        [
            "Replies that were left out, as their values are not finite:"
            f" {join_names(parties)}; a smaller lr may help."
        ]
        if parties
        else []
    )


def _discarded(rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rounds:
        return []
    numbers = join_names([str(row["round"]) for row in rounds])
    return [
        f"{'Rounds' if len(rounds) > 1 else 'Round'} {numbers} did not count:"
        f" {_lower(rounds[0]['why'])}"
    ]


def _not_completed(endings: Mapping[str, str]) -> list[str]:
    return [f"The run was not completed at {site}: {why}" for site, why in endings.items()]


def _withheld(parties: Sequence[str], as_of: Mapping[str, int | None]) -> list[str]:
    """Caveats on test figures that site policies withheld: in the whole run, or at its end."""
    never = [party for party in parties if as_of.get(party) is None]
    before = [_last_known(party, t) for party in parties if (t := as_of.get(party)) is not None]
    texts = (
        [f"Withheld by site policy, and in no mean: the test figures of {join_names(never)}."]
        if never
        else []
    )
    return texts + (
        [f"Withheld by site policy at the end: the test figures of {join_names(before)}."]
        if before
        else []
    )


def _last_known(party: str, t: int) -> str:
    return f"{party} (its accuracy is that of round {t})"


def _at_the_end(as_of: Mapping[str, int | None]) -> list[str]:
    late = [_last_known(party, t) for party, t in as_of.items() if t is not None]
    never = [party for party, t in as_of.items() if t is None]
    sentences = [f"Not heard at the end: {join_names(late)}."] if late else []
    return sentences + ([f"Never heard, and in no mean: {join_names(never)}."] if never else [])


def _diverged(parties: Sequence[str]) -> list[str]:
    return (
        [
            f"The loss of {join_names(list(parties))} is not finite, or beyond a million; try a"
            " smaller lr."
        ]
        if parties
        else []
    )


RECALL = ("specificity", "sensitivity")
"""The metric of each of two classes that is 0 if a model never predicts it."""


def _missed(summary: Mapping[str, Any]) -> dict[int, list[str]]:
    """Return, for each of two classes, the parties whose model predicts the other one for all test
    samples, although these have both.
    """
    recall: list[Mapping[str, float]] = [
        (summary.get(name) or {}).get("per_party", {}) for name in RECALL
    ]
    missed = {
        label: [
            party
            for party, share in recall[label].items()
            if share == 0
            and recall[1 - label].get(party, 1.0) == 1
            and party not in summary.get("diverged", ())
        ]
        for label in (1, 0)
    }
    return {label: parties for label, parties in missed.items() if parties}


def one_class(summary: Mapping[str, Any]) -> list[str]:
    """Caveats on models that predict the same one of two classes for all test samples, although
    these have another; of more classes, on models that never predict one of them.
    """
    if summary.get("never_predicted"):
        return _never_predicted_of_many(summary)
    return [
        _never_predicted(summary, parties, label) for label, parties in _missed(summary).items()
    ]


def _missed_of_many(summary: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return, for each party, the names of the classes that its model never predicts, of more than
    two.
    """
    return {
        party: [_class_name(summary, label) for label in labels]
        for party, labels in summary.get("never_predicted", {}).items()
        if party not in summary.get("diverged", ())
    }


def _never_predicted_of_many(summary: Mapping[str, Any]) -> list[str]:
    missed = _missed_of_many(summary)
    if not missed:
        return []
    where = [f"{party} ({join_names(names)})" for party, names in missed.items()]
    return [
        f"Final models never predict a class that at least {LEAST} test samples are of, at"
        f" {join_names(where)}: accuracy hides it, balanced accuracy and macro"
        " F1 show it."
    ]


def one_class_in_folds(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the caveats of `one_class` on the runs of cross-validation: one for each class."""
    texts = _of_many_in_folds(summaries)
    for label in (1, 0):
        runs: dict[str, int] = {}
        for summary in summaries:
            for party in _missed(summary).get(label, ()):
                runs[party] = runs.get(party, 0) + 1
        if runs:
            name = _class_name(summaries[0], label)
            where = join_names(
                [f"{party} ({count} of {len(summaries)} runs)" for party, count in runs.items()]
            )
            texts.append(
                f"At {where} models never predict class {name}, which test samples are of."
                f" {_advice(summaries[0])}"
            )
    return texts


def _of_many_in_folds(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the caveat on more than two classes, for all runs of cross-validation together."""
    counts: dict[tuple[str, str], int] = {}
    for summary in summaries:
        for party, names in _missed_of_many(summary).items():
            for name in names:
                counts[party, name] = counts.get((party, name), 0) + 1
    if not counts:
        return []
    where = [
        f"{party} ({name} in {count} of {len(summaries)} runs)"
        for (party, name), count in counts.items()
    ]
    return [
        f"Final models never predict a class that at least {LEAST} test samples of the fold are of,"
        f" at {join_names(where)}."
    ]


def _never_predicted(summary: Mapping[str, Any], parties: Sequence[str], label: int) -> str:
    # Without figures of the run, so that a comparison says it once for all its runs.
    hidden = ", which an AUC does not show" if summary.get("auc") else ""
    return (
        f"At {join_names(parties)} the final model never predicts class"
        f" {_class_name(summary, label)}, which test samples are of: {RECALL[label]} is"
        f" 0%{hidden}. {_advice(summary)}"
    )


def _class_name(summary: Mapping[str, Any], label: int) -> str:
    names = summary.get("classes")
    return str(names[label]) if names else str(label)


def _advice(summary: Mapping[str, Any]) -> str:
    if parse(summary.get("calibrate", NONE)).name == "threshold":
        return "The samples that thresholds are chosen on are too few, or unlike the test samples."
    return "--calibrate threshold chooses each party's threshold on its validation samples."


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
