"""Whether a folder's comparison has the settings of the one that is about to be written there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from comity.errors import UsageError
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.run import setting_differences
from comity.safe_files import path_inside
from comity.text import join_names


@dataclass(frozen=True)
class SameComparison:
    """Refuses a folder that holds a comparison with other settings.

    A comparison may be repeated, and it may get more methods and more seeds. Any other change would
    replace its results, and its page would mix runs with different settings.
    """

    out: Path
    comparison: Path
    """The file with the results of a finished comparison."""

    def check(self, solo: Experiment, seeds: Sequence[int]) -> None:
        """Raise UsageError if the settings of the folder's runs of SOLO differ from `solo`, or if
        the seeds of a finished comparison are not among `seeds`.
        """
        differences = []
        before = self._any_run(solo)
        if before is not None:
            differences += setting_differences(before, solo, {"seed"})
        old_seeds = self._seeds()
        if not set(old_seeds) <= set(seeds):
            differences.append(f"seeds={_listed(old_seeds)} (not {_listed(seeds)})")
        if differences:
            raise UsageError(
                f"{self.out} holds a comparison with {join_names(differences)}: choose another"
                " --out, or repeat the command with the settings of that comparison."
            )

    def _any_run(self, solo: Experiment) -> Experiment | None:
        """Return the settings of one of the folder's runs of SOLO, if there is any that can be
        read.

        The run with the same seed comes first, because some settings are resolved for each seed.
        """
        runs = [
            RunFolder(path_inside(self.out, solo.algorithm, path.name))
            for path in sorted((self.out / solo.algorithm).glob("seed-*"))
        ]
        runs.sort(key=lambda run: run.path.name != f"seed-{solo.seed}")
        for run in runs:
            if run.has_run and not run.has_no_round:
                return run.read_experiment()
        return None

    def _seeds(self) -> tuple[int, ...]:
        """Return the seeds of a finished comparison; none if its file cannot be read, because it is
        then written again.
        """
        try:
            return tuple(json.loads(self.comparison.read_text(encoding="utf-8"))["seeds"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return ()


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
