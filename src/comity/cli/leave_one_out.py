"""What `compare --leave-one-out` says: how many runs there will be, and at the end who helps whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from comity.names import display_name
from comity.runs.config import Experiment

if TYPE_CHECKING:
    from comity.studies.leave_one_out import Effect

SHOWN = 20


def announce(
    base: Experiment, algorithms: Sequence[str], seeds: Sequence[int], only: Sequence[str] | None
) -> int:
    """Check what can be checked before anything runs, say what it will take, and return how many
    runs that is.
    """
    from comity.cli import screen
    from comity.runs.build import federation_of
    from comity.studies.leave_one_out import exchanging_methods, plan_runs

    methods = exchanging_methods(base, algorithms)
    plan = plan_runs(base, methods, seeds[0], federation_of(base.but(seed=seeds[0])), only)
    runs = sum(map(len, plan.values()))
    each = (
        f"one for each of {_many(runs // len(plan), 'party', 'parties')} and"
        f" {_many(len(plan), 'method')}"
    )
    more = f", with {len(seeds)} seeds" if len(seeds) > 1 else ""
    screen.err.print(
        f"Leaving one party out takes {_many(runs * len(seeds), 'more run')}: {each}{more}.",
        soft_wrap=True,
    )
    return runs * len(seeds)


def _many(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def show(rows: Sequence[Effect]) -> None:
    """A table for each method: what each party gave the others."""
    from comity.cli import screen
    from comity.studies.compare import LEFT_OUT
    from comity.studies.leave_one_out import parts

    def most(one: tuple[str, float] | None) -> str:
        return f"{one[0]} {100 * one[1]:+.1f}" if one else ""

    for method, every in parts(rows).items():
        ends = every if len(every) <= SHOWN else [*every[: SHOWN // 2], *every[-SHOWN // 2 :]]
        lines = [
            [
                p.left_out,
                f"{100 * p.mean:+.1f}",
                f"{p.helped}/{p.judged}",
                f"{p.hurt}/{p.judged}",
                most(p.helps),
                most(p.hurts),
            ]
            for p in ends
        ]
        some = (
            "" if len(ends) == len(every) else f", the first and last {SHOWN // 2} of {len(every)}"
        )
        screen.table(
            ["left out", "gave", "helps", "hurts", "helps most", "hurts most"],
            lines,
            f"{display_name(method)}: who helps whom{some}",
        )
    screen.out.print(
        "gave: what the party's taking part gave the others' accuracy, in points, on average."
        " helps, hurts: others whose 95% interval with it against without it, paired over their"
        " test samples, excludes zero; the most of these are named. All effects are in"
        f" {LEFT_OUT}.csv.",
        style="dim",
    )
