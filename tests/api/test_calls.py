"""The library as somebody uses it who types calls into a notebook: they complete, they answer, and
they say what is wrong.
"""

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
from comity.calls import FROM_FEDERATION, Settings
from comity.runs.config import Experiment
from comity.runs.extend import extend
from comity.runs.run import reopen, resume_in
from comity.runs.server_run import Quiet

SMALL: dict[str, Any] = {"rounds": 2, "model": "linear", "engine": "loop"}


@pytest.fixture(scope="module")
def fed() -> comity.Federation:
    return comity.load("digits").partition(
        "dirichlet(alpha=0.3)|keep(samples=60)", parties=3, seed=0
    )


@pytest.fixture(scope="module")
def result(fed: comity.Federation) -> comity.Result:
    return comity.run("fedavg", fed, **SMALL)


@pytest.fixture(scope="module")
def made(fed: comity.Federation, tmp_path_factory: pytest.TempPathFactory) -> comity.Comparison:
    return comity.compare(
        ["fedavg", "fedavg+dbe"],
        fed,
        seeds=(0, 1),
        out=tmp_path_factory.mktemp("c") / "out",
        **SMALL | {"kappa": 50},  # type checkers know options only in set={...}
    )


# What an editor completes.


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
def test_the_other_calls_take_the_same_settings(call: Any) -> None:
    assert inspect.signature(call).parameters["settings"].annotation == "Unpack[Settings]"
    assert list(Settings.__annotations__) == [
        name for name in Experiment.model_fields if name != "algorithm"
    ]
    parameters = inspect.signature(comity.run).parameters
    for name, annotation in Settings.__annotations__.items():
        assert annotation.__forward_arg__ == parameters[name].annotation, name


def test_help_says_what_each_setting_means() -> None:
    said = " ".join((inspect.getdoc(comity.run) or "").split())
    for name, field in Experiment.model_fields.items():
        if name not in ("algorithm", "model", "metric"):
            assert f" {name}: {' '.join(str(field.description).split())}" in said


def test_public_names_are_there_without_torch() -> None:
    code = (
        "import sys, comity; print(sorted(comity.__all__) == dir(comity), comity.__version__,"
        " 'torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"True \d+\.\d+\.\d+\S* False\n", ended.stdout)
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
        found = jedi.Script(f"import comity\n{line}", project=project).complete(2, len(line))
        assert expected in [one.name for one in found], line


# A method's own options.


def test_three_ways_to_give_an_option_are_one(fed: comity.Federation) -> None:
    ways = [
        comity.run("fedavg+dbe", fed, kappa=7, **SMALL),
        comity.run("fedavg+dbe", fed, set={"kappa": 7}, **SMALL),
        comity.run("fedavg+dbe(kappa=7)", fed, **SMALL),
    ]
    assert ways[0].metrics == ways[1].metrics == ways[2].metrics


untyped: Any = comity  # who misspells has no type checker
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


@pytest.mark.parametrize(("call", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_is_said_in_a_sentence(call: Any, said: str, fed: comity.Federation) -> None:
    with pytest.raises(comity.UsageError) as why:
        call(fed)
    assert said in str(why.value)
    assert "\n" not in str(why.value)


# What comes back.


def test_a_result_in_a_notebook(result: comity.Result, fed: comity.Federation) -> None:
    for one in (result, result.model("p0"), fed, comity.load("digits")):
        assert "\n" not in repr(one)
        assert len(repr(one)) < 200
    shown = result._repr_html_()
    assert len(shown) < 20_000
    assert shown.count("<polyline") == 2
    for party, figure in result.summary["accuracy"]["per_party"].items():
        assert f">{party}</td>" in shown
        assert f">{figure:.1%}</td>" in shown
    assert "<script" not in shown
    counts = fed._repr_html_()
    assert all(f">{int(n)}</td>" in counts for n in fed.counts().flatten())


def test_names_are_text_in_a_notebook() -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    fed = comity.Federation.from_arrays({"a": (x, y), "b": (x, y)})
    object.__setattr__(fed, "name", "<script>alert(1)</script>")
    assert "<script>" not in fed._repr_html_()


def test_colours_stand_out_in_the_light_and_in_the_dark() -> None:
    from comity.html import COLOURS

    def light(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in COLOURS:
        for page in ("#ffffff", "#111111"):
            high, low = sorted((light(colour), light(page)), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 3, (colour, page)


def test_pandas(result: comity.Result, made: comity.Comparison) -> None:
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
    methods = made.to_pandas().set_index("method")
    assert methods.loc["fedavg", "mean"] == pytest.approx(
        np.mean([made.results["fedavg"][seed].summary["accuracy"]["mean"] for seed in (0, 1)])
    )
    assert set(made.to_pandas("answers").party) == {"p0", "p1", "p2"}
    assert len(made.to_pandas("metrics").groupby(["method", "seed"])) == 6


def test_without_pandas_a_sentence(result: comity.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(comity.UsageError, match="pip install pandas"):
        result.to_pandas()


def test_a_comparison(made: comity.Comparison, fed: comity.Federation) -> None:
    assert [row.algorithm for row in made.rows] == ["solo", "fedavg", "fedavg+dbe"]
    assert made.seeds == (0, 1)
    splits = {
        run.job.federation.fingerprint()
        for seeds in made.results.values()
        for run in seeds.values()
    }
    assert splits == {fed.fingerprint()}, "a given federation is the same under every seed"
    assert made.results["fedavg"][0].metrics != made.results["fedavg"][1].metrics, (
        "but a seed changes the draws"
    )
    assert made.results["fedavg+dbe"][0].job.experiment.set == {"kappa": 50}
    shown = unescape(made._repr_html_())
    assert shown.count("<polyline") == 3
    assert all(answer.says in shown for answer in made.answers)
    assert made.reading in shown
    assert repr(made).startswith("<comparison by accuracy: ")


def test_one_run_is_the_comparisons(made: comity.Comparison, fed: comity.Federation) -> None:
    alone = comity.run("fedavg+dbe", fed, seed=1, kappa=50, **SMALL)
    assert alone.metrics == made.results["fedavg+dbe"][1].metrics


def test_a_folder_is_opened(made: comity.Comparison) -> None:
    again = comity.open(made.folder)
    assert isinstance(again, comity.Comparison)
    assert (again.rows, again.answers, again.reading) == (made.rows, made.answers, made.reading)
    one = comity.open(made.folder / "fedavg" / "seed-1")
    assert isinstance(one, comity.Result)
    assert one.metrics == made.results["fedavg"][1].metrics
    for name, tensor in one.model("p1").theta.items():
        assert tensor.equal(made.results["fedavg"][1].model("p1").theta[name])


def test_damage_is_not_opened(made: comity.Comparison, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made.folder, tmp_path / "copy"))
    told = json.loads((copy / "comparison.json").read_text(encoding="utf-8"))
    told["rows"][1]["gained"] = 6
    (copy / "comparison.json").write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(comity.ComityError, match=r"comparison\.json is damaged"):
        comity.open(copy)
    shutil.copy(made.folder / "comparison.json", copy / "comparison.json")
    rows = copy / "fedavg" / "seed-0" / "metrics.csv"
    rows.write_text(rows.read_text(encoding="utf-8").replace("0.", "1.", 1), encoding="utf-8")
    for folder in (copy, rows.parent):
        with pytest.raises(comity.ComityError, match=r"metrics\.csv is damaged"):
            comity.open(folder)


def test_what_is_no_run_or_not_finished(made: comity.Comparison, tmp_path: Path) -> None:
    with pytest.raises(comity.UsageError, match="neither a run nor a comparison"):
        comity.open(tmp_path)
    with pytest.raises(comity.UsageError, match="there are runs in seed-0, seed-1"):
        comity.open(made.folder / "fedavg")
    copy = Path(shutil.copytree(made.folder / "fedavg" / "seed-0", tmp_path / "run"))
    (copy / "summary.json").unlink()
    with pytest.raises(comity.UsageError, match="not finished"):
        comity.open(copy)


def test_the_command_lines_comparison_is_opened(tmp_path: Path) -> None:
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
    made = comity.open(tmp_path / "c")
    assert isinstance(made, comity.Comparison)
    assert made.results["fedavg"][1].model("p2").predict(comity.load("digits").x[:2]).shape == (2,)
    same = comity.compare(
        ["fedavg"], parties=3, rounds=1, model="linear", seeds=(0, 1), out=tmp_path / "c"
    )
    assert same.rows == made.rows


def test_tuning(fed: comity.Federation) -> None:
    made = comity.tune("fedprox", fed, grid={"mu": [0.1, 1.0], "lr": [0.1]}, **SMALL)
    assert made.best.validation == max(trial.validation for trial in made.trials)
    assert len(made.to_pandas()) == len(made.trials) == 2
    assert made.best.settings["lr"] == 0.1
    assert "<table" in made._repr_html_()


def test_a_folder_that_was_taken_away(fed: comity.Federation, tmp_path: Path) -> None:
    result = comity.run("fedavg", fed, out=tmp_path / "run", **SMALL)
    shutil.rmtree(tmp_path / "run")
    assert repr(result).startswith("<fedavg: accuracy ")
    for ask in (lambda: result.metrics, lambda: result.model("p0")):
        with pytest.raises(comity.ComityError, match="folder of this run is gone"):
            ask()


# Who watches.


def test_scripts_are_quiet_unless_asked(
    fed: comity.Federation, capfd: pytest.CaptureFixture[str]
) -> None:
    comity.run("fedavg", fed, **SMALL)
    assert capfd.readouterr() == ("", "")
    comity.run("fedavg", fed, progress=True, **SMALL)
    assert "round 2/2" in capfd.readouterr().err


# Frames.


def test_frames_columns_go_by_their_names() -> None:
    rng = np.random.default_rng(0)
    x, y = (
        pd.DataFrame(rng.normal(size=(60, 3)), columns=["age", "dose", "days"]),
        np.arange(60) % 2,
    )
    x["dose"] += 4 * y
    turned = x[["dose", "days", "age"]]
    fed = comity.Federation.from_arrays({"north": (x, y), "south": (turned, y)})
    assert (
        [column.name for column in fed.schema.columns] == ["age", "dose", "days"]
        if fed.schema
        else False
    )
    model = comity.run("fedavg", fed, rounds=5, model="linear", lr=0.1).model("south")
    assert model.predict(turned).equal(model.predict(x))
    assert (model.predict(x).numpy() == y).mean() > 0.9
    with pytest.raises(comity.UsageError, match="see 'age'"):
        comity.Federation.from_arrays(
            {"north": (x, y), "south": (x.rename(columns={"age": "weight"}), y)}
        )


# What lies in a folder is not taken for something else.


def test_a_folder_does_not_answer_for_other_data(tmp_path: Path) -> None:
    """A finished comparison, tuning and leave-one-out are taken as they are only for the same
    samples.
    """
    one, other = (
        comity.load("digits").partition("iid|keep(samples=30)", parties=2, seed=seed)
        for seed in (0, 5)
    )
    how: dict[str, Any] = {"rounds": 1, "model": "linear", "progress": False}
    comity.compare(["fedavg"], one, out=tmp_path / "compare", **how)
    comity.compare(["fedavg"], one, out=tmp_path / "compare", **how)
    with pytest.raises(comity.UsageError, match=r"The data of .* have changed since"):
        comity.compare(["fedavg"], other, out=tmp_path / "compare", **how)
    comity.tune("fedavg", one, grid={"lr": [0.1]}, out=tmp_path / "tune", **how)
    with pytest.raises(comity.UsageError, match=r"The data of .* have changed since"):
        comity.tune("fedavg", other, grid={"lr": [0.1]}, out=tmp_path / "tune", **how)


def test_a_folder_does_not_answer_for_another_network(tmp_path: Path) -> None:
    fed = comity.load("digits").partition("iid|keep(samples=30)", parties=2, seed=0)

    def server(layer: type[nn.Module]) -> tuple[nn.Module, nn.Module]:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), layer()), nn.Linear(8, 10)

    how: dict[str, Any] = {"rounds": 1, "progress": False}
    comity.compare(["fedavg"], fed, model=server(nn.ReLU), out=tmp_path / "out", **how)
    comity.compare(["fedavg"], fed, model=server(nn.ReLU), out=tmp_path / "out", **how)
    with pytest.raises(comity.UsageError, match="holds a run of another network"):
        comity.compare(["fedavg"], fed, model=server(nn.Tanh), out=tmp_path / "out", **how)
    run = comity.open(tmp_path / "out" / "fedavg" / "seed-0", fed, model=server(nn.Tanh))
    assert isinstance(run, comity.Result)
    with pytest.raises(comity.UsageError, match="holds a run of another network"):
        run.model("p0")


def test_networks_that_would_be_trained_otherwise_than_meant_are_refused() -> None:
    fed = comity.load("digits").partition("iid|keep(samples=30)", parties=2, seed=0)
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(64, 8).requires_grad_(False)), nn.Linear(8, 10)
    with pytest.raises(comity.UsageError, match=r"has frozen weights \(1.weight, "):
        comity.run("fedavg", fed, model=frozen, rounds=1)
    one = nn.Linear(10, 10)
    tied = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), one), one
    with pytest.raises(comity.UsageError, match="one weight in two places"):
        comity.run("fedavg", fed, model=tied, rounds=1)


def test_what_a_network_draws_for_itself_is_the_same_for_all_methods() -> None:
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


def test_a_comparison_one_of_whose_runs_went_on_is_not_shown_as_one(tmp_path: Path) -> None:
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
    ("call", "said"),
    [
        (lambda fed, here: comity.run("fedavg", fed, num_clients=3), "Did you mean 'parties'"),
        (lambda fed, here: comity.run("fedavg", fed, learning_rate=0.1), "Did you mean 'lr'"),
        (lambda fed, here: comity.run("fedprox", fed, set="mu=1"), "set is a dictionary"),  # type: ignore[arg-type]
        (lambda fed, here: comity.run("fedavg", fed, out=here / "file"), "is a file, not a folder"),
        (lambda fed, here: comity.load([1, 2]), "loaded by its name"),  # type: ignore[arg-type]
        (lambda fed, here: comity.run("fedavg", fed, **SMALL).model(1), "no party called 1"),  # type: ignore[arg-type]
    ],
)
def test_what_people_try_gets_a_sentence(
    call: Any, said: str, fed: comity.Federation, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(comity.UsageError, match=re.escape(said)):
        call(fed, tmp_path)
