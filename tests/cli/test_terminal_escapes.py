"""Texts of users and files are escaped on a terminal: no markup, no escape codes, no additional
lines.
"""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import CommandResult, Nursery, comity, complaint, on_terminal, one_sentence, succeed

from comity.charts.curves import Curves
from comity.cli import screen, text_plot
from comity.runs.environment import digest
from comity.studies.export import load
from comity.text import escape_terminal

SMALL = (
    "--parties",
    "3",
    "--rounds",
    "2",
    "--model",
    "linear",
    "--partition",
    "iid|keep(samples=40)",
    "--engine",
    "loop",
)
NASTY = "[/red][bold]\x1b]0;title\x07\x1b[2J\x9b31m\x00\x7f\u202e:smile:"
NASTY_ESCAPED = r"[/red][bold]\x1b]0;title\x07\x1b[2J\x9b31m\x00\x7f\u202e:smile:"
PATH = NASTY.replace("\x00", "")
NAME = PATH.replace("/", "")  # as a file name
LINES = f"{NASTY}\r\nfedavg: accuracy 100.0%\u2028"


def printable_output(result: CommandResult) -> str:
    """All output of a command; it must have no control characters except line breaks."""
    text = result.out + result.err
    bad = {c for c in text if not c.isprintable() and c != "\n"}
    assert not bad, f"{bad} in {text!r}"
    assert "\nfedavg: accuracy 100.0%" not in text, "a text added a line"
    return text


CONTROL_CHARACTERS = "\x00\x07\x08\n\r\t\x1b\x7f\x85\x9b\u200f\u202e\u2028\u2066\ufeff\ud800"


@pytest.mark.parametrize("c", CONTROL_CHARACTERS, ids=ascii)
def test_control_characters_are_escaped(c: str) -> None:
    assert escape_terminal(f"a{c}b") == "a" + repr(c)[1:-1] + "b"
    assert escape_terminal(escape_terminal(c)) == escape_terminal(c)
    assert escape_terminal(c).isprintable()


def test_printable_text_is_unchanged() -> None:
    for text in ("", "north", "größer 方法 😀", "C:\\new [red] :smile:", "it's"):
        assert escape_terminal(text) == text


# --- Names on the command line ----------------------------------------------------------------------------------------


def test_a_folders_name_is_no_markup(here: Path) -> None:
    assert "The run is in o[/red]" in succeed("run", "fedavg", *SMALL, "--out", "o[/red]").out
    assert "The run is in o[/red]" in succeed("resume", "o[/red]").out
    succeed("report", "o[/red]", "--quick")


@pytest.mark.usefixtures("without_onnx")
def test_folder_names_are_escaped(here: Path) -> None:
    """In the output of run, resume, watch, report and export."""
    out = here / NAME
    escaped_name = escape_terminal(NAME)
    assert escaped_name in printable_output(succeed("run", "fedavg", *SMALL, "--out", out))
    assert escaped_name in printable_output(succeed("resume", out))
    assert escaped_name in printable_output(succeed("watch", out.parent, "--once"))
    assert escaped_name in printable_output(succeed("report", out, "--quick"))
    assert escaped_name in printable_output(succeed("export", out, "--party", "p0"))
    assert escaped_name in printable_output(comity("run", "fedavg", *SMALL, "--out", out))
    (out / "summary.json").unlink()
    assert escaped_name in printable_output(succeed("watch", out, "--once")), (
        "the command to resume"
    )


@pytest.mark.parametrize(
    "args",
    [
        ("run", NASTY),
        ("run", f"{PATH}.py"),
        ("run", f"{NASTY}.py"),
        ("run", f"{PATH}.toml"),
        ("run", f"{NASTY}.toml"),
        ("run", "fedavg", "--data", NASTY),
        ("run", "fedavg", "--set", f"{NASTY}=1"),
        ("run", "fedavg", f"--{NASTY}"),
        ("run", "fedavg", "--lr", NASTY),
        ("run", "fedavg", "--partition", LINES),
        ("run", "fedavg", "--model", LINES),
        ("show", NASTY),
        ("list", LINES),
        ("report", LINES),
        ("watch", LINES),
        ("report", PATH),
        ("watch", f"{PATH}\n"),
        ("resume", NASTY),
        ("resume", PATH),
        ("export", PATH, "--party", "p1"),
        ("measure", PATH),
        (NASTY,),
        ("data", "import", PATH, "--out", "x"),
        ("data", "prepare", PATH),
        ("reproduce", PATH),
        ("run", "fedavg", "--data", f"{PATH}.py"),
        ("run", "fedavg", "--partition", f"{PATH}.json"),
        ("run", "fedavg", "--track", PATH),
    ],
)
def test_error_messages_are_escaped(args: tuple[str, ...], here: Path) -> None:
    result = comity(*args)
    one_sentence(result, 1, 2)
    printable_output(result)


# --- Names in files ---------------------------------------------------------------------------------------------------

DATA = """
import numpy as np, torch
from comity.data import Dataset
from comity.data.groups import Groups

def load():
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = rng.normal(size=(90, 4)) + y[:, None]
    return Dataset(NASTY, torch.tensor(x), torch.tensor(y), 3, warnings=(LINES,), class_names=(NASTY, LINES, "c"),
                   groups={"site": Groups(("north", "south"), np.arange(90) % 2)}, default_partition="natural(by=site)")
"""


@pytest.mark.usefixtures("without_onnx")
def test_texts_of_a_dataset_are_escaped(here: Path) -> None:
    Path("nasty_data.py").write_text(
        f"NASTY, LINES = {NASTY!r}, {LINES!r}\n{DATA}", encoding="utf-8"
    )
    how = ("--data", "./nasty_data.py", "--model", "linear", "--rounds", "2", "--engine", "loop")
    assert NASTY_ESCAPED in printable_output(succeed("data", "inspect", *how[:2]))
    assert NASTY_ESCAPED in printable_output(succeed("data", "prepare", "./nasty_data.py"))
    assert NASTY_ESCAPED in printable_output(succeed("run", "fedavg", *how, "--out", "out"))
    printable_output(succeed("watch", "out", "--once"))
    printable_output(succeed("compare", "fedavg", *how, "--leave-one-out", "--out", "c"))
    printable_output(succeed("report", "c", "--table", "markdown"))
    succeed("export", "out", "--party", "south", "--out", "model")
    assert set(load(Path("model")).class_names) == {
        NASTY,
        LINES,
        "c",
    }, "the saved names are escaped"
    np.save("new.npy", np.zeros((1, 4)))
    result = subprocess.run(
        [sys.executable, "model/predict.py", "new.npy"], capture_output=True, text=True, check=True
    )
    assert NASTY_ESCAPED in result.stdout
    assert result.stdout.replace("\n", "").isprintable()


def failed_command(*args: str) -> CommandResult:
    result = comity(*args)
    complaint(result, 1, 2)
    return result


METHOD = '''"""TITLE"""
from comity.algorithms.fedavg import FedAvg
from comity.core import *

@algorithm
class Mine(FedAvg):
    word: str = option("a", WORDS)

@accounts_for(Mine)
class MineAccounting(Mine.accounting_class):
    def warnings(self, info): return [WORDS]
'''


def test_texts_of_a_method_are_escaped(here: Path) -> None:
    """Its card, its warnings and its errors."""
    Path("nasty_method.py").write_text(
        METHOD.replace("TITLE", "Mine.\n\n\\x1b[2J").replace("WORDS", repr(LINES)), encoding="utf-8"
    )
    card = printable_output(succeed("show", "./nasty_method.py"))
    assert card.startswith("Mine.\n \\x1b[2J\n")
    assert "Warning: " in printable_output(
        succeed("run", "./nasty_method.py", *SMALL, "--out", "out")
    )
    Path("nasty_failure.py").write_text(f"raise ValueError({LINES!r})", encoding="utf-8")
    printable_output(failed_command("run", "./nasty_failure.py", *SMALL))
    assert "\\x1b" in printable_output(
        succeed("tune", "fedprox", "--grid", "mu=0.1,1", *SMALL, "--out", NAME)
    )


@pytest.fixture
def foreign_run(tmp_path: Path) -> Path:
    """A run's folder whose files have nasty texts from somebody else."""
    folder = tmp_path / "gift"
    succeed("run", "fedavg", *SMALL, "--out", folder)
    for path in folder.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            table = [[LINES if cell == "p1" else cell for cell in row] for row in csv.reader(file)]
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)
    for name in ("summary.json", "split.json"):
        text = (folder / name).read_text(encoding="utf-8").replace('"p1"', json.dumps(LINES))
        (folder / name).write_text(text.replace('"fedavg"', json.dumps(LINES)), encoding="utf-8")
    text = (folder / "config.toml").read_text(encoding="utf-8")
    for setting in ("partition", "optimizer"):
        text = re.sub(
            f"^{setting} = .*",
            lambda m, s=setting: f"{s} = {json.dumps(LINES)}",  # type: ignore[misc]
            text,
            flags=re.MULTILINE,
        )
    (folder / "config.toml").write_text(text, encoding="utf-8")
    content = json.loads((folder / "env.json").read_text(encoding="utf-8"))
    (folder / "env.json").write_text(
        json.dumps(content | {"config": digest(text), "comity": LINES}), encoding="utf-8"
    )
    return folder


LOOKS = (
    ("watch", "--once"),
    ("report",),
    ("report", "--table", "latex"),
    ("measure",),
    ("export", "--party", "p0"),
    ("resume",),
)


@pytest.mark.usefixtures("without_onnx")
@pytest.mark.parametrize("args", LOOKS)
@pytest.mark.parametrize("is_finished", [True, False])
def test_texts_of_a_foreign_run_are_escaped(
    args: tuple[str, ...], is_finished: bool, foreign_run: Path
) -> None:
    if not is_finished:
        (foreign_run / "summary.json").unlink()
    text = printable_output(comity(args[0], foreign_run, *args[1:]))
    if args[0] == "watch":
        assert NASTY_ESCAPED in text


def test_texts_of_a_foreign_run_among_others_are_escaped(foreign_run: Path, tmp_path: Path) -> None:
    shutil.copytree(foreign_run, tmp_path / NAME)
    assert escape_terminal(NAME) in printable_output(succeed("watch", tmp_path, "--once"))
    printable_output(succeed("report", tmp_path, "--table", "markdown"))


# --- On a terminal ----------------------------------------------------------------------------------------------------

CONTROL_CODES = ("\x1b]0;", "\x1b[2J", "\x9b", "\x07", "\u202e", "\x00")


def test_terminal_output_is_escaped(nursery: Nursery, foreign_run: Path, tmp_path: Path) -> None:
    """Colours and cursor movements are Comity's own; those of names are escaped."""
    (tmp_path / f"{NAME}.py").write_text(
        METHOD.replace("TITLE", "Mine.").replace("WORDS", repr(LINES)), encoding="utf-8"
    )
    for args in (
        ("run", tmp_path / f"{NAME}.py", *SMALL, "--out", tmp_path / NAME),
        ("watch", foreign_run),
        ("watch", tmp_path, "--once"),
    ):
        code, text = on_terminal(nursery, *args, columns=200)
        assert code == 0, text
        assert "\x1b[" in text, "colours"
        assert not [bad for bad in CONTROL_CODES if bad in text], repr(text)
        assert r"\x1b]0;title\x07" in text


def test_legend_of_curves_is_escaped() -> None:
    rows = text_plot.draw(
        Curves("mean accuracy", {NASTY: {0: 0.1, 1: 0.5}, LINES: {0: 0.2, 1: 0.6}})
    )
    assert all(row.plain.isprintable() for row in rows)


def test_only_screen_makes_consoles_and_prints_are_escaped() -> None:
    """No other module makes a Console, and prints of names go through `escape_terminal`."""
    folder = Path(screen.__file__).parent
    for path in folder.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<!class Screen\()\bConsole\(", text), path.name
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "print":
                ours = (
                    r"escape_terminal\(|json\.dumps|version_line\(\)|script\(shell\)"
                    r"|format_message\(\)|help_text\(\)|Stopped before anything was run"
                )
                source = ast.unparse(call)
                assert re.search(ours, source), f"{path.name}: {source}"


def test_undecodable_folder_name_is_escaped(here: Path) -> None:
    """A file name may have bytes that are not Unicode; they are printed escaped."""
    name = os.fsdecode(b"bytes-\xff")
    assert "bytes-\\udcff" in printable_output(succeed("run", "fedavg", *SMALL, "--out", name))
    assert "bytes-\\udcff" in printable_output(comity("run", "fedavg", *SMALL, "--out", name))
