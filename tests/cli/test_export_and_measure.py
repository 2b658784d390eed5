"""`comity export` and `comity measure` on a finished run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import comity, one_sentence, succeed

from comity import run
from comity.base.key import Key
from comity.data import Dataset
from comity.data.groups import Groups
from comity.errors import ComityError, UsageError
from comity.measure import mdl
from comity.runs.result import Result
from comity.studies.export import export, load

GAPS = """
import numpy as np, torch
from comity.data import Dataset
from comity.data.groups import Groups

def load():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    x = rng.normal(size=(90, 4)) * 3 + 5 + y[:, None]
    x[rng.random(x.shape) < 0.2] = np.nan
    return Dataset("gaps", torch.tensor(x), torch.tensor(y), 3, mean=(5.0,), std=(3.0,), missing="impute",
                   groups={"site": Groups(("north", "south"), np.arange(90) % 2)}, default_partition="natural(by=site)",
                   class_names=("low", "middle", "high"))
"""


@pytest.fixture
def gaps(tmp_path: Path) -> Path:
    path = tmp_path / "gaps.py"
    path.write_text(GAPS, encoding="utf-8")
    return path


def run_in(folder: Path, algorithm: str, data: Path) -> Result:
    return run(algorithm, out=folder, data=str(data), model="mlp2(width=8)", rounds=2, validation=0)


def load_script(folder: Path) -> Any:
    """The script beside an exported model, loaded as a module."""
    before = sys.path[:]
    sys.path.insert(0, str(folder))
    sys.modules.pop("preparation", None)
    try:
        spec = spec_from_file_location("predict_alone", folder / "predict.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


def raw(data: Path) -> Dataset:
    space: dict[str, object] = {}
    exec(compile(data.read_text(encoding="utf-8"), str(data), "exec"), space)
    dataset = space["load"]()  # type: ignore[operator]
    assert isinstance(dataset, Dataset)
    return dataset


@pytest.mark.usefixtures("without_onnx")
@pytest.mark.parametrize(
    "algorithm", ["fedavg", "fedavg+dbe", "fedrod", "apfl", "fed-sps", "relay", "ditto+mr"]
)
def test_exported_model_predicts_like_the_model_of_the_run(
    algorithm: str, gaps: Path, tmp_path: Path
) -> None:
    """Raw values with gaps give exactly the predictions of the run's model."""
    result = run_in(tmp_path / "run", algorithm, gaps)
    export(result, "south", tmp_path / "out")
    dataset, federation = raw(gaps), result.job.federation
    rows = list(federation.split.parties["south"].test)
    logits = result.model("south").logits(federation.parties["south"].test.x)
    exported = load(tmp_path / "out")
    assert exported.class_names == ("low", "middle", "high")
    assert torch.equal(exported.predict(dataset.x[rows]), logits.argmax(1))
    assert torch.equal(exported.predict_proba(dataset.x[rows].numpy()), logits.softmax(1))
    assert torch.equal(
        result.model("south").predict_proba(dataset.x[rows].tolist()), logits.softmax(1)
    )
    np.save(tmp_path / "new.npy", dataset.x[rows].numpy())
    predictions = load_script(tmp_path / "out").predict(tmp_path / "new.npy")
    assert np.array_equal(predictions.values, logits.softmax(1).numpy()), (
        "torch alone gives other probabilities"
    )
    assert (predictions.warnings, predictions.refused) == ((), {})


@pytest.mark.usefixtures("without_onnx")
def test_images_as_bytes(tmp_path: Path) -> None:
    x = (torch.rand(40, 1, 8, 8, generator=Key(1).generator()) * 255).byte()
    data = Dataset(
        "bytes",
        x,
        torch.arange(40) % 2,
        2,
        groups={"who": Groups(("a", "b"), np.arange(40) // 20)},
        default_partition="natural",
    )
    federation = data.partition("auto")
    result = run("fedavg", federation, rounds=1, model="lenet5", out=tmp_path / "run")
    export(result, "a", tmp_path / "out")
    rows = list(federation.split.parties["a"].test)
    logits = result.model("a").logits(federation.parties["a"].test.x)
    assert torch.equal(load(tmp_path / "out").predict_proba(x[rows].numpy()), logits.softmax(1))
    assert torch.equal(
        result.model("a").predict_proba(x[rows][:, 0].tolist()), logits.softmax(1)
    )  # without the channel
    np.savez(tmp_path / "new.npz", x=x[rows].numpy())
    assert np.array_equal(
        load_script(tmp_path / "out").predict(tmp_path / "new.npz").values,
        logits.softmax(1).numpy(),
    )


def test_export_command(gaps: Path, tmp_path: Path) -> None:
    run_in(tmp_path / "run", "fedavg+dbe", gaps)
    succeed("export", tmp_path / "run", "--party", "north", "--out", tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "weights.safetensors", "model.json", "predict.py", "preparation.py", "model.pt2", "model.onnx", "card.md",
    }  # fmt: skip
    np.savez(tmp_path / "new.npz", x=raw(gaps).x[:3].numpy())
    command = [sys.executable, str(tmp_path / "out" / "predict.py"), str(tmp_path / "new.npz")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    head, *lines = result.stdout.splitlines()
    assert head == "row,prediction,probability,p(low),p(middle),p(high)"
    assert len(lines) == 3
    assert lines[0].split(",")[1] in ("low", "middle", "high")
    assert "north" in (tmp_path / "out" / "card.md").read_text(encoding="utf-8")
    description = json.loads((tmp_path / "out" / "model.json").read_text(encoding="utf-8"))
    assert list(description["preprocess"]["fills"]) == [
        "north"
    ]  # no other party's values are exported


@pytest.mark.usefixtures("without_onnx")
def test_refusals(gaps: Path, tmp_path: Path) -> None:
    result = run_in(tmp_path / "run", "fedavg", gaps)
    export(result, "north", tmp_path / "out")
    with pytest.raises(UsageError, match="exists already"):
        export(result, "north", tmp_path / "out")
    assert "There is no party called 'nort'" in one_sentence(
        comity("export", tmp_path / "run", "--party", "nort"), 2
    )
    assert "holds no run" in one_sentence(
        comity("export", tmp_path / "nothing", "--party", "north"), 2
    )
    (tmp_path / "run" / "summary.json").unlink()
    assert "is not finished" in one_sentence(
        comity("export", tmp_path / "run", "--party", "north"), 1
    )
    (tmp_path / "out" / "model.json").write_text("{", encoding="utf-8")
    with pytest.raises(ComityError, match="holds no exported model"):
        load(tmp_path / "out")


def test_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        mdl, "CHEAP", replace(mdl.CHEAP, points=3, seeds=2, steps=20)
    )  # otherwise a description length takes a minute
    run(
        "fedavg+dbe",
        out=tmp_path / "run",
        partition="iid|keep(samples=40)",
        parties=3,
        rounds=1,
        model="mlp2(width=16)",
    )
    output = succeed("measure", tmp_path / "run", "--layers", "fc2", "--samples", "100").out
    assert "fc2" in output
    assert "weighted_best" in output
    measures = json.loads((tmp_path / "run" / "measures.json").read_text(encoding="utf-8"))
    assert measures["layers"]["fc2"]["after"]["mdl"]["bits"] > 0
    assert "There is no" in one_sentence(
        comity("measure", tmp_path / "run", "--layers", "fc9"), 1, 2
    )
    assert "holds no run" in one_sentence(comity("measure", tmp_path / "nothing"), 2)
