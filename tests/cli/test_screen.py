"""Output of commands: plain lines in a file or pipe, a live bar on a terminal, tables that fit."""

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
    succeed,
    summary,
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
    result = nursery.run("run", "fedavg+dbe", *SETTINGS, "--out", tmp_path / "out", env=color)
    assert result.code == 0
    assert "\x1b" not in result.out + result.err
    assert "\r" not in result.out + result.err
    lines = result.err.splitlines()  # one line, unless two rounds take seconds on a busy machine
    progress_line = (
        r"fedavg\+dbe  round \d/2  accuracy \d+\.\d%  \d[\d.]* [kMG]?B  [\d.]+ (s|min|h) left"
    )
    assert [line for line in lines if not re.fullmatch(progress_line, line)] == []
    assert "round 2/2" in lines[-1]
    accuracy = summary(tmp_path / "out")["accuracy"]
    assert f"accuracy {accuracy['mean']:.1%}" in result.out
    assert accuracy["worst_party"] in result.out
    assert accuracy["best_party"] in result.out
    assert str(tmp_path / "out") in result.out


@pytest.mark.long
def test_plain_lines_come_while_it_runs(nursery: Nursery, tmp_path: Path) -> None:
    """One line every few seconds."""
    child = nursery.start("run", "fedavg", *SETTINGS, "--rounds", "60", "--out", tmp_path / "out")
    result = child.wait()
    lines = result.err.splitlines()
    assert re.search(r"round 60/60", lines[-1])
    took = summary(tmp_path / "out")["seconds"]["total"]
    assert 1 + int(took / 2.5) <= len(lines) <= 2 + took / 2


def test_a_path_is_never_broken_over_lines(nursery: Nursery, tmp_path: Path) -> None:
    deep = tmp_path / ("long-" * 20) / "out"
    result = nursery.run("run", "fedavg", *SETTINGS, "--out", deep)
    assert str(deep) in result.out
    again = nursery.run("resume", deep)
    assert str(deep) in again.out


def test_error_is_never_broken_over_lines(nursery: Nursery) -> None:
    result = nursery.run("run", "x" * 300, env={"COLUMNS": "40"})
    assert result.err.count("\n") == 1


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
    code, output = on_terminal(nursery, *args, columns=120)
    assert code == 0
    lines = frames(output)
    bars = [line for line in lines if "round " in line]
    assert len(bars) > 3, "the bar does not move"
    numbers = [int(match[1]) for line in bars if (match := re.search(r"round (\d+)/12", line))]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) > 2
    assert any(re.search(r"parties \d+/10", line) for line in bars)
    assert any(re.search(r"accuracy \d+\.\d%", line) for line in bars)
    assert any(re.search(r"\d[\d.]* (kB|MB)", line) for line in bars)
    assert any("fedavg+dbe" in line for line in bars)
    assert "\x1b[?25h" in output or "\x1b[?25l" not in output, "the cursor stays hidden"
    assert any(line.startswith("fedavg+dbe: accuracy") for line in lines)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_bar_fits_its_line(columns: int, nursery: Nursery, tmp_path: Path) -> None:
    """A line that is too long would leave parts of earlier lines behind; it must not be truncated
    either.
    """
    args = ("run", "fedavg+dbe", *SETTINGS, "--rounds", "12", "--out", tmp_path / "out")
    code, output = on_terminal(nursery, *args, columns=columns)
    assert code == 0
    bars = [line for line in frames(output) if re.search(r"round +\d+/12", line)]
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


def test_error_on_a_terminal(nursery: Nursery) -> None:
    code, output = on_terminal(nursery, "run", "fedavgg")
    assert code == 2
    assert frames(output) == ["comity: There is no algorithm 'fedavgg'. Did you mean 'fedavg'?"]


def test_progress_of_compare_on_a_terminal(nursery: Nursery, tmp_path: Path) -> None:
    code, output = on_terminal(
        nursery, "compare", "fedavg", *SETTINGS, "--out", tmp_path / "out", columns=120
    )
    assert code == 0
    lines = frames(output)
    assert any(line.startswith("1/2 solo") and "round" in line for line in lines)
    assert any(line.startswith("2/2 fedavg") and "round" in line for line in lines)


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
        output = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(main, 65536):
                output += part
    os.close(main)
    assert running.returncode == 0
    text = output.decode()
    assert "\x1b[" in text
    bars = [line for line in frames(text) if re.search(r"round \d+/8", line)]
    assert any(
        re.search(r"parties \d+/10.*accuracy \d+\.\d%.*\d (kB|MB)", line) for line in bars
    ), bars


# --- Tables -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    succeed("compare", *DEMO[1:], *SETTINGS, "--out", folder)
    return folder


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("where", ["pipe", "terminal"])
def test_the_demo_table_fits(where: str, columns: int, comparison: Path, nursery: Nursery) -> None:
    """The runs are finished, so the command only prints the table."""
    args = ("compare", *DEMO[1:], *SETTINGS, "--out", comparison)
    if where == "pipe":
        result = nursery.run(*args, env={"COLUMNS": str(columns)})
        code, lines = result.code, result.out.splitlines()
    else:
        code, output = on_terminal(nursery, *args, columns=columns)
        lines = [
            line for line in ESCAPE.sub("", output).replace("\r", "").splitlines() if line.strip()
        ]
    assert code == 0
    check_table(lines, columns, comparison)


def check_table(lines: list[str], columns: int, folder: Path) -> None:
    head = next(k for k, line in enumerate(lines) if line.startswith("method"))
    names = re.split(r" {2,}", lines[head].strip())
    assert {"method", "accuracy", "over SOLO", "gained", "hurt", "sent"} <= set(names)
    table = lines[head + 1 : head + 1 + len(DEMO)]
    assert [line.split()[0] for line in table] == list(DEMO), "a cell is wrapped"
    for method, line in zip(DEMO, table, strict=True):
        assert len(line.rstrip()) <= columns
        assert "…" not in line
        run_summary = summary(folder / method / "seed-0")
        assert f"{run_summary['accuracy']['mean']:.1%}" in line
        assert (
            f"{run_summary['accuracy']['per_party'][run_summary['accuracy']['worst_party']]:.1%}"
            in line
        )
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
    result = nursery.run(*args, env={"COLUMNS": "80"})
    assert result.code == 0
    lines = result.out.splitlines()
    head = next(k for k, line in enumerate(lines) if line.startswith("method"))
    assert [line.split()[0] for line in lines[head + 1 : head + 6]] == list(DEMO), (
        "a cell is wrapped"
    )
    assert all(re.search(r"\d+\.\d% ± \d+\.\d ", line) for line in lines[head + 1 : head + 6])


def test_the_table_goes_to_stdout_and_progress_to_stderr(tmp_path: Path) -> None:
    result = process("compare", "fedavg", *SETTINGS, "--out", tmp_path / "out", cwd=tmp_path)
    assert result.code == 0
    assert all(re.search(rf"^{method} ", result.out, re.MULTILINE) for method in ("solo", "fedavg"))
    assert "round 2/2" not in result.out
    assert "round 2/2" in result.err
    assert "\x1b" not in result.out + result.err


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
    result = nursery.run(*args, env={"COLUMNS": str(columns)})
    wide = nursery.run(*args, env={"COLUMNS": "400"})
    assert result.code == wide.code == 0
    assert "…" not in result.out
    assert all(len(line.rstrip()) <= columns for line in result.out.splitlines())
    if args[0] == "data":
        assert [line.split() for line in result.out.splitlines()] == [
            line.split() for line in wide.out.splitlines()
        ]
    if args[0] == "plan":
        assert re.search(r"^whole run +\S+ MB +\S+ MB +0 B", result.out, re.MULTILINE)
