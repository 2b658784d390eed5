"""What a person sees: plain lines in a file or pipe, a live bar on a terminal, tables that fit."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from harness import (
    ENV,
    ESCAPE,
    Nursery,
    contents,
    frames,
    on_terminal,
    once,
    process,
    summary,
    works,
)

DEMO = ("solo", "fedavg", "fedavg+dbe", "fedper", "scaffold")
SETTINGS = (
    "--parties",
    "10",
    "--rounds",
    "2",
    "--partition",
    "dirichlet(alpha=0.1)",
    "--engine",
    "loop",
)


# --- Without a terminal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "color", [{}, {"TERM": "xterm-256color", "COLORTERM": "truecolor"}], ids=["plain", "colourful"]
)
def test_plain_lines_without_a_terminal(
    color: dict[str, str], nursery: Nursery, tmp_path: Path
) -> None:
    ended = nursery.run("run", "fedavg+dbe", *SETTINGS, "--out", tmp_path / "out", env=color)
    assert ended.code == 0
    assert "\x1b" not in ended.out + ended.err
    assert "\r" not in ended.out + ended.err
    lines = (
        ended.err.splitlines()
    )  # one, unless the machine is so busy that two rounds take seconds
    told = r"fedavg\+dbe  round \d/2  accuracy \d+\.\d%  \d[\d.]* [kMG]?B  [\d.]+ (s|min|h) left"
    assert [line for line in lines if not re.fullmatch(told, line)] == []
    assert "round 2/2" in lines[-1]
    got = summary(tmp_path / "out")["accuracy"]
    assert f"accuracy {got['mean']:.1%}" in ended.out
    assert got["worst_party"] in ended.out
    assert got["best_party"] in ended.out
    assert str(tmp_path / "out") in ended.out


@pytest.mark.long
def test_plain_lines_come_while_it_runs(nursery: Nursery, tmp_path: Path) -> None:
    """Every few seconds one, so that a long run in a log file can be followed."""
    child = nursery.start("run", "fedavg", *SETTINGS, "--rounds", "60", "--out", tmp_path / "out")
    ended = child.wait()
    lines = ended.err.splitlines()
    assert re.search(r"round 60/60", lines[-1])
    took = summary(tmp_path / "out")["seconds"]["total"]
    assert 1 + int(took / 2.5) <= len(lines) <= 2 + took / 2


def test_a_path_is_never_broken_over_lines(nursery: Nursery, tmp_path: Path) -> None:
    deep = tmp_path / ("long-" * 20) / "out"
    ended = nursery.run("run", "fedavg", *SETTINGS, "--out", deep)
    assert str(deep) in ended.out
    again = nursery.run("resume", deep)
    assert str(deep) in again.out


def test_a_refusal_is_never_broken_over_lines(nursery: Nursery) -> None:
    ended = nursery.run("run", "x" * 300, env={"COLUMNS": "40"})
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("what", ["algorithms", "datasets", "models", "partitions"])
def test_json_is_one_document_at_any_width(what: str, nursery: Nursery) -> None:
    narrow, wide = (
        nursery.run("list", what, "--json", env={"COLUMNS": columns}).out
        for columns in ("20", "200")
    )
    assert narrow == wide
    assert narrow.count("\n") == 1


# --- On a terminal ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "engine", [("loop",), ("process", "--workers", "2")], ids=["loop", "process"]
)
def test_a_live_bar_on_a_terminal(
    engine: tuple[str, ...], nursery: Nursery, tmp_path: Path
) -> None:
    args = (
        "run",
        "fedavg+dbe",
        *SETTINGS[:-1],
        *engine,
        "--rounds",
        "12",
        "--epochs",
        "2",
        "--out",
        tmp_path / "out",
    )
    code, shown = on_terminal(nursery, *args, columns=120)
    assert code == 0
    seen = frames(shown)
    bars = [line for line in seen if "round " in line]
    assert len(bars) > 3, "the bar does not move"
    numbers = [int(found[1]) for line in bars if (found := re.search(r"round (\d+)/12", line))]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) > 2
    assert any(re.search(r"parties \d+/10", line) for line in bars)
    assert any(re.search(r"accuracy \d+\.\d%", line) for line in bars)
    assert any(re.search(r"\d[\d.]* (kB|MB)", line) for line in bars)
    assert any("fedavg+dbe" in line for line in bars)
    assert "\x1b[?25h" in shown or "\x1b[?25l" not in shown, "the cursor stays hidden"
    assert any(line.startswith("fedavg+dbe: accuracy") for line in seen)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_bar_fits_its_line(columns: int, nursery: Nursery, tmp_path: Path) -> None:
    """A line that is too long would leave its beginnings behind; what it shows must not be cut off
    either.
    """
    args = ("run", "fedavg+dbe", *SETTINGS, "--rounds", "12", "--out", tmp_path / "out")
    code, shown = on_terminal(nursery, *args, columns=columns)
    assert code == 0
    bars = [line for line in frames(shown) if re.search(r"round +\d+/12", line)]
    assert bars
    for line in bars:
        assert len(line) <= columns
        assert "…" not in line, line
    for what in (r"parties \d+/10", r"accuracy \d+\.\d%", r"\d[\d.]* (kB|MB)"):
        assert any(re.search(what, line) for line in bars), f"{what} is not shown in {bars[-1]!r}"


def test_the_bar_leaves_no_trace_in_the_results(nursery: Nursery, tmp_path: Path) -> None:
    args = ("run", "fedavg", *SETTINGS, "--out")
    on_terminal(nursery, *args, tmp_path / "bar")
    nursery.run(*args, tmp_path / "lines")
    assert contents(tmp_path / "bar") == contents(tmp_path / "lines")


def test_a_refusal_on_a_terminal(nursery: Nursery) -> None:
    code, shown = on_terminal(nursery, "run", "fedavgg")
    assert code == 2
    assert frames(shown) == ["comity: There is no algorithm 'fedavgg'. Did you mean 'fedavg'?"]


def test_progress_of_compare_on_a_terminal(nursery: Nursery, tmp_path: Path) -> None:
    code, shown = on_terminal(
        nursery, "compare", "fedavg", *SETTINGS, "--out", tmp_path / "out", columns=120
    )
    assert code == 0
    seen = frames(shown)
    assert any(line.startswith("1/2 solo") and "round" in line for line in seen)
    assert any(line.startswith("2/2 fedavg") and "round" in line for line in seen)


def test_a_real_process_on_a_real_terminal(tmp_path: Path) -> None:
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    words = once(("run", "fedavg", *SETTINGS, "--rounds", "8", "--out", tmp_path / "out"))
    command = [sys.executable, "-m", "comity.cli", *words]
    env = {k: v for k, v in ENV.items() if k != "COLUMNS"} | {"TERM": "xterm-256color"}
    with subprocess.Popen(
        command, stdin=side, stdout=side, stderr=side, env=env, cwd=tmp_path
    ) as running:
        os.close(side)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(main, 65536):
                shown += part
    os.close(main)
    assert running.returncode == 0
    text = shown.decode()
    assert "\x1b[" in text
    bars = [line for line in frames(text) if re.search(r"round \d+/8", line)]
    assert any(
        re.search(r"parties \d+/10.*accuracy \d+\.\d%.*\d (kB|MB)", line) for line in bars
    ), bars


# --- Tables -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    works("compare", *DEMO[1:], *SETTINGS, "--out", folder)
    return folder


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("where", ["pipe", "terminal"])
def test_the_demo_table_fits(where: str, columns: int, compared: Path, nursery: Nursery) -> None:
    """The runs are there already: only the table is made."""
    args = ("compare", *DEMO[1:], *SETTINGS, "--out", compared)
    if where == "pipe":
        ended = nursery.run(*args, env={"COLUMNS": str(columns)})
        code, lines = ended.code, ended.out.splitlines()
    else:
        code, shown = on_terminal(nursery, *args, columns=columns)
        lines = [
            line for line in ESCAPE.sub("", shown).replace("\r", "").splitlines() if line.strip()
        ]
    assert code == 0
    check_table(lines, columns, compared)


def check_table(lines: list[str], columns: int, folder: Path) -> None:
    head = next(k for k, line in enumerate(lines) if line.startswith("method"))
    names = re.split(r" {2,}", lines[head].strip())
    assert {"method", "accuracy", "over SOLO", "gained", "hurt", "sent"} <= set(names)
    table = lines[head + 1 : head + 1 + len(DEMO)]
    assert [line.split()[0] for line in table] == list(DEMO), "a cell is wrapped"
    for method, line in zip(DEMO, table, strict=True):
        assert len(line.rstrip()) <= columns
        assert "…" not in line
        got = summary(folder / method / "seed-0")
        assert f"{got['accuracy']['mean']:.1%}" in line
        assert f"{got['accuracy']['per_party'][got['accuracy']['worst_party']]:.1%}" in line
        cells = re.split(r" {2,}", line.strip())
        if method != "solo":
            assert len(cells) == len(names), f"{cells} under {names}"
            assert re.fullmatch(r"\d+/9", cells[names.index("gained")])
            assert re.fullmatch(r"\d+/9", cells[names.index("hurt")])
            assert re.fullmatch(r"[\d.]+ (kB|MB)", cells[names.index("sent")])
    assert not lines[head + 1 + len(DEMO)].startswith(" " * 8), "a row goes on in the next line"


def test_the_demo_table_with_several_seeds_fits(nursery: Nursery, tmp_path: Path) -> None:
    args = (
        "compare",
        *DEMO[1:],
        *SETTINGS,
        "--rounds",
        "1",
        "--model",
        "mlp2(width=8)",
        "--seeds",
        "0,1,2",
        "--out",
        tmp_path,
    )
    ended = nursery.run(*args, env={"COLUMNS": "80"})
    assert ended.code == 0
    lines = ended.out.splitlines()
    head = next(k for k, line in enumerate(lines) if line.startswith("method"))
    assert [line.split()[0] for line in lines[head + 1 : head + 6]] == list(DEMO), (
        "a cell is wrapped"
    )
    assert all(re.search(r"\d+\.\d% ± \d+\.\d ", line) for line in lines[head + 1 : head + 6])


def test_the_table_goes_to_stdout_and_progress_to_stderr(tmp_path: Path) -> None:
    ended = process("compare", "fedavg", *SETTINGS, "--out", tmp_path / "out", cwd=tmp_path)
    assert ended.code == 0
    assert all(re.search(rf"^{method} ", ended.out, re.MULTILINE) for method in ("solo", "fedavg"))
    assert "round 2/2" not in ended.out
    assert "round 2/2" in ended.err
    assert "\x1b" not in ended.out + ended.err


@pytest.mark.sweep("80-")
@pytest.mark.parametrize(
    "args",
    [("data", "inspect", "--parties", "20"), ("plan", "fedavg+dbe"), ("list", "algorithms")],
    ids=" ".join,
)
@pytest.mark.parametrize("columns", [80, 120])
def test_other_tables_keep_their_figures(
    args: tuple[str, ...], columns: int, nursery: Nursery
) -> None:
    ended = nursery.run(*args, env={"COLUMNS": str(columns)})
    wide = nursery.run(*args, env={"COLUMNS": "400"})
    assert ended.code == wide.code == 0
    assert "…" not in ended.out
    assert all(len(line.rstrip()) <= columns for line in ended.out.splitlines())
    if args[0] == "data":
        assert [line.split() for line in ended.out.splitlines()] == [
            line.split() for line in wide.out.splitlines()
        ]
    if args[0] == "plan":
        assert re.search(r"^whole run +\S+ MB +\S+ MB +0 B", ended.out, re.MULTILINE)
