"""Cross-validation on the command line: `--folds` and `--repeats` of `comity compare`."""

from __future__ import annotations

from pathlib import Path

from comity.cli.options import Settings
from comity.errors import UsageError
from comity.runs.config import Experiment


def with_folds(
    base: Experiment,
    settings: Settings,
    seed_list: list[int],
    seeds: str | None,
    folds: int | None,
    repeats: int,
    federation: Path | None,
) -> tuple[Experiment, list[int]]:
    """Return the experiment and the seeds of a comparison, by cross-validation if it was typed or
    if the data are small tables.

    Args:
        base: the typed experiment
        settings: the typed settings
        seed_list: the seeds without cross-validation
        seeds: the typed `--seeds`
        folds: the typed `--folds`
        repeats: the typed `--repeats`
        federation: the typed `--federation`, if parties are at sites
    """
    from comity.cli import screen
    from comity.data.protocols import folds_of
    from comity.runs.build import federation_of
    from comity.studies.cross_validation import default_folds, fold_seeds

    typed = folds_of(base.test)
    if federation and max(folds or 1, typed) > 1:
        raise UsageError(
            "Cross-validation is not available between sites: a site tests on the same records in"
            " all runs, so that no server can train on them in another run. Leave out --folds."
        )
    if (folds or 1) > 1 and ("test" in settings or seeds is not None):
        raise UsageError(
            "--folds chooses the test samples and the seeds itself: leave out --test and --seeds"
            " (--repeats 3 takes the place of three seeds)."
        )
    if folds is None and typed == 1 and "test" not in settings and seeds is None and not federation:
        folds, reason = default_folds(federation_of(base))
        if reason:
            screen.print_sentence(f"{reason} --folds 1 makes it one.")
    number = folds or typed
    if number == 1:
        if repeats > 1:
            raise UsageError("--repeats repeats cross-validation: give --folds, too, or --seeds.")
        return base, seed_list
    if seeds is not None:
        return base, seed_list
    return base.but(test=f"folds({number})"), fold_seeds(number, repeats, base.seed)
