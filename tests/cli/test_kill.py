"""A run that is killed at any instant and resumed gives the same result, bit for bit.

The tests kill real processes: the main one or a worker, at moments drawn from a seeded generator,
and at each file operation in the run's folder. Checkpoints are much more frequent than usual.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness import (
    OFTEN,
    OWN,
    SMALL,
    Child,
    Nursery,
    complaint,
    contents,
    one_sentence,
    rounds,
    states,
    succeed,
    wait_for,
)

METHODS = ("fedavg+dbe", "scaffold", "adcol")
ENGINES = {"loop": ("--engine", "loop"), "process": ("--engine", "process", "--workers", "2")}
SETTINGS = (
    "--parties", "4", "--rounds", "24", "--participation", "0.75", "--model", "mlp2(width=32)", "--batch", "20",
    "--partition", "dirichlet(alpha=0.5)|keep(samples=100)",
)  # fmt: skip
EVERY_ROUND = {"COMITY_CHECKPOINT_SECONDS": "0"}


def settings(method: str) -> tuple[str, ...]:
    return (method, *SETTINGS, *(("--set", "hidden=16") if method == "adcol" else ()))


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """An undisturbed run of a method."""
    folder = tmp_path_factory.mktemp("calm")

    def run(method: str) -> Path:
        if not (folder / method).exists():
            succeed("run", *settings(method), "--engine", "loop", "--out", folder / method)
        return folder / method

    return run


@pytest.fixture(autouse=True)
def _shared_memory_is_left_clean() -> Iterator[None]:
    before = set(os.listdir("/dev/shm"))
    yield
    until = time.monotonic() + 2
    while set(os.listdir("/dev/shm")) - before and time.monotonic() < until:
        time.sleep(0.05)
    assert not set(os.listdir("/dev/shm")) - before


def assert_same(folder: Path, reference: Path) -> None:
    assert contents(folder) == contents(reference)
    assert states(folder) == states(reference)
    assert not [p for p in folder.rglob("*") if p.name.endswith(".new")]


def go_on(
    nursery: Nursery, out: Path, args: tuple[str, ...], env: dict[str, str] = OFTEN, **how: Any
) -> Child:
    """Start the run, or resume it if it exists."""
    if (out / "config.toml").exists():
        return nursery.start("resume", out, env=env, **how)
    return nursery.start("run", *args, "--out", out, env=env, **how)


def finish(nursery: Nursery, out: Path, args: tuple[str, ...]) -> None:
    child = go_on(nursery, out, args)
    result = child.wait()
    assert result.code == 0, result.err
    assert child.all_gone()


def has_reached(least: int, out: Path) -> bool:
    return rounds(out) >= least


def wait_for_round(least: int, out: Path, child: Child) -> None:
    """Wait until the tables have `least` rounds, or the run has ended."""
    wait_for(lambda: has_reached(least, out) or child.poll() is not None)


@pytest.mark.sweep("scaffold-process", "fedavg+dbe-loop")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_kill_the_main_process(
    method: str, engine: str, nursery: Nursery, calm: Callable[[str], Path], tmp_path: Path
) -> None:
    draw = random.Random(f"{method} {engine}")
    args, out = (*settings(method), *ENGINES[engine]), tmp_path / "run"
    kills = 0
    for turn in range(4):
        before = rounds(out)
        child = go_on(nursery, out, args)
        if turn:  # the first time it is killed during its start, then some rounds later
            least = before + draw.randrange(1, 7)
            wait_for_round(least, out, child)
        time.sleep(draw.uniform(0, 0.05 if turn else 0.2))
        child.signal(signal.SIGKILL)
        result = child.wait()
        assert child.all_gone(), "a worker outlives the main process"
        kills += result.code == -signal.SIGKILL
        assert result.code in (0, -signal.SIGKILL), result.err
    assert kills
    finish(nursery, out, args)
    assert_same(out, calm(method))


@pytest.mark.sweep("adcol")
@pytest.mark.parametrize("method", METHODS)
def test_kill_a_worker(
    method: str, nursery: Nursery, calm: Callable[[str], Path], tmp_path: Path
) -> None:
    draw = random.Random(method)
    args, out = (*settings(method), *ENGINES["process"]), tmp_path / "run"
    for least in (1, 4):
        child = go_on(nursery, out, args)
        wait_for_round(least, out, child)
        time.sleep(draw.uniform(0, 0.05))
        workers = child.workers()
        if child.poll() is None and workers:
            os.kill(draw.choice(workers), signal.SIGKILL)
            result = child.wait()
            if result.code:
                assert "resume" in complaint(result, 1)
        assert child.all_gone(), "a worker outlives the main process"
    finish(nursery, out, args)
    assert_same(out, calm(method))


def test_all_workers_at_once(nursery: Nursery, calm: Callable[[str], Path], tmp_path: Path) -> None:
    args, out = (*settings("scaffold"), *ENGINES["process"]), tmp_path / "run"
    child = go_on(nursery, out, args)
    wait_for(lambda: rounds(out) >= 2)
    for worker in child.workers():
        os.kill(worker, signal.SIGKILL)
    message = complaint(child.wait(), 1)
    assert "SIGKILL" in message
    assert "resume" in message
    assert child.all_gone()
    finish(nursery, out, args)
    assert_same(out, calm("scaffold"))


@pytest.mark.long
def test_resume_at_once_while_workers_are_still_ending(
    nursery: Nursery, calm: Callable[[str], Path], tmp_path: Path
) -> None:
    """Orphaned workers may hold the lock for a moment: then resume is refused, and succeeds later."""
    args, out = (*settings("scaffold"), *ENGINES["process"]), tmp_path / "run"
    for least in (1, 3, 5):
        child = go_on(nursery, out, args)
        wait_for(partial(has_reached, least, out))
        child.signal(signal.SIGKILL)
        child.wait()
    until = time.monotonic() + 20
    while (result := go_on(nursery, out, args).wait()).code:
        assert str(out) in one_sentence(result, 1)
        assert time.monotonic() < until
    assert_same(out, calm("scaffold"))


@pytest.mark.sweep("process-all", "loop-main")
@pytest.mark.parametrize("group", [False, True], ids=["main", "all"])
@pytest.mark.parametrize("engine", ENGINES)
def test_interrupt(
    engine: str, group: bool, nursery: Nursery, calm: Callable[[str], Path], tmp_path: Path
) -> None:
    """Ctrl-C, which a terminal sends to workers, too."""
    draw = random.Random(f"{engine} {group}")
    args, out = (*settings("fedavg+dbe"), *ENGINES[engine]), tmp_path / "run"
    for _ in range(2):
        before = rounds(out)
        child = go_on(nursery, out, args)
        wait_for_round(before + 1, out, child)
        time.sleep(draw.uniform(0, 0.05))
        child.signal(signal.SIGINT, group=group)
        result = child.wait()
        if rounds(out) < 24 or result.code:  # on a busy machine the run may have finished before
            assert f"comity resume {out}" in complaint(result, 130)
        assert "Traceback" not in result.err, result.err
        assert child.all_gone()
    finish(nursery, out, args)
    assert_same(out, calm("fedavg+dbe"))


@pytest.mark.parametrize(("which", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_interrupt_in_a_destructor_stops_the_run(
    which: str, code: int, nursery: Nursery, tmp_path: Path
) -> None:
    """Python ignores exceptions in a destructor, also KeyboardInterrupt; the run must stop anyway."""
    (tmp_path / "sly.py").write_text(
        f"""
import os, signal, time

class Sly:
    def __del__(self):
        os.kill(os.getpid(), signal.{which})
        time.sleep(1)

def load():
    Sly()
    time.sleep(50)
""",
        encoding="utf-8",
    )
    start = time.monotonic()
    result = nursery.run(
        "run", "fedavg", "--data", "./sly.py", "--out", tmp_path / "out", cwd=str(tmp_path)
    )
    one_sentence(result, code)
    assert time.monotonic() - start < 40, "the run stopped only after the load had finished"


def test_interrupt_before_a_party_function_starts_is_one_sentence(
    nursery: Nursery, tmp_path: Path
) -> None:
    """There is no warning of a coroutine that was never awaited when the run is interrupted."""
    method_body = """@on_party
    def local(self, mine, m, party, key):
        made = super().local(mine, m, party, key)
        import os, signal
        os.kill(os.getpid(), signal.SIGINT)
        return made"""
    (tmp_path / "mine.py").write_text(OWN.format(method_body), encoding="utf-8")
    out = tmp_path / "out"
    result = nursery.run("run", "./mine.py", *SMALL, "--out", out, cwd=str(tmp_path))
    assert f"comity resume {out}" in complaint(result, 130)


def test_interrupt_after_the_end_prints_nothing() -> None:
    late = (
        "import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGINT); from"
        " comity import cli; cli.main()"
    )
    command = [sys.executable, "-c", late, "list", "algorithms"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "adcol" in result.stdout


def test_interrupted_before_the_first_round(nursery: Nursery, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, signal, time\n\ndef load():\n    os.kill(os.getpid(), signal.SIGINT)\n   "
        " time.sleep(5)\n",
        encoding="utf-8",
    )
    result = nursery.run(
        "run", "fedavg", "--data", "./slow.py", "--out", tmp_path / "out", cwd=str(tmp_path)
    )
    one_sentence(result, 130)
    assert not (tmp_path / "out").exists()


def test_compare_interrupted_and_repeated(nursery: Nursery, tmp_path: Path) -> None:
    args = ("compare", "fedavg+dbe", *SETTINGS, "--engine", "loop", "--out")
    whole = nursery.run(*args, tmp_path / "whole")
    assert whole.code == 0, whole.err
    out = tmp_path / "out"
    for interrupted_method in ("solo", "fedavg+dbe"):
        child = nursery.start(*args, out, env=OFTEN)
        wait_for(partial(has_reached, 3, out / interrupted_method / "seed-0"))
        child.signal(signal.SIGINT)
        result = child.wait()
        if result.code:
            assert str(out) in complaint(result, 130), "the message does not say how to continue"
    result = nursery.run(*args, out)
    assert result.code == 0, result.err
    for method in ("solo", "fedavg+dbe"):
        assert_same(out / method / "seed-0", tmp_path / "whole" / method / "seed-0")


def test_sigterm(nursery: Nursery, calm: Callable[[str], Path], tmp_path: Path) -> None:
    """SIGTERM, as a batch system sends it."""
    args, out = (*settings("adcol"), *ENGINES["process"]), tmp_path / "run"
    child = go_on(nursery, out, args)
    wait_for(lambda: rounds(out) >= 2)
    child.signal(signal.SIGTERM)
    assert f"comity resume {out}" in complaint(child.wait(), 143)
    assert child.all_gone(), "a worker outlives the main process"
    finish(nursery, out, args)
    assert_same(out, calm("adcol"))


# --- At each file operation in the run's folder -----------------------------------------------------------------------

TINY = (
    "scaffold",
    "--parties",
    "2",
    "--rounds",
    "1",
    "--model",
    "linear",
    "--partition",
    "iid",
    "--steps",
    "3",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "run"
    succeed("run", *TINY, "--engine", "loop", "--out", folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_killed_at_each_touch(again: bool, nursery: Nursery, tiny: Path, tmp_path: Path) -> None:
    """Killed when it opens, renames, cuts or removes a file for the n-th time; with `again`, the
    resumed run as well.
    """
    args = (*TINY, "--engine", "loop")
    for touch in range(1 + again, 1000, 2 + 2 * again):
        out = tmp_path / str(touch)
        codes = []
        for _ in range(1 + again):
            result = go_on(nursery, out, args, EVERY_ROUND, die_at=touch, die_in=str(out)).wait()
            assert result.code in (0, -signal.SIGKILL), f"touch {touch}: {result}"
            codes.append(result.code)
        finish(nursery, out, args)
        assert_same(out, tiny)
        if codes[0] == 0:
            assert touch > 20
            return
    pytest.fail("the run never finished")


@pytest.mark.parametrize("touch", [1, 2])
def test_a_worker_killed_when_it_saves(
    touch: int, nursery: Nursery, tiny: Path, tmp_path: Path
) -> None:
    """At its first file, or with both parties in one worker at its second."""
    args, out = (*TINY, "--engine", "process", "--workers", str(3 - touch)), tmp_path / "out"
    result = go_on(
        nursery, out, args, EVERY_ROUND, die_at=touch, die_in=str(out), die_as="worker"
    ).wait()
    assert "resume" in complaint(result, 1)
    finish(nursery, out, args)
    assert_same(out, tiny)
