"""DP-SGD (`+dp`) around every method: the run has a finite guarantee, or the method is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import comity
from comity import algorithms
from comity.core import UsageError, Wrapper
from comity.core.wrapper import chain
from comity.runs.extend import extend

METHODS = [name for name in algorithms.names() if not issubclass(algorithms.find(name), Wrapper)]
METHODS_WITH_OWN_MODELS = {"apple", "ditto", "fed-mtl", "fml"}
AVERAGING_METHODS = {
    "fedavg",
    "fedprox",
    "scaffold",
    "moon",
    "fedbabu",
    "fedbn",
    "feddyn",
    "fedper",
    "fedrep",
    "fedreptile",
    "lg-fedavg",
}
SUPPORTED = {*METHODS_WITH_OWN_MODELS, *AVERAGING_METHODS, "solo"}
REFUSED = {
    "fedavg+dbe": "couples the records of a batch",
    "fedper+mr": "couples the records of a batch",
    "adcol": "of single records",
    "adcol(noise=lap_l1,rep_mode=last_epoch)": "reads a party's samples itself",
}


@pytest.fixture(scope="module")
def federation() -> comity.Federation:
    digits = comity.load("digits")
    cuts = {"north": (0, 47), "east": (47, 80), "south": (80, 140)}
    return comity.Federation.from_arrays(
        {name: (digits.x[a:b], digits.y[a:b]) for name, (a, b) in cuts.items()}, classes=10
    )


def run(text: str, federation: comity.Federation, **more: Any) -> comity.Result:
    usual: dict[str, Any] = {"rounds": 2, "model": "mlp2(width=8)", "engine": "loop"}
    return comity.run(text, federation, **usual | more)


def run_or_refusal(text: str, federation: comity.Federation) -> comity.Result | UsageError:
    try:
        return run(text, federation)
    except UsageError as refusal:
        return refusal


@pytest.mark.sweep("fedavg", "scaffold", "fedbn", "ditto")
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_with_a_bound_or_is_refused(
    name: str, federation: comity.Federation
) -> None:
    """A method outside SUPPORTED may also run; the same checks then apply."""
    result = run_or_refusal(f"{name}+dp(noise=1)", federation)
    if isinstance(result, UsageError):
        assert "+dp cannot be: " in str(result)
        assert name not in SUPPORTED
        return
    guarantee = result.summary["privacy"]
    assert guarantee["unprotected"] == []
    assert result.model("north").theta  # also where the server has no state of the host
    if name == "solo":
        assert guarantee["epsilon"] == 0
        return
    assert guarantee["unit"] == "record"
    # The steps accounted for before each call equal the steps trained, and the plan's guarantee.
    rows = [row for row in result.privacy if row.mechanism == "gaussian"]
    assert sum(row.steps for row in rows) == result.summary["steps"]
    planned_guarantee = result.job.privacy.guarantees()
    assert planned_guarantee["parties"] == guarantee["parties"]


@pytest.mark.parametrize(("text", "why"), REFUSED.items())
def test_unsupported_methods_are_refused(
    text: str, why: str, federation: comity.Federation
) -> None:
    with pytest.raises(UsageError, match=why):
        run(f"{text}+dp(noise=1)", federation)


def test_a_network_with_batchnorm_is_refused(federation: comity.Federation) -> None:
    with pytest.raises(UsageError, match="BatchNorm couples"):
        run("fedavg+dp(noise=1)", federation, model="fedbn-cnn(scale=0.06)")


BYPASSES = {
    "looks at samples": ("len(party.data.train.y.unique())", "reads a party's samples itself"),
    "folds": ("await party.fold(lambda s, b: s, m.theta, key)", "takes steps of its own"),
    "brings samples": (
        "(await party.fit(plain, m.theta, key, samples=Samples(None, None)))",
        "trains with samples of its own",
    ),
    "trains once more": (
        "(await party.fit(plain, m.theta, key.fold(1)))",
        "trains otherwise than its method declares",
    ),
}


@pytest.mark.parametrize("bypass", BYPASSES)
def test_method_that_bypasses_dp_sgd_is_refused(
    bypass: str, federation: comity.Federation, tmp_path: Path
) -> None:
    line, why = BYPASSES[bypass]
    method = tmp_path / "peeking.py"
    method.write_text(
        f'''"""FedAvg that does something else, too."""
from comity.algorithms.fedavg import FedAvg
from comity.core import *


@algorithm
class Peeking(FedAvg):
    @on_party
    async def local(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        {line}
        return await super().local(state, m, party, key)
'''
    )
    with pytest.raises(comity.ComityError, match=why):
        run(f"{method}+dp(noise=1)", federation)


def test_noise_on_rows_of_a_private_model_protects_records(
    federation: comity.Federation, recwarn: pytest.WarningsRecorder
) -> None:
    """If ADCOL's encoders are trained with DP-SGD, noise on a row protects its record."""
    text = "adcol(noise=gauss_l2,epsilon=1,delta=1e-5,disc=linear)"
    with pytest.warns(UserWarning, match="protects a row"):
        rows = run(text, federation, rounds=1)
    recwarn.clear()
    adcol_dp_run = run(f"{text}+dp(noise=2)", federation, rounds=1)
    assert not [warning for warning in recwarn if "row" in str(warning.message)]
    fedavg_run = run("fedavg+dp(noise=2)", federation, rounds=1)
    row_guarantee, record_guarantee, model_guarantee = (
        result.summary["privacy"] for result in (rows, adcol_dp_run, fedavg_run)
    )
    assert (row_guarantee["unit"], record_guarantee["unit"], record_guarantee["unprotected"]) == (
        "row",
        "record",
        [],
    )
    assert (
        max(row_guarantee["epsilon"], model_guarantee["epsilon"])
        < record_guarantee["epsilon"]
        < row_guarantee["epsilon"] + model_guarantee["epsilon"]
    )
    assert {row.release for row in adcol_dp_run.privacy} == {"Reps.z", "Reps.z, Reps.shared"}


# --- Parties


def test_party_level_clips_updates_and_adds_noise_to_the_mean(
    federation: comity.Federation,
) -> None:
    result = run("fedavg+dp(level=party,noise=0,clip=0.01)", federation, rounds=1)
    before = result.job.algorithm.init_server(result.job.root.fold("init"), result.job.info).host
    after = result.model("north").theta
    change = torch.cat([(after[name] - before[name]).flatten() for name in before])
    assert change.norm().item() <= 0.01 * (1 + 1e-4)
    noisy_theta = (
        run("fedavg+dp(level=party,noise=3,clip=0.01)", federation, rounds=1).model("north").theta
    )
    spread = (
        torch.cat([(noisy_theta[name] - after[name]).flatten() for name in before]).std().item()
    )
    assert spread == pytest.approx(3 * 0.01 / 3, rel=0.1)


def test_party_level_guarantee_with_a_trusted_server(federation: comity.Federation) -> None:
    guarantee = run("fedavg+dp(level=party,noise=4)", federation).summary["privacy"]
    assert guarantee["epsilon"] == "infinite"
    assert guarantee["trusted_server"]["unit"] == "party"
    amplified = run("fedavg+dp(level=party,noise=4)", federation, participation=0.34).summary[
        "privacy"
    ]["trusted_server"]
    without_amplification = run(
        "fedavg+dp(level=party,noise=4,amplify=false)", federation, participation=0.34
    ).summary["privacy"]
    assert amplified["neighbours"] == "replaced"
    assert len(amplified["parties"]) == 3  # each may have been sampled
    assert (
        len(without_amplification["trusted_server"]["parties"]) <= 2
    )  # only sampled parties have a cost


# --- Budgets


def test_noise_is_solved_from_a_budget(federation: comity.Federation, tmp_path: Path) -> None:
    result = run("fedavg+dp", federation, budget="epsilon=4,delta=1e-5", out=tmp_path / "run")
    assert 3.9 < result.summary["privacy"]["epsilon"] <= 4
    assert result.job.experiment.set["dp.noise"] > 0.5
    assert result.summary["rounds"] == 2
    with pytest.raises(UsageError, match="has a privacy budget"):
        extend(tmp_path / "run", 4)


def test_run_and_resumed_run_stop_before_they_exceed_the_budget(
    federation: comity.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")
    epsilon_of_one_round = run("fedavg+dp(noise=2)", federation, rounds=1).summary["privacy"][
        "epsilon"
    ]
    settings: dict[str, Any] = {"rounds": 9, "budget": f"epsilon={1.9 * epsilon_of_one_round:.3f}"}
    uninterrupted_run = run("fedavg+dp(noise=2)", federation, out=tmp_path / "whole", **settings)
    assert 1 < uninterrupted_run.summary["rounds"] < 9
    assert uninterrupted_run.summary["privacy"]["epsilon"] <= 1.9 * epsilon_of_one_round
    assert "privacy budget" in uninterrupted_run.summary["discarded"][0]["why"]
    called_rounds = {row.round for row in uninterrupted_run.ledger if row.call == "local"}
    assert (
        max(called_rounds) == uninterrupted_run.summary["rounds"] - 1
    )  # no calls in the last round

    class Stop(Exception):
        pass

    from comity.runs.server_run import Quiet

    class StopAfterRound2(Quiet):
        def round(self, t: int, figure: float | None, ledger: Any) -> None:
            if t == 2:
                raise Stop

    with pytest.raises(Stop):
        run(
            "fedavg+dp(noise=2)",
            federation,
            out=tmp_path / "stopped",
            progress=StopAfterRound2(),
            **settings,
        )
    run("fedavg+dp(noise=2)", federation, out=tmp_path / "stopped", resume=True, **settings)
    for name in ("metrics.csv", "ledger.csv", "privacy.csv"):
        assert (tmp_path / "stopped" / name).read_bytes() == (
            tmp_path / "whole" / name
        ).read_bytes()


@pytest.mark.parametrize(
    ("text", "budget", "why"),
    [
        ("fedavg", "epsilon=3", "cannot keep to a budget"),
        ("fedavg+dp", None, "needs to know how much noise"),
        ("fedavg+dp", "epsilon=-1", "A budget is epsilon > 0"),
        ("fedavg+dp", "eps=1", "There is no option of budget called 'eps'"),
    ],
)
def test_invalid_budgets_are_refused(
    text: str, budget: str | None, why: str, federation: comity.Federation
) -> None:
    with pytest.raises(UsageError, match=why):
        run(text, federation, budget=budget)


def test_account_without_dp_accounting_is_looser(
    federation: comity.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comity.privacy import composition

    tight = run("fedavg+dp(noise=1)", federation).summary["privacy"]
    composition._epsilon.cache_clear()
    monkeypatch.setattr(composition, "accountant", lambda: "renyi")
    monkeypatch.setattr("comity.privacy.account.accountant", lambda: "renyi")
    loose = run("fedavg+dp(noise=1)", federation).summary["privacy"]
    composition._epsilon.cache_clear()
    assert tight["epsilon"] < loose["epsilon"] < 1.5 * tight["epsilon"]
    assert "looser" in loose["assumptions"][-1]


def test_dp_around_another_wrapper(federation: comity.Federation) -> None:
    method = algorithms.compose("fedprox+prbm+dp(noise=1)")
    assert [type(part).__name__ for part in chain(method)] == ["Dp", "Prbm", "FedProx"]
    assert math.isfinite(
        run("fedprox+prbm+dp(noise=1)", federation, rounds=1).summary["privacy"]["epsilon"]
    )
