"""DP-SGD (`+dp`) around every method: the run has a finite guarantee, or the method is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import comity
from comity import algorithms
from comity.algorithms.dp import Dp, clipped
from comity.base.call import CallId, Message
from comity.core import Info, Key, Release, UsageError, Wrapper
from comity.core.aggregate import Averaging
from comity.core.wrapper import chain
from comity.engines.site import Site
from comity.privacy.account import PrivacyCharge
from comity.runs.build import prepare
from comity.runs.config import experiment
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
        assert "dp is not supported with " in str(result)
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


ONE_STEP: dict[str, Any] = {"model": "linear", "steps": 1, "batch": 20, "lr": 1.0, "rounds": 1}
"""One step, after which a model is its noise and little else."""


def reply_and_releases(
    text: str, federation: comity.Federation
) -> tuple[torch.Tensor, list[PrivacyCharge]]:
    """How a party's reply differs from the message, and what the account charges for it."""
    settings = {"algorithm": text, "data": "given", "seed": 0, **ONE_STEP}
    job = prepare(experiment(settings), federation)
    call = CallId("local", 1, 1, 0)
    host = chain(job.algorithm)[1]
    message = host.message_for(host.init_server(job.root.fold("init"), job.info), 0)
    reply = (
        Site(job.algorithm, job.parties[0], job.root).run(call, Message(message, None), {}).reply
    )
    account = job.privacy.account()
    account.charge_call(call, [0])
    change = [(reply.theta[name] - value).flatten() for name, value in message.theta.items()]
    return torch.cat(change), account.take()


@pytest.mark.parametrize("clip", [0.1, 1.0])
def test_the_noise_in_a_model_is_the_noise_that_is_charged(
    clip: float, federation: comity.Federation
) -> None:
    """A step adds the mean of clipped gradients and noise. The noise is so large here that the
    spread of the change is that of the noise.
    """
    change, charges = reply_and_releases(f"fedavg+dp(noise=20,clip={clip})", federation)
    assert len(charges) == 1
    assert charges[0].sensitivity == clip
    assert change.std().item() == pytest.approx(charges[0].noise / ONE_STEP["batch"], rel=0.08)


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


@pytest.mark.parametrize("cohort", [[0, 1, 2], [0, 2]], ids=["all", "drawn"])
def test_one_party_moves_the_mean_by_no_more_than_is_declared(
    cohort: list[int], federation: comity.Federation
) -> None:
    """The neighbour of a party is one that changes nothing (blank) or, in a drawn cohort, any other
    one (replaced).
    """
    clip = 0.3
    settings = {"algorithm": f"fedavg+dp(level=party,noise=2,clip={clip})", "rounds": 1}
    job = prepare(experiment(settings | {"model": "linear", "data": "given"}), federation)
    release = job.algorithm.accounting.server_release(job.info, cohort)
    assert release is not None
    far = {"w": torch.full((50,), 100.0)}
    change, opposite = clipped(far, clip), clipped({"w": -far["w"]}, clip)
    neighbour = opposite if release.neighbours == "replaced" else {"w": torch.zeros(50)}
    means = []
    for first in (change, neighbour):
        mean = Averaging()
        for number in range(len(cohort)):
            mean.add(change if number else first, 1.0)
        means.append(mean.value()["w"])
    assert (means[0] - means[1]).norm().item() == pytest.approx(release.sensitivity)


class ServerOfThree:
    """A server whose cohort has three parties. It notes what is released."""

    round = 1

    def __init__(self, info: Info) -> None:
        self.info = info
        self.releases: list[Release] = []

    def sample(self, t: int) -> list[int]:
        return [0, 1, 2]

    def key(self, purpose: str) -> Key:
        return Key(5)

    def release(self, name: str, how: Release, ids: Iterable[int]) -> None:
        self.releases.append(how)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_mean_of_fewer_models_has_more_noise(count: int, federation: comity.Federation) -> None:
    """Each model weighs more in it, whatever the size of the cohort was."""
    noise, clip = 2.0, 0.3
    settings = {"algorithm": f"fedavg+dp(level=party,noise={noise},clip={clip})", "rounds": 1}
    job = prepare(experiment(settings | {"model": "linear", "data": "given"}), federation)
    assert isinstance(job.algorithm, Dp)
    server = ServerOfThree(job.info)
    averaging = job.algorithm.averaging(cast(Any, server))
    assert averaging is not None
    for _ in range(count):
        averaging.add({"w": torch.ones(5000)}, 1.0)
    spread = (averaging.value()["w"] - 1).std().item()
    [release] = server.releases
    assert release.sensitivity == pytest.approx(clip / count)
    assert release.noise == pytest.approx(noise * clip / count)
    assert spread == pytest.approx(release.noise, rel=0.05)


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


def test_a_loss_that_couples_records_is_refused(
    federation: comity.Federation, tmp_path: Path
) -> None:
    """Clipping bounds the influence of a record only if the loss is a mean over records."""
    method = tmp_path / "coupling.py"
    method.write_text('''"""FedAvg with a loss that looks at all logits of a batch."""
from comity.algorithms.fedavg import FedAvg
from comity.core import *


def coupling(task, theta, batch, aux):
    return task.loss(theta, batch) + task.logits(theta, batch.x).mean(0).square().sum()


@algorithm
class Coupling(FedAvg):
    async def train_locally(self, theta: Params, m: Model, party: Party, key: Key) -> Params:
        return (await party.fit(coupling, theta, key)).theta
''')
    with pytest.raises(comity.ComityError, match="couples the samples of a batch"):
        run(f"{method}+dp(noise=1)", federation)


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
