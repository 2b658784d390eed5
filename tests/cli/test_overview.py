"""`comity --help`: commands in the order of use, uncut, and quickly."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import harness
from harness import one_sentence, succeed

import comity
from comity.cli import (  # noqa: F401  (each module adds commands)
    advise,
    audit,
    catalogue,
    check,
    data,
    demo,
    deploy,
    finished_runs,
    papers,
    run_commands,
    watch_command,
)
from comity.cli.options import app
from comity.cli.overview import COMMANDS, help_text

GROUPS = {str(group.name) for group in app.registered_groups}


def test_all_commands_are_in_the_overview() -> None:
    listed = [name for section in COMMANDS.values() for name in section]
    commands = [c.name or c.callback.__name__ for c in app.registered_commands if c.callback]
    groups = [str(group.name) for group in app.registered_groups]
    assert sorted(listed) == sorted([*commands, *groups])
    assert listed[:3] == ["run", "compare", "report"]


def test_overview_fits_80_columns_uncut() -> None:
    lines = help_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert "..." not in help_text()
    assert succeed("--help").out.splitlines() == succeed().out.splitlines() == lines


def test_groups_are_uncut() -> None:
    for group in ("data", "deploy"):
        out = succeed(group, "--help").out.partition("Commands:")[2]
        assert out
        assert "..." not in out
        assert max(map(len, out.splitlines())) <= 80


def test_help_and_version_do_not_import_torch() -> None:
    code = "import sys; from comity.cli import main; main(); sys.exit('torch' in sys.modules)"
    for flag in ("--help", "--version"):
        done = subprocess.run(
            [sys.executable, "-c", code, flag], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_messages_name_existing_commands() -> None:
    commands = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    named = re.compile(r"(?<![\w.])(?:'|\(|: |with )comity ([a-z]+)\b")
    for path in Path(comity.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for name in named.findall(node.value):
                    assert name in commands | GROUPS, f"{path}:{node.lineno}: comity {name}"


def test_commands_to_copy_quote_their_paths(tmp_path: Path) -> None:
    folder = tmp_path / "my runs" / "fedavg"
    options = ("--rounds", 1, "--parties", 2, "--model", "linear", "--out", folder)
    succeed("run", "fedavg", *options)
    error = one_sentence(harness.comity("run", "fedavg", *options, "--lr", 1), 2)
    assert f"comity resume '{folder}'" in " ".join(error.split())
