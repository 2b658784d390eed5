"""How good is the advice? The rule of `comity advise`, replayed on computed landscapes.

    python benchmarks/advise_landscape.py dev LANDSCAPES         # about 6 core seconds each
    python benchmarks/advise_landscape.py heldout LANDSCAPES     # about 10 core seconds each
    python benchmarks/advise.py LANDSCAPES                       # writes docs/results/data/advise
    python benchmarks/advise.py                                  # writes the pages of docs

The third command replays the rule, and writes what it said on each federation beside what all
methods do there. The fourth needs that file alone, and writes docs/results/advise.md and the
summary in the guide. Nothing is trained here.

Regret is the distance, in points of accuracy on fresh test samples, to the best of all methods and
training alone on the same samples.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from advise_landscape import COUNT, FOLDS, FRESH, ROUNDS, SEEDS, STEPS, TRUTHS, Landscape
from numpy.typing import NDArray
from scipy.special import betaincinv, stdtrit

from comity.names import SOLO
from comity.studies.advise.evidence import FoldOutcome, TrainingNoise
from comity.studies.advise.prior import PriorOfRace, without_options
from comity.studies.advise.race import CHOICE, Race, RaceRule, Step, run_race
from comity.studies.advise.verdict import AdviceVerdict, give_verdict
from comity.studies.board import read_board

DOCS = Path(__file__).parents[1] / "docs" / "results"
RESULTS, PAGE = DOCS / "data" / "advise" / "federations.json", DOCS / "advise.md"
GUIDE, SUMMARY_HEADING = DOCS.parent / "how-to" / "advise.md", "## Measured regret"
WRONG = 0.01
"""A claim is wrong if fresh samples contradict it by more than this."""
CLEARLY_BETTER = 0.02
"""To stay alone is wrong if a method is better by this."""
Bits = NDArray[np.float64]
Federation = dict[str, Any]
"""The entry of one federation in the results."""


def read(folder: Path, kind: str) -> list[Landscape]:
    """Read all federations of a kind."""
    contents = [json.loads(f.read_text("utf-8")) for f in sorted(folder.glob(f"{kind}-*.json"))]
    return [Landscape(content) for content in contents if "arms" in content]


def race_on(landscape: Landscape, rule: RaceRule) -> Race:
    """Replay a race on a landscape."""

    def advance(steps: Sequence[Step]) -> list[FoldOutcome]:
        return [landscape.outcome(step) for step in steps]

    return run_race(landscape.arms(), rule, PriorOfRace(), advance)


def claims(race: Race, verdict: AdviceVerdict) -> list[tuple[str, str]]:
    """Return all pairs (better, worse) of which a verdict says that it is clear."""
    pairs: list[tuple[str, str]] = []
    if verdict.method != SOLO:
        pairs += [(verdict.method, other) for other in verdict.worse]
        if verdict.kind in ("use", "equal"):
            pairs.append((verdict.method, SOLO))
    if verdict.kind == "alone" and verdict.gain and verdict.gain.hurt:
        pairs.append((SOLO, race.ranking[0]))
    return list(dict.fromkeys(pairs))


def share_of(landscape: Landscape, race: Race, what: str) -> float:
    """Return what a race took of the bytes or seconds of one run of every method."""
    arms = landscape.content["arms"]
    runs = {
        m: sum(
            0.5 if s.half or Step(m, s.fold, True) in race.outcomes else 1.0
            for s in race.outcomes
            if s.method == m
        )
        for m in arms
    }
    once = sum(arm[what] for arm in arms.values())
    return round(float(sum(runs[m] * arm[what] for m, arm in arms.items()) / once), 4)


def entry(landscape: Landscape) -> Federation:
    """Return the results on one federation."""
    content = landscape.content
    rule = RaceRule(folds=FOLDS)
    race = race_on(landscape, rule)
    verdict = give_verdict(race)
    finalist = race.ranking[0]
    gain = race.gain(finalist)
    assert gain is not None
    first = {m: landscape.outcome(Step(m, CHOICE, False)) for m in landscape.methods}
    return {
        "name": content["name"],
        "data": content["data"],
        "partition": content["partition"],
        "model": content["model"],
        "sizes": content["sizes"],
        "methods": {
            m: [
                round(landscape.truth(m), 5),
                round(landscape.validation(m), 5),
                round(first[m].mean, 5),
                round(first[m].loss or 0.0, 5),
            ]
            for m in landscape.methods
        },
        "kind": verdict.kind,
        "advised": verdict.method,
        "finalist": finalist,
        "gain": [round(v, 5) for v in (gain.gain, gain.low, gain.high)],
        "claims": claims(race, verdict),
        "parties": [
            [p.party, round(p.gain.gain, 4), round(landscape.party_gain(verdict_of, p.party), 4)]
            for p in verdict.parties
            if (p.gain.helped or p.gain.hurt)
            for verdict_of in [verdict.method if verdict.method != SOLO else finalist]
        ],
        "cost": round(race.spent / len(race.arms), 4),
        "bytes": share_of(landscape, race, "bytes"),
        "seconds": share_of(landscape, race, "seconds"),
    }


def noise_of(landscape: Landscape) -> list[Any]:
    """Return the training noise of methods' gains on a development federation.

    By method: the variance of a sample's difference, the variance of the mean difference over seeds
    (beyond what the finite test samples explain; it may be negative), the squared error of the mean
    of the test folds against fresh samples, and the part of it that is due to test samples.
    """
    arms = landscape.content["arms"]

    def differences(run: dict[str, Any], alone: dict[str, Any]) -> list[Bits]:
        pairs = ((run["right"][p], alone["right"][p]) for p in run["right"])
        return [bits_of(now) - bits_of(before) for now, before in pairs]

    rows = {}
    for method in (m for m in arms if m != SOLO):
        folds = [
            differences(a[-1], b[-1])
            for a, b in zip(arms[method]["folds"], arms[SOLO]["folds"], strict=True)
        ]
        tests = [np.concatenate(d) for d in zip(*folds[1:], strict=True)]
        fresh = [
            differences(a, b)
            for a, b in zip(arms[method]["truth"], arms[SOLO]["truth"], strict=True)
        ]
        seeds = [now - before for now, before in zip(*fresh[:2], strict=True)]
        both = [np.mean(d, axis=0) for d in zip(*fresh, strict=True)]
        rows[method] = [
            float(np.mean([d.var() for d in tests])),
            (mean_of(seeds) ** 2 - sampling_of(seeds)) / 2,
            (mean_of(tests) - mean_of(both)) ** 2,
            sampling_of(tests) + sampling_of(both),
        ]
    return [
        landscape.content["name"],
        landscape.content["sizes"],
        {m: [float(f"{v:.3g}") for v in row] for m, row in rows.items()},
    ]


def bits_of(text: str) -> Bits:
    """Return which samples are right, as numbers."""
    return np.array([float(bit) for bit in text])


def mean_of(by_party: Sequence[Bits]) -> float:
    """Return the mean over parties of their means."""
    return float(np.mean([d.mean() for d in by_party]))


def sampling_of(by_party: Sequence[Bits]) -> float:
    """Return the variance of that mean which is due to test samples."""
    return float(sum(d.var(ddof=1) / len(d) for d in by_party) / len(by_party) ** 2)


# -- the page --------------------------------------------------------------------------------------


def truth(federation: Federation, method: str) -> float:
    """Return the accuracy of a method on fresh samples."""
    return float(federation["methods"][method][0])


def regret(federation: Federation, method: str) -> float:
    """Return how far a method is behind the best on a federation, in points."""
    best = max(truth(federation, m) for m in federation["methods"])
    return 100 * (best - truth(federation, method))


def best_by(column: int, loss_weight: float = 0.0) -> Callable[[Federation], str]:
    """Return a rule that takes the method with the best figure in a column of the results."""

    def choose(federation: Federation) -> str:
        figures = federation["methods"]
        return max(figures, key=lambda m: figures[m][column] - loss_weight * figures[m][3])

    return choose


def boards_best(federation: Federation) -> str:
    """Return the method with the largest mean gain on the board, of those that can run here."""
    gains: dict[str, list[float]] = {}
    for of_board in read_board().federations:
        for standing in of_board.methods.values():
            if standing.algorithm != SOLO and math.isfinite(standing.gain):
                gains.setdefault(standing.algorithm, []).append(standing.gain)
    known = [m for m in federation["methods"] if without_options(m) in gains]
    return max(known, key=lambda m: statistics.fmean(gains[without_options(m)]))


def mean_with_interval(values: Sequence[float]) -> str:
    """Return a mean with its 95% interval over federations."""
    mean = statistics.fmean(values)
    half = stdtrit(len(values) - 1, 0.975) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})"


def share(count: int, of: int) -> str:
    """Return a share with its one-sided 95% bound (Clopper and Pearson)."""
    if not of:
        return "0 of 0"
    bound = 1.0 if count == of else float(betaincinv(count + 1, of - count, 0.95))
    return f"{count} of {of} ({count / of:.0%}; at most {bound:.0%})"


def regret_table(federations: Sequence[Federation]) -> list[str]:
    """Return the table of rules."""
    n = statistics.fmean(len(f["methods"]) for f in federations)
    rules: list[tuple[str, float, list[str]]] = [
        ("always training alone", 1 / n, [SOLO for _ in federations]),
        ("the method that is best on the board", 1 / n, [boards_best(f) for f in federations]),
        ("all methods once, chosen by 10% validation", 1.0, [best_by(1)(f) for f in federations]),
        ("all methods on one fold, by accuracy", 1.0, [best_by(2)(f) for f in federations]),
        (
            "all methods on one fold, by accuracy - 0.1 loss",
            1.0,
            [best_by(2, RaceRule().loss_weight)(f) for f in federations],
        ),
        (
            "**`comity advise`**",
            statistics.fmean(f["cost"] for f in federations),
            [f["advised"] for f in federations],
        ),
    ]
    advised = [regret(f, f["advised"]) for f in federations]
    lines = [
        f"| rule, {len(federations)} federations | cost | mean regret | 90th percentile | regret"
        " minus that of advise (95% interval) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, cost, chosen in rules:
        regrets = [regret(f, m) for f, m in zip(federations, chosen, strict=True)]
        tail = sorted(regrets)[min(len(regrets) - 1, int(0.9 * len(regrets)))]
        more = [a - b for a, b in zip(regrets, advised, strict=True)]
        paired = "" if name == "**`comity advise`**" else mean_with_interval(more)
        lines.append(
            f"| {name} | {cost:.0%} | {statistics.fmean(regrets):.2f} | {tail:.2f} | {paired} |"
        )
    return lines


def verdict_table(federations: Sequence[Federation]) -> list[str]:
    """Return the table of verdicts and claims."""
    n = len(federations)
    kinds = Counter(f["kind"] for f in federations)
    claim_rows = [(f, better, worse) for f in federations for better, worse in f["claims"]]
    behind = [truth(f, worse) - truth(f, better) for f, better, worse in claim_rows]
    over_alone = [
        truth(f, f["advised"]) - truth(f, SOLO)
        for f in federations
        if f["kind"] in ("use", "equal")
    ]
    alone = [f for f in federations if f["kind"] == "alone"]
    missed = sum(
        max(truth(f, m) for m in f["methods"]) - truth(f, SOLO) >= CLEARLY_BETTER for f in alone
    )
    covered = sum(
        f["gain"][1] <= truth(f, f["finalist"]) - truth(f, SOLO) <= f["gain"][2]
        for f in federations
    )
    wrong_here = {f["name"] for (f, _, _), d in zip(claim_rows, behind, strict=True) if d > WRONG}
    claiming = {f["name"] for f, _, _ in claim_rows}
    of_parties = [p for f in federations for p in f["parties"]]
    widths = [50 * (f["gain"][2] - f["gain"][1]) for f in federations]
    rows = [
        *(
            (f"verdict: {words}", share(kinds[kind], n))
            for kind, words in (
                ("use", "*use X*"),
                ("equal", "*X and Y are equal*"),
                ("alone", "*stay alone*"),
                ("cannot tell", "*it cannot be told*"),
            )
        ),
        (
            "wrong: *use X*, where X is worse than training alone on fresh samples",
            share(sum(d < 0 for d in over_alone), len(over_alone)),
        ),
        (
            "wrong: a method clearly better than another or than training alone, and worse by more"
            " than a point on fresh samples",
            share(sum(d > WRONG for d in behind), len(claim_rows)),
        ),
        ("the same, worse at all", share(sum(d > 0 for d in behind), len(claim_rows))),
        (
            "federations with such a claim that is wrong by a point",
            share(len(wrong_here), len(claiming)),
        ),
        ("wrong: *stay alone*, where a method is better by 2 points", share(missed, len(alone))),
        (
            "wrong: a party clearly helped or hurt, and the opposite on fresh samples",
            share(sum(gain * fresh < 0 for _, gain, fresh in of_parties), len(of_parties)),
        ),
        ("the tested method's gain on fresh samples is not in its interval", share(n - covered, n)),
    ]
    lines = ["| what | count, share and 95% bound |", "| --- | --- |"]
    lines += [f"| {what} | {text} |" for what, text in rows]
    ordered = sorted(widths)
    lines += [
        "",
        f"Half of the interval of the tested method is {statistics.median(widths):.1f} points wide"
        f" (median; from {ordered[0]:.1f} to {ordered[-1]:.1f}).",
    ]
    return lines


def goals(federations: Sequence[Federation]) -> list[str]:
    """Return sentences on what is shown and what is not."""
    kinds = Counter(f["kind"] for f in federations)
    advised = [regret(f, f["advised"]) for f in federations]
    mean = statistics.fmean(advised)
    high = mean + float(
        stdtrit(len(advised) - 1, 0.95) * statistics.stdev(advised) / math.sqrt(len(advised))
    )
    claiming = [f for f in federations if f["claims"]]
    wrong = [f for f in claiming if any(truth(f, b) - truth(f, a) > WRONG for a, b in f["claims"])]
    n, k = len(claiming), len(wrong)
    bound = 1.0 if k == n else float(betaincinv(k + 1, n - k, 0.95))
    lines = [
        f"- A mean regret of at most one point is {'' if high <= 1 else 'not '}shown: its one-sided"
        f" 95% bound is {high:.2f}.",
        f"- At most 5% of federations with a wrong claim are {'' if bound <= 0.05 else 'not '}shown:"
        f" the bound is {bound:.0%}.",
    ]
    if not kinds["alone"]:
        lines.append(
            "- *Stay alone* was never said, so nothing is known about how often it is wrong."
        )
    if not kinds["equal"]:
        lines.append("- *X and Y are equal* was never said.")
    return lines


def kind_table(federations: Sequence[Federation]) -> list[str]:
    """Return the table of verdicts by the size of the federation."""
    lines = [
        "| samples of a party | federations | mean regret | told | half of an interval, median |",
        "| --- | --- | --- | --- | --- |",
    ]
    for low, high in ((0, 60), (60, 120), (120, 240), (240, 10**9)):
        some = [f for f in federations if low <= statistics.fmean(f["sizes"]) < high]
        if not some:
            continue
        name = f"{low} to {high}" if high < 10**9 else f"{low} and more"
        decided = sum(f["kind"] != "cannot tell" for f in some)
        width = statistics.median(50 * (f["gain"][2] - f["gain"][1]) for f in some)
        mean = statistics.fmean(regret(f, f["advised"]) for f in some)
        lines.append(f"| {name} | {len(some)} | {mean:.2f} | {decided} | {width:.1f} |")
    return lines


def noise_table(development: Sequence[Any]) -> list[str]:
    """Return the table of training noise on the development federations."""
    lines = [
        "| training samples of all parties | federations | spread over seeds, points | disagreement"
        " | variance over seeds / disagreement |",
        "| --- | --- | --- | --- | --- |",
    ]
    groups = [(0, 400), (400, 1200), (1200, 10**9)]
    for low, high in [*groups, (0, 10**9)]:
        some = [
            [row for row in rows.values() if row[0] > 0]
            for _, sizes, rows in development
            if low <= sum(sizes) < high
        ]
        some = [rows for rows in some if rows]
        if not some:
            continue
        variance, disagreement = (
            statistics.fmean(statistics.fmean(row[k] for row in rows) for rows in some)
            for k in (1, 0)
        )
        name = "all" if high - low == 10**9 else f"{low} to {high}" if high < 10**9 else f"{low} +"
        lines.append(
            f"| {name} | {len(some)} | {100 * math.sqrt(max(0.0, variance)):.1f} |"
            f" {disagreement:.2f} | {variance / disagreement:.4f} |"
        )
    return lines


def summary(federations: Sequence[Federation]) -> str:
    """Return the result in a sentence, which the guide repeats."""
    mean = statistics.fmean(regret(f, f["advised"]) for f in federations)
    cost = statistics.fmean(f["cost"] for f in federations)
    unknown = sum(f["kind"] == "cannot tell" for f in federations)
    return (
        f"On {len(federations)} held-out federations the mean regret of the advice is {mean:.2f}"
        f" points at {cost:.0%} of the cost of running every method once, and in {unknown} of them"
        " the verdict is that it cannot be told."
    )


def page(results: dict[str, Any]) -> str:
    """Return the content of the page of results."""
    federations: list[Federation] = results["federations"]
    data = Counter(f["data"] for f in federations)
    models = Counter(f["model"].split("(")[0] for f in federations)
    parties = sorted({len(f["sizes"]) for f in federations})
    mean = statistics.fmean
    noise = TrainingNoise()
    lines = [
        "# How good is the advice of `comity advise`?",
        "",
        "Written by `python benchmarks/advise.py` from `data/advise/federations.json`; a test compares them.",
        "[The guide](../how-to/advise.md) describes the rule. It was fixed in a commit before these"
        " federations were drawn. Only the intervals of single parties were widened afterwards, by"
        " the development federations below.",
        "",
        summary(federations),
        "",
        "## Regret",
        "",
        "*Regret* is how far the advised method (or training alone) is behind the best of all",
        "methods, in points of accuracy on fresh test samples,"
        f" mean over {results['trainings']} trainings on all samples. Cost is relative to one whole"
        " run of every method.",
        "",
        *regret_table(federations),
        "",
        f"The race takes {mean(f['bytes'] for f in federations):.0%} of the bytes and"
        f" {mean(f['seconds'] for f in federations):.0%} of the seconds of one run of every method.",
        "A positive figure in the last column means that the rule is worse than the advice. The"
        " best method in hindsight is chosen by the same fresh samples, which makes all regrets a"
        " little too large.",
        "",
        "## Verdicts and claims",
        "",
        *verdict_table(federations),
        "",
        "Bounds are one-sided at 95% (Clopper and Pearson). Claims on one federation depend on each"
        " other, so the bound on federations is the one to rely on. Figures on fresh samples have"
        " noise of their own.",
        "",
        *goals(federations),
        "",
        "## By size",
        "",
        *kind_table(federations),
        "",
        "## Training noise",
        "",
        f"On {len(results['development'])} other federations, on which the rule was fixed, a few"
        " methods were trained with two seeds on all samples. *Disagreement* is the variance of a"
        " sample's difference between a method and training alone.",
        "",
        *noise_table(results["development"]),
        "",
        f"`comity advise` assumes a variance over seeds of {noise.seeds:g} times the disagreement"
        f" ({noise.party_seeds:g} times for a single party), which counts for {noise.freedom:g}"
        f" degrees of freedom, and one over training sets of {noise.sets:g} times that of test"
        " samples.",
        "",
        "## The federations",
        "",
        f"Drawn by a script with seeds from {results['seed']}: "
        + ", ".join(f"{name} {count}" for name, count in data.most_common())
        + "; networks: "
        + ", ".join(f"{name} {count}" for name, count in models.most_common())
        + f"; {', '.join(map(str, parties))} parties; up to {results['fresh']} fresh test samples"
        f" of each party. Runs have {results['rounds']} rounds of {results['steps']} steps, and"
        " equal steps for all methods. There are no convolutional networks among them.",
        "",
        f"The script draws {results['drawn']} federations. These are the first ones that were"
        " computed, without draws that left a party with too few samples; texts come last.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the results of landscapes, or the page from the results."""
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    cli.add_argument("landscapes", type=Path, nargs="?")
    args = cli.parse_args()
    if args.landscapes:
        on = read(args.landscapes, "heldout")
        if not on:
            raise SystemExit(f"{args.landscapes} has no held-out federations.")
        content: dict[str, Any] = {
            "seed": SEEDS["heldout"],
            "drawn": COUNT["heldout"],
            "rounds": ROUNDS,
            "steps": STEPS,
            "trainings": TRUTHS,
            "fresh": FRESH,
            "columns": ["fresh accuracy", "validation accuracy", "fold 1 accuracy", "fold 1 loss"],
            "development": [noise_of(landscape) for landscape in read(args.landscapes, "dev")],
            "federations": [entry(landscape) for landscape in on],
        }
        lines = [json.dumps(f, separators=(",", ":")) for f in content.pop("federations")]
        head = json.dumps(content)[:-1]
        RESULTS.write_text(
            head + ', "federations": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8"
        )
    results = json.loads(RESULTS.read_text("utf-8"))
    PAGE.write_text(page(results), encoding="utf-8")
    guide = GUIDE.read_text("utf-8")
    before, _, after = guide.partition(SUMMARY_HEADING)
    _, *rest = after.strip().split("\n\n")
    repeated = "\n\n".join([SUMMARY_HEADING, summary(results["federations"]), *rest])
    GUIDE.write_text(before + repeated + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
