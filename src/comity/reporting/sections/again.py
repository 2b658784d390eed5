"""How to get this again: commands, configurations, versions, seeds."""

from __future__ import annotations

import shlex
from pathlib import Path

from comity.reporting.blocks import Code, Section, Table
from comity.reporting.gather import Group
from comity.reporting.readable import Run


def again(group: Group, folder: Path) -> Section:
    """The page's last section: what to type and to install for the same outcome."""
    section = Section(
        "again", "How to get this again", folded="commands, seeds, versions, settings"
    )
    commands = [_command(run) for method in group.methods for run in method.runs[:1]]
    section.blocks.append(Code("A run of each method", "\n".join(commands)))
    section.blocks.append(Code("This page", f"comity report {shlex.quote(str(folder))}"))
    section.blocks.append(_environments(group))
    section.blocks.append(_configurations(group))
    return section


def _command(run: Run) -> str:
    """The resolved file says it all, whatever command it came from; only who may order runs can use
    one between sites.
    """
    where = " --federation DIR" if run.between_sites else ""
    return f"comity run {shlex.quote(str(run.folder / 'config.toml'))}{where}"


def _environments(group: Group) -> Table:
    rows = []
    for method in group.methods:
        seeds = ", ".join(str(run.seed) for run in method.runs)
        e = next((run.environment for run in method.runs if run.environment), {})
        rows.append(
            [
                method.name,
                seeds,
                *(
                    str(e.get(k, ""))
                    for k in (
                        "comity",
                        "code",
                        "python",
                        "torch",
                        "numpy",
                        "machine",
                        "fingerprint",
                    )
                ),
            ]
        )
    heads = [
        "method",
        "seeds",
        "Comity",
        "code",
        "Python",
        "torch",
        "numpy",
        "machine",
        "data's fingerprint",
    ]
    return Table("environments", "Seeds and versions", heads, rows, words=len(heads))


def _configurations(group: Group) -> Table:
    """All settings: one line where methods agree."""
    chosen = {m.name: m.runs[0].experiment for m in group.methods}
    told = {
        name: e.model_dump(mode="json", exclude_none=True)
        for name, e in chosen.items()
        if e is not None
    }
    rows = []
    for setting in dict.fromkeys(key for settings in told.values() for key in settings):
        values = {name: _plain(settings.get(setting)) for name, settings in told.items()}
        if len(set(values.values())) == 1:
            value = next(iter(values.values()))
        else:
            value = "; ".join(f"{name}: {value or 'none'}" for name, value in values.items())
        if value and setting != "algorithm":
            rows.append([setting, value])
    return Table(
        "configuration",
        "The resolved configuration",
        ["setting", "value"],
        rows,
        words=2,
        folded=True,
    )


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items())
    return "" if value is None else str(value)
