"""How good is the advice? The rule of `comity advise`, replayed on computed landscapes.

    python benchmarks/advise_landscape.py dev LANDSCAPES      # about 24 x 20 core seconds
    python benchmarks/advise_landscape.py heldout LANDSCAPES  # about 60 x 20 core seconds
    python benchmarks/advise.py LANDSCAPES --on dev           # to choose the rule
    python benchmarks/advise.py LANDSCAPES --on heldout       # once, with the rule as it is

The prior consists of the development federations alone (without the one that is judged, on them).
Regret is the distance, in points of accuracy on fresh test samples, to the best of all methods and
training alone on the same samples. Nothing is trained here.

- cost: runs, relative to one whole run of every method.
- wrong: of the claims that a method is clearly better or worse than another, or than training alone,
  those that fresh test samples contradict by more than a point.
- alone wrongly: federations with the verdict to stay alone where a method is two points better.
- cannot tell: federations where it cannot be told whether collaborating helps.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from comity.names import SOLO
from comity.studies.advise.evidence import FoldOutcome
from comity.studies.advise.prior import FederationTraits, GainsElsewhere, MethodPrior, PriorOfRace
from comity.studies.advise.race import Arm, Race, RaceRule, Step, run_race
from comity.studies.advise.verdict import AdviceVerdict, give_verdict
from comity.studies.board import Description

WRONG = 0.01
"""A claim is wrong if fresh samples contradict it by more than this."""


def read(folder: Path, kind: str) -> list[Landscape]:
    """Read all federations of a kind."""
    contents = [json.loads(f.read_text("utf-8")) for f in sorted(folder.glob(f"{kind}-*.json"))]
    return [Landscape(content) for content in contents if "arms" in content]


def race_on(landscape: Landscape, rule: RaceRule, prior: MethodPrior) -> Race:
    """Replay a race on a landscape."""
    expected = prior.expectations(landscape.traits)

    def advance(steps: Sequence[Step]) -> list[FoldOutcome]:
        return [landscape.outcome(step) for step in steps]

    folds = len(landscape.content["arms"][SOLO]["folds"])
    return run_race(
        landscape.arms(),
        replace(rule, folds=folds),
        PriorOfRace(expected, rule.prior_folds if expected else 0.0),
        advance,
    )


def claims(race: Race, verdict: AdviceVerdict) -> list[tuple[str, str]]:
    """Return all pairs (better, worse) of which a race or its verdict says that it is clear."""
    pairs: list[tuple[str, str]] = []
    if verdict.method != SOLO:
        pairs += [(verdict.method, other) for other in verdict.worse]
        if verdict.kind in ("use", "equal"):
            pairs.append((verdict.method, SOLO))
    if verdict.kind == "alone" and verdict.gain and verdict.gain.high < 0:
        pairs.append((SOLO, race.ranking[0]))
    return list(dict.fromkeys(pairs))


def report(name: str, regrets: Sequence[float], cost: float) -> None:
    """Print a line about a rule."""
    ordered = sorted(regrets)
    tail = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    print(
        f"{name:44} cost {cost:5.0%}  regret {statistics.fmean(regrets):5.2f}"
        f"  90th percentile {tail:5.2f}"
    )


def evaluate(name: str, rule: RaceRule, on: Sequence[Landscape], prior: Callable[[Landscape], MethodPrior]) -> float:  # fmt: skip
    """Replay a rule on all federations, print what came of it, and return the mean regret."""
    regrets, costs, wrong, made, alone, alone_wrong, unknown = [], [], 0, 0, 0, 0, 0
    sent: list[float] = []
    seconds: list[float] = []
    for landscape in on:
        race = race_on(landscape, rule, prior(landscape))
        verdict = give_verdict(race)
        regrets.append(landscape.regret(verdict.method))
        costs.append(race.spent / len(race.arms))
        once = {m: landscape.content["arms"][m] for m in landscape.methods}
        share = {
            m: sum(0.5 if s.half else 1.0 - 0.5 * (Step(m, s.fold, True) in race.outcomes)
                   for s in race.outcomes if s.method == m)
            for m in once
        }  # fmt: skip
        sent.append(
            sum(share[m] * a["bytes"] for m, a in once.items())
            / sum(a["bytes"] for a in once.values())
        )
        seconds.append(
            sum(share[m] * a["seconds"] for m, a in once.items())
            / sum(a["seconds"] for a in once.values())
        )
        pairs = claims(race, verdict)
        made += len(pairs)
        wrong += sum(landscape.truth(a) < landscape.truth(b) - WRONG for a, b in pairs)
        better = landscape.best - landscape.truth(SOLO)
        alone += verdict.kind == "alone"
        alone_wrong += verdict.kind == "alone" and better >= 0.02
        unknown += verdict.kind == "cannot tell"
    report(name, regrets, statistics.fmean(costs))
    print(
        f"{'':44} bytes {statistics.fmean(sent):.0%}, seconds {statistics.fmean(seconds):.0%};"
        f" wrong {wrong} of {made} claims, alone {alone} ({alone_wrong} wrongly), cannot tell"
        f" {unknown} of {len(on)}"
    )
    return statistics.fmean(regrets)


def main() -> None:
    """Compare the rule with others."""
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    cli.add_argument("landscapes", type=Path)
    cli.add_argument("--on", choices=["dev", "heldout"], default="dev")
    cli.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of the rule")
    args = cli.parse_args()
    development = read(args.landscapes, "dev")
    on = development if args.on == "dev" else read(args.landscapes, "heldout")
    if not on:
        raise SystemExit(f"{args.landscapes} has no federations of {args.on}.")
    standings = {id(landscape): landscape.standing() for landscape in development}

    def prior(landscape: Landscape) -> MethodPrior:
        return MethodPrior([s for key, s in standings.items() if key != id(landscape)])

    rule = RaceRule()
    for text in args.set:
        name, _, value = text.partition("=")
        if name not in {f.name for f in fields(RaceRule)}:
            raise SystemExit(f"A rule has no {name}.")
        rule = replace(rule, **{name: type(getattr(rule, name))(float(value))})
    print(f"{len(on)} federations ({args.on})")

    def expected_best(landscape: Landscape) -> str:
        expected = prior(landscape).expectations(landscape.traits)
        known = [m for m in landscape.methods if m in expected]
        return max(known, key=lambda m: expected[m].gain, default=SOLO)

    def board_best(landscape: Landscape) -> str:
        others = [s for key, s in standings.items() if key != id(landscape)]
        mean = {
            m: statistics.fmean(gains)
            for m in landscape.methods
            if (gains := [s.gains[m] for s in others if m in s.gains])
        }
        return max(mean, key=lambda m: mean[m], default=SOLO)

    def out_of_fold(landscape: Landscape, folds: int, weight: float) -> str:
        def value(method: str) -> float:
            outcomes = [landscape.outcome(Step(method, k, False)) for k in range(folds)]
            return statistics.fmean(o.mean - weight * (o.loss or 0.0) for o in outcomes)

        return max(landscape.methods, key=value)

    folds = len(on[0].content["arms"][SOLO]["folds"])
    n = statistics.fmean(len(landscape.methods) for landscape in on)
    report("always training alone", [x.regret(SOLO) for x in on], 1 / n)
    report("the best of the other federations on average", [x.regret(board_best(x)) for x in on], 1 / n)  # fmt: skip
    report("the best of similar federations", [x.regret(expected_best(x)) for x in on], 1 / n)
    by_validation = [x.regret(max(x.methods, key=x.validation)) for x in on]
    report("all methods once, by 10% validation", by_validation, 1.0)
    for count in sorted({1, folds}):
        for weight in (0.0, rule.loss_weight):
            report(
                f"all methods, {count} folds, accuracy - {weight:g} x loss",
                [x.regret(out_of_fold(x, count, weight)) for x in on],
                float(count),
            )
    evaluate("comity advise", rule, on, prior)
    evaluate("comity advise without a prior", rule, on, lambda landscape: MethodPrior())


if __name__ == "__main__":
    main()
