"""Every error is one plain sentence on stderr and an exit code; a wrong input leaves no files
behind.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import SMALL, Nursery, comity, complaint, contents, one_sentence, process, succeed

import comity as library
from comity.runs import checkpoint
from comity.runs.build import federation_of, prepare
from comity.runs.config import experiment
from comity.runs.run import start
from comity.runs.server_run import Quiet
from comity.safe_files import open_to_append, write_atomically


def assert_refused(*args: object, out: bool = True) -> str:
    """Run a command with a wrong input; it must end with exit code 2 and one sentence, and leave
    the working directory unchanged. Returns the sentence.
    """
    before = sorted(Path.cwd().rglob("*"))
    message = one_sentence(comity(*args, *(("--out", "out") if out else ())), 2)
    new_files = [
        p for p in sorted(Path.cwd().rglob("*")) if p not in before and "__pycache__" not in p.parts
    ]
    assert not new_files, f"left behind: {new_files}"
    return message


QUICK = ("--rounds", "1", "--parties", "3")  # short, in case the command is not refused


# --- Wrong names ------------------------------------------------------------------------------------------------------

NAMES = [
    "fed avg", "FEDAVG!", "", " ", "+", "fedavg+", "+dbe", "fedavg++dbe", "fedavg()+", "(mu=1)", "fedprox(", "fedprox)",
    "fedprox(mu)", "fedprox(0.1)", "fedprox(mu=)", "fedprox(mu=1,mu=2)", "fedprox(nu=1)", "fedprox(mu=1",
    "fedprox(mu=(1)",
    "fedprox(mu=1))", "fedprox(mu=1)(mu=2)", "../fedavg", "fedavg.toml.py", "fed_avg", "__init__", "x" * 5000,
    "été", "fedavg+dbe(kappa=50)+", "os.path", "/etc/passwd", "fedavg;dbe", "-",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", ["run", "compare", "show"])
def test_wrong_method(command: str, name: str, here: Path) -> None:
    if command == "show" and "(" in name:
        pytest.skip("show ignores the options of a method")
    assert_refused(command, name, *(() if command == "show" else QUICK), out=command != "show")


@pytest.mark.parametrize(
    ("option", "values"),
    [
        (
            "data",
            [
                "mnist9",
                "",
                "digits()",
                "digits(x=1)",
                "./none.py",
                "digits.csv",
                "arrays",
                "/",
                ".",
            ],
        ),
        (
            "model",
            [
                "resnet5000",
                "",
                "mlp2(depth=3)",
                "mlp2(",
                "mlp2(width=x)",
                "./none.py",
                "modules",
                "mlp2+lenet5",
                "(1)",
            ],
        ),
        (
            "optimizer",
            [
                "lion",
                "",
                "sgd(",
                "sgd(speed=1)",
                "sgd(momentum=x)",
                "adam(momentum=0.9)",
                "sgd()x",
                "sgd,adam",
            ],
        ),
        (
            "test",
            [
                "all",
                "",
                "own(",
                "own(x)",
                "own(0.25,0.25)",
                "common(size=1,size=2)",
                "own(share=0.2)",
            ],
        ),
        ("device", ["gpu", "", "cuda:0", "CPU"]),
        ("engine", ["bogus", "", "stack", "Loop"]),
        ("bn", ["some", "", "ALL"]),
        ("cut", ["fc9", "fc3"]),
        ("set", ["mu", "=1", "mu=1", "fedavg.mu=1", "dbe.kappa=1", "mu=", ".=1", "a.b.c=1", ""]),
    ],
)
def test_wrong_name_of(option: str, values: list[str], here: Path) -> None:
    for value in values:
        assert_refused("run", "fedavg", *QUICK, f"--{option}={value}")


@pytest.mark.parametrize(
    "what", ["", "algorithm", "all", "experiment", "--json", "algorithms models"]
)
def test_wrong_list(what: str, here: Path) -> None:
    assert_refused("list", what, out=False)


@pytest.mark.parametrize(
    "args",
    [
        ("run",), ("compare",), ("tune",), ("resume",), ("list",), ("show",), ("run", "fedavg", "dbe"), ("resume",
        "a", "b"),
        ("run", "fedavg", "--rounds"), ("run", "fedavg", "--bogus", "1"), ("run", "fedavg", "-r", "1"), ("nothing",),
        ("--version-x",),
        ("tune", "fedprox"), ("plan",), ("data", "nothing"), ("data", "inspect", "fedavg"), ("run", "--rounds", "2"),
        ("list", "models", "extra"), ("show", "fedavg", "dbe"), ("run", "fedavg", "--set"),
    ],
)  # fmt: skip
def test_wrong_commands(args: tuple[str, ...], here: Path) -> None:
    assert_refused(*args, out=False)


# --- Wrong numbers ----------------------------------------------------------------------------------------------------

NOT_NUMBERS = ["abc", "", "1e", "0x10", "1,5", "--", "None", "true"]
INTS = ["parties", "rounds", "epochs", "steps", "batch", "eval-every", "workers"]


@pytest.mark.parametrize("option", [*INTS, "seed", "lr", "participation", "validation"])
@pytest.mark.parametrize("value", [*NOT_NUMBERS, "nan", "inf", "-inf", "-1", "-0.5", "-9" * 30])
def test_wrong_number(option: str, value: str, here: Path) -> None:
    message = assert_refused("run", "fedavg", *QUICK, f"--{option}={value}")
    assert option.replace("-", "_") in message.replace("-", "_"), (
        "the sentence does not say which option is wrong"
    )


@pytest.mark.parametrize(
    ("option", "values"),
    [
        *((name, ["0", "1.5", "0.0", "2e0"]) for name in INTS),
        ("seed", ["1.5", "1e3"]),
        ("lr", ["0", "0.0", "-0.0"]),
        ("participation", ["0", "1.01", "2"]),
        ("validation", ["1", "1.5"]),
    ],
)
def test_number_out_of_range(option: str, values: list[str], here: Path) -> None:
    for value in values:
        assert_refused("run", "fedavg", *QUICK, f"--{option}={value}")


@pytest.mark.parametrize(
    "spec",
    [
        "sgd(momentum=1)", "sgd(momentum=-0.1)", "sgd(momentum=nan)", "sgd(momentum=inf)", "sgd(decay=-1)",
        "sgd(decay=nan)",
        "sgd(decay=inf)", "adam(decay=-1)", "adam(decay=nan)", "sgd(momentum=true)", "sgd(momentum=0.1,0.2)",
        "sgd(0.9,0,0)",
    ],
)  # fmt: skip
def test_optimizer_out_of_range(spec: str, here: Path) -> None:
    assert_refused("run", "fedavg", *QUICK, "--optimizer", spec)


@pytest.mark.parametrize(
    "spec",
    [
        "mlp2(width=0)", "mlp2(width=-5)", "mlp2(width=1.5)", "mlp2(width=nan)", "mlp2(width=inf)", "mlp2(-5)",
        "mlp2(0)",
        "mlp2(width=true)", "lenet5(width=0)", "fedbn-cnn(scale=0)", "fedbn-cnn(scale=-1)",
        "fedbn-cnn(scale=nan)", "fedbn-cnn(scale=inf)", "fedbn-cnn(-1)", "linear(width=3)", "mlp2(1,2,3)",
    ],
)  # fmt: skip
def test_model_out_of_range(spec: str, here: Path) -> None:
    assert_refused("run", "fedavg", *QUICK, "--model", spec)


def test_a_model_larger_than_the_memory(here: Path) -> None:
    one_sentence(
        comity("run", "fedavg", *SMALL, "--model", "mlp2(width=10000000000000)", "--out", "out"),
        1,
        2,
    )
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    "spec",
    ["own(0)", "own(1)", "own(-0.1)", "own(2)", "own(nan)", "own(inf)", "matched(size=0)", "matched(size=-1)",
     "matched(size=1.5)", "matched(size=nan)", "common(0)", "common(1)", "common(nan)", "matched(fraction=1)"],
)  # fmt: skip
def test_protocol_out_of_range(spec: str, here: Path) -> None:
    assert_refused("run", "fedavg", *QUICK, "--test", spec)


@pytest.mark.parametrize(
    ("method", "name"),
    [("fedprox", "mu"), ("fedavg+dbe", "kappa"), ("fedavg+dbe", "mu"), ("fedavg+dbe", "noise_s"), ("fedavg+dbe", "noise_q"),
     ("scaffold", "server_lr"), ("adcol", "mu"), ("adcol", "hidden"), ("adcol", "disc_epochs"), ("adcol", "disc_steps"), ("adcol", "sampling")],
)  # fmt: skip
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "-inf", "abc", "", "true"])
def test_method_constant_out_of_range(method: str, name: str, value: str, here: Path) -> None:
    assert_refused("run", method, *QUICK, "--model", "mlp2(width=8)", "--set", f"{name}={value}")


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("adcol", "hidden=0"), ("adcol", "hidden=1.5"), ("adcol", "disc=cnn"), ("adcol", "sampling=1.5"),
        ("fedavg+dbe", "mu=1.5"), ("fedavg+dbe", "noise_q=2"), ("fedavg+dbe", "cut=fc9"), ("fedavg+dbe",
        "train_offset=2"),
        ("fedavg+dbe", "train_offset=maybe"), ("fedavg+mr", "train_offset=true"), ("fedavg+dbe", "host=1"),
    ],
)  # fmt: skip
def test_invalid_method_constant_is_refused(method: str, setting: str, here: Path) -> None:
    assert_refused("run", method, *SMALL, "--model", "mlp2(width=8)", "--set", setting)


@pytest.mark.parametrize(
    ("option", "value"),
    [("batch", 10**18), ("batch", 10**30), ("workers", 10**9), ("seed", 10**30)],
)
def test_huge_numbers_are_accepted_or_refused(option: str, value: int, here: Path) -> None:
    result = comity("run", "fedavg", *SMALL, f"--{option}", value, "--out", "out")
    if result.code:
        one_sentence(result, 1, 2)


@pytest.mark.parametrize(
    "seeds", ["", "a", "0,a", "0,,1", "-1", "0,0", "1.5", "0;1", "nan", ",", "0,1,"]
)
def test_wrong_seeds(seeds: str, here: Path) -> None:
    assert_refused("compare", "fedavg", *SMALL, f"--seeds={seeds}")
    assert_refused("tune", "fedprox", "--grid", "mu=1", *SMALL, f"--seeds={seeds}")


@pytest.mark.parametrize(
    "grid",
    ["", "mu", "mu=", "=1", "mu=a,b", "mu=0.1,-1", "nu=1", "mu=nan", "mu=1,,2", "rounds=0,1", "lr=0.1,inf", "lr=x", "parties=3,4",
     "algorithm=fedavg,solo", "seed=0,1"],
)  # fmt: skip
def test_wrong_grid(grid: str, here: Path) -> None:
    if grid.startswith(("parties", "algorithm", "seed")):
        result = comity("tune", "fedprox", "--grid", grid, *SMALL, "--out", "out")
        if result.code == 0:  # then each point must have been run with its own setting
            assert (
                len(
                    {
                        (p / "config.toml").read_text(encoding="utf-8")
                        for p in here.glob("out/*/seed-*")
                    }
                )
                == 2
            )
            if grid.startswith("parties"):
                assert {
                    len(json.loads(p.read_text(encoding="utf-8"))["parties"])
                    for p in here.rglob("split.json")
                } == {3, 4}
            return
        one_sentence(result, 2)
        return
    assert_refused("tune", "fedprox", "--grid", grid, *SMALL)


def test_tune_needs_validation_data(here: Path) -> None:
    assert_refused("tune", "fedprox", "--grid", "mu=1", *SMALL, "--validation", "0")


# --- Impossible partitions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        "", " ", "|", "iid|", "|shift", "iid||shift", "iid|iid", "iid(alpha=1)", "iid(3)", "iid(", "iid)", "iid(()",
        "dirichlet",
        "dirichlet()", "dirichlet(alpha=)", "dirichlet(alpha=0)", "dirichlet(alpha=-1)", "dirichlet(alpha=nan)",
        "dirichlet(alpha=inf)", "dirichlet(alpha=x)", "dirichlet(alpha=0.1,beta=2)", "dirichlet(alpha=0.1,min=0)",
        "dirichlet(alpha=0.1,min=-3)", "dirichlet(alpha=0.1,min=2.5)", "dirichlet(alpha=0.1,min=1000)",
        "dirichlet(alpha=0.01,min=150)",
        "dirichlet(alpha=0.1,alpha=0.2)", "dirichlet(alpha=0.1,0.2)", "dirichlet(alpha=0.1,balanced=maybe)",
        "dirichlet(alpha=0.1",
        "dirichlet(alpha=0.1))", "dirichlet(0.1,,)", "pathological(classes=0)", "pathological(classes=-1)",
        "pathological(classes=11)",
        "pathological(classes=2.5)", "pathological(classes=nan)", "pathological(classes=two)", "shard(per_party=0)",
        "shard(per_party=100000)", "quantity(beta=0)", "quantity(beta=nan)", "quantity(min=1000)",
        "lognormal(sigma=-1)",
        "lognormal(sigma=inf)", "lognormal(sigma=nan)", "natural", "iid|shift(kinds=)", "iid|shift(kinds=swirl)",
        "iid|shift(kind=invert)", "iid|turn", "none.json", ".json", "iid.json", "iid,iid", "iid + shift",
    ],
)  # fmt: skip
def test_wrong_partition(spec: str, here: Path) -> None:
    assert_refused("run", "fedavg", *QUICK[:2], f"--partition={spec}")
    if spec.startswith("p"):
        assert_refused("data", "inspect", f"--partition={spec}", out=False)


@pytest.mark.parametrize("parties", [1798, 10**6, 10**18, 1797, 900])
def test_more_parties_than_samples(parties: int, here: Path) -> None:
    assert_refused("run", "fedavg", "--partition", "iid", "--parties", parties)


@pytest.mark.parametrize(
    "damage", ["{}", "[]", "", "null", '{"parties": {}}', "\0\1\2", "not json"]
)
def test_invalid_partition_file_is_refused(damage: str, here: Path) -> None:
    Path("split.json").write_text(damage, encoding="utf-8")
    assert_refused("run", "fedavg", "--partition", "split.json")


# --- TOML files -------------------------------------------------------------------------------------------------------

TOML = [
    "algorithm", "algorithm = ", "algorithm = fedavg", "= 3", "[set", '[set]\nx = 1\n[set]\ny = 2',
    "rounds = 1\nrounds = 2",
    "algoritm = 'fedavg'", "unknown = 1", "algorithm = 3", "algorithm = ['fedavg']", "algorithm = 'nope'", "data = 3",
    "data = {}",
    "partition = 1.5", "parties = 'four'", "parties = 4.5", "parties = 0", "parties = true", "parties = []",
    "rounds = -1", "rounds = nan", "rounds = inf", "rounds = 1979-05-27", "lr = 'fast'", "lr = 0", "lr = nan",
    "lr = inf", "lr = true",
    "lr = -inf", "participation = 0", "participation = nan", "validation = nan", "validation = 1", "seed = -1",
    "seed = 1.5", "steps = 0",
    "epochs = 2\nsteps = 3", "engine = 'bogus'", "device = 3", "bn = 'x'", "batch = 2.5", "batch = [10]", "set = 3",
    "set = 'mu=1'",
    "set = [1]", "[set]\nmu = 1", "[set]\nfedavg.mu = 1", "[set]\ndbe.kappa = 1", "[set.a.b]\nc = 1", "party = 3",
    "party = ['p0']",
    "[party.p99]\nlr = 0.1", "[party.nobody]\nmodel = 'linear'", "[party.p0]\nspeed = 1", "[party.p0]\nlr = 0",
    "[party.p0]\nlr = nan", "[party.p0]\nlr = inf", "[party.p0]\nlr = 'x'", "[party.p0]\nbatch = 0",
    "[party.p0]\nepochs = 0",
    "[party.p0]\nmodel = 'nope'", "[party.p0]\nmodel = 3", "[party]\np0 = 'linear'",
    "[party.p0.model]\nname = 'linear'",
    "[[set]]\nmu = 1", "[party.p0]\nsteps = 0", "[party.p0]\nsteps = 2\nepochs = 2", "optimizer = 'sgd('", "cut = 3",
    "model = ''",
    'algorithm = "fedprox"\n[set]\nmu = "x"', 'algorithm = "fedprox"\n[set]\nmu = []',
    'algorithm = "fedprox"\n[set]\nmu = nan',
    'algorithm = "fedprox"\n[set]\nmu = {a = 1}', 'algorithm = "fedprox"\n[set]\nmu = 1979-05-27',
    'algorithm = "fedprox"\n[set]\n"" = 1',
]  # fmt: skip


@pytest.mark.parametrize("text", TOML)
def test_wrong_toml(text: str, here: Path) -> None:
    Path("x.toml").write_text(text, encoding="utf-8")
    more = () if re.search("rounds|parties|party|epochs", text) else QUICK
    assert_refused("run", "x.toml", *more)


@pytest.mark.parametrize(
    "blob",
    [b"\x00\x01\x02\xff\xfe", b"\xff\xfea\x00", bytes(range(256)), b"PK\x03\x04" + b"\x80" * 100],
)
def test_binary_toml(blob: bytes, here: Path) -> None:
    Path("x.toml").write_bytes(blob)
    assert_refused("run", "x.toml")


@pytest.mark.parametrize(
    "path", ["none.toml", "no/such/folder/x.toml", "folder.toml", ".toml", "~/x.toml"]
)
@pytest.mark.parametrize("command", ["run", "plan", "tune"])
def test_absent_toml(command: str, path: str, here: Path) -> None:
    Path("folder.toml").mkdir()
    assert_refused(
        command, path, *(("--grid", "lr=0.1") if command == "tune" else ()), out=command != "plan"
    )


def test_an_empty_toml_is_all_defaults(here: Path) -> None:
    Path("x.toml").write_text("", encoding="utf-8")
    succeed("run", "x.toml", *SMALL, "--out", "a")
    succeed("run", "fedavg", *SMALL, "--out", "b")
    assert contents(here / "a") == contents(here / "b")


def test_compare_takes_names_not_files(here: Path) -> None:
    Path("x.toml").write_text("algorithm = 'fedavg'", encoding="utf-8")
    assert_refused("compare", "x.toml")
    assert_refused("show", "x.toml", out=False)


# --- A user's own files -----------------------------------------------------------------------------------------------

BROKEN = {
    "syntax": "def f(:\n",
    "raises": "raise ValueError('three\\nlines\\nlong')\n",
    "missing": "import no_such_module_anywhere\n",
    "empty": "",
    "exits": "raise SystemExit(3)\n",
    "null": "x = 1\0\n",
}
ALGORITHM = (
    "from comity.algorithms.fedavg import FedAvg\nfrom comity.core import algorithm, option\n"
)
ALGORITHMS = BROKEN | {
    "none": "x = 1\n",
    "unmarked": ALGORITHM + "class A(FedAvg): pass\n",
    "two": ALGORITHM + "@algorithm\nclass A(FedAvg): pass\n@algorithm\nclass B(FedAvg): pass\n",
    "function": ALGORITHM + "@algorithm\ndef f(): pass\n",
    "plain": ALGORITHM + "@algorithm\nclass A:\n    x: int = 1\n",
    "abstract": (
        "from comity.core import Algorithm, algorithm\n@algorithm\nclass A(Algorithm): pass\n"
    ),
    "needs": ALGORITHM + "@algorithm\nclass A(FedAvg):\n    x: int\n",
}


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_wrong_algorithm_file(kind: str, here: Path) -> None:
    name = f"bad_algorithm_{kind}.py"
    Path(name).write_text(ALGORITHMS[kind], encoding="utf-8")
    message = assert_refused("run", f"./{name}", *SMALL)
    assert name in message, "the sentence does not name the file"


@pytest.mark.parametrize("path", ["./none.py", "no/such/mine.py", "folder.py", ".py"])
def test_absent_python_files(path: str, here: Path) -> None:
    Path("folder.py").mkdir()
    assert_refused("run", path, *SMALL)
    assert_refused("run", f"fedavg+{path}", *SMALL)
    assert_refused("show", path, out=False)
    assert_refused("run", "fedavg", *SMALL, "--model", path)
    assert_refused("run", "fedavg", *SMALL, "--data", path)


MODELS = BROKEN | {
    "none": "x = 1\n",
    "number": "build = 3\n",
    "arguments": "def build(): pass\n",
    "nothing": "def build(shape, classes): pass\n",
    "word": "def build(shape, classes): return 'mlp2'\n",
    "three": (
        "from torch import nn\ndef build(shape, classes): return nn.Flatten(), nn.Linear(64, 10),"
        " nn.ReLU()\n"
    ),
    "misfit": (
        "from torch import nn\ndef build(shape, classes): return nn.Flatten(), nn.Linear(3,"
        " classes)\n"
    ),
    "fails": "def build(shape, classes): raise RuntimeError('no\\nway')\n",
    "classes": (
        "from torch import nn\ndef build(shape, classes): return nn.Flatten(), nn.Linear(64, 3)\n"
    ),
    "one": "from torch import nn\ndef build(shape, classes): return nn.Linear(64, classes)\n",
}


@pytest.mark.parametrize("kind", MODELS)
def test_wrong_model_file(kind: str, here: Path) -> None:
    name = f"bad_model_{kind}.py"
    Path(name).write_text(MODELS[kind], encoding="utf-8")
    message = assert_refused("run", "fedavg", *SMALL, "--model", f"./{name}")
    assert name in message, "the sentence does not name the file"


DATASET = "import torch\nfrom comity.data import Dataset\n"
DATASETS = BROKEN | {
    "none": "x = 1\n",
    "number": "load = 3\n",
    "nothing": "def load(): pass\n",
    "arguments": "def load(path): pass\n",
    "tuple": DATASET + "def load(): return torch.zeros(3, 2), torch.zeros(3)\n",
    "nan": (
        DATASET
        + "def load(): return Dataset('x', torch.full((50, 4), float('nan')), torch.arange(50) % 2,"
        " 2)\n"
    ),
    "labels": (
        DATASET + "def load(): return Dataset('x', torch.zeros(50, 4), torch.arange(50), 2)\n"
    ),
    "lengths": (
        DATASET + "def load(): return Dataset('x', torch.zeros(50, 4), torch.arange(40) % 2, 2)\n"
    ),
    "void": DATASET + "def load(): return Dataset('x', torch.zeros(0, 4), torch.zeros(0), 2)\n",
    "fails": "def load(): raise RuntimeError('no\\nway')\n",
    "words": "def load(): return 'digits'\n",
}


@pytest.mark.parametrize("kind", DATASETS)
def test_wrong_dataset_file(kind: str, here: Path) -> None:
    name = f"bad_dataset_{kind}.py"
    Path(name).write_text(DATASETS[kind], encoding="utf-8")
    assert_refused("run", "fedavg", *SMALL, "--data", f"./{name}")


def test_a_method_that_fails_in_a_round_is_a_failed_run(here: Path) -> None:
    Path("fails_later.py").write_text(
        ALGORITHM + "@algorithm\nclass A(FedAvg):\n    def local(self, mine, m, party, key):\n"
        "        raise RuntimeError('first line\\nsecond line')\n",
        encoding="utf-8",
    )
    for engine in ("loop", "process"):
        message = one_sentence(
            comity("run", "./fails_later.py", *SMALL, "--engine", engine, "--out", engine), 1
        )
        assert "first line" in message
        assert "fails_later.py" in message


# --- Combinations that make no sense ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        "solo+dbe", "solo+mr", "solo+prbm", "adcol+mr", "adcol+dbe", "centralized+dbe", "fedper+dbe", "fedper+prbm",
        "dbe", "mr", "prbm",
        "fedavg+solo", "fedavg+fedprox", "solo+solo", "fedavg+dbe+dbe", "fedavg+dbe+mr", "dbe+fedavg",
        "fedavg+dbe+fedavg",
    ],
)  # fmt: skip
def test_invalid_compositions_are_refused(method: str, here: Path) -> None:
    assert_refused("run", method, *SMALL)
    assert_refused("plan", method, *SMALL, out=False)


@pytest.mark.parametrize("method", ["solo+dbe", "fedavg+solo", "nope"])
def test_compare_checks_all_before_it_starts(method: str, here: Path) -> None:
    assert_refused("compare", "fedavg", method, *SMALL)


@pytest.mark.parametrize(
    "args",
    [
        ("fedavg", "--model", "cnn4"),
        ("scaffold", "--optimizer", "sgd(momentum=0.9)"),
        ("scaffold", "--optimizer", "adam"),
        ("scaffold+dbe", "--optimizer", "adam"),
        ("fedavg", "--device", "cuda"),
        ("fedavg", "--device", "mps"),
        ("fedavg", "--epochs", "2", "--steps", "3"),
    ],
    ids=" ".join,
)
def test_conflicting_settings_are_refused(args: tuple[str, ...], here: Path) -> None:
    assert_refused(
        "run", args[0], "--parties", "3", "--rounds", "1", "--partition", "iid", *args[1:]
    )


def test_a_model_without_a_body_to_share(here: Path) -> None:
    """linear has no layers before its head: it is refused before the run, or the run succeeds."""
    for method in ("fedper", "fedper+mr"):
        result = comity("run", method, *SMALL, "--out", method)
        if result.code:
            one_sentence(result, 2)
            assert not (here / method).exists()


def test_two_files_of_one_name_have_separate_runs_or_are_refused(here: Path) -> None:
    for folder in ("x", "y"):
        Path(folder).mkdir()
        Path(folder, "twin.py").write_text(
            ALGORITHM + "@algorithm\nclass A(FedAvg): pass\n", encoding="utf-8"
        )
    result = comity("compare", "./x/twin.py", "./y/twin.py", *SMALL, "--out", "out")
    if result.code:
        one_sentence(result, 2)
        assert not Path("out").exists()
    else:
        assert len(list(here.glob("out/*/seed-0/summary.json"))) == 3


@pytest.mark.parametrize("more", [(), ("--steps", "2")])
def test_batchnorm_with_batches_of_one(
    more: tuple[str, ...], nursery: Nursery, tmp_path: Path
) -> None:
    """A batch of one sample has no statistics: it is refused, and there is no endless loop."""
    args = (
        "--model",
        "fedbn-cnn(scale=0.1)",
        "--batch",
        "1",
        "--parties",
        "3",
        "--rounds",
        "1",
        "--engine",
        "loop",
    )
    result = nursery.start("run", "fedavg", *args, *more, "--out", tmp_path / "out").wait(seconds=5)
    one_sentence(result, 2)


@pytest.mark.parametrize(
    ("way", "word"),
    [
        ("p1", "name.setting=value"),
        ("p1=3", "name.setting=value"),
        (".lr=3", "name.setting=value"),
        ("p1.colour=red", "colour"),
        ("p1.lr=fast", "number"),
        ("p1.batch=0", "at least 1"),
        ("p9.lr=0.1", "p9"),
        ("p1.peers=p7", "p7"),
        ("p1.model=mlp3", "mlp3"),
        ("p1.model=mlp2(width=7)", "width"),
    ],
)
def test_invalid_party_setting_is_refused(way: str, word: str, here: Path) -> None:
    result = comity(
        "run", "relay", "--parties", "2", "--rounds", "1", "--party", way, "--out", "out"
    )
    assert word in one_sentence(result, 2)
    assert not Path("out").exists()


def test_peers_are_refused_where_a_party_cannot_choose(here: Path) -> None:
    result = comity(
        "run", "fedavg", "--parties", "2", "--rounds", "1", "--party", "p1.peers=p0", "--out", "out"
    )
    assert "choose its peers" in one_sentence(result, 2)


@pytest.mark.parametrize("count", ["3", "9"])
def test_all_parties_as_newcomers_is_refused(count: str, here: Path) -> None:
    assert "newcomers" in one_sentence(
        comity("run", "fedavg", "--parties", "3", "--newcomers", count, "--out", "out"), 2
    )


def test_epochs_of_a_party_override_steps_of_the_experiment(here: Path) -> None:
    """A party's own epochs apply although the experiment sets steps."""
    text = (
        "rounds = 1\nparties = 2\nmodel = 'linear'\npartition = 'iid'\nsteps ="
        " 3\n[party.p0]\nepochs = 1\n"
    )
    Path("x.toml").write_text(text, encoding="utf-8")
    result = comity("run", "x.toml", "--out", "out")
    if result.code:
        one_sentence(result, 2)
        return
    train = len(
        json.loads(Path("out/split.json").read_text(encoding="utf-8"))["parties"]["p0"]["train"]
    )
    assert (
        json.loads(Path("out/summary.json").read_text(encoding="utf-8"))["steps"]
        == -(-train // 10) + 3
    )


# --- Where results cannot go ------------------------------------------------------------------------------------------

NOWHERE = [
    "file",
    "file/under",
    "/proc/comity",
    "/proc/self/comity/deep",
    "/dev/null",
    "/dev/null/x",
    "a" * 300,
    "link",
]


@pytest.mark.parametrize("out", NOWHERE)
@pytest.mark.parametrize(
    "command",
    [("run", "fedavg"), ("compare", "fedavg"), ("tune", "fedprox", "--grid", "mu=1")],
    ids=lambda c: c[0],
)
def test_unusable_out_is_refused(command: tuple[str, ...], out: str, here: Path) -> None:
    Path("file").write_text("precious", encoding="utf-8")
    Path("link").symlink_to("/proc/nowhere")
    message = one_sentence(comity(*command, *SMALL, f"--out={out}"), 1, 2)
    assert "Error" not in message
    assert Path("file").read_text(encoding="utf-8") == "precious"
    assert {p.name for p in here.iterdir()} == {"file", "link"}


def test_error_names_an_unusable_out(here: Path) -> None:
    Path("file").write_text("precious", encoding="utf-8")
    assert "file" in one_sentence(comity("run", "fedavg", *SMALL, "--out", "file"), 1, 2)
    assert "/proc/comity" in one_sentence(
        comity("run", "fedavg", *SMALL, "--out", "/proc/comity"), 1, 2
    )


def test_files_in_an_existing_folder_are_not_overwritten(here: Path) -> None:
    """A user's file with the name of a run's table is not overwritten."""
    Path("out").mkdir()
    Path("out/metrics.csv").write_text("precious", encoding="utf-8")
    result = comity("run", "fedavg", *SMALL, "--out", "out")
    assert result.code == 2
    assert Path("out/metrics.csv").read_text(encoding="utf-8") == "precious"


# --- A disk that is full ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `FULL` on a disk that is not full."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    succeed("run", *FULL, "--out", folder)
    return folder


FULL = (
    "fedavg+dbe",
    "--parties",
    "3",
    "--rounds",
    "6",
    "--model",
    "mlp2(width=64)",
    "--partition",
    "iid",
    "--engine",
    "loop",
)
EVERY_ROUND = {"COMITY_CHECKPOINT_SECONDS": "0"}


@pytest.mark.parametrize("limit", [400, 3000, 20_000])
def test_a_full_disk(limit: int, whole: Path, nursery: Nursery, tmp_path: Path) -> None:
    """With 400 and 3000 bytes no run starts, as the split does not fit; with 20000 the server's
    state does not fit.
    """
    out = tmp_path / "out"
    one_sentence(nursery.run("run", *FULL, "--out", out, limit=limit, env=EVERY_ROUND), 1)
    began = (out / "config.toml").exists()
    assert began == (limit == 20_000)
    again = nursery.run("resume", out) if began else nursery.run("run", *FULL, "--out", out)
    assert again.code == 0, again.err
    assert contents(out) == contents(whole)


def test_a_disk_that_fills_up_after_some_checkpoints(nursery: Nursery, tmp_path: Path) -> None:
    out, calm, args = tmp_path / "out", tmp_path / "calm", (*SMALL, "--rounds", "30")
    succeed("run", "scaffold", *args, "--out", calm)
    size = (calm / "metrics.csv").stat().st_size
    limit = (size + (calm / "split.json").stat().st_size) // 2
    assert (calm / "split.json").stat().st_size < limit < size
    result = nursery.run("run", "scaffold", *args, "--out", out, limit=limit, env=EVERY_ROUND)
    complaint(result, 1)
    assert (
        json.loads((out / "checkpoints" / "manifest.json").read_text(encoding="utf-8"))["round"] > 3
    )
    complaint(nursery.run("resume", out, limit=limit), 1)  # still full
    assert contents(out, "metrics.csv")["metrics.csv"] == contents(calm)["metrics.csv"][:limit]
    again = nursery.run("resume", out)
    assert again.code == 0, again.err
    assert contents(out) == contents(calm)


def test_full_disk_error_names_the_folder(nursery: Nursery, tmp_path: Path) -> None:
    result = nursery.run("run", *FULL, "--out", tmp_path / "out", limit=20_000, env=EVERY_ROUND)
    assert str(tmp_path / "out") in one_sentence(result, 1)


@pytest.mark.parametrize(
    "name", ["metrics.csv", "ledger.csv", "timing.csv", "summary.json", "outcomes.csv"]
)
def test_no_space_left_on_the_device(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed("run", "fedavg", *SMALL, "--out", "calm")
    stop_a_run(here / "out", rounds=2, stop=1)

    def full(write: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(path: Path, *args: Any, **options: Any) -> Any:
            if path.name == name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return write(path, *args, **options)

        return refuse

    with monkeypatch.context() as patch:
        patch.setattr("comity.runs.tables.open_to_append", full(open_to_append))
        patch.setattr("comity.runs.folder.write_atomically", full(write_atomically))
        assert "o space left" in complaint(comity("resume", "out"), 1)
    succeed("resume", "out")
    assert contents(here / "out") == contents(here / "calm")


# --- Damaged runs -----------------------------------------------------------------------------------------------------


class Stop(Quiet):
    """Interrupts a run after one of its rounds."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        if t == self.after:
            raise KeyboardInterrupt


def stop_a_run(
    folder: Path, rounds: int = 4, stop: int = 2, algorithm: str = "fedavg", **more: Any
) -> None:
    """Make a run that was interrupted after round `stop`, with a checkpoint of each round."""
    settings = {
        name.removeprefix("--"): value for name, value in zip(SMALL[::2], SMALL[1::2], strict=True)
    }
    settings |= {"rounds": str(rounds), "algorithm": algorithm} | more
    config = experiment(settings)
    before, checkpoint.EVERY_SECONDS = checkpoint.EVERY_SECONDS, 0.0
    try:
        with pytest.raises(KeyboardInterrupt):
            start(prepare(config, federation_of(config)), folder, Stop(stop))
    finally:
        checkpoint.EVERY_SECONDS = before


@pytest.fixture(scope="module")
def stopped_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with interrupted runs of fedavg and scaffold, and a complete run of scaffold."""
    folder = tmp_path_factory.mktemp("stopped")
    stop_a_run(folder / "fedavg")
    stop_a_run(folder / "scaffold", algorithm="scaffold")
    succeed("run", "scaffold", *SMALL, "--rounds", "4", "--out", folder / "calm")
    return folder


@pytest.fixture
def run(stopped_runs: Path, here: Path) -> Path:
    """A copy of an interrupted run of scaffold, whose parties have states."""
    shutil.copytree(stopped_runs / "scaffold", here / "run")
    return here / "run"


def test_resumed_run_has_the_same_bytes(run: Path, stopped_runs: Path) -> None:
    succeed("resume", run)
    assert contents(run) == contents(stopped_runs / "calm")


@pytest.mark.parametrize("path", ["none", "empty", "file", "/proc", "/dev/null", "a" * 300, ""])
def test_resume_without_a_run_is_refused(path: str, here: Path) -> None:
    Path("empty").mkdir()
    Path("file").write_text("x", encoding="utf-8")
    assert_refused("resume", path, out=False)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    blob = bytearray(path.read_bytes())
    for at in range(len(blob) // 3, len(blob) // 3 + 8):
        blob[at] ^= 0xFF
    path.write_bytes(bytes(blob))


def replace(path: Path) -> None:
    path.write_text('{"something": "else"}\n', encoding="utf-8")


def noise(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(2000))


def remove(path: Path) -> None:
    path.unlink()


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [cut, empty, garble, replace, noise, remove, directory]


def assert_resume_fails(run: Path, *, may_equal: Path | None = None) -> str:
    """Resume a damaged run; it must fail with one sentence. With `may_equal`, the result of that
    run is accepted, too. Returns the sentence.
    """
    result = comity("resume", run)
    if result.code == 0 and may_equal:
        assert contents(run) == contents(may_equal)
        return ""
    message = one_sentence(result, 1, 2)
    assert not (run / "summary.json").exists()
    return message


def test_a_resume_that_fails_changes_nothing(run: Path) -> None:
    """If the checkpoint is damaged, the rows after it are all that remains of these rounds."""
    cut(next((run / "checkpoints").glob("server-*")))
    for name in ("metrics.csv", "ledger.csv", "timing.csv"):
        with (run / name).open("ab") as table:
            table.write(b"3,rows,of,a,later,1\n")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != ".lock"}
    one_sentence(comity("resume", run), 1)
    assert {
        p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != ".lock"
    } == before


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("file", ["manifest", "server", "party"])
def test_damaged_checkpoint(
    damage: Callable[[Path], None], file: str, run: Path, stopped_runs: Path
) -> None:
    (path,) = list(
        (run / "checkpoints").glob(
            f"{file}.json" if file == "manifest" else f"{file}-*2.safetensors"
        )
    )[:1]
    damage(path)
    no_checkpoint = file == "manifest" and damage is remove  # then the run starts again
    assert_resume_fails(run, may_equal=stopped_runs / "calm" if no_checkpoint else None)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("file", ["config.toml", "split.json", "env.json"])
def test_damaged_settings(damage: Callable[[Path], None], file: str, run: Path) -> None:
    damage(run / file)
    message = assert_resume_fails(run)
    if damage is not garble:
        assert file in message, "the sentence does not name the file"


@pytest.mark.parametrize("damage", [cut, empty, remove, directory], ids=lambda d: d.__name__)
@pytest.mark.parametrize("file", ["metrics.csv", "ledger.csv", "timing.csv"])
def test_tables_cut_too_short(damage: Callable[[Path], None], file: str, run: Path) -> None:
    damage(run / file)
    assert file in assert_resume_fails(run)


@pytest.mark.parametrize("file", ["metrics.csv", "ledger.csv", "timing.csv"])
def test_rows_behind_the_checkpoint_are_cut(file: str, run: Path, stopped_runs: Path) -> None:
    with (run / file).open("ab") as table:
        table.write(b"3,p0,test,accu")
    succeed("resume", run)
    assert contents(run) == contents(stopped_runs / "calm")


def test_checkpoint_of_another_algorithm(run: Path, stopped_runs: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(stopped_runs / "fedavg" / "checkpoints", run / "checkpoints")
    assert_resume_fails(run)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('algorithm = "scaffold"', 'algorithm = "fedavg"'), ('algorithm = "scaffold"', 'algorithm = "adcol"'),
        ('algorithm = "scaffold"', 'algorithm = "fedavg+dbe"'), ('model = "linear"', 'model = "mlp2"'),
        ("rounds = 4", "rounds = 1"), ("parties = 3", "parties = 5"), ("seed = 0", "seed = 1"), ("lr = 0.05",
        "lr = 0.5"),
    ],
)  # fmt: skip
def test_settings_changed_under_a_checkpoint(
    old: str, new: str, run: Path, stopped_runs: Path
) -> None:
    """A run continues with the settings it started with, or is refused."""
    config = run / "config.toml"
    text = config.read_text(encoding="utf-8")
    assert old in text
    config.write_text(text.replace(old, new), encoding="utf-8")
    assert_resume_fails(run, may_equal=stopped_runs / "calm" if new == "parties = 5" else None)


@pytest.mark.parametrize(
    "change",
    [
        {"round": -5}, {"round": 99}, {"round": "two"}, {"round": None}, {"server": []}, {"server": [1, 2]}, {"parties": [[1]]},
        {"parties": []}, {"parties": None}, {"lengths": {}}, {"lengths": {"metrics.csv": -1}}, {"lengths": []}, {"counters": {}},
        {"counters": None}, {"counters": {"bytes": {}, "steps": "many", "seconds": {}}},
    ],
    ids=str,
)  # fmt: skip
def test_a_manifest_with_wrong_values(
    change: dict[str, Any], run: Path, stopped_runs: Path
) -> None:
    path = run / "checkpoints" / "manifest.json"
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8"
    )
    assert_resume_fails(run)


def test_damaged_summary_is_reported_or_rewritten(run: Path) -> None:
    succeed("resume", run)
    for text in ("", "{", "[]", "{}", "null"):
        (run / "summary.json").write_text(text, encoding="utf-8")
        result = comity("resume", run)
        if result.code:
            assert "summary.json" in one_sentence(result, 1, 2)
        else:
            assert json.loads((run / "summary.json").read_text(encoding="utf-8"))["rounds"] == 4, (
                "neither noticed nor repaired"
            )


# --- Two at once ------------------------------------------------------------------------------------------------------


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Let another process hold the folder's lock."""
    code = (
        "import fcntl, sys\nf = open(sys.argv[1], 'a')\nfcntl.flock(f, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            yield
        finally:
            other.communicate("")


def test_resume_of_a_run_that_is_running(run: Path, stopped_runs: Path) -> None:
    with hold_lock(run):
        assert str(run) in assert_resume_fails(run)
    succeed("resume", run)
    assert contents(run) == contents(stopped_runs / "calm")


def test_run_in_a_folder_where_another_is_just_starting(here: Path) -> None:
    """Another process may start a run between the check for a run and the start of one."""
    (here / "out").mkdir()
    with hold_lock(here / "out"):
        one_sentence(comity("run", "fedavg", *SMALL, "--out", "out"), 1, 2)
    assert {p.name for p in (here / "out").iterdir()} <= {".lock"}, (
        "the files of the other run were overwritten"
    )


def test_two_runs_into_one_folder(nursery: Nursery, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for seed in (0, 1):
        succeed("run", "fedavg", *SMALL, "--seed", seed, "--out", tmp_path / f"calm-{seed}")
    for turn in range(3):
        shutil.rmtree(out, ignore_errors=True)
        both = [
            nursery.start("run", "fedavg", *SMALL, "--seed", seed, "--out", out) for seed in (0, 1)
        ]
        results = [child.wait() for child in both]
        assert sorted(e.code > 0 for e in results) == [False, True], f"turn {turn}: {results}"
        (winner,) = [seed for seed in (0, 1) if results[seed].code == 0]
        one_sentence(results[1 - winner], 1, 2)
        names = ("metrics.csv", "ledger.csv", "outcomes.csv", "config.toml", "split.json")
        assert contents(out, *names) == contents(tmp_path / f"calm-{winner}", *names)


# --- The Python API ---------------------------------------------------------------------------------------------------

X, Y = np.random.default_rng(0).random((40, 6)), np.arange(40) % 4


def with_value(array: Any, at: Any, value: float) -> Any:
    """A copy of `array` with `value` at one position."""
    changed = array.astype(float)
    changed[at] = value
    return changed


ARRAYS: dict[str, Callable[[], Any]] = {
    "nan": lambda: {"a": (with_value(X, (3, 2), np.nan), Y)},
    "inf": lambda: {"a": (with_value(X, (3, 2), np.inf), Y)},
    "overflow": lambda: {"a": (with_value(X, (3, 2), 1e300), Y)},
    "nan label": lambda: {"a": (X, with_value(Y, 1, np.nan))},
    "half label": lambda: {"a": (X, with_value(Y, 1, 0.5))},
    "negative label": lambda: {"a": (X, with_value(Y, 1, -1))},
    "huge label": lambda: {"a": (X, with_value(Y, 1, 10**6))},
    "words": lambda: {"a": (X, np.array(["cat"] * 40))},
    "word inputs": lambda: {"a": (np.array([["x"] * 6] * 40), Y)},
    "objects": lambda: {"a": (np.array([None] * 40), Y)},
    "lengths": lambda: {"a": (X, Y[:-1])},
    "shapes": lambda: {"a": (X, Y), "b": (X[:, :3], Y)},
    "flat": lambda: {"a": (X[:, 0], Y)},
    "none": lambda: {"a": (X[:0], Y[:0])},
    "one": lambda: {"a": (X[:1], Y[:1])},
    "one-hot": lambda: {"a": (X, np.eye(4)[Y])},
    "no parties": dict,
    "no pair": lambda: {"a": X},
    "three": lambda: {"a": (X, Y, Y)},
    "a list": lambda: [(X, Y)],
    "name server": lambda: {"server": (X, Y)},
    "name slash": lambda: {"a/b": (X, Y)},
    "name comma": lambda: {"a,b": (X, Y)},
    "name line": lambda: {"a\nb": (X, Y)},
    "name empty": lambda: {"": (X, Y)},
    "name number": lambda: {3: (X, Y)},
    "complex": lambda: {"a": (X + 1j, Y)},
    "test shape": lambda: {"a": ((X, Y), (X[:, :3], Y))},
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_that_are_refused(kind: str) -> None:
    with pytest.raises(library.UsageError) as why:
        library.Federation.from_arrays(ARRAYS[kind]())
    assert "\n" not in str(why.value)
    assert str(why.value).endswith((".", "..."))


@pytest.mark.parametrize(
    "more",
    [{"test": "common"}, {"test": "own(2)"}, {"test": "nope"}, {"validation": 1}, {"validation": float("nan")}, {"classes": 2},
     {"classes": -1}, {"classes": "ten"}, {"seed": "x"}, {"seed": 1.5}],
    ids=str,
)  # fmt: skip
def test_federation_settings_that_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(library.UsageError):
        library.Federation.from_arrays({"a": (X, Y)}, **more)


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("nope", {}), ("fedavg", {"rounds": 0}), ("fedavg", {"rounds": "two"}), ("fedavg", {"lr": float("nan")}),
        ("fedavg", {"mu": 1}),
        ("fedavg", {"model": "nope"}), ("fedavg", {"model": "lenet5"}), ("fedavg", {"engine": "bogus"}), ("dbe", {}),
        ("fedprox", {"mu": "x"}), ("fedavg", {"party": {"nobody": {"lr": 1}}}), ("fedavg", {"party": 3}),
        ("fedavg", {"set": {"x": 1}}),
        ("fedavg", {"epochs": 2, "steps": 2}),
    ],
    ids=str,
)  # fmt: skip
def test_api_settings_that_are_refused(method: str, more: dict[str, Any]) -> None:
    federation = library.Federation.from_arrays({"a": (X, Y), "b": (X, Y)})
    with pytest.raises(library.UsageError):
        library.run(method, federation, **{"rounds": 1, "model": "linear", **more})


def test_a_run_on_arrays_cannot_be_resumed_from_the_command_line(here: Path) -> None:
    federation = library.Federation.from_arrays({"a": (X, Y), "b": (X, Y)})
    library.run("fedavg", federation, rounds=1, model="linear", out="out")
    Path("out/summary.json").unlink()
    assert "Python" in one_sentence(comity("resume", "out"), 2)
    result = library.run("fedavg", federation, rounds=1, model="linear", out="out", resume=True)
    assert Path("out/summary.json").exists()
    assert result.summary["parties"] == 2


def test_resume_with_other_arrays_is_refused(here: Path) -> None:
    federation = library.Federation.from_arrays({"a": (X, Y), "b": (X, Y)})
    library.run("fedavg", federation, rounds=1, model="linear", out="out")
    Path("out/summary.json").unlink()
    other = library.Federation.from_arrays({"a": (X + 1, Y), "b": (X, Y)})
    with pytest.raises(library.UsageError):
        library.run("fedavg", other, rounds=1, model="linear", out="out", resume=True)


def test_unknown_party_is_refused() -> None:
    federation = library.Federation.from_arrays({"north": (X, Y), "south": (X, Y)})
    result = library.run("fedavg", federation, rounds=1, model="linear")
    with pytest.raises(library.UsageError, match="north"):
        result.model("nord")


# --- As a process of its own ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_error_of_a_real_process(tmp_path: Path) -> None:
    one_sentence(process("run", "fedavgg", cwd=tmp_path), 2)
    assert not list(tmp_path.iterdir())


def test_closed_pipe_prints_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -m comity.cli list models --json | true"
    result = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=60,
    )
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr


def test_a_run_writes_no_page() -> None:
    message = one_sentence(comity("run", "fedavg", "--no-report"), 2)
    assert "A run writes no page: for one, use 'comity report DIR' afterwards." in message
