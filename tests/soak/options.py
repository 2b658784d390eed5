"""Every option of every model, method, partition, test protocol and setting with extreme values:
each is refused in one sentence, or runs.

python tests/soak/options.py            (accepted values run for a round, or for five seconds: half an hour)
python tests/soak/options.py --prepare  (accepted values are only prepared)
"""

from __future__ import annotations

import argparse
import inspect
import os
import resource
import select
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from comity import algorithms
from comity.core.wrapper import Wrapper
from comity.data import load
from comity.data.dataset import Dataset
from comity.data.partitions import PARTITIONS
from comity.data.protocols import RULES
from comity.data.steps import STEPS
from comity.errors import ComityError, describe
from comity.models.zoo import ZOO
from comity.runs.build import SimulatedRun, prepare
from comity.runs.config import Experiment, experiment
from comity.runs.run import start
from comity.runs.server_run import Quiet

NUMBERS: list[Any] = [
    0,
    -1,
    1,
    1e30,
    -1e30,
    1e-320,
    float("nan"),
    float("inf"),
    -float("inf"),
    2**31,
    2**63,
    -(2**63),
    10**400,
    10**5000,
]
WORDS: list[Any] = [
    "",
    " ",
    "x\0y",
    "x" * 100_000,
    "été",
    "\udcff",
    "1_",
    "٣",
    "0x10",
    "a,b",
    "(",
    "=",
    "none",
    "true",
    True,
    [],
    [0, -1],
    {},
]
VALUES = NUMBERS + WORDS
SHAPES = {"fasttext": (20,), "transformer": (20,), "har-cnn": (9, 40), "bilstm": (8, 3)}
# of a run: it may have billions of epochs, and then it is enough that it has started
SECONDS = 5


def as_text(value: Any) -> str:
    """The text of a value in `name(option=value)`."""
    try:
        return str(value)
    except ValueError:  # too many digits for Python to convert
        return "9" * 5000


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every setting with every value: a name, and the settings."""
    for name in Experiment.model_fields:
        if name in ("data", "algorithm", "party", "set"):
            continue
        for value in VALUES:
            yield name, {name: value}
    for name, make in ZOO.items():
        for option in list(inspect.signature(make).parameters)[2:]:
            for value in VALUES:
                yield f"model {name} {option}", {"model": f"{name}({option}={as_text(value)})"}
    for name in algorithms.names():
        cls = algorithms.find(name)
        host = "relay" if name == "ldp" else "fedavg"
        text = f"{host}+{name}" if issubclass(cls, Wrapper) else name
        for option in algorithms.options(cls):
            for value in VALUES:
                yield f"method {name} {option}", {"algorithm": text, "set": {option: value}}
    for kind, functions in (("partition", PARTITIONS | STEPS), ("test", RULES)):
        for name, function in functions.items():
            for option in inspect.signature(function).parameters:
                for value in VALUES:
                    yield f"{kind} {name} {option}", {kind: f"{name}({option}={as_text(value)})"}
    for option in ("sgd(momentum", "sgd(decay", "adam(decay"):
        for value in VALUES:
            yield f"optimizer {option}", {"optimizer": f"{option}={as_text(value)})"}
    for own in ("model", "lr", "batch", "epochs", "steps", "peers"):
        for value in VALUES:
            yield f"party {own}", {"party": {"p1": {own: value}}}


def data_for(settings: dict[str, Any]) -> Dataset:
    """A dataset of few samples whose shape fits the model."""
    model = str(settings.get("model", "")).partition("(")[0]
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    if model in SHAPES:
        return Dataset(
            "toy", torch.randint(0, 9, (90, *SHAPES[model]), generator=generator).float(), y, 3
        )
    if model in ZOO and model not in ("linear", "mlp2"):
        return Dataset("toy", torch.rand((90, 1, 16, 16), generator=generator), y, 3)
    return Dataset("toy", torch.rand((90, 1, 4, 4), generator=generator), y, 3)


COMMON = {
    "model": "mlp2(width=4)",
    "parties": 3,
    "rounds": 1,
    "partition": "iid",
    "engine": "loop",
    "steps": 2,
}
FINE = ("worked", "refused", "begun")


def outcome_of(settings: dict[str, Any], run: bool) -> str:
    """The outcome of these settings: one of FINE, or a description of the fault."""
    common = {k: v for k, v in COMMON.items() if not (k == "steps" and "epochs" in settings)}

    def prepare_it() -> SimulatedRun:
        config = experiment(common | settings)
        federation = data_for(settings).partition(
            config.partition, config.parties, config.seed, config.test, config.validation
        )
        return prepare(config, federation)

    def run_it() -> None:
        with tempfile.TemporaryDirectory() as folder:
            start(prepare_it(), Path(folder) / "run", Quiet())

    end = outcome(prepare_it)
    return outcome_in_child(run_it) if run and end == "worked" else end


def outcome(make: Callable[[], object]) -> str:
    """The outcome of a call: `worked`, `refused`, or a description of the fault."""
    try:
        make()
    except (
        ComityError,
        MemoryError,
        RuntimeError,
    ) as why:  # a command turns a failed allocation of torch into a sentence
        has_diverged = "all elements of input should be between 0 and 1" in str(
            why
        )  # relay's loss of a model that has diverged
        message = (
            str(why).strip() if isinstance(why, ComityError) or has_diverged else describe(why)
        )
        return (
            "refused"
            if message and "\n" not in message and "Error in " not in message
            else f"says {message!r}"
        )
    except Exception as why:
        where = traceback.extract_tb(why.__traceback__)[-1]
        return (
            f"{type(why).__name__} in {Path(where.filename).name}:{where.lineno}: {str(why)[:200]}"
        )
    return "worked"


def outcome_in_child(make: Callable[[], object]) -> str:
    """The outcome of a call in a child process, which is killed after SECONDS."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writer, outcome(make).encode(errors="replace")[:4000])
        os._exit(0)
    os.close(writer)
    has_output = bool(select.select([reader], [], [], SECONDS)[0])
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    return text or (f"ended with status {status}" if has_output else "begun")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prepare", action="store_true", help="run nothing")
    parser.add_argument("--only", default="", help="prefix of the names of cases to run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["COMITY_REPORT"] = "0"
    resource.setrlimit(
        resource.RLIMIT_AS, (8 * 10**9, 8 * 10**9)
    )  # a larger allocation must fail without affecting other processes
    load("digits")
    ends: Counter[str] = Counter()
    for what, settings in cases():
        if not what.startswith(arguments.only):
            continue
        end = outcome_of(settings, run=not arguments.prepare)
        ends[end if end in FINE else "wrong"] += 1
        if end not in FINE:
            print(f"{what}: {as_text(settings)[:120]}: {end}", flush=True)
    print(dict(ends))
    sys.exit(ends["wrong"] > 0)


if __name__ == "__main__":
    main()
