"""Continues a run elsewhere: on another engine, or with another number of workers.

A run whose cluster has lost a machine for good, or that is copied to a smaller one, goes on to the
same bytes. Only engines that agree in every bit take each other's place.
"""

from __future__ import annotations

from pathlib import Path

from comity.errors import UsageError
from comity.runs import config
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.trust import check, code_of, mark_again
from comity.text import shell_line

EQUAL_BITS = ("loop", "process", "ray")
"""The engines that give equal results, with any number of workers."""


def relocate(folder: Path, engine: str | None, workers: int | None, *, trust: bool = False) -> None:
    """Change the engine, or the number of workers, of the unfinished run in a folder. It can then
    be resumed as any other.

    Refuses engines whose results would differ, before anything is changed.
    """
    run_folder = RunFolder(folder)
    run_folder.check_begun()
    with run_folder.locked():
        if run_folder.is_finished:
            raise UsageError(
                f"{folder} is finished: --engine and --workers are for runs that go on."
            )
        before = run_folder.read_experiment()
        _check_equal_bits(folder, before, engine or before.engine)
        after = _elsewhere(before, engine or before.engine, workers)
        if after == before:
            return
        check(folder, run_folder.config.read_text(encoding="utf-8"), code_of(before), trust)
        settings = config.write(after)
        mark_again(folder, run_folder.config.read_text(encoding="utf-8"), settings)
        run_folder.replace_settings(settings)


def _check_equal_bits(folder: Path, before: Experiment, engine: str) -> None:
    """Refuse if the rest of the run would be computed with other bits than its beginning."""
    names = ", ".join(EQUAL_BITS)
    if before.engine not in EQUAL_BITS:
        raise UsageError(
            f"{folder} was started with engine={before.engine}, which rounds otherwise than other"
            f" engines and numbers of workers: '{shell_line('comity', 'resume', folder)}' continues"
            " it as it was."
        )
    if engine not in EQUAL_BITS:
        raise UsageError(
            f"{folder} was started with engine={before.engine}, and {engine} does not give the same"
            f" bits: choose one of {names}."
        )
    if before.partial_sums:
        raise UsageError(
            f"{folder} has partial sums, which depend on the workers:"
            f" '{shell_line('comity', 'resume', folder)}' continues it as it was."
        )


def _elsewhere(before: Experiment, engine: str, workers: int | None) -> Experiment:
    """The experiment on that engine, with that number of workers; by default as many as before."""
    if engine == "loop":
        if workers is not None and workers > 1:
            raise UsageError(
                f"engine=loop runs one party after another: leave out --workers {workers}, or give"
                " --engine process."
            )
        return before.but(engine=engine, workers=None, gpus=None, device="cpu")
    gpus = before.gpus if engine == "ray" else None
    device = before.device if engine == before.engine else "cpu"
    return before.but(engine=engine, workers=workers or before.workers, gpus=gpus, device=device)
