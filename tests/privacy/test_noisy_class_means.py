"""Noise on representations and class means that parties send (`+ldp`): sensitivity, scale,
accounting and budgets.
"""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import comity
from comity import algorithms
from comity.base.call import CallId, Message
from comity.base.noise import gaussian
from comity.cli import main
from comity.components import hidden_means as module
from comity.components.bank import Teacher
from comity.core import Key, Samples, UsageError, Wrapper
from comity.core.wrapper import chain
from comity.engines.site import Site
from comity.privacy.accounting import gaussian_epsilon, gaussian_sigma
from comity.privacy.composition import epsilon
from comity.privacy.options import PrivateRows
from comity.training.requests import HiddenMeans, Level

HOSTS = ("adcol(disc=linear)", "fd", "relay", "relay-p2p")
METHODS = [name for name in algorithms.names() if not issubclass(algorithms.find(name), Wrapper)]
MEANS = HOSTS[1:]


@pytest.fixture(scope="module")
def federation() -> comity.Federation:
    digits = comity.load("digits")
    cuts = {"north": (0, 200), "east": (200, 290), "south": (290, 440)}
    return comity.Federation.from_arrays(
        {name: (digits.x[a:b], digits.y[a:b]) for name, (a, b) in cuts.items()}, classes=10
    )


def run(text: str, federation: comity.Federation, **more: Any) -> comity.Result:
    usual: dict[str, Any] = {"rounds": 2, "model": "mlp2(width=8)", "engine": "loop"}
    return comity.run(text, federation, **usual | more)


def hidden_means_of(
    level: Level, z: torch.Tensor, y: torch.Tensor, clip: float, noise: float = 1.0
) -> HiddenMeans:
    return HiddenMeans(Samples(z, y), level, clip, noise, [])


# --- Sensitivity, by brute force


def rows(seed: int, n: int, scale: float, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = Key(seed).generator()
    return scale * torch.randn(n, 3, generator=draw), torch.randint(classes, (n,), generator=draw)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 12),
    st.sampled_from([0.01, 1.0, 100.0]),
    st.sampled_from([0.3, 2.0]),
)
def test_sensitivity_of_sums_and_counts_to_a_row(
    seed: int, n: int, scale: float, clip: float
) -> None:
    z, y = rows(seed, n, scale, 4)
    most = module.release("row", clip, 1.0, 4).sensitivity
    all_rows = module.bare(hidden_means_of("row", z, y, clip), z, 4)
    for removed in range(n):  # replaced by a blank row, which adds nothing
        remaining = torch.arange(n) != removed
        without = module.bare(
            hidden_means_of("row", z[remaining], y[remaining], clip), z[remaining], 4
        )
        assert (all_rows - without).norm().item() <= most * (1 + 1e-5)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 12),
    st.sampled_from([0.01, 1.0, 100.0]),
    st.sampled_from([0.3, 2.0]),
)
def test_sensitivity_of_means_to_a_party(seed: int, n: int, scale: float, clip: float) -> None:
    most = module.release("party", clip, 1.0, 4).sensitivity
    means, other_means = (
        module.bare(
            hidden_means_of("party", *rows(s, n, scale, 4), clip), rows(s, n, scale, 4)[0], 4
        )
        for s in (seed, seed + 1)
    )
    assert (means - other_means).norm().item() <= most * (1 + 1e-5)


def test_sensitivity_is_tight_and_holds_for_values_that_are_not_finite() -> None:
    z, y = 50 * torch.ones(4, 3), torch.arange(4)
    assert module.bare(
        hidden_means_of("row", z[:1], y[:1], 2.0), z[:1], 4
    ).norm().item() == pytest.approx(2 * math.sqrt(2))
    opposite = [
        module.bare(hidden_means_of("party", sign * z, y, 2.0), sign * z, 4) for sign in (1, -1)
    ]
    assert (opposite[0] - opposite[1]).norm().item() == pytest.approx(
        module.release("party", 2.0, 1.0, 4).sensitivity
    )
    not_finite = torch.tensor([[math.inf, 1.0, -math.inf], [math.nan, 0.0, 1.0]])
    for level in ("row", "party"):
        means = module.bare(hidden_means_of(level, not_finite, y[:2], 2.0), not_finite, 4)
        assert means.isfinite().all()
        assert means.norm(dim=1).max().item() <= 2 * math.sqrt(2) * (1 + 1e-5)


# --- Noise


def check_noise_has_the_declared_scale() -> None:
    z, y = rows(1, 40, 1.0, 50)
    for level in ("row", "party"):
        hidden_means = hidden_means_of(level, z, y, 0.7, noise=1.5)
        exact = module.bare(hidden_means, z, 50)
        noise_samples = torch.stack(
            [module.noisy(hidden_means, z, 50, Key(n)) - exact for n in range(40)]
        )
        release = module.release(level, 0.7, 1.5, 50)
        assert release.multiplier == pytest.approx(1.5)
        assert noise_samples.std().item() == pytest.approx(release.noise, rel=0.03)
        assert abs(noise_samples.mean().item()) < 0.05 * release.noise
        flat = noise_samples.flatten(1)
        assert (
            abs((flat[0] * flat[1]).mean().item()) < 0.3 * release.noise**2
        )  # noise of different keys is independent


def test_noise_has_the_declared_scale() -> None:
    check_noise_has_the_declared_scale()


def test_check_detects_a_tenth_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "gaussian", lambda key, shape, spread: gaussian(key, shape, spread / 10)
    )
    with pytest.raises(AssertionError):
        check_noise_has_the_declared_scale()


def test_noise_on_rows_of_adcol() -> None:
    for sigma in (0.05, 1.0, 37.0, 1e4):
        assert gaussian_sigma(gaussian_epsilon(sigma, 1e-9), 1e-9) == pytest.approx(sigma, rel=1e-6)
    method = chain(algorithms.compose("adcol+ldp(noise=2.5)"))[-1]
    assert isinstance(method, PrivateRows)
    z = method.add_row_noise(torch.zeros(400, 50), Key(3))
    assert z.std().item() == pytest.approx(2.5, rel=0.03)


# --- Accounting


def check_plan(result: comity.Result) -> None:
    """Check that the plan's epsilons are those of the run. For relay-p2p, which does not call every
    party in every round, they are upper bounds.
    """
    actual, planned_epsilons = (
        result.summary["privacy"]["parties"],
        result.job.privacy.guarantees()["parties"],
    )
    if result.job.experiment.algorithm.startswith("relay-p2p"):
        assert all(actual[party] <= planned_epsilons[party] for party in planned_epsilons)
        assert any(actual[party] == planned_epsilons[party] for party in planned_epsilons)
    else:
        assert actual == planned_epsilons


@pytest.mark.parametrize("host", HOSTS)
def test_unit_of_protection_is_row_record_or_party(
    host: str, federation: comity.Federation
) -> None:
    with pytest.warns(UserWarning, match="nothing is guaranteed for the record"):
        ldp_run = run(f"{host}+ldp(noise=4)", federation)
    guarantee = ldp_run.summary["privacy"]
    assert (guarantee["unit"], guarantee["unprotected"]) == ("row", [])
    assert "Models are trained without noise" in " ".join(guarantee["assumptions"])
    check_plan(ldp_run)
    # A call is one release, whatever its fields: post-processing of noisy numbers is free.
    calls = {(row.round, row.call, row.party) for row in ldp_run.privacy}
    assert len(calls) == len(ldp_run.privacy)
    release = ldp_run.privacy[0].to_release()
    assert release
    assert release.multiplier == pytest.approx(4)
    most = max(sum(party == name for _, _, party in calls) for name in ("north", "east", "south"))
    assert guarantee["epsilon"] == pytest.approx(epsilon({release: most}, 1e-5), abs=1e-5)

    ldp_and_dp_run = run(f"{host}+ldp(noise=4)+dp(noise=2)", federation)
    guarantee = ldp_and_dp_run.summary["privacy"]
    assert (guarantee["unit"], guarantee["unprotected"]) == ("record", [])
    check_plan(ldp_and_dp_run)
    assert "Models are trained without noise" not in " ".join(guarantee["assumptions"])
    ldp_rows = [row for row in ldp_and_dp_run.privacy if row.rate == 1]
    assert {(row.round, row.call, row.party) for row in ldp_rows} == calls
    assert len(ldp_rows) == len(calls)
    assert (
        sum(row.steps for row in ldp_and_dp_run.privacy if row.rate < 1)
        == ldp_and_dp_run.summary["steps"]
    )

    if host not in MEANS:
        return
    with pytest.warns(UserWarning, match="Models are trained without noise"):
        guarantee = run(f"{host}+ldp(noise=4,level=party)", federation).summary["privacy"]
    assert (guarantee["unit"], guarantee["neighbours"], guarantee["unprotected"]) == (
        "party",
        "replaced",
        [],
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_classes_of_a_party_are_hidden() -> None:
    """A party lacks some classes. With level=party its reply shows all classes; with level=row,
    those whose noisy counts are above the threshold.
    """
    digits = comity.load("digits")
    in_few_classes = digits.y < 3
    federation = comity.Federation.from_arrays(
        {"a": (digits.x[in_few_classes], digits.y[in_few_classes]), "b": (digits.x, digits.y)},
        classes=10,
    )
    for level, visible_classes in (("party", list(range(10))), ("row", [0, 1, 2])):
        job = run(f"relay+ldp(noise=1,level={level})", federation, rounds=1).job
        party = job.parties[0]
        site = Site(job.algorithm, party, job.root)
        empty_teacher = Teacher(
            torch.zeros(10, 8),
            torch.zeros(10).bool(),
            torch.zeros(1, 10, 8),
            torch.zeros(1, 10).bool(),
            {},
        )
        reply = site.run(CallId("local", 1, 1, 0), Message(empty_teacher, None, True), {}).reply
        assert reply.counts.nonzero().flatten().tolist() == visible_classes
        assert reply.seen.nonzero().flatten().tolist() == visible_classes
        true_counts = torch.bincount(party.data.train.y, minlength=10)
        assert not torch.equal(reply.counts.long(), true_counts)
        if level == "row":
            assert (reply.counts[:3] - true_counts[:3]).abs().max() < 8  # 1.4 times five
        assert reply.means.norm(dim=1).max().item() <= 1 + 1e-5
        assert torch.equal(reply.obs[0], reply.means)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_undeclared_field_of_a_reply_gives_no_guarantee(
    federation: comity.Federation, tmp_path: Path
) -> None:
    method = tmp_path / "chatty.py"
    method.write_text(
        '''"""FD, and one figure more."""
from comity.algorithms.fd import Answers, Fd
from comity.core import *


@record
class More(Answers):
    first: float


@algorithm
class Chatty(Fd):
    @on_party
    async def local(self, F_i: Params, m, party: Party, key: Key) -> tuple[Params, More]:
        F_i, answers = await super().local(F_i, m, party, key)
        return F_i, More(answers.logits, answers.counts, float(F_i["fc1.weight"][0, 0]))
'''
    )
    guarantee = run(f"{method}+ldp(noise=1)", federation).summary["privacy"]
    assert guarantee["epsilon"] == "infinite"
    assert "More.first (local)" in guarantee["unprotected"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "Answers(*class_means(party.data.train.x.flatten(1)[:, :10], party.data.train.y, 10))",
            "reads a party's samples",
        ),
        (
            "Answers(*[self.class_means_of(party, lambda x: task.logits(F_i, x), key) for _ in range(2)][1])",
            r"means_in\): \[10, 10\]",
        ),
        (
            "Answers(F_i['fc1.weight'][:, :10] @ torch.ones(10, 10), torch.ones(10).int())",
            r"means_in\): \[\]",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_method_that_bypasses_the_noise_is_refused(
    line: str, why: str, federation: comity.Federation, tmp_path: Path
) -> None:
    method = tmp_path / "around.py"
    method.write_text(
        f'''"""FD that sends something else under the same name."""
import torch
from comity.algorithms.fd import Answers, Fd
from comity.core import *
from comity.components.classwise import class_means


@algorithm
class Around(Fd):
    @on_party
    async def local(self, F_i: Params, m, party: Party, key: Key) -> tuple[Params, Answers]:
        task = party.task
        return F_i, {line}
'''
    )
    with pytest.raises(comity.ComityError, match=why):
        run(f"{method}+ldp(noise=1)", federation)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_supported_or_refused(name: str, federation: comity.Federation) -> None:
    if name in ("adcol", *MEANS):
        algorithms.compose(f"{name}+ldp(noise=1)")
        return
    with pytest.raises(UsageError, match=f"ldp is not supported with {name}: its parties send "):
        algorithms.compose(f"{name}+ldp(noise=1)")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fedavg+dbe+ldp(noise=1)", "send weights of a model, which this noise does not hide"),
        ("relay(aggregate=model)+ldp(noise=1)", "send weights of a model"),
        ("relay(secret=0.1)+ldp(noise=1)", "guarded or secret samples"),
        ("adcol(noise=lap_l1)+ldp(noise=1)", "has noise=lap_l1 already"),
        ("adcol+ldp(noise=1,level=party)", "hidden one by one"),
        ("adcol(noise=gauss_l2)+dp(noise=1)+ldp(noise=1)", "goes around a method itself"),
        ("relay+dp(noise=1)", r"relay\+ldp\+dp hides them"),
        ("relay(m_down=2)+ldp(noise=1)+dp(noise=1)", "trains with draws of its own"),
        ("relay+ldp", "ldp needs to know how much noise"),
        ("relay+ldp+dp(noise=1)", "ldp needs to know how much noise"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_unsupported_compositions_are_refused(
    text: str, why: str, federation: comity.Federation
) -> None:
    with pytest.raises(UsageError, match=why):
        run(text, federation)


def test_without_noise_there_is_no_guarantee(federation: comity.Federation) -> None:
    for host in HOSTS:
        with pytest.warns(UserWarning, match="nothing is hidden"):
            assert (
                run(f"{host}+ldp(noise=0)", federation, rounds=1).summary["privacy"]["epsilon"]
                == "infinite"
            )


# --- Budgets


@pytest.mark.sweep("relay+ldp", "fd+ldp+dp")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("relay+ldp", {"ldp.noise"}),
        ("adcol(disc=linear)+ldp", {"ldp.noise"}),
        ("fd+ldp+dp", {"ldp.noise", "dp.noise"}),
        ("relay-p2p+ldp(noise=6)+dp", {"dp.noise"}),
    ],
)
def test_noise_is_solved_from_a_budget(
    text: str, expected: set[str], federation: comity.Federation
) -> None:
    result = run(text, federation, budget="epsilon=6,delta=1e-5")
    assert 5.9 < result.summary["privacy"]["epsilon"] <= 6
    assert {name for name in result.job.experiment.set if name.endswith(".noise")} == expected


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_run_stops_before_it_exceeds_the_budget(federation: comity.Federation) -> None:
    result = run("fd+ldp(noise=2)", federation, rounds=9, budget="epsilon=4")
    assert 1 < result.summary["rounds"] < 9
    assert result.summary["privacy"]["epsilon"] <= 4
    assert "privacy budget" in result.summary["discarded"][0]["why"]


def test_plan_states_the_noise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["--parties", "3", "--rounds", "3", "--model", "linear", "--budget", "epsilon=5"]
    monkeypatch.setattr(sys, "argv", ["comity", "plan", "fd+ldp(level=party)", *small])
    with suppress(SystemExit):
        main()
    output = capsys.readouterr().out
    assert (
        "epsilon 5 at delta 1e-05, for all that a party has: one is replaced by any other" in output
    )
    assert "noise of ldp: 1.5" in output
