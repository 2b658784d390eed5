"""Users' files: what they import from their own folder, and options of model files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from harness import SMALL, one_sentence, process, succeed
from harness import comity as command

import comity
from comity.plugins import module_from
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import warning_texts

MODEL = """
from torch import nn
from {name} import WIDTH

def build(shape, classes, width: int = WIDTH, freeze: bool = False):
    inputs = shape[0] * shape[1] * shape[2]
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU())
    return encoder.requires_grad_(not freeze), nn.Linear(width, classes)
"""
METHOD = """
from comity.algorithms.fedavg import FedAvg
from comity.core import *
from {name} import WIDTH

@algorithm
class Mine(FedAvg): pass
"""
DATA = """
from comity.data import load as known

def load():
    from {name} import WIDTH
    return known("digits")
"""


def write(folder: Path, file: str, source: str, name: str, width: int = 8) -> Path:
    """Write a user's file and the module beside it."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(f"WIDTH = {width}\n", encoding="utf-8")
    (folder / file).write_text(source.format(name=name), encoding="utf-8")
    return folder / file


@pytest.mark.parametrize(("option", "source"), [("--model", MODEL), ("", METHOD), ("--data", DATA)])
def test_a_file_imports_a_module_beside_it(option: str, source: str, tmp_path: Path) -> None:
    kind = option.strip("-") or "method"
    file = write(tmp_path / kind, f"my_{kind}.py", source, f"beside_{kind}")
    words = [str(file)] if not option else ["fedavg", option, str(file)]
    path = list(sys.path)
    succeed(
        "run", *words, *(SMALL if option != "--model" else SMALL[:4]), "--out", tmp_path / "run"
    )
    assert sys.path == path
    assert not (tmp_path / kind / "__pycache__").exists()


def test_modules_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    files = [
        write(tmp_path / str(width), f"two_{width}.py", MODEL, "namesake", width)
        for width in (3, 5)
    ]
    assert [module_from(str(file)).WIDTH for file in files] == [3, 5]


def test_a_changed_module_beside_a_file_is_noticed_when_the_run_is_resumed(tmp_path: Path) -> None:
    file = write(tmp_path / "files", "with_helper.py", METHOD, "helper_of_a_run")
    out = tmp_path / "run"
    succeed("run", file, *SMALL, "--out", out)
    RunFolder(out).summary.unlink()
    (tmp_path / "files" / "helper_of_a_run.py").write_text("WIDTH = 9\n", encoding="utf-8")
    refused = one_sentence(command("resume", out), 2)
    assert "helper_of_a_run.py has changed since" in refused
    assert "--trust" in refused
    succeed("resume", out, "--trust")


def test_a_model_file_takes_options(tmp_path: Path) -> None:
    file = write(tmp_path, "sized.py", MODEL, "beside_sized")
    fed = comity.load("digits").partition("iid|keep(samples=40)", parties=2, seed=0)
    frozen = comity.run(
        "fedavg", fed, model=f"{file}(width=4,freeze=true)", rounds=1, out=tmp_path / "run"
    )
    assert {row.bytes for row in frozen.ledger if row.kind == "up"} == {4 * (4 * 10 + 10)}
    assert f"{file}(width=4,freeze=true)" in (tmp_path / "run" / "config.toml").read_text()
    # The folder is the user's own, and the file is among those that it names.
    again = comity.open(tmp_path / "run")
    assert isinstance(again, comity.Result)
    assert again.model("p0") is not None
    assert (tmp_path / "run" / "trust.json").is_file()


def test_a_wrong_option_of_a_model_file_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, "narrow.py", MODEL, "beside_narrow")
    refused = command("run", "fedavg", "--model", f"{file}(widht=4)", "--out", tmp_path / "run")
    assert "'widht'. Did you mean 'width'?" in one_sentence(refused, 2)


FAULTY = """
from comity.algorithms.fedavg import FedAvg
from comity.core import *

@algorithm
class Faulty(FedAvg):
    async def train_locally(self, theta, m, party, key):
        return (await party.fit(plain, theta, key)).{name}
"""


@pytest.mark.parametrize("call", ["run", "compare"])
def test_a_folder_whose_run_failed_in_its_first_round_can_be_used_again(
    call: str, tmp_path: Path
) -> None:
    file = tmp_path / f"faulty_{call}.py"
    file.write_text(FAULTY.format(name="wrong"), encoding="utf-8")
    words = (call, file, *SMALL, "--out", tmp_path / "out")
    failed = process(*words)
    assert failed.code == 1, failed.err
    assert "AttributeError" in failed.err
    file.write_text(FAULTY.format(name="theta"), encoding="utf-8")
    again = process(*words)
    assert again.code == 0, again.err
    run = tmp_path / "out" if call == "run" else tmp_path / "out" / f"faulty_{call}" / "seed-0"
    assert warning_texts(RunFolder(run).salvage_summary()) == []
    assert "has changed" not in again.err
    if call == "run":
        assert "already holds a run" in one_sentence(process(*words), 2)
