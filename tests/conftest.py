"""One torch thread in every test process: two are slower on a busy machine, and equal bits need
one.

Comparisons end without their page, which takes seconds, unless a test asks for it. The secret that
marks the user's own runs is the session's own.

Markers stand at the tests: `quick` for modules that `make quick` runs, `slow` for tests of such a
module that take seconds, and `long` for what `make test` leaves to `make test-long`
(tests/support/sweeps.py marks most of these).
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from functools import cache

import matrix
import pytest
import torch
import typer.main
from sweeps import over_methods

torch.set_num_threads(1)
os.environ["COMITY_REPORT"] = "0"
USER = tempfile.TemporaryDirectory(prefix="comity-user-")
os.environ["XDG_STATE_HOME"] = USER.name


@pytest.fixture(autouse=True, scope="session")
def _without_waiting_for_the_disk() -> Iterator[None]:
    """What is written is there for every other process at once; only a power cut, which nobody
    makes here, would tell.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_command_line() -> Iterator[None]:
    """Typer makes the whole command line anew for every command; here thousands follow each other
    in one process.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are exported without their ONNX files, which take most of the time."""
    monkeypatch.setattr("comity.studies.export.find_spec", lambda name: None)


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A command ignores Ctrl-C once it is done, because its process is; here others follow."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with an argument `text` that is not parametrized runs for every method. Methods in
    `FEW` run in `make test`; all others are marked long.
    """
    if "text" not in metafunc.fixturenames:
        return
    marks = metafunc.definition.iter_markers("parametrize")
    if not any("text" in mark.args[0] for mark in marks):
        methods = [*matrix.compositions(), matrix.GOSSIP]
        metafunc.parametrize("text", over_methods(methods), ids=matrix.short)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """How to run the tests in this order again; pytest's own header, which says so, is left out by
    -q.
    """
    seed = config.getoption("randomly_seed", None)
    if seed is not None:
        terminalreporter.write_line(
            f"Random order: repeat it with -p randomly --randomly-seed={seed}"
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`@pytest.mark.sweep("a", "b")`: parameter sets whose ids contain none of these texts are
    long.
    """
    unused: dict[str, set[str]] = {}
    for item in items:
        for mark in item.iter_markers("sweep"):
            parameters = item.name.partition("[")[2][:-1]
            found = [text for text in mark.args if text in parameters]
            if not found:
                item.add_marker(pytest.mark.long)
            test = item.nodeid.partition("[")[0]
            unused[test] = unused.get(test, set(mark.args)) - set(found)
    wrong = {test: texts for test, texts in unused.items() if texts}
    if wrong and not any("::" in arg for arg in config.args):
        raise pytest.UsageError(f"sweep: no parameters have these texts: {wrong}")
