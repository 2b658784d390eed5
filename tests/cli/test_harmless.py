"""Whatever names hold, a terminal shows it and obeys none of it: no markup, no escape codes, no
lines that are not ours.
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
from harness import Ended, Nursery, comity, complaint, on_terminal, one_sentence, works

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
SEEN = r"[/red][bold]\x1b]0;title\x07\x1b[2J\x9b31m\x00\x7f\u202e:smile:"
PATH = NASTY.replace("\x00", "")
NAME = PATH.replace("/", "")  # that a file can have
LINES = f"{NASTY}\r\nfedavg: accuracy 100.0%\u2028"


def shown(ended: Ended) -> str:
    """All that a command wrote, in which a terminal finds nothing to obey but the ends of lines."""
    text = ended.out + ended.err
    bad = {c for c in text if not c.isprintable() and c != "\n"}
    assert not bad, f"{bad} in {text!r}"
    assert "\nfedavg: accuracy 100.0%" not in text, "a line that is not ours"
    return text


OBEDIENT = "\x00\x07\x08\n\r\t\x1b\x7f\x85\x9b\u200f\u202e\u2028\u2066\ufeff\ud800"


@pytest.mark.parametrize("c", OBEDIENT, ids=ascii)
def test_characters(c: str) -> None:
    assert escape_terminal(f"a{c}b") == "a" + repr(c)[1:-1] + "b"
    assert escape_terminal(escape_terminal(c)) == escape_terminal(c)
    assert escape_terminal(c).isprintable()


def test_text_stays_what_it_is() -> None:
    for text in ("", "north", "größer 方法 😀", "C:\\new [red] :smile:", "it's"):
        assert escape_terminal(text) == text


# --- Names that are typed ---------------------------------------------------------------------------------------------


def test_a_folders_name_is_no_markup(here: Path) -> None:
    assert "The run is in o[/red]" in works("run", "fedavg", *SMALL, "--out", "o[/red]").out
    assert "The run is in o[/red]" in works("resume", "o[/red]").out
    works("report", "o[/red]", "--quick")


@pytest.mark.usefixtures("without_onnx")
def test_folders(here: Path) -> None:
    """A run's own, and those of a comparison and an export."""
    out = here / NAME
    seen = escape_terminal(NAME)
    assert seen in shown(works("run", "fedavg", *SMALL, "--out", out))
    assert seen in shown(works("resume", out))
    assert seen in shown(works("watch", out.parent, "--once"))
    assert seen in shown(works("report", out, "--quick"))
    assert seen in shown(works("export", out, "--party", "p0"))
    assert seen in shown(comity("run", "fedavg", *SMALL, "--out", out))
    (out / "summary.json").unlink()
    assert seen in shown(works("watch", out, "--once")), "how to go on"


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
def test_sentences(args: tuple[str, ...], here: Path) -> None:
    ended = comity(*args)
    one_sentence(ended, 1, 2)
    shown(ended)


# --- Names that files hold --------------------------------------------------------------------------------------------

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
def test_a_dataset(here: Path) -> None:
    Path("nasty_data.py").write_text(
        f"NASTY, LINES = {NASTY!r}, {LINES!r}\n{DATA}", encoding="utf-8"
    )
    how = ("--data", "./nasty_data.py", "--model", "linear", "--rounds", "2", "--engine", "loop")
    assert SEEN in shown(works("data", "inspect", *how[:2]))
    assert SEEN in shown(works("data", "prepare", "./nasty_data.py"))
    assert SEEN in shown(works("run", "fedavg", *how, "--out", "out"))
    shown(works("watch", "out", "--once"))
    shown(works("compare", "fedavg", *how, "--leave-one-out", "--out", "c"))
    shown(works("report", "c", "--table", "markdown"))
    works("export", "out", "--party", "south", "--out", "model")
    assert set(load(Path("model")).class_names) == {
        NASTY,
        LINES,
        "c",
    }, "for programs they are what they are"
    np.save("new.npy", np.zeros((1, 4)))
    done = subprocess.run(
        [sys.executable, "model/predict.py", "new.npy"], capture_output=True, text=True, check=True
    )
    assert SEEN in done.stdout
    assert done.stdout.replace("\n", "").isprintable()


def complaint_of(*args: str) -> Ended:
    ended = comity(*args)
    complaint(ended, 1, 2)
    return ended


MINE = '''"""TITLE"""
from comity.algorithms.fedavg import FedAvg
from comity.core import *

@algorithm
class Mine(FedAvg):
    word: str = option("a", WORDS)

@accounts_for(Mine)
class MineAccounting(Mine.accounting_class):
    def warnings(self, info): return [WORDS]
'''


def test_a_method(here: Path) -> None:
    """Its card, its warnings, and what it says when it fails."""
    Path("nasty_method.py").write_text(
        MINE.replace("TITLE", "Mine.\n\n\\x1b[2J").replace("WORDS", repr(LINES)), encoding="utf-8"
    )
    card = shown(works("show", "./nasty_method.py"))
    assert card.startswith("Mine.\n \\x1b[2J\n")
    assert "Warning: " in shown(works("run", "./nasty_method.py", *SMALL, "--out", "out"))
    Path("nasty_failure.py").write_text(f"raise ValueError({LINES!r})", encoding="utf-8")
    shown(complaint_of("run", "./nasty_failure.py", *SMALL))
    assert "\\x1b" in shown(works("tune", "fedprox", "--grid", "mu=0.1,1", *SMALL, "--out", NAME))


@pytest.fixture
def gift(tmp_path: Path) -> Path:
    """A run's folder that somebody else has written to."""
    folder = tmp_path / "gift"
    works("run", "fedavg", *SMALL, "--out", folder)
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
    told = json.loads((folder / "env.json").read_text(encoding="utf-8"))
    (folder / "env.json").write_text(
        json.dumps(told | {"config": digest(text), "comity": LINES}), encoding="utf-8"
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
@pytest.mark.parametrize("finished", [True, False])
def test_a_strangers_folder(args: tuple[str, ...], finished: bool, gift: Path) -> None:
    if not finished:
        (gift / "summary.json").unlink()
    text = shown(comity(args[0], gift, *args[1:]))
    if args[0] == "watch":
        assert SEEN in text


def test_a_strangers_folder_among_others(gift: Path, tmp_path: Path) -> None:
    shutil.copytree(gift, tmp_path / NAME)
    assert escape_terminal(NAME) in shown(works("watch", tmp_path, "--once"))
    shown(works("report", tmp_path, "--table", "markdown"))


# --- On a terminal ----------------------------------------------------------------------------------------------------

OBEYED = ("\x1b]0;", "\x1b[2J", "\x9b", "\x07", "\u202e", "\x00")


def test_on_a_terminal(nursery: Nursery, gift: Path, tmp_path: Path) -> None:
    """Bars, curves and colours are there; what names hold is text."""
    (tmp_path / f"{NAME}.py").write_text(
        MINE.replace("TITLE", "Mine.").replace("WORDS", repr(LINES)), encoding="utf-8"
    )
    for args in (
        ("run", tmp_path / f"{NAME}.py", *SMALL, "--out", tmp_path / NAME),
        ("watch", gift),
        ("watch", tmp_path, "--once"),
    ):
        code, text = on_terminal(nursery, *args, columns=200)
        assert code == 0, text
        assert "\x1b[" in text, "colours"
        assert not [bad for bad in OBEYED if bad in text], repr(text)
        assert r"\x1b]0;title\x07" in text


def test_curves() -> None:
    rows = text_plot.draw(
        Curves("mean accuracy", {NASTY: {0: 0.1, 1: 0.5}, LINES: {0: 0.2, 1: 0.6}})
    )
    assert all(row.plain.isprintable() for row in rows)


def test_every_console_is_the_screens() -> None:
    """Nobody else makes one, and nobody prints what may hold names but through `escape_terminal`."""
    folder = Path(screen.__file__).parent
    for path in folder.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<!class Screen\()\bConsole\(", text), path.name
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "print":
                ours = (
                    r"escape_terminal\(|json\.dumps|version_line\(\)|script\(shell\)"
                    r"|format_message\(\)|Stopped before anything was run"
                )
                source = ast.unparse(call)
                assert re.search(ours, source), f"{path.name}: {source}"


def test_names_that_are_no_text(here: Path) -> None:
    """A file's name may be bytes that are none of Unicode's: they are shown, too."""
    name = os.fsdecode(b"bytes-\xff")
    assert "bytes-\\udcff" in shown(works("run", "fedavg", *SMALL, "--out", name))
    assert "bytes-\\udcff" in shown(comity("run", "fedavg", *SMALL, "--out", name))
