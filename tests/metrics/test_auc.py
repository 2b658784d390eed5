"""The area under the ROC curve that a party computes at the end equals scikit-learn's, and is
missing where it is undefined.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

import comity
from comity.core import PartyData, Samples
from comity.data import Dataset
from comity.data.groups import Groups
from comity.metrics.evaluation import evaluate

pytestmark = pytest.mark.quick


class Parrot:
    """A task whose logits are its input."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def logits(self, theta: object, x: Tensor) -> Tensor:
        return x


def area(logits: Tensor, labels: Tensor) -> float | None:
    """The AUC that a party computes at the end from these logits."""
    test = Samples(logits, labels)
    none = test.take([])
    evaluation = evaluate(Parrot(logits.shape[1]), {}, PartyData(none, none, test), final=True)  # type: ignore[arg-type]
    return evaluation.test.figures.get("auc" if logits.shape[1] == 2 else "auc_micro")


scores = st.one_of(
    st.floats(-50, 50, width=32),
    st.integers(-2, 2).map(float),  # many ties
)


def draws(classes: int) -> st.SearchStrategy[tuple[list[int], list[list[float]]]]:
    """Labels and logits of 2 to 40 samples."""
    return st.integers(2, 40).flatmap(lambda n: st.tuples(
        st.lists(st.integers(0, classes - 1), min_size=n, max_size=n),
        st.lists(st.lists(scores, min_size=classes, max_size=classes), min_size=n, max_size=n),
    ))  # fmt: skip


@pytest.mark.slow
@settings(deadline=None, max_examples=150, derandomize=True)
@given(draws(2))
def test_two_classes_are_scikit_learns(
    labels_and_logits: tuple[list[int], list[list[float]]],
) -> None:
    labels, logits = torch.tensor(labels_and_logits[0]), torch.tensor(labels_and_logits[1])
    assume(len(set(labels_and_logits[0])) == 2)
    expected = roc_auc_score(labels, (logits[:, 1] - logits[:, 0]).numpy())
    assert area(logits, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_two_classes_by_the_softmax(seed: int) -> None:
    """The difference of the logits orders samples, ties too, as the second class's probability
    does.
    """
    draw = np.random.default_rng(seed)
    logits = torch.from_numpy(draw.integers(-3, 4, (30, 2))).double()
    labels = torch.from_numpy(np.append(draw.integers(0, 2, 28), [0, 1]))
    probabilities = logits.softmax(1)[:, 1].numpy().round(12)
    assert area(logits, labels) == pytest.approx(roc_auc_score(labels, probabilities), abs=1e-12)


@pytest.mark.slow
@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.integers(3, 6).flatmap(lambda c: st.tuples(st.just(c), draws(c))))
def test_more_classes_are_scikit_learns_micro_average(
    example: tuple[int, tuple[list[int], list[list[float]]]],
) -> None:
    classes, (labels, logits) = example
    assume(len(set(labels)) > 1)
    one_hot = np.eye(classes)[labels]
    expected = roc_auc_score(one_hot, np.array(logits, dtype=np.float32), average="micro")
    assert area(torch.tensor(logits), torch.tensor(labels)) == pytest.approx(expected, abs=1e-12)


def test_by_hand() -> None:
    logits = torch.tensor(
        [[0.0, 1.0], [0.0, 4.0], [2.0, 6.0], [9.0, 17.0]]
    )  # differences 1, 4, 4 and 8
    assert area(logits, torch.tensor([0, 0, 1, 1])) == 3.5 / 4
    assert (
        area(logits, torch.tensor([1, 1, 0, 0])) == 0.5 / 4
    )  # the second class is the positive one
    assert area(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0])) == 0.5
    three = torch.tensor([[3.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    # the pairs that are right score 3 and 1, the wrong ones 1, 0, 2 and 0: (4 + 2.5) of 8
    assert area(three, torch.tensor([0, 1])) == 6.5 / 8


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
@pytest.mark.parametrize("label", [0, 1])
def test_one_class_has_none(classes: int, label: int) -> None:
    if label < classes:
        assert area(torch.rand(9, classes), torch.full((9,), label)) is None


def test_diverged_models_have_no_auc() -> None:
    labels = torch.tensor([0, 1, 0, 1])
    for logits in (
        torch.full((4, 2), math.nan),
        torch.full((4, 3), math.nan),
        torch.full((4, 2), math.inf),
    ):
        value = area(logits, labels)
        assert value is not None
        assert math.isnan(value)
    assert area(torch.tensor([[0.0, math.inf], [0.0, -math.inf]]), torch.tensor([1, 0])) == 1


# --- in a run


@cache
def sites(classes: int) -> comity.Federation:
    """Three sites; the last one's test samples are all of one class."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, classes, 240)
    of = np.arange(240) % 3
    in_test = np.arange(240) >= 120
    y[(of == 2) & in_test] = classes - 1
    x = draw.normal(size=(240, 6)) + 0.7 * np.eye(6)[y]
    data = Dataset(
        "sites",
        torch.from_numpy(x),
        torch.from_numpy(y),
        classes,
        mean=(0.0,),
        std=(1.0,),
        official_test=torch.from_numpy(in_test),
        groups={"site": Groups(("ann", "bob", "cyd"), of)},
    )
    return data.partition("natural", test="official", validation=0.2)


def run(classes: int, out: Path, text: str = "fedavg", **more: Any) -> comity.Result:
    usual: dict[str, Any] = {"model": "mlp2(width=8)", "rounds": 3, "lr": 0.05, "engine": "loop"}
    return comity.run(text, sites(classes), out=out, **(usual | more))


def by_hand(result: comity.Result, name: str) -> float:
    test = sites(result.job.federation.classes).parties[name].test
    logits = result.model(name).logits(test.x)
    if logits.shape[1] == 2:
        return float(roc_auc_score(test.y, (logits[:, 1] - logits[:, 0]).numpy()))
    return float(roc_auc_score(np.eye(logits.shape[1])[test.y], logits.numpy(), average="micro"))


@pytest.mark.parametrize(("classes", "metric"), [(2, "auc"), (4, "auc_micro")])
@pytest.mark.parametrize("text", ["fedavg", "solo", "fedper"])
def test_a_run_reports_auc_at_its_end(classes: int, metric: str, text: str, tmp_path: Path) -> None:
    result = run(classes, tmp_path, text)
    rows = [row for row in result.metrics if row.metric.startswith("auc")]
    expected = {name: by_hand(result, name) for name in ("ann", "bob")}
    assert [(r.round, r.party, r.split, r.metric) for r in rows] == [
        (3, name, "test", metric) for name in expected
    ]
    assert {r.party: r.value for r in rows} == pytest.approx(expected, abs=1e-12)
    auc = json.loads((tmp_path / "summary.json").read_text())["auc"]
    assert auc == result.summary["auc"]
    assert auc["per_party"] == pytest.approx(expected, abs=1e-12)  # cyd has one class, and none
    assert auc["mean"] == pytest.approx(sum(expected.values()) / 2, abs=1e-12)
    assert 0.5 < auc["mean"] < 1


def test_each_party_sends_one_number_per_metric(tmp_path: Path) -> None:
    """Two scores of three numbers go to the server each round. At the end the answers follow
    (truth, answer and score of each test sample) and one number for each metric. The samples of cyd
    have one class only, so that it has neither AUC nor specificity, and of the measures of
    calibration the Brier score alone.
    """
    result = run(2, tmp_path)
    eval_bytes = {
        (r.round, r.src): r.bytes for r in result.ledger if r.kind == "eval" and r.src != "server"
    }
    tests = {name: len(party.test) for name, party in sites(2).parties.items()}
    metrics = {"ann": 8, "bob": 8, "cyd": 4}
    final = {name: 24 + 12 * tests[name] + 4 * many for name, many in metrics.items()}
    assert eval_bytes == {(t, name): 24 for t in range(3) for name in final} | {
        (3, name): size for name, size in final.items()
    }


def test_engines_agree(tmp_path: Path) -> None:
    loop, process = (
        run(4, tmp_path / "loop"),
        run(4, tmp_path / "process", engine="process", workers=2),
    )
    assert loop.summary["auc"] == process.summary["auc"]
    assert loop.metrics == process.metrics


def test_auc_is_of_the_model_after_finish(tmp_path: Path) -> None:
    """A method that tunes at the end is evaluated twice there; AUC is from the second evaluation."""
    result = run(2, tmp_path, "fedbabu", rounds=2)
    assert result.summary["accuracy"]["unfinished"] is not None
    assert result.summary["auc"]["per_party"] == pytest.approx(
        {n: by_hand(result, n) for n in ("ann", "bob")}, abs=1e-12
    )
    assert len([row for row in result.metrics if row.metric == "auc"]) == 2


def test_rounds_without_an_evaluation_do_not_matter(tmp_path: Path) -> None:
    every_round, every_second_round = run(2, tmp_path / "a"), run(2, tmp_path / "b", eval_every=2)
    assert every_round.summary["auc"] == every_second_round.summary["auc"]


def test_a_run_in_which_no_party_has_auc_reports_none(tmp_path: Path) -> None:
    x, y = torch.rand(60, 3), torch.arange(60) // 30
    fed = Dataset("apart", x, y, 2).partition("pathological(classes=1)", 2)
    result = comity.run("fedavg", fed, model="linear", rounds=1, out=tmp_path, engine="loop")
    assert result.summary["auc"] is None
    assert json.loads((tmp_path / "summary.json").read_text())["auc"] is None
    assert not [row for row in result.metrics if row.metric.startswith("auc")]


def test_newcomers_have_no_auc(tmp_path: Path) -> None:
    result = run(2, tmp_path, newcomers=2, join_epochs=1)
    assert set(result.summary["auc"]["per_party"]) == {"ann"}


# --- what was wrong once


def test_the_summary_of_a_run_that_diverged_is_json(tmp_path: Path) -> None:
    result = run(2, tmp_path, lr=1e30, model="mlp2(width=8)")
    assert result.summary["discarded"], "nothing that is not finite is kept"

    def refuse(word: str) -> None:
        raise ValueError(word)

    json.loads((tmp_path / "summary.json").read_text(), parse_constant=refuse)
