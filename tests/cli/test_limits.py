"""Limits: signals during the start, too few descriptors, too little memory, and extreme values."""

from __future__ import annotations

import inspect
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SMALL, CommandResult, Nursery, comity, complaint, one_sentence

from comity import algorithms, models
from comity.base.key import Key
from comity.core.wrapper import Wrapper
from comity.errors import ComityError
from comity.models.stack import Stack
from comity.models.zoo import ZOO
from comity.runs.config import Experiment, experiment
from comity.wire.channel import Channel

# --- Signals ----------------------------------------------------------------------------------------------------------

EARLY = """
import os, sys

which, module = int(sys.argv.pop(1)), sys.argv.pop(1)

def watch(event, args):
    global module
    if event == "import" and args[0] == module:
        module = ""
        os.kill(os.getpid(), which)

sys.addaudithook(watch)
from comity.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("which", "module"),
    [
        (signal.SIGINT, "click"),
        (signal.SIGINT, "numpy.matrixlib"),
        (signal.SIGTERM, "torch"),
        (signal.SIGINT, "signal"),
    ],
)
def test_a_signal_while_modules_are_imported(
    which: signal.Signals, module: str, tmp_path: Path
) -> None:
    """tests/soak/interrupts.py sends signals at random moments."""
    command = [
        sys.executable,
        "-c",
        EARLY,
        str(int(which)),
        module,
        "run",
        "fedavg",
        "--out",
        "run",
    ]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    one_sentence(CommandResult(result.returncode, result.stdout, result.stderr), 128 + which)
    assert not (tmp_path / "run").exists()


PROCESS = (
    "--engine",
    "process",
    "--workers",
    "2",
    "--parties",
    "3",
    "--rounds",
    "2",
    "--model",
    "linear",
)


def test_an_interrupt_while_workers_start(nursery: Nursery, tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to workers, too, even before they execute their first line."""
    (tmp_path / "mine.py").write_text(
        "import os, signal\nfrom multiprocessing.process import BaseProcess\nfrom comity.data"
        " import load as known\nrun = BaseProcess.run\ndef interrupted(self):\n   "
        " os.kill(os.getpid(), signal.SIGINT)\n    run(self)\nBaseProcess.run = interrupted\ndef"
        " load():\n    return known('digits')\n",
        encoding="utf-8",
    )
    result = nursery.run(
        "run", "fedavg", "--data", "./mine.py", *PROCESS, "--out", "run", cwd=str(tmp_path)
    )
    assert result.code == 0, result.err
    assert "Traceback" not in result.err


# --- Too few resources ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10, 24])
def test_too_few_descriptors(count: int, nursery: Nursery, tmp_path: Path) -> None:
    result = nursery.run(
        "run",
        "fedavg",
        *PROCESS[:3],
        "3",
        *PROCESS[4:],
        "--out",
        tmp_path / "run",
        descriptors=count,
    )
    if result.code:
        message = complaint(result, 1)
        assert f"too few file descriptors (ulimit -n says {count})" in message
    else:
        assert count > 10, "three workers need more"


def test_a_message_whose_descriptor_was_dropped_is_not_read() -> None:
    """The system silently drops a descriptor beyond the limit; the tensors of such a message are
    missing.
    """
    sender, receiver = Channel.pair()
    sender.send({"w": torch.ones(4)})
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            receiver.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        sender.close()
        receiver.close()


@pytest.mark.parametrize("engine", ["loop", "process"])
def test_too_little_memory(engine: str, nursery: Nursery, tmp_path: Path) -> None:
    args = (*SMALL[:-1], engine, "--model", "mlp2(width=5000)")
    result = nursery.run("run", "fedavg", *args, "--out", tmp_path / "run", memory=150_000_000)
    assert "not enough memory" in complaint(result, 1, 2)


def test_full_disk_under_stdout() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "comity.cli", "--version"]
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert "No space left" in one_sentence(CommandResult(result.returncode, "", result.stderr), 1)


# --- Extreme values ---------------------------------------------------------------------------------------------------

VALUES: list[Any] = [
    0, -1, 1, 1e30, -1e30, 1e-320, float("nan"), float("inf"), 2**31, 2**63, 10**400, 10**5000,
    "", " ", "x\0y", "x" * 100_000, "été", "\udcff", "a,b", "(", "=", "none", True, [], [0, -1], {},
]  # fmt: skip
"""Extreme values of options. tests/soak/options.py also runs those that are accepted."""


def is_accepted(make: Callable[[], object]) -> bool:
    """Whether a value is accepted; a refusal must be one sentence."""
    message = None
    try:
        make()
    except ComityError as why:
        message = str(why).strip()
    assert message is None or (message and "\n" not in message)
    return message is None


def as_argument(value: Any) -> str:
    return "9" * 5000 if value == 10**5000 else str(value)


SHAPES: dict[str, tuple[int, ...]] = {
    "fasttext": (20,),
    "transformer": (20,),
    "har-cnn": (9, 40),
    "bilstm": (8, 3),
}


@pytest.mark.parametrize("name", ZOO)
def test_every_option_of_a_model(name: str) -> None:
    shape = SHAPES.get(name, (1, 16, 16))
    options = list(inspect.signature(ZOO[name]).parameters)[2:]
    for option in options:
        accepted_values = [
            v
            for v in VALUES
            if is_accepted(
                lambda o=option, v=v: models.build(f"{name}({o}={as_argument(v)})", shape, 3)  # type: ignore[misc]
            )
        ]
        assert 1e30 not in accepted_values or option == "drop"


def test_declared_size_of_a_model_is_its_number_of_parameters() -> None:
    for name in ZOO:
        network = ZOO[name](SHAPES.get(name, (1, 16, 16)), 3)
        assert isinstance(network, Stack)
        declared_size = sum(layer.values for stage in network.all_stages for layer in stage.layers)
        assert declared_size == sum(value.numel() for value in network.init(Key(0)).values()), name


def test_a_model_larger_than_the_machine(here: Path) -> None:
    message = one_sentence(
        comity("run", "fedavg", "--model", "mlp2(width=300000)", "--out", "out"), 2
    )
    assert (
        "mlp2 of 9e+10 values, with its gradients and what is sent, would take 1080 GB" in message
    )
    one_sentence(comity("run", "fedavg", "--model", "mlp2(width=1e30)", "--out", "out"), 2)


@pytest.mark.sweep("fedufo", "adcol", "relay", "fed-sps", "dbe", "scaffold")
@pytest.mark.parametrize("name", algorithms.names())
def test_every_option_of_a_method(name: str) -> None:
    cls = algorithms.find(name)
    text = f"fedavg+{name}" if issubclass(cls, Wrapper) else name
    for option in algorithms.options(cls):
        for value in [
            v for k, v in enumerate(VALUES) if k % 3 == 0
        ]:  # all of them would take too long
            is_accepted(lambda o=option, v=value: algorithms.compose(text, {o: v}))  # type: ignore[misc]


@pytest.mark.parametrize("name", [n for n in Experiment.model_fields if n not in ("set", "party")])
def test_every_setting(name: str) -> None:
    for value in VALUES:
        is_accepted(lambda v=value: experiment({name: v}))  # type: ignore[misc]
    for value in ("x\0y", "\udcff", 10**400, 10**5000, {"a": "\0"}):
        assert not is_accepted(lambda v=value: experiment({name: v}))  # type: ignore[misc]


def test_seeds_have_64_bits() -> None:
    assert experiment({"seed": 2**63 - 1}).seed == 2**63 - 1
    assert not is_accepted(lambda: experiment({"seed": 2**63}))
    assert not is_accepted(lambda: experiment({"rounds": 10**12}))


FILES = {
    "deep": b"a = " + b"[" * 100_000,
    "dotted": b"set" + b".a" * 100_000 + b" = 1",
    "long number": b"rounds = " + b"9" * 5000,
    "hexadecimal": b"seed = 0x" + b"f" * 5000,
    "bytes": b"data = '\xff'",
    "nul": b"data = 'a\\u0000b'",
    "long name": b"data = '" + b"x" * 5000 + b".py'",
    "no number": b"rounds = nan",
}


@pytest.mark.parametrize("what", FILES)
def test_settings_of_a_file(what: str, here: Path) -> None:
    (here / "a.toml").write_bytes(FILES[what])
    message = one_sentence(comity("run", "a.toml", "--out", "out"), 1, 2)
    assert len(message) < 2100
    assert "Error in " not in message
    assert not (here / "out").exists()


@pytest.mark.parametrize("folder", ["x" * 300, "file/inside", "x/" * 3000])
def test_impossible_out_folder_is_refused(folder: str, here: Path) -> None:
    (here / "file").touch()
    message = one_sentence(comity("run", "fedavg", *SMALL, "--out", folder), 1, 2)
    assert "Error in " not in message


def test_bytes_that_are_no_text_on_the_command_line(here: Path) -> None:
    """Python decodes them to characters that cannot be encoded."""
    for args in (
        ("fed\udcff",),
        ("fedavg", "--data", "\udcff"),
        ("fedavg", "--set", "\udcff=1"),
        ("\udcff.toml",),
    ):
        message = one_sentence(comity("run", *args), 2)
        assert "Error in " not in message


def test_impossible_partition_of_a_later_seed_is_refused_before_the_first_run(
    tmp_path: Path,
) -> None:
    """Seed 2 leaves a party with 23 training samples; seeds 0 and 1 do not."""
    settings = (
        "--partition",
        "dirichlet(alpha=1)|keep(samples=25)",
        "--parties",
        "20",
        "--rounds",
        "1",
        "--model",
        "linear",
    )
    result = comity("compare", "fedavg", *settings, "--seeds", "0,1,2", "--out", tmp_path / "out")
    message = one_sentence(result, 2)
    assert (
        "With seed 2, party 'p7' has 23 samples to learn from, not 25: use a smaller keep, or"
        in message
    )
    assert "as in dirichlet(alpha=1,min=34)." in message
    assert not (tmp_path / "out").exists()
