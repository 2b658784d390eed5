"""What a run costs grows with its parties, not with their square: preparing, rounds, evaluations,
checkpoints, tables, the summary and the report.

Instructions of Comity's own code are counted where the machine may be busy: they are the same each
time. What a single instruction does (a slice of all names) shows only in processor time, which the
long test takes.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import comity
from comity.runs import config
from comity.runs.build import SimulatedRun, prepare
from comity.runs.loop import _Rounds
from comity.runs.run import start
from comity.runs.server_run import Quiet

STEEPEST = 1.15
"""The largest exponent of a cost: 1 is linear."""
SOURCE = str(Path(comity.__file__).parent)
PARTS = {
    "_exchange": "rounds",
    "_evaluate": "evaluations",
    "_save": "checkpoints",
    "_write_tables": "tables",
    "summarise": "summary",
}
"""The parts of a run, by the method of a run's rounds that does them."""
Costs = dict[str, float]


class Instructions:
    """A context manager that counts the bytecode instructions of Comity's functions."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        sys.settrace(self._enter_frame)

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _enter_frame(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        self.count += event == "opcode"
        return self._step


@contextmanager
def instructions(costs: Costs, part: str) -> Iterator[None]:
    counter = Instructions()
    with counter:
        yield
    costs[part] += counter.count


@contextmanager
def processor_time(costs: Costs, part: str) -> Iterator[None]:
    gc.collect()
    begin = time.process_time()
    yield
    costs[part] += time.process_time() - begin


def costs_of_run(parties: int, folder: Path, meter: Callable[[Costs, str], Any]) -> Costs:
    """What each part of a run of two rounds costs. Its parties keep states."""
    draw = torch.Generator().manual_seed(1)

    def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, 4, generator=draw), torch.arange(count) % 3

    data = {f"party {i}": (samples(3), samples(3)) for i in range(parties)}
    federation = comity.Federation.from_arrays(data, validation=0.0, classes=3)
    experiment = config.experiment(
        {"algorithm": "ditto", "model": "linear", "batch": 3, "rounds": 2, "engine": "stacked"}
        | {"workers": 1}
    )
    costs: Costs = defaultdict(float)

    def metered(function: Any, part: str) -> Any:
        def run(*args: Any, **settings: Any) -> Any:
            with meter(costs, part):
                return function(*args, **settings)

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMITY_CHECKPOINT_SECONDS", "0")  # after every round, however slow it is
        for name, part in PARTS.items():
            patch.setattr(_Rounds, name, metered(getattr(_Rounds, name), part))
        job: SimulatedRun = metered(prepare, "prepare")(experiment, federation)
        metered(job.warnings, "warnings")()
        result = start(job, folder / f"{parties}", Quiet())
    metered(result.report, "report")()
    return dict(costs)


def exponents(few: Costs, many: Costs, factor: float) -> Costs:
    """The exponent of each part's cost in the number of parties."""
    return {part: math.log(many[part] / few[part]) / math.log(factor) for part in few}


def test_no_part_of_a_run_is_superlinear(tmp_path: Path) -> None:
    costs_of_run(4, tmp_path, instructions)  # what is computed once in a process
    few, many = (costs_of_run(count, tmp_path, instructions) for count in (60, 240))
    found = exponents(few, many, 4)
    assert {*PARTS.values(), "prepare", "warnings", "report"} == found.keys()
    assert max(found.values()) <= STEEPEST, found


@pytest.mark.long
@pytest.mark.skipif(
    os.environ.get("COMITY_TIMING") != "1", reason="needs a quiet machine: make bench-scale"
)
def test_processor_time_is_not_superlinear(tmp_path: Path) -> None:
    """The least of several runs, fitted over 100 to 10,000 parties; costs below a twentieth of a
    second are not measurable.
    """
    least: dict[int, Costs] = {}
    for parties, repeats in ((100, 5), (1_000, 3), (10_000, 2)):
        runs = [costs_of_run(parties, tmp_path / f"{k}", processor_time) for k in range(repeats)]
        least[parties] = {part: min(run[part] for run in runs) for part in runs[0]}
    found = {
        part: torch.linalg.lstsq(
            torch.tensor([[math.log(n), 1.0] for n in least]),
            torch.tensor([[math.log(max(costs[part], 1e-9))] for costs in least.values()]),
        )
        .solution[0]
        .item()
        for part in least[100]
        if least[10_000][part] > 0.05
    }
    assert max(found.values()) <= STEEPEST, (found, least)
