"""Names and options of other frameworks are refused with a hint at what to type in Comity."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from harness import comity, one_sentence, succeed

from comity import algorithms, data, hints, models
from comity.metrics.metrics import ELIGIBLE
from comity.runs.config import Experiment

MISTAKES = {
    "run fedavg --data fmnist": "fashion-mnist",
    "run fedavg --data Fashion_MNIST": "fashion-mnist",
    "run fedavg --data mnistm": "mnist-m",
    "run fedavg --data cifar": "'cifar10' or 'cifar100'",
    "run fedavg --data fashion": "fashion-mnist",
    "run fedavg --data mine.csv": "comity data import mine.csv",
    "data deal --data heart": "Did you mean: comity data split",
    "run exp.yaml": "TOML",
    "run exp.json": "TOML",
    "compare exp.toml": "exp.toml is not a method",
    "run fedavg --seeds 0,1": "comity compare METHOD --seeds 0,1,2",
    "run fedavg --seed 0,1": "comity compare METHOD --seeds 0,1,2",
    "compare fedavg --seed 0,1": "--seeds 0,1,2",
    "run fedavg --dataset digits": "--data digits",
    "run --algorithm fedavg": "comity run fedavg",
    "run fedavg --clients 3": "--parties",
    "run fedavg --num_clients 3": "--parties",
    "run fedavg --local-epochs 3": "--epochs",
    "run fedavg --learning-rate 3": "--lr",
    "run fedavg --alpha 0.1": "--partition 'dirichlet(alpha=0.1)'",
    "run fedavg --gpu": "--device cuda",
    "run fedavg --batch-size 3": "--batch",
    "run fedavg --output x": "--out DIR",
    "run fedavg --num-rounds 3": "--rounds",
    "run fedavg --fraction 0.5": "--participation 0.5",
    "run fedavg --momentum 0.9": "--optimizer 'sgd(momentum=0.9)'",
    "run fedavg --weight-decay 0.1": "decay",
    "run fedavg --config x.toml": "comity run FILE.toml",
    "run fedprox --mu 0.1": "--set mu=VALUE",
    "run fedprox mu=0.1": "--set mu=0.1",
    "tune fedprox --grid lr=0.1 mu=0.1,1": "--grid mu=0.1,1",
    "run fedprox --set mu 0.1": "--set mu=0.1",
    "run fedavg --rund 3": "--rounds",
    "run": "comity run fedavg",
    "compare": "comity compare fedavg",
    "run fedavg dbe": "comity run fedavg+dbe",
    "run FedAvg": "fedavg",
    "run local": "solo",
    "run fedavg --model cnn": "cnn4",
    "run fedavg --model resnet": "'resnet18'",
    "run fedavg --partition non-iid": "dirichlet",
    "run fedavg --optimizer SGD": "'sgd'",
    "run fedavg --metric acc": "accuracy",
    "tune fedprox": "mu=0.1,1",
    "resume": "the folder of a run",
    "fedavg": "comity run fedavg",
    "train fedavg": "comity run",
    "compre fedavg": "comity compare",
    "nonsense": "There are:",
    "run fedavg --data digits --data mnist": "--data is given twice",
    "compare fedavg --seeds 0 --seeds 1": "--seeds is given twice",
    "data inspect --validation 0 --validation 0.1": "--validation is given twice",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_error_says_what_to_type(command: str, here: Path) -> None:
    Path("mine.csv").write_text("a,label\n1,2\n")
    assert MISTAKES[command] in one_sentence(comity(*command.split()), 2)


def test_lists_by_other_names(here: Path) -> None:
    assert succeed("list", "methods").out == succeed("list", "algorithms").out
    assert succeed("list", "data").out == succeed("list", "datasets").out


def test_options_that_take_several_may_be_given_twice(here: Path) -> None:
    succeed(
        "run",
        "fedavg+dbe",
        "--set",
        "kappa=1",
        "--set",
        "dbe.mu=0.5",
        "--rounds",
        1,
        "--parties",
        2,
        "--model",
        "linear",
    )


def test_every_hint_names_an_existing_thing() -> None:
    known_names: dict[str, set[str]] = {
        "dataset": {str(row["name"]) for row in data.catalogue()},
        "algorithm": set(algorithms.names()),
        "model": {str(row["name"]) for row in models.catalogue()},
        "partition": {str(row["name"]) for row in data.partition_catalogue()},
        "metric": set(ELIGIBLE),
        "optimizer": {"sgd", "adam"},
        "setting called": set(Experiment.model_fields),
        "option of fed-sps called": {
            option.name
            for option in fields(algorithms.compose("fed-sps", {}))  # type: ignore[arg-type]
        },
    }
    for kind, table in hints.NAMES.items():
        assert set(table.values()) <= known_names[kind], kind
        assert not {name for name in table if name in known_names[kind]}, (
            "our own names need no hint"
        )


# --- help


@pytest.mark.parametrize(
    "command",
    ["run", "compare", "tune", "plan", "data inspect", "data import", "report", "reproduce"],
)
def test_help_fits_80_columns(command: str, here: Path) -> None:
    output = succeed(*command.split(), "--help").out
    assert "\\" not in output
    assert max(map(len, output.splitlines())) <= 80
    assert output.count("rguments:") <= 1


def test_help_has_every_setting_once_with_its_choices(here: Path) -> None:
    output = succeed("run", "--help").out
    for name in set(Experiment.model_fields) - {"algorithm"}:
        assert output.count(f"  --{name.replace('_', '-')} ") == 1, name
    for choices in (
        "auto|loop|process|stacked",
        "auto|cpu|cuda|mps",
        "all|params_only|none",
        "reset|keep",
        "keep|drop",
        "drop|stop",
    ):
        assert choices in output
    assert "balanced_accuracy" in output
    assert "method (fedavg, fedavg+dbe, ./mine.py) or FILE.toml" in output
    assert [line[:-1] for line in output.splitlines() if line.endswith(":") and line[0] != " "] == [
        "Arguments",
        "Options",
        "Data",
        "Model and training",
        "Rounds",
        "Evaluation",
        "Absent parties",
        "Privacy",
        "Where it runs",
    ]
