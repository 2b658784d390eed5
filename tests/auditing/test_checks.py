"""Checks of what a run did: right runs pass, and runs with a fault in noise, clipping or account are
found out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import comity
from comity.algorithms.dp import Dp, DpAccounting
from comity.auditing import private_training
from comity.auditing.account_check import check_account, epsilons, replies_without_row
from comity.auditing.audit import audit_run
from comity.auditing.finding import Check, Untried
from comity.auditing.noise_check import check_noise, effects_of_step
from comity.auditing.view import View
from comity.core.release import Release
from comity.disclosure import disclose
from comity.privacy import composition
from comity.training import dp_sgd
from comity.training.requests import Private
from comity.training.settings import Training

HOW: dict[str, Any] = {
    "record_messages": True,
    "parties": 4,
    "partition": "iid",
    "rounds": 2,
    "batch": 32,
    "steps": 5,
    "model": "mlp2(width=50)",
}


PRIVATE = "fedavg+dp(noise=1)"


def view_of(folder: Path, method: str = PRIVATE, **more: Any) -> View:
    comity.run(method, out=folder, **HOW | more)
    return View(folder)


def result_of(result: Check | Untried | None) -> Check:
    assert isinstance(result, Check), result
    return result


# --- runs without a fault

LONG = pytest.mark.long

RIGHT: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}),
    ("fedavg", {"batch": 1000, "steps": 1}),
    ("fedavg", {"optimizer": "sgd(momentum=0.9,decay=0.01)", "lr": 0.1}),
    ("fedavg", {"engine": "stacked"}),
    ("fedavg", {"model": "lenet5", "rounds": 1, "parties": 2}),
    ("fedprox(mu=1)", {"lr": 0.1, "steps": 20}),
    ("scaffold", {}),
    ("fedrep", {}),
    ("ditto", {}),
    ("fedbabu", {}),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("method", "more"), [*RIGHT[:4], *(pytest.param(*each, marks=LONG) for each in RIGHT[4:])]
)
def test_right_runs_pass(method: str, more: dict[str, Any], tmp_path: Path) -> None:
    view = view_of(tmp_path / "run", f"{method}+dp(noise=1)", **more)
    noise = result_of(check_noise(view))
    assert noise.verdict == "right", noise.sentence
    assert noise.figures["ratio"] == pytest.approx(
        math.hypot(1, noise.figures["without_noise"]), abs=0.02
    ), "noise and training change the weights independently"
    assert noise.figures["low"] < noise.figures["ratio"] < noise.figures["high"]
    assert noise.figures["with_a_tenth"] < 0.5
    account = result_of(check_account(view))
    assert account.verdict == "right", account.sentence
    assert account.figures["recomputed"] == pytest.approx(view.claimed, rel=1e-3)


def test_results_are_on_the_screen_in_the_file_and_on_the_page(tmp_path: Path) -> None:
    comity.run(PRIVATE, out=tmp_path / "run", **HOW)
    (result,) = comity.audit(tmp_path / "run")
    sentences = [each.sentence for each in result.checks]
    assert len(sentences) == 2
    assert all(f"fedavg+dp(noise=1): {sentence}" in result.sentences for sentence in sentences)
    content = json.loads((tmp_path / "run" / "audit.json").read_text(encoding="utf-8"))
    written = content["runs"][0]["checks"]
    assert [each["says"] for each in written] == sentences
    assert [each["verdict"] for each in written] == ["right", "right"]
    page = (tmp_path / "run" / "audit.html").read_text(encoding="utf-8")
    assert all(sentence in page for sentence in sentences)
    rows = {row[1]: row[2] for row in result.rows()}
    assert rows["noise in messages"].endswith("), right")
    assert rows["account"].endswith(", right")
    disclosed, _ = disclose(tmp_path / "run", "p0")
    assert sentences[1] in disclosed.read_text(encoding="utf-8")


# --- runs with a fault


def noise_a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    """`dp` hands on a tenth of the noise that it declares."""
    wrap_party = Dp.wrap_party

    def mutant(self: Dp, *args: Any) -> Any:
        party = wrap_party(self, *args)
        assert isinstance(party.private, Private)
        return replace(party, private=replace(party.private, noise=party.private.noise / 10))

    monkeypatch.setattr(Dp, "wrap_party", mutant)


def noise_doubled_in_the_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    trained_releases = DpAccounting.trained_releases

    def mutant(self: DpAccounting, *args: Any) -> list[Release]:
        releases = trained_releases(self, *args)
        return [replace(release, noise=2 * release.noise) for release in releases]

    monkeypatch.setattr(DpAccounting, "trained_releases", mutant)


def clipping_by_the_first_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norm of a record's gradient is that of the first layer alone."""
    init = dp_sgd._Linear.__init__

    def mutant(self: dp_sgd._Linear, weight: int, bias: int | None, x: Tensor, dy: Tensor) -> None:
        init(self, weight, bias, x, dy)
        if weight > 0:
            self.squares = torch.zeros_like(self.squares)

    monkeypatch.setattr(dp_sgd._Linear, "__init__", mutant)


def account_with_other_releases(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Release], Release]
) -> None:
    by_distributions, renyi = composition._by_distributions, composition._renyi

    def changed(history: composition.History) -> composition.History:
        return {change(release): count for release, count in history.items()}

    monkeypatch.setattr(
        composition, "_by_distributions", lambda h, delta: by_distributions(changed(h), delta)
    )
    monkeypatch.setattr(composition, "_renyi", lambda h, delta: renyi(changed(h), delta))
    composition._epsilon.cache_clear()


def account_that_squares_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    account_with_other_releases(monkeypatch, lambda release: replace(release, rate=release.rate**2))


def account_that_forgets_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    account_with_other_releases(monkeypatch, lambda release: replace(release, steps=1))


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], set[str]] = {
    noise_a_tenth: {"noise in messages", "canaries"},
    noise_doubled_in_the_declaration: {"noise in messages", "canaries"},
    clipping_by_the_first_layer: {"canaries"},
    account_that_squares_the_rate: {"account"},
    account_that_forgets_steps: {"account"},
}
"""Faults, each with what finds it."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_run_with_a_fault_is_found_out(
    mutant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    monkeypatch.setattr(private_training, "MOST_STEPS", 1500)
    try:
        comity.run(PRIVATE, out=tmp_path / "run", **HOW)
        result = audit_run(tmp_path / "run")
    finally:
        composition._epsilon.cache_clear()
    found = {each.name for each in result.checks if each.verdict == "wrong"}
    assert result.canaries is not None
    if result.canaries.refuted:
        found.add("canaries")
    assert found >= MUTANTS[mutant]
    assert result.sentences[0].startswith(
        (f"{PRIVATE}: What the run declares is wrong:", f"{PRIVATE}: The claim is refuted:")
    )


def test_a_run_of_faulty_code_is_found_out_by_right_code(tmp_path: Path) -> None:
    """The messages and tables alone show it: the fault need not be in the code of the audit."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        noise_a_tenth(monkeypatch)
        comity.run(PRIVATE, out=tmp_path / "run", **HOW)
    noise = result_of(check_noise(View(tmp_path / "run")))
    assert noise.verdict == "wrong"
    assert noise.figures["high"] < 0.3


def test_rows_that_are_missing_in_the_account_are_found(tmp_path: Path) -> None:
    view = view_of(tmp_path / "run")
    rows = view.folder.read_privacy()
    assert replies_without_row(view, rows) == 0
    assert replies_without_row(view, [row for row in rows if row.round == 1]) == 4


# --- where a check cannot be made, or has no power


@pytest.mark.parametrize(
    ("method", "more", "why"),
    [
        ("fedavg", {"optimizer": "adam"}, "with adam the noise in the weights depends on"),
        ("fedavg", {"init": "own"}, "does not train from the weights that it gets"),
        ("fed-mtl", {}, "no party sends back the weights that it gets"),
        (
            "fedavg",
            {"optimizer": "sgd(momentum=0.9)", "opt_state": "keep"},
            "momentum is kept from round to round",
        ),
    ],
)
def test_what_cannot_be_derived_is_said(
    method: str, more: dict[str, Any], why: str, tmp_path: Path
) -> None:
    untried = check_noise(view_of(tmp_path / "run", f"{method}+dp(noise=1)", **more))
    assert isinstance(untried, Untried)
    assert why in untried.sentence


def test_a_training_that_hides_the_noise_is_said_to_do_so(tmp_path: Path) -> None:
    """Little noise and long training of a small model: the check cannot tell whether it is there."""
    view = view_of(
        tmp_path / "run", "fedavg+dp(noise=0.3)", model="linear", batch=1000, steps=30, lr=0.5
    )
    noise = result_of(check_noise(view))
    assert noise.verdict == "no power"
    assert noise.figures["without_noise"] > 0.9
    assert "cannot be told" in noise.sentence


def test_runs_without_a_claim_are_not_checked(tmp_path: Path) -> None:
    view = view_of(tmp_path / "run", "fedavg")
    assert check_noise(view) is None
    assert check_account(view) is None


@pytest.mark.parametrize("method", ["fedavg+dp(noise=2,level=party)", "relay+ldp(noise=2)"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_accounts_of_other_units_are_recomputed(method: str, tmp_path: Path) -> None:
    view = view_of(tmp_path / "run", method, participation=0.5)
    assert check_noise(view) is None
    account = result_of(check_account(view))
    assert account.verdict == "right", account.sentence


def test_a_field_without_noise_makes_the_account_infinite(tmp_path: Path) -> None:
    rows = view_of(tmp_path / "run").folder.read_privacy()
    unprotected = rows[0]._replace(mechanism="none", noise=0.0, sensitivity=0.0)
    assert math.isfinite(epsilons(rows, 1e-5)["p0"])
    assert math.isinf(epsilons([*rows, unprotected], 1e-5)["p0"])


# --- how the optimizer carries noise


@pytest.mark.parametrize(
    ("momentum", "decay", "pull"), [(0.0, 0.0, 0.0), (0.9, 0.0, 0.0), (0.9, 0.1, 0.0), (0.5, 0, 2)]
)
def test_the_effect_of_noise_is_that_of_the_optimizer(
    momentum: float, decay: float, pull: float
) -> None:
    """Against torch's own SGD, whose gradient is one unit in the first step."""
    weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=momentum, weight_decay=decay)
    expected = []
    for step in range(6):
        weight.grad = torch.tensor(float(step == 0), dtype=torch.float64) + pull * weight.detach()
        optimizer.step()
        expected.append(weight.item())
    how = Training("sgd", lr=0.1, momentum=momentum, decay=decay)
    assert effects_of_step(how, 6, pull) == pytest.approx(expected)
