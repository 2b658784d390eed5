"""The section on reproducing the results: commands, configurations, versions, seeds."""

from __future__ import annotations

from pathlib import Path

from comity.reporting.blocks import Code, Section, Table
from comity.reporting.gather import RunGroup
from comity.reporting.readable import Run
from comity.text import shell_line


def again(group: RunGroup, folder: Path) -> Section:
    """Return the last section: the commands and versions that give the same results."""
    section = Section(
        "again", "How to get this again", folded="commands, seeds, versions, settings"
    )
    commands = [_command(run) for method in group.methods for run in method.runs[:1]]
    section.blocks.append(Code("A run of each method", "\n".join(commands)))
    section.blocks.append(Code("This page", shell_line("comity", "report", folder)))
    section.blocks.append(_environments(group))
    section.blocks.append(_configurations(group))
    return section


def _command(run: Run) -> str:
    """Return the command that repeats a run from its resolved configuration.

    A run between sites also needs the folder of the federation, which only those who submit runs
    have.
    """
    federation = " --federation DIR" if run.between_sites else ""
    return shell_line("comity", "run", run.folder / "config.toml") + federation


ENVIRONMENT = {
    "Comity": "comity",
    "code": "code",
    "Python": "python",
    "torch": "torch",
    "numpy": "numpy",
    "machine": "machine",
    "data's fingerprint": "fingerprint",
}
"""Columns of the table of versions, and their keys in `env.json`."""


def _environments(group: RunGroup) -> Table:
    rows = []
    for method in group.methods:
        seeds = ", ".join(str(run.seed) for run in method.runs)
        environment = next((run.environment for run in method.runs if run.environment), {})
        versions = [str(environment.get(key, "")) for key in ENVIRONMENT.values()]
        rows.append([method.name, seeds, *versions])
    heads = ["method", "seeds", *ENVIRONMENT]
    return Table("environments", "Seeds and versions", heads, rows, words=len(heads))


def _configurations(group: RunGroup) -> Table:
    """Return the table of all settings, with one value where the methods agree."""
    experiments = {method.name: method.runs[0].experiment for method in group.methods}
    settings_of = {
        method: experiment.model_dump(mode="json", exclude_none=True)
        for method, experiment in experiments.items()
        if experiment is not None
    }
    rows = []
    for setting in dict.fromkeys(key for settings in settings_of.values() for key in settings):
        values = {name: _as_text(settings.get(setting)) for name, settings in settings_of.items()}
        if len(set(values.values())) == 1:
            value = next(iter(values.values()))
        else:
            value = "; ".join(f"{name}: {value or 'none'}" for name, value in values.items())
        if value and setting != "algorithm":
            rows.append([setting, value])
    heads = ["setting", "value"]
    title = "The resolved configuration"
    return Table("configuration", title, heads, rows, words=2, folded=True)


def _as_text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items())
    return "" if value is None else str(value)
