"""Median, trimmed mean and Krum: their aggregates, and the influence of a party that sends
nonsense.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from toys import federation, noise, quadratic, rounds, rows, same, server_of

import comity
from comity.algorithms import compose
from comity.algorithms.krum import Krum, distances
from comity.algorithms.trimmed import Trimmed
from comity.components.robust import Gathering, trimmed_mean
from comity.core import AnyAlgorithm, Averaging, Params, Training, Traits
from comity.errors import ComityError, UsageError
from comity.runs.run_warnings import warning_texts

pytestmark = pytest.mark.quick

FAULTY = str(Path(__file__).with_name("faulty.py"))
ROBUST = ("median", "trimmed", "krum")
ONE_STEP = Training("sgd", lr=1.0, batch=8, epochs=1)


def numbers(*values: float) -> list[Params]:
    return [{"w": torch.tensor([value], dtype=torch.float64)} for value in values]


def after_a_round(text: str, *optima: float, counts: int = 1) -> float:
    """w after one round on ½(w − b_i)²: a step of length 1 takes each party to its own b_i."""
    method = compose(text)
    server, s = server_of(
        method,
        quadratic(),
        [rows(1.0, b, counts if i else 1) for i, b in enumerate(optima)],
        ONE_STEP,
    )
    theta: Tensor = rounds(method, server, s, 1).host["body.w"]
    return theta.item()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("median", 4),
        ("trimmed(share=0.2)", (2 + 4 + 8) / 3),
        ("trimmed(share=0.3)", 4),  # 0.3 · 5 rounded up is 2 on either side
        ("trimmed(share=0)", 1015 / 5),
        ("krum(f=1)", 2),  # s = (1+9, 1+4, 4+9, 16+36, ...) over the 5 − 1 − 2 nearest
        ("krum(f=1,m=2)", 1.5),
        ("krum(f=1,m=3)", 7 / 3),
        ("krum(f=1,m=4)", 15 / 4),
        ("krum(f=0)", 4),  # s = (1+9+49, 1+4+36, 4+9+16, 16+36+49, ...) over the three nearest
    ],
)
def test_of_five_numbers_by_hand(text: str, expected: float) -> None:
    value = after_a_round(f"fedavg+{text}", 1, 2, 4, 8, 1000)
    assert value == pytest.approx(expected, rel=1e-12)


def test_an_even_number_has_the_middle_twos_mean() -> None:
    assert after_a_round("fedavg+median", 1, 2, 4, 1000) == 3


def test_all_parties_have_equal_weight() -> None:
    """FedAvg weighs by samples; a party cannot make itself count for more by having, or claiming,
    more of them.
    """
    for text in ("trimmed(share=0)", "krum(f=0,m=3)"):
        assert after_a_round(f"fedavg+{text}", 1, 2, 6, counts=7) == pytest.approx(3)


finite = st.floats(-1e6, 1e6, width=32)


@given(st.lists(finite, min_size=3, max_size=9), st.data())
def test_fewer_than_half_cannot_move_a_median_beyond_the_honest(
    honest: list[float], data: st.DataObject
) -> None:
    wild = data.draw(st.lists(st.floats(-1e30, 1e30), max_size=len(honest) - 1))
    models = numbers(*honest, *wild)
    median = compose("fedavg+median").aggregate(models)["w"].item()  # type: ignore[attr-defined]
    assert min(honest) <= median <= max(honest)


@given(st.lists(finite, min_size=4, max_size=9), st.integers(0, 3))
def test_trimmed_survives_its_share_of_faulty_parties(honest: list[float], wild: int) -> None:
    models = numbers(*honest, *[1e30] * wild)
    mean = Trimmed(compose("fedavg"), share=wild / len(models)).aggregate(models)["w"].item()
    slack = 1e-9 * max(map(abs, honest))
    assert min(honest) - slack <= mean <= max(honest) + slack


@given(st.integers(1, 2), st.integers(0, 4), st.integers(0, 100))
def test_krum_ignores_replies_far_from_all(f: int, more: int, seed: int) -> None:
    """f replies close together and far from all others: for every m, none of them is in the mean."""
    draw = torch.Generator().manual_seed(seed)
    n = 2 * f + 3 + more
    models = [{"w": torch.randn(6, generator=draw)} for _ in range(n - f)]
    models += [{"w": torch.full((6,), 1e4) + torch.randn(6, generator=draw)} for _ in range(f)]
    for m in (1, n - f):
        assert Krum(compose("fedavg"), f=f, m=m).aggregate(models)["w"].abs().max() < 10


def test_distances_are_over_all_that_is_sent() -> None:
    models: list[Params] = [
        {
            "a": torch.tensor([[0.0, 3.0]]),
            "b.~var": torch.tensor([1.0]),
            "b.~seen": torch.tensor(4),
        },
        {
            "a": torch.tensor([[4.0, 3.0]]),
            "b.~var": torch.tensor([3.0]),
            "b.~seen": torch.tensor(5),
        },
        {"a": torch.full((1, 2), 3e38), "b.~var": torch.tensor([1.0]), "b.~seen": torch.tensor(4)},
    ]
    squared = distances(models)
    assert squared[0, 1] == squared[1, 0] == 16 + 4 + 1
    assert squared.diagonal().tolist() == [0, 0, 0]
    assert torch.isfinite(squared).all()


def test_integer_buffers_stay_integers_and_do_not_depend_on_one_party() -> None:
    """FedAvg takes such a buffer from the first party, which may be the one that sends nonsense."""
    models: list[Params] = [{"n": torch.tensor(n)} for n in (10**12, 4, 6, 5)]
    assert trimmed_mean(models, 1) == {"n": torch.tensor(5)}
    assert trimmed_mean(models, 1)["n"].dtype == torch.int64


def test_reductions() -> None:
    models = [{"a": noise(5, 3, seed=i), "b": noise(2, seed=10 + i)} for i in range(6)]
    mean = Averaging()
    for theta in models:
        mean.add(theta, 1.0)
    host: AnyAlgorithm = compose("fedavg")
    assert same(Krum(host, f=0, m=6).aggregate(models), mean.value())
    median = compose("fedavg+median").aggregate(models)  # type: ignore[attr-defined]
    assert same(Trimmed(host, share=0.5).aggregate(models), median)
    for name, value in Trimmed(host, share=0).aggregate(models).items():
        torch.testing.assert_close(value, mean.value()[name])


def test_equal_scores_are_the_first_partys() -> None:
    assert (
        Krum(compose("fedavg"), f=0).aggregate(numbers(0, 1, 5, 6))["w"].item() == 1
    )  # as near as 5


def test_replies_that_do_not_fit_are_refused() -> None:
    gathering = Gathering(lambda models: models[0])
    gathering.add({"w": torch.zeros(3)}, 1.0)
    with pytest.raises(ComityError, match=r"w is float32\[2\] in it, and float32\[3\] in them"):
        gathering.add({"w": torch.zeros(2)}, 1.0)


# In whole runs.

SIZES = (30, 12, 18, 24, 15, 21, 27)
SMALL: dict[str, Any] = {
    "model": "mlp2(width=7)",
    "rounds": 4,
    "batch": 6,
    "lr": 0.2,
    "epochs": 4,
    "engine": "loop",
}


@cache
def easy() -> comity.Federation:
    """Seven parties with the same three well-separated classes each."""
    parties = {}
    for i, size in enumerate(SIZES):
        draw = torch.Generator().manual_seed(i)
        y = torch.arange(size + 12) % 3
        x = torch.randn(size + 12, 6, generator=draw) + 4 * torch.eye(6)[y]
        parties[f"p{i}"] = ((x[:size], y[:size]), (x[size:], y[size:]))
    return comity.Federation.from_arrays(parties, validation=0.0, classes=3)


@cache
def accuracy(text: str) -> float:
    mean_accuracy: float = comity.run(text, easy(), **SMALL).summary["accuracy"]["mean"]
    return mean_accuracy


@pytest.mark.sweep("huge")
@pytest.mark.parametrize("how", ["huge", "reversed"])
def test_one_faulty_party_breaks_fedavg_but_no_robust_mean(how: str) -> None:
    faulty = f"{FAULTY}(how={how})"
    assert accuracy("fedavg") > 0.9
    assert accuracy(faulty) < 0.6
    for robust in ("median", "trimmed", "krum", "krum(m=6)"):
        assert accuracy(f"{faulty}+{robust}") > 0.85, robust


@pytest.mark.parametrize("robust", ["median", "trimmed(share=0.29)", "krum(f=2)"])
def test_two_faulty_parties_of_seven(robust: str) -> None:
    faulty = f"{FAULTY}(who=p0 p3)"
    assert accuracy(f"{faulty}+{robust}") > 0.85


def test_more_faulty_parties_than_the_setting_break_them() -> None:
    """The guarantee is sharp: a trimmed mean of one party on either side does not survive two
    faulty parties.
    """
    assert accuracy(f"{FAULTY}(who=p0 p3)+trimmed") < 0.6


@pytest.mark.sweep("fedavg+dbe", "fedbn")
@pytest.mark.parametrize("text", ["fedavg+dbe", "fedbn", "fedprox+prbm", "ditto"])
def test_hosts_of_many_kinds(text: str) -> None:
    for robust in ROBUST:
        result = comity.run(f"{text}+{robust}", federation(SIZES[:5]), **SMALL | {"rounds": 2})
        assert result.summary["discarded"] == []


def test_integer_buffers_of_a_users_module(tmp_path: Path) -> None:
    """BatchNorm of torch counts batches in whole numbers."""
    with torch.random.fork_rng():
        pair = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU()), nn.Linear(9, 3)
    for robust in ROBUST:
        result = comity.run(f"fedavg+{robust}", easy(), **SMALL | {"rounds": 2, "model": pair})
        assert result.model("p0").theta["encoder.1.~num_batches_tracked"].dtype == torch.int64


# Too few parties.


@pytest.mark.parametrize(
    ("text", "settings", "sentence"),
    [
        (
            "fedavg+krum(f=3)",
            {},
            "krum with these options needs 9 parties in a round, but 7 take part",
        ),
        (
            "fedavg+krum(f=1,m=7)",
            {},
            "krum with these options needs 8 parties in a round, but 7 take part",
        ),
        (
            "fedavg+krum",
            {"participation": 0.5},
            "krum with these options needs 5 parties in a round, but 4 take part",
        ),
        (
            "scaffold+median",
            {},
            (
                "median goes around methods that average models as fedavg does, but scaffold has"
                " another way"
            ),
        ),
        ("adcol+krum", {}, "but adcol shares representations and keeps all weights at the party"),
        ("fedavg+median+krum", {}, "krum and median would both take the place of the mean"),
        (
            "fedavg+dp(noise=1,level=party)+trimmed",
            {},
            "trimmed and dp would both take the place of the mean",
        ),
        ("fedavg+trimmed(share=0.6)", {}, "share must be at most 0.5"),
        ("fedavg+krum(f=-1)", {}, "f must be at least 0"),
        ("median", {}, "median wraps another method"),
    ],
)
def test_invalid_settings_are_refused_before_round_1(
    text: str, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        comity.run(text, easy(), **SMALL | settings)


def test_hosts_with_a_custom_round_are_refused(tmp_path: Path) -> None:
    """A host that does not ask for `server.averaging` would silently be averaged without the
    median.
    """
    own = tmp_path / "own.py"
    own.write_text(
        "from comity.core import *\n"
        "from comity.algorithms.fedavg import FedAvg\n"
        "@algorithm\n"
        "class Own(FedAvg):\n"
        "    def round(self, theta, server, t):\n"
        "        return super().round(theta, server, t)\n"
    )
    with pytest.raises(UsageError, match="cannot tell how"):
        comity.run(f"{own}+median", easy(), **SMALL)


def test_a_round_with_too_few_replies_is_discarded(tmp_path: Path) -> None:
    """Krum with f = 2 needs all seven: a round in which one is offline is discarded, and a warning
    says so.
    """
    away = tmp_path / "away.csv"
    away.write_text("party,round,call,how\np1,2,,offline\n")
    result = comity.run("fedavg+krum(f=2)", easy(), **SMALL | {"rounds": 3, "absent": str(away)})
    why = "krum with these options needs 7 replies, but 6 came."
    assert [(v["round"], v["why"]) for v in result.summary["discarded"]] == [(2, why)]
    assert (
        comity.run(
            "fedavg+krum(f=1)", easy(), **SMALL | {"rounds": 3, "absent": str(away)}
        ).summary["discarded"]
        == []
    )


def test_two_ways_to_average_are_an_error_wherever_they_come_from() -> None:
    class Twice(type(compose("fedavg+median"))):  # type: ignore[misc]
        traits = Traits(start_weights="")

    method = Twice(host=compose("fedavg+krum(f=0)"))
    server, s = server_of(method, quadratic(), [rows(1.0, b) for b in (1, 2, 3)], ONE_STEP)
    with pytest.raises(ComityError, match="one of them would be without effect"):
        rounds(method, server, s, 1)


def test_a_warning_says_what_they_do_not_guard() -> None:
    info = server_of(compose("fedavg"), quadratic(), [rows(1.0, 1.0)] * 3, ONE_STEP)[0].info
    warning = "it guards the weights; means that parties send are averaged as ever."
    assert compose("fedavg+dbe+median").accounting.warnings(info) == [warning]
    assert compose("fedavg+median").accounting.warnings(info) == []
    assert compose("fedavg+krum(f=0,m=2)").accounting.warnings(info) == [
        "with f=0 it protects from nobody."
    ]
    assert "a single party's" in compose("fedavg+krum(f=1)").accounting.warnings(info)[0]
    assert compose("fedavg+trimmed(share=0)").accounting.warnings(info) == [
        "with share=0 nobody is left out: it is a plain mean."
    ]


def test_a_warning_says_that_a_median_of_two_is_a_mean(tmp_path: Path) -> None:
    """Before a run with cohorts that small, and in a run where absences make them so."""
    away = tmp_path / "away.csv"
    away.write_text("party,round,call,how\n" + "".join(f"p{i},2,,offline\n" for i in range(5)))
    with pytest.warns(UserWarning, match="protects from nobody"):
        comity.run("fedavg+median", easy(), **SMALL | {"rounds": 1, "participation": 0.3})
    for rounds_, warned in ((1, False), (2, True)):
        result = comity.run(
            "fedavg+median", easy(), **SMALL | {"rounds": rounds_, "absent": str(away)}
        )
        assert (
            any("protects from nobody" in text for text in warning_texts(result.summary, "during"))
            == warned
        )
