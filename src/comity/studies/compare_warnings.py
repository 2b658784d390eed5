"""Warnings about a comparison: where methods take unequal steps, and where the handling of
BatchNorm may decide the ranking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from comity.base.record import is_buffer
from comity.components.averaged import AveragesWeights
from comity.core.wrapper import chain
from comity.names import display_name
from comity.runs.build import SimulatedRun
from comity.runs.server_run import SKEWED
from comity.runs.step_warnings import STEPS, RoundSteps, server_warnings

UNEQUAL = 1.5
"""The ratio of steps from which on methods are said to differ in them."""
MOST_NAMED = 4  # methods in a sentence
DIFFERENT = 0.1
"""The difference of inputs, in standard deviations, from which on parties' inputs are said to
differ. It is below 0.06 where only labels differ (digits, MNIST and CIFAR-10 in a Dirichlet
partition with alpha=0.1), and 0.17 to 0.65 for blur, contrast, inversion, HAR's people, PACS'
domains and the hospitals of heart.
"""


def compare_steps(
    summaries: Mapping[str, Sequence[Mapping[str, Any]]], equal_steps: bool
) -> list[str]:
    """Return the warnings about the steps of methods, a sentence each and once for all seeds.

    Args:
        summaries: The summaries of each method's runs, by the method's name for display.
        equal_steps: Whether the numbers of rounds were chosen so that parties' steps are equal.
    """
    texts = []
    totals: dict[str, float] = {}
    for method, runs in summaries.items():
        steps_by_run = [(run, steps) for run in runs if (steps := RoundSteps.of(run))]
        if not steps_by_run:
            continue
        run, steps = steps_by_run[0]
        texts += [f"{method}: {text[0].lower()}{text[1:]}" for text in server_warnings(steps, run)]
        if steps.party:
            totals[method] = sum(run["steps"] / run["parties"] for run, _ in steps_by_run) / len(
                steps_by_run
            )
    return [*texts, *_unequal(totals, equal_steps)]


def _unequal(totals: Mapping[str, float], equal_steps: bool) -> list[str]:
    """Return a sentence if methods differ in the steps of a party in the whole run. It names those
    that take the most.
    """
    if not totals:
        return []
    least = min(totals, key=totals.__getitem__)
    larger = {method: total for method, total in totals.items() if total > UNEQUAL * totals[least]}
    if not larger:
        return []
    ordered = sorted(larger, key=larger.__getitem__, reverse=True)
    listed = ", ".join(
        f"{larger[method]:,.0f} in {method} ({larger[method] / totals[least]:.2g} times)"
        for method in ordered[:MOST_NAMED]
    )
    more = f" and more in {len(ordered) - MOST_NAMED} others" if len(ordered) > MOST_NAMED else ""
    advice = "" if equal_steps else ": --equal-steps gives all methods the same number"
    return [
        f"The methods differ in {STEPS}: a party takes {totals[least]:,.0f} in {least},"
        f" {listed}{more}{advice}."
    ]


class BatchNormCheck:
    """Collects the methods of a comparison that average BatchNorm's running statistics, and those
    that average weights but keep the statistics at the parties.

    Averaged statistics fit nobody where inputs differ. A party's own statistics describe its own
    classes, so that averaged weights do not fit them where labels differ. The table
    comity/batchnorm has the figures: 14 points for one choice, 33 for the other.
    """

    def __init__(self) -> None:
        self._averaging: list[str] = []
        self._keeping: list[str] = []
        self._difference: float | None = None
        self._skew = 0.0

    def add(self, job: SimulatedRun) -> None:
        """Add a run of the comparison."""
        name = display_name(job.experiment.algorithm)
        averaged = averages_statistics(job)
        if averaged is None or name in (*self._averaging, *self._keeping):
            return
        (self._averaging if averaged else self._keeping).append(name)
        if self._difference is None:  # the data are the same for all methods
            self._difference = input_difference([party.data.train.x for party in job.parties])
            self._skew = job.context.party_infos.label_skew() or 0.0

    def warnings(self) -> list[str]:
        """Return a sentence for each choice that the parties' data speak against."""
        texts = []
        if self._averaging and self._difference and self._difference >= DIFFERENT:
            texts.append(
                "The handling of BatchNorm may decide the ranking: the parties' inputs differ (by"
                f" {self._difference:.2g} standard deviations), and {', '.join(self._averaging)}"
                f" {'average' if len(self._averaging) > 1 else 'averages'} the running statistics."
                " Compare with --bn params_only, which keeps them at the parties."
            )
        if self._keeping and self._skew > SKEWED:
            texts.append(
                "The handling of BatchNorm may decide the ranking: the parties' labels differ, and"
                f" {', '.join(self._keeping)}"
                f" {'keep' if len(self._keeping) > 1 else 'keeps'} the running statistics at the"
                " parties, where they describe few classes. Compare with fedavg and --bn all."
            )
        return texts


def averages_statistics(job: SimulatedRun) -> bool | None:
    """Return whether a run averages the running statistics of BatchNorm, or keeps them at the
    parties; None if its network has none, or its method averages no weights before the head.
    """
    host, task = chain(job.algorithm)[-1], job.info.task
    statistics = {name for name in task.norm_names if is_buffer(name)}
    if not statistics or not isinstance(host, AveragesWeights):
        return None
    private = host.private_names(task)
    if frozenset(task.shapes) - task.head_names <= private:
        return None
    return bool(statistics - private)


def input_difference(inputs: Sequence[Tensor]) -> float:
    """Return how far the parties' inputs are from those of all parties: the distance between means
    and standard deviations of channels or columns, in standard deviations, mean over parties.

    What is expected from the number of samples alone is subtracted.

    Args:
        inputs: The inputs of each party.
    """
    channels = [x.transpose(0, 1).flatten(1).float() for x in inputs if len(x) > 1]
    if not channels:
        return 0.0
    everything = torch.cat(channels, dim=1)
    mean, std = everything.mean(1), everything.std(1)
    varies = std > 0
    distances = []
    for x in channels:
        squared = ((x.mean(1) - mean) ** 2 + (x.std(1) - std) ** 2) / std**2
        by_chance = 1.5 / x.shape[1]
        distances.append((squared[varies].mean() - by_chance).clamp(min=0).sqrt())
    return float(torch.stack(distances).mean().nan_to_num())
