"""The Python functions: signatures and completion, results and their HTML, and errors."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import jedi
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import comity
from comity.algorithms.fedprox import FedProx
from comity.calls import FROM_FEDERATION, Settings
from comity.runs.config import Experiment
from comity.runs.extend import extend
from comity.runs.run import reopen, resume_in
from comity.runs.server_run import Quiet

SMALL: dict[str, Any] = {"rounds": 2, "model": "linear", "engine": "loop"}
LINE = 'class="mark-line role-mark'
"""What each line of a chart has in its SVG."""


@pytest.fixture(scope="module")
def fed() -> comity.Federation:
    return comity.load("digits").partition(
        "dirichlet(alpha=0.3)|keep(samples=60)", parties=3, seed=0
    )


@pytest.fixture(scope="module")
def result(fed: comity.Federation) -> comity.Result:
    return comity.run("fedavg", fed, **SMALL)


@pytest.fixture(scope="module")
def comparison(
    fed: comity.Federation, tmp_path_factory: pytest.TempPathFactory
) -> comity.Comparison:
    return comity.compare(
        ["fedavg", "fedavg+dbe"],
        fed,
        seeds=(0, 1),
        out=tmp_path_factory.mktemp("c") / "out",
        **SMALL | {"kappa": 50},  # type checkers know options only in set={...}
    )


# Signatures and completion.


def test_every_setting_is_a_keyword_of_run_with_its_default() -> None:
    parameters = inspect.signature(comity.run).parameters
    for name, field in Experiment.model_fields.items():
        if name == "algorithm":
            continue
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        default = field.get_default(call_default_factory=True)
        expected = None if name in FROM_FEDERATION or default == {} else default
        assert parameters[name].default == expected, name
        assert parameters[name].annotation not in ("Any", inspect.Parameter.empty)
    assert parameters["options"].annotation == "Option"


@pytest.mark.parametrize("call", [comity.compare, comity.tune, comity.leave_one_out])
def test_other_functions_take_the_settings_of_run(call: Any) -> None:
    assert inspect.signature(call).parameters["settings"].annotation == "Unpack[Settings]"
    assert list(Settings.__annotations__) == [
        name for name in Experiment.model_fields if name != "algorithm"
    ]
    parameters = inspect.signature(comity.run).parameters
    for name, annotation in Settings.__annotations__.items():
        assert annotation.__forward_arg__ == parameters[name].annotation, name


def test_docstring_describes_each_setting() -> None:
    help_text = " ".join((inspect.getdoc(comity.run) or "").split())
    for name, field in Experiment.model_fields.items():
        if name not in ("algorithm", "model", "metric"):
            assert f" {name}: {' '.join(str(field.description).split())}" in help_text


def test_public_names_do_not_import_torch() -> None:
    code = (
        "import sys, comity; print(sorted(comity.__all__) == dir(comity), comity.__version__,"
        " 'torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"True \d+\.\d+\.\d+\S* False\n", result.stdout)
    assert all(getattr(comity, name) is not None for name in comity.__all__)
    assert {
        "run",
        "compare",
        "tune",
        "report",
        "open",
        "load",
        "leave_one_out",
        "__version__",
    } <= set(comity.__all__)


def test_report_and_audit_are_functions(result: comity.Result, tmp_path: Path) -> None:
    for module in ("comity.auditing.audit", "comity.reporting"):
        importlib.import_module(module)  # an import must not replace the functions
    assert inspect.isfunction(comity.report)
    assert inspect.isfunction(comity.audit)
    page = comity.report(result, tmp_path / "page.html", quick=True)
    assert page == tmp_path / "page.html"
    assert "<html" in page.read_text(encoding="utf-8")


@pytest.mark.long
def test_editors_complete_settings_and_results() -> None:
    project = jedi.Project(Path(comity.__file__).parents[1])
    for line, expected in (
        ('comity.run("fedavg", None, roun', "rounds="),
        ('comity.compare(["fedavg"], None, see', "seeds="),
        ('comity.compare(["fedavg"], None, roun', "rounds="),
        ('comity.tune("fedavg", None, particip', "participation="),
        ('comity.leave_one_out("fedavg", None, batc', "batch="),
        ("comity.run('fedavg').to_pan", "to_pandas"),
        ("comity.rep", "report"),
    ):
        completions = jedi.Script(f"import comity\n{line}", project=project).complete(2, len(line))
        assert expected in [completion.name for completion in completions], line


# Options of methods.


def test_three_ways_to_give_an_option_are_equal(fed: comity.Federation) -> None:
    ways = [
        comity.run("fedavg+dbe", fed, kappa=7, **SMALL),
        comity.run("fedavg+dbe", fed, set={"kappa": 7}, **SMALL),
        comity.run("fedavg+dbe(kappa=7)", fed, **SMALL),
    ]
    assert ways[0].metrics == ways[1].metrics == ways[2].metrics


untyped: Any = comity  # calls that a type checker would reject
WRONG: list[tuple[Any, str]] = [
    (lambda fed: untyped.run("fedavg", fed, round=3), "Did you mean 'rounds'?"),
    (lambda fed: untyped.run("fedavg+dbe", fed, kapa=3), "Did you mean 'kappa'?"),
    (lambda fed: untyped.run("fedavg", fed, progres=True), "Did you mean 'progress'?"),
    (lambda fed: untyped.run("fedavg+dbe", fed, kappa=3, set={"kappa": 4}), "kappa is given twice"),
    (lambda fed: untyped.compare(["fedavg"], fed, sedes=(0, 1)), "Did you mean 'seeds'?"),
    (lambda fed: untyped.compare("fedavg", fed), "a list of names"),
    (lambda fed: untyped.compare([], fed), "a list of names"),
    (lambda fed: untyped.compare(["fedavg"], fed, seeds=3), "as in (0, 1, 2)"),
    (lambda fed: untyped.compare(["fedavg"], fed, seeds=(1, 1)), "seeds must differ"),
    (lambda fed: untyped.tune("adcol", fed, grid={"mmu": [1]}), "Did you mean 'mu'?"),
    (lambda fed: untyped.tune("adcol", fed, grid={"mu": 1}), "must be a list"),
    (lambda fed: untyped.tune("adcol", fed, grid={"parties": [2]}), "parties is fixed by"),
    (lambda fed: untyped.run("fedavg", fed, validation=0.2), "validation was fixed"),
    (lambda fed: untyped.run("fedavg", fed, partition="iid"), "partition was fixed"),
    (lambda fed: untyped.run("fedavg", comity.load("digits")), "dataset.partition("),
    (
        lambda fed: untyped.compare(["fedavg"], comity.load("digits")),
        "comity.compare(['fedavg'], dataset.partition(",
    ),
    (lambda fed: untyped.run("fedavg", "digits"), "data='digits'"),
    (lambda fed: untyped.run("fedavg", Path("x.csv")), "data='x.csv'"),
    (lambda fed: untyped.run("fedavg", {"a": (1, 2)}), "from_arrays("),
    (lambda fed: untyped.run("fedavg", np.zeros((3, 2))), "from_arrays("),
    (lambda fed: untyped.run("fedavg", 7), "no federation but a int"),
    (lambda fed: untyped.run(7, fed), "A method is a name"),
    (lambda fed: untyped.run(FedProx(mu=0.5), fed), "is a FedProx: pass its file, as in"),
    (lambda fed: untyped.run(FedProx(mu=0.5), fed), "'./fedprox.py(mu=0.5)'"),
    (lambda fed: untyped.run(FedProx, fed), "'./fedprox.py'"),
    (
        lambda fed: untyped.run("fedavg", fed, weights={"layer.weight": torch.zeros(2)}),
        "weights takes a file, as in weights='encoder.pt', not a dict: write one with"
        " torch.save(module.state_dict(), 'encoder.pt'), or pass trained modules as"
        " model=(encoder, head).",
    ),
    (
        lambda fed: untyped.load("digits").partition("iid", partys=3),
        "There is no argument of partition called 'partys'. Did you mean 'parties'?",
    ),
    (lambda fed: untyped.load("digits").partition(), "partition needs spec: write partition("),
    (
        lambda fed: untyped.Dataset("a", np.zeros((3, 2)), np.zeros(3)),
        "Dataset needs classes: write Dataset(..., classes=...).",
    ),
    (
        lambda fed: untyped.run(
            "fedavg",
            fed,
            model=(nn.Sequential(nn.Flatten(), nn.Linear(64, 32)), nn.Linear(31, 10)),
        ),
        "the head takes 31 values, but the encoder gives 32: make them equal.",
    ),
    (
        lambda fed: untyped.run(fed, "fedavg"),
        "A method is a name or a user's file, and comes first",
    ),
    (
        lambda fed: untyped.run("fedavg", fed, party={"p1": {"modle": "linear"}}),
        "Did you mean 'model'?",
    ),
    (lambda fed: untyped.run("fedavg", fed, progress="yes"), "progress must be True, False"),
    (lambda fed: comity.open("/no/where"), "There is no folder"),
    (lambda fed: untyped.report(7), "not a int"),
    (lambda fed: untyped.run("fedavg", fed, rounds=1, model="linear").report(), "temporary"),
    (
        lambda fed: untyped.run("fedavg", fed, rounds=1, model="linear").to_pandas("metric"),
        "Did you mean 'metrics'?",
    ),
]


@pytest.mark.parametrize(("call", "expected"), WRONG, ids=[expected for _, expected in WRONG])
def test_wrong_call_is_refused(call: Any, expected: str, fed: comity.Federation) -> None:
    with pytest.raises(comity.UsageError) as why:
        call(fed)
    assert expected in str(why.value)
    assert "\n" not in str(why.value)


# Results.


def test_repr_and_html_of_a_result(result: comity.Result, fed: comity.Federation) -> None:
    for item in (result, result.model("p0"), fed, comity.load("digits")):
        assert "\n" not in repr(item)
        assert len(repr(item)) < 200
    html = result._repr_html_()
    assert len(html) < 20_000
    assert html.count(LINE) == 2
    for party, figure in result.summary["accuracy"]["per_party"].items():
        assert f">{party}</td>" in html
        assert f">{figure:.1%}</td>" in html
    assert "<script" not in html
    counts = fed._repr_html_()
    assert all(f">{int(n)}</td>" in counts for n in fed.counts().flatten())


def test_names_are_escaped_in_html() -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    fed = comity.Federation.from_arrays({"a": (x, y), "b": (x, y)})
    object.__setattr__(fed, "name", "<script>alert(1)</script>")
    assert "<script>" not in fed._repr_html_()


def test_colours_have_contrast_on_light_and_dark_pages() -> None:
    from comity.charts.themes import EITHER

    def light(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    colours = [value for value in EITHER.values() if value.startswith("#")]
    assert len(colours) == 8
    for colour in colours:
        for page in ("#ffffff", "#111111"):
            high, low = sorted((light(colour), light(page)), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 3, (colour, page)


def test_to_pandas(result: comity.Result, comparison: comity.Comparison) -> None:
    rows = result.to_pandas()
    last = rows[
        (rows["round"] == 2)
        & (rows.split == "test")
        & (rows.metric == "accuracy")
        & (rows.party != "server")
    ]
    assert dict(zip(last.party, last.value, strict=True)) == result.summary["accuracy"]["per_party"]
    assert (
        result.to_pandas("ledger").query("kind == 'up'").bytes.sum()
        == result.summary["bytes"]["up"]
    )
    methods = comparison.to_pandas().set_index("method")
    assert methods.loc["fedavg", "mean"] == pytest.approx(
        np.mean([comparison.results["fedavg"][seed].summary["accuracy"]["mean"] for seed in (0, 1)])
    )
    answers = comparison.to_pandas("answers")
    assert set(answers.party) == {"p0", "p1", "p2"}
    for table in (answers, comparison.to_pandas()):  # numbers and texts alone
        assert not table.map(lambda cell: isinstance(cell, dict | tuple)).to_numpy().any()
    half = (answers.high - answers.low) / 2
    assert (answers.standard_error > 0).all()
    assert (half > 1.9 * answers.standard_error).all()
    assert len(comparison.to_pandas("metrics").groupby(["method", "seed"])) == 6


def test_to_pandas_without_pandas_is_refused(
    result: comity.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(comity.UsageError, match="pip install pandas"):
        result.to_pandas()


def test_comparison_results_and_html(comparison: comity.Comparison, fed: comity.Federation) -> None:
    assert [row.algorithm for row in comparison.rows] == ["solo", "fedavg", "fedavg+dbe"]
    assert comparison.seeds == (0, 1)
    splits = {
        run.job.federation.fingerprint()
        for seeds in comparison.results.values()
        for run in seeds.values()
    }
    assert splits == {fed.fingerprint()}, "the federation differs between seeds"
    assert comparison.results["fedavg"][0].metrics != comparison.results["fedavg"][1].metrics, (
        "the seed does not change the draws"
    )
    assert comparison.results["fedavg+dbe"][0].job.experiment.set == {"kappa": 50}
    html = unescape(comparison._repr_html_())
    assert html.count(LINE) == 3
    assert all(answer.says in html for answer in comparison.answers)
    assert comparison.reading in html
    assert repr(comparison).startswith("<comparison by accuracy: ")


def test_single_run_equals_that_of_the_comparison(
    comparison: comity.Comparison, fed: comity.Federation
) -> None:
    alone = comity.run("fedavg+dbe", fed, seed=1, kappa=50, **SMALL)
    assert alone.metrics == comparison.results["fedavg+dbe"][1].metrics


def test_open_a_comparison_and_a_run(comparison: comity.Comparison) -> None:
    again = comity.open(comparison.folder)
    assert isinstance(again, comity.Comparison)
    assert (again.rows, again.answers, again.reading) == (
        comparison.rows,
        comparison.answers,
        comparison.reading,
    )
    run = comity.open(comparison.folder / "fedavg" / "seed-1")
    assert isinstance(run, comity.Result)
    assert run.metrics == comparison.results["fedavg"][1].metrics
    for name, tensor in run.model("p1").theta.items():
        assert tensor.equal(comparison.results["fedavg"][1].model("p1").theta[name])


def test_open_refuses_damaged_files(comparison: comity.Comparison, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(comparison.folder, tmp_path / "copy"))
    content = json.loads((copy / "comparison.json").read_text(encoding="utf-8"))
    content["rows"][1]["gained"] = 6
    (copy / "comparison.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(comity.ComityError, match=r"comparison\.json is damaged"):
        comity.open(copy)
    shutil.copy(comparison.folder / "comparison.json", copy / "comparison.json")
    rows = copy / "fedavg" / "seed-0" / "metrics.csv"
    rows.write_text(rows.read_text(encoding="utf-8").replace("0.", "1.", 1), encoding="utf-8")
    for folder in (copy, rows.parent):
        with pytest.raises(comity.ComityError, match=r"metrics\.csv is damaged"):
            comity.open(folder)


def test_open_refuses_other_folders_and_unfinished_runs(
    comparison: comity.Comparison, tmp_path: Path
) -> None:
    with pytest.raises(comity.UsageError, match="neither a run nor a comparison"):
        comity.open(tmp_path)
    with pytest.raises(comity.UsageError, match="there are runs in seed-0, seed-1"):
        comity.open(comparison.folder / "fedavg")
    copy = Path(shutil.copytree(comparison.folder / "fedavg" / "seed-0", tmp_path / "run"))
    (copy / "summary.json").unlink()
    with pytest.raises(comity.UsageError, match="not finished"):
        comity.open(copy)


def test_open_a_comparison_of_the_command_line(tmp_path: Path) -> None:
    from harness import succeed

    succeed(
        "compare",
        "fedavg",
        "--parties",
        3,
        "--rounds",
        1,
        "--model",
        "linear",
        "--seeds",
        "0,1",
        "--out",
        tmp_path / "c",
    )
    comparison = comity.open(tmp_path / "c")
    assert isinstance(comparison, comity.Comparison)
    assert comparison.results["fedavg"][1].model("p2").predict(
        comity.load("digits").x[:2]
    ).shape == (2,)
    same = comity.compare(
        ["fedavg"], parties=3, rounds=1, model="linear", seeds=(0, 1), out=tmp_path / "c"
    )
    assert same.rows == comparison.rows


def test_tune(fed: comity.Federation) -> None:
    tuning = comity.tune("fedprox", fed, grid={"mu": [0.1, 1.0], "lr": [0.1]}, **SMALL)
    assert tuning.best.validation == max(trial.validation for trial in tuning.trials)
    assert len(tuning.to_pandas()) == len(tuning.trials) == 2
    assert tuning.best.settings["lr"] == 0.1
    assert "<table" in tuning._repr_html_()


def test_result_whose_folder_was_removed(fed: comity.Federation, tmp_path: Path) -> None:
    result = comity.run("fedavg", fed, out=tmp_path / "run", **SMALL)
    shutil.rmtree(tmp_path / "run")
    assert repr(result).startswith("<fedavg: accuracy ")
    for ask in (lambda: result.metrics, lambda: result.model("p0")):
        with pytest.raises(comity.ComityError, match="folder of this run is gone"):
            ask()


# Progress.


def test_progress_is_off_by_default_in_scripts(
    fed: comity.Federation, capfd: pytest.CaptureFixture[str]
) -> None:
    comity.run("fedavg", fed, **SMALL)
    assert capfd.readouterr() == ("", "")
    comity.run("fedavg", fed, progress=True, **SMALL)
    assert "round 2/2" in capfd.readouterr().err


# Data frames.


def test_columns_of_data_frames_are_matched_by_name() -> None:
    rng = np.random.default_rng(0)
    x, y = (
        pd.DataFrame(rng.normal(size=(60, 3)), columns=["age", "dose", "days"]),
        np.arange(60) % 2,
    )
    x["dose"] += 4 * y
    reordered_frame = x[["dose", "days", "age"]]
    fed = comity.Federation.from_arrays({"north": (x, y), "south": (reordered_frame, y)})
    assert (
        [column.name for column in fed.schema.columns] == ["age", "dose", "days"]
        if fed.schema
        else False
    )
    model = comity.run("fedavg", fed, rounds=5, model="linear", lr=0.1).model("south")
    assert model.predict(reordered_frame).equal(model.predict(x))
    assert (model.predict(x).numpy() == y).mean() > 0.9
    with pytest.raises(comity.UsageError, match="see 'age'"):
        comity.Federation.from_arrays(
            {"north": (x, y), "south": (x.rename(columns={"age": "weight"}), y)}
        )


# Folders of other data or settings.


def test_folder_of_other_data_is_refused(tmp_path: Path) -> None:
    """Finished runs of a comparison or tuning are reused only for the same samples."""
    first, other = (
        comity.load("digits").partition("iid|keep(samples=30)", parties=2, seed=seed)
        for seed in (0, 5)
    )
    how: dict[str, Any] = {"rounds": 1, "model": "linear", "progress": False}
    comity.compare(["fedavg"], first, out=tmp_path / "compare", **how)
    comity.compare(["fedavg"], first, out=tmp_path / "compare", **how)
    with pytest.raises(comity.UsageError, match=r"The data of .* have changed since"):
        comity.compare(["fedavg"], other, out=tmp_path / "compare", **how)
    comity.tune("fedavg", first, grid={"lr": [0.1]}, out=tmp_path / "tune", **how)
    with pytest.raises(comity.UsageError, match=r"The data of .* have changed since"):
        comity.tune("fedavg", other, grid={"lr": [0.1]}, out=tmp_path / "tune", **how)


def test_folder_of_another_network_is_refused(tmp_path: Path) -> None:
    fed = comity.load("digits").partition("iid|keep(samples=30)", parties=2, seed=0)

    def build_network(layer: type[nn.Module], seed: int = 0) -> tuple[nn.Module, nn.Module]:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), layer()), nn.Linear(8, 10)

    how: dict[str, Any] = {"rounds": 1, "progress": False}
    comity.compare(["fedavg"], fed, model=build_network(nn.ReLU), out=tmp_path / "out", **how)
    comity.compare(["fedavg"], fed, model=build_network(nn.ReLU), out=tmp_path / "out", **how)
    with pytest.raises(comity.UsageError, match="holds a run of another network"):
        comity.compare(["fedavg"], fed, model=build_network(nn.Tanh), out=tmp_path / "out", **how)
    with pytest.raises(comity.UsageError, match="holds a run from other initial weights"):
        comity.compare(
            ["fedavg"], fed, model=build_network(nn.ReLU, 1), out=tmp_path / "out", **how
        )
    folder = tmp_path / "out" / "fedavg" / "seed-0"
    run = comity.open(folder, fed, model=build_network(nn.ReLU, 1))
    assert isinstance(run, comity.Result)
    assert run.model("p0")
    run = comity.open(folder, fed, model=build_network(nn.Tanh))
    assert isinstance(run, comity.Result)
    with pytest.raises(comity.UsageError, match="holds a run of another network"):
        run.model("p0")


def test_tied_weights_are_refused() -> None:
    fed = comity.load("digits").partition("iid|keep(samples=30)", parties=2, seed=0)
    shared_layer = nn.Linear(10, 10)
    tied_model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), shared_layer), shared_layer
    with pytest.raises(comity.UsageError, match="one weight in two places"):
        comity.run("fedavg", fed, model=tied_model, rounds=1)


def test_random_initial_values_of_a_custom_network_are_equal_for_all_methods() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    def build(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Scaled()), nn.Linear(8, classes)

    fed = comity.load("digits").partition("iid|keep(samples=30)", parties=2, seed=0)
    runs = [
        comity.run(method, fed, model=build, rounds=1, engine="loop")
        for method in ("fedavg", "fedprox(mu=0)")
    ]
    assert runs[0].metrics == runs[1].metrics


def test_comparison_with_an_extended_run_is_refused(tmp_path: Path) -> None:
    comity.compare(
        ["fedavg"],
        parties=2,
        partition="iid|keep(samples=30)",
        model="linear",
        rounds=1,
        out=tmp_path / "it",
        progress=False,
    )
    longer = tmp_path / "it" / "fedavg" / "seed-0"
    extend(longer, 2)  # comity resume --rounds 2
    resume_in(reopen(longer), longer, Quiet())
    with pytest.raises(comity.ComityError, match="does not belong to these runs"):
        comity.open(tmp_path / "it")
    page = unescape(comity.report(tmp_path / "it", quick=True).read_text(encoding="utf-8"))
    assert (
        "These runs cannot be compared, as they differ in rounds (1: solo, seed 0; 2: fedavg,"
        " seed 0)." in page
    )
    assert "comparison.json is not of these runs" in page


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda fed, here: comity.run("fedavg", fed, num_clients=3), "Did you mean 'parties'"),
        (lambda fed, here: comity.run("fedavg", fed, learning_rate=0.1), "Did you mean 'lr'"),
        (lambda fed, here: comity.run("fedprox", fed, set="mu=1"), "set is a dictionary"),  # type: ignore[arg-type]
        (lambda fed, here: comity.run("fedavg", fed, out=here / "file"), "is a file, not a folder"),
        (lambda fed, here: comity.load([1, 2]), "loaded by its name"),  # type: ignore[arg-type]
        (lambda fed, here: comity.run("fedavg", fed, **SMALL).model(1), "no party called 1"),  # type: ignore[arg-type]
    ],
)
def test_names_of_other_frameworks_and_wrong_types_are_refused(
    call: Any, expected: str, fed: comity.Federation, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(comity.UsageError, match=re.escape(expected)):
        call(fed, tmp_path)
