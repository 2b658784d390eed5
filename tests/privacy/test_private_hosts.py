"""Private training around every method: it runs with an account that is bounded and kept to, or it
is refused in a sentence.
"""

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
OWN_MODELS = {"apple", "ditto", "fed-mtl", "fml"}
AVERAGED = {
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
RUN = {*OWN_MODELS, *AVERAGED, "solo"}
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
    """A method that is not in RUN may run, too: then the same holds of it."""
    result = run_or_refusal(f"{name}+dp(noise=1)", federation)
    if isinstance(result, UsageError):
        assert "+dp cannot be: " in str(result)
        assert name not in RUN
        return
    told = result.summary["privacy"]
    assert told["unprotected"] == []
    assert result.model("north").theta  # also where the server keeps nothing but its wrapping
    if name == "solo":
        assert told["epsilon"] == 0
        return
    assert told["unit"] == "record"
    # What was accounted for before each call is what was trained, and what a plan says.
    rows = [row for row in result.privacy if row.mechanism == "gaussian"]
    assert sum(row.steps for row in rows) == result.summary["steps"]
    planned = result.job.privacy.guarantees()
    assert planned["parties"] == told["parties"]


@pytest.mark.parametrize(("text", "why"), REFUSED.items())
def test_what_cannot_be_private_says_why(
    text: str, why: str, federation: comity.Federation
) -> None:
    with pytest.raises(UsageError, match=why):
        run(f"{text}+dp(noise=1)", federation)


def test_a_network_with_batchnorm_is_refused(federation: comity.Federation) -> None:
    with pytest.raises(UsageError, match="BatchNorm couples"):
        run("fedavg+dp(noise=1)", federation, model="fedbn-cnn(scale=0.06)")


PEEKS = {
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


@pytest.mark.parametrize("peek", PEEKS)
def test_what_goes_around_the_trainer_is_refused_and_not_ignored(
    peek: str, federation: comity.Federation, tmp_path: Path
) -> None:
    line, why = PEEKS[peek]
    method = tmp_path / "peeking.py"
    method.write_text(
        f'''"""FedAvg that does something else, too."""
from comity.algorithms.fedavg import FedAvg
from comity.core import *


@algorithm
class Peeking(FedAvg):
    @on_party
    async def local(self, mine: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        {line}
        return await super().local(mine, m, party, key)
'''
    )
    with pytest.raises(comity.ComityError, match=why):
        run(f"{method}+dp(noise=1)", federation)


def test_rows_of_a_private_model_are_records(
    federation: comity.Federation, recwarn: pytest.WarningsRecorder
) -> None:
    """ADCOL whose encoders are trained privately: then noise on a row protects the record that it
    is of.
    """
    text = "adcol(noise=gauss_l2,epsilon=1,delta=1e-5,disc=linear)"
    with pytest.warns(UserWarning, match="protects a row"):
        rows = run(text, federation, rounds=1)
    recwarn.clear()
    both = run(f"{text}+dp(noise=2)", federation, rounds=1)
    assert not [warning for warning in recwarn if "row" in str(warning.message)]
    trained = run("fedavg+dp(noise=2)", federation, rounds=1)
    alone, together, models = (result.summary["privacy"] for result in (rows, both, trained))
    assert (alone["unit"], together["unit"], together["unprotected"]) == ("row", "record", [])
    assert (
        max(alone["epsilon"], models["epsilon"])
        < together["epsilon"]
        < alone["epsilon"] + models["epsilon"]
    )
    assert {row.release for row in both.privacy} == {"Reps.z", "Reps.z, Reps.shared"}


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


def test_a_partys_change_is_clipped_and_the_mean_noised(federation: comity.Federation) -> None:
    result = run("fedavg+dp(level=party,noise=0,clip=0.01)", federation, rounds=1)
    before = result.job.algorithm.init_server(result.job.root.fold("init"), result.job.info).host
    after = result.model("north").theta
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    assert moved.norm().item() <= 0.01 * (1 + 1e-4)
    noisy = (
        run("fedavg+dp(level=party,noise=3,clip=0.01)", federation, rounds=1).model("north").theta
    )
    spread = torch.cat([(noisy[name] - after[name]).flatten() for name in before]).std().item()
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


def test_what_a_trusted_server_makes_known_is_a_partys(federation: comity.Federation) -> None:
    whole = run("fedavg+dp(level=party,noise=4)", federation).summary["privacy"]
    assert whole["epsilon"] == "infinite"
    assert whole["trusted_server"]["unit"] == "party"
    drawn = run("fedavg+dp(level=party,noise=4)", federation, participation=0.34).summary[
        "privacy"
    ]["trusted_server"]
    open_ = run(
        "fedavg+dp(level=party,noise=4,amplify=false)", federation, participation=0.34
    ).summary["privacy"]
    assert drawn["neighbours"] == "replaced"
    assert len(drawn["parties"]) == 3  # all may have been drawn
    assert len(open_["trusted_server"]["parties"]) <= 2  # only who was drawn has anything to lose


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


def test_a_budget_finds_the_noise_and_is_kept_to(
    federation: comity.Federation, tmp_path: Path
) -> None:
    result = run("fedavg+dp", federation, budget="epsilon=4,delta=1e-5", out=tmp_path / "run")
    assert 3.9 < result.summary["privacy"]["epsilon"] <= 4
    assert result.job.experiment.set["dp.noise"] > 0.5
    assert result.summary["rounds"] == 2
    with pytest.raises(UsageError, match="has a privacy budget"):
        extend(tmp_path / "run", 4)


def test_a_call_beyond_the_budget_is_not_made_and_the_run_ends_there_also_when_resumed(
    federation: comity.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")
    alone = run("fedavg+dp(noise=2)", federation, rounds=1).summary["privacy"]["epsilon"]
    settings: dict[str, Any] = {"rounds": 9, "budget": f"epsilon={1.9 * alone:.3f}"}
    whole = run("fedavg+dp(noise=2)", federation, out=tmp_path / "whole", **settings)
    assert 1 < whole.summary["rounds"] < 9
    assert whole.summary["privacy"]["epsilon"] <= 1.9 * alone
    assert "privacy budget" in whole.summary["discarded"][0]["why"]
    asked = {row.round for row in whole.ledger if row.call == "local"}
    assert max(asked) == whole.summary["rounds"] - 1  # in the last round nobody was asked

    class Stop(Exception):
        pass

    from comity.runs.server_run import Quiet

    class Stopped(Quiet):
        def round(self, t: int, figure: float | None, ledger: Any) -> None:
            if t == 2:
                raise Stop

    with pytest.raises(Stop):
        run(
            "fedavg+dp(noise=2)",
            federation,
            out=tmp_path / "stopped",
            progress=Stopped(),
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
def test_bad_budgets(
    text: str, budget: str | None, why: str, federation: comity.Federation
) -> None:
    with pytest.raises(UsageError, match=why):
        run(text, federation, budget=budget)


def test_an_account_is_the_same_without_the_extra_but_for_a_looser_bound(
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


def test_the_chain_is_what_it_was(federation: comity.Federation) -> None:
    made = algorithms.compose("fedprox+prbm+dp(noise=1)")
    assert [type(one).__name__ for one in chain(made)] == ["Dp", "Prbm", "FedProx"]
    assert math.isfinite(
        run("fedprox+prbm+dp(noise=1)", federation, rounds=1).summary["privacy"]["epsilon"]
    )
