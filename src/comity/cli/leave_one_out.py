"""Output of `compare --leave-one-out`: the number of runs, and at the end who helps whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from comity.names import display_name
from comity.runs.config import Experiment

if TYPE_CHECKING:
    from comity.studies.leave_one_out import Effect

MAX_ROWS = 20


def announce(
    base: Experiment, algorithms: Sequence[str], seeds: Sequence[int], only: Sequence[str] | None
) -> int:
    """Check the parties to leave out, print how many runs are needed, and return this number."""
    from comity.cli import screen
    from comity.runs.build import federation_of
    from comity.studies.leave_one_out import exchanging_methods, plan_runs

    methods = exchanging_methods(base, algorithms)
    plan = plan_runs(base, methods, seeds[0], federation_of(base.but(seed=seeds[0])), only)
    runs_per_seed = sum(map(len, plan.values()))
    total = runs_per_seed * len(seeds)
    parties = _count(runs_per_seed // len(plan), "party", "parties")
    reason = f"one for each of {parties} and {_count(len(plan), 'method')}"
    with_seeds = f", with {len(seeds)} seeds" if len(seeds) > 1 else ""
    screen.err.print(
        f"Leaving one party out takes {_count(total, 'more run')}: {reason}{with_seeds}.",
        soft_wrap=True,
    )
    return total


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def show(rows: Sequence[Effect]) -> None:
    """Print a table for each method: how much each party helped the others."""
    from comity.cli import screen
    from comity.studies.compare import LEFT_OUT
    from comity.studies.leave_one_out import parts

    def format_effect(effect: tuple[str, float] | None) -> str:
        return f"{effect[0]} {100 * effect[1]:+.1f}" if effect else ""

    for method, contributions in parts(rows).items():
        ends = contributions
        if len(contributions) > MAX_ROWS:
            ends = [*contributions[: MAX_ROWS // 2], *contributions[-MAX_ROWS // 2 :]]
        lines = [
            [
                p.left_out,
                f"{100 * p.mean:+.1f}",
                f"{p.helped}/{p.effects}",
                f"{p.hurt}/{p.effects}",
                format_effect(p.helps),
                format_effect(p.hurts),
            ]
            for p in ends
        ]
        selection = ""
        if len(ends) < len(contributions):
            selection = f", the first and last {MAX_ROWS // 2} of {len(contributions)}"
        screen.table(
            ["left out", "gave", "helps", "hurts", "helps most", "hurts most"],
            lines,
            f"{display_name(method)}: who helps whom{selection}",
        )
    screen.out.print(
        "gave: mean change of the other parties' accuracy due to this party, in points. helps,"
        " hurts: parties whose 95% interval of this change, paired over their test samples,"
        " excludes zero; the largest are named. All effects are in"
        f" {LEFT_OUT}.csv.",
        style="dim",
    )
