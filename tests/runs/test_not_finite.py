"""A party that diverges: the error names it with round and party function, and no other party is
affected.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from matrix import compositions, run, short, weights
from sweeps import over_methods

from comity.base.finite import first_not_finite, is_finite
from comity.base.record import Model, record
from comity.errors import ComityError
from comity.runs.folder import RunFolder

WILD: dict[str, Any] = {
    "model": "mlp2(width=8)",
    "rounds": 2,
    "epochs": 2,
    "party": {"east": {"lr": 1e20}},
}


@pytest.mark.parametrize(
    "text", over_methods(c for c in compositions() if c != "centralized"), ids=short
)
def test_only_the_one_that_diverges_is_named(text: str, tmp_path: Path) -> None:
    """In every method: its replies are left out, it returns to its earlier state, and all models
    stay finite.

    With DP-SGD a record whose gradient overflows adds nothing, so that no value becomes infinite:
    whether one did would tell about a record.
    """
    result = run(text, tmp_path, **WILD)
    if "+dp(" in text and "level=party" not in text:
        assert result.summary["absent"] == {}
        assert all(is_finite(theta) for theta in weights(result).values())
        return
    assert result.summary["absent"].keys() == {"east"}
    assert result.summary["absent"]["east"].keys() == {"nonfinite"}
    own_step = (
        ["east"] if text == "per-fedavg" else []
    )  # it adapts its deployed model with its own lr, and a warning says so
    assert result.summary["diverged"] == own_step
    assert result.summary["discarded"] == []
    assert all(is_finite(theta) for name, theta in weights(result).items() if name not in own_step)


@pytest.mark.parametrize("engine", ["loop", "stacked", "process"])
def test_on_diverge_stop_ends_the_run(engine: str, tmp_path: Path) -> None:
    """The sentence names the party, the round, the party function and the first tensor."""
    sentence = (
        r"east has values that are not finite in round 1 \(theta\.fc1\.weight of its reply, after"
        r" local\): give it a smaller lr"
    )
    with pytest.raises(ComityError, match=sentence):
        run("fedavg", tmp_path, on_nonfinite="stop", engine=engine, **WILD)


def test_a_partys_state_is_checked_too(tmp_path: Path) -> None:
    """SOLO sends nothing: the party's own model is checked."""
    with pytest.raises(
        ComityError,
        match=r"east has values that are not finite in round 1 \(.*of its state, after local\)",
    ):
        run("solo", tmp_path / "stop", on_nonfinite="stop", **WILD)
    rows = RunFolder(run("solo", tmp_path / "drop", **WILD).folder).read_absences()
    assert [tuple(row) for row in rows] == [("east", t, "local", "nonfinite", 0) for t in (1, 2)]


def test_rounds_in_which_every_party_diverges_are_discarded(tmp_path: Path) -> None:
    """No value that is not finite is kept: the models are the initial ones, and the summary says
    so.
    """
    result = run("fedavg", tmp_path, **WILD | {"party": {}, "lr": 1e20})
    assert [v["round"] for v in result.summary["discarded"]] == [1, 2]
    assert all(is_finite(theta) for theta in weights(result).values())


def test_a_server_that_overflows_keeps_what_it_had(tmp_path: Path) -> None:
    """Finite replies can have an infinite sum: such a round is discarded, or ends the run."""
    big = tmp_path / "big.py"
    big.write_text(
        "import torch\n"
        "from comity.core import *\n"
        "from comity.algorithms.fedavg import FedAvg\n"
        "@algorithm\n"
        "class Big(FedAvg):\n"
        "    @on_party\n"
        "    async def local(self, mine, m, party, key):\n"
        "        return mine, Model({k: torch.full_like(v, 3e38) for k, v in m.theta.items()})\n"
    )
    settings = {"model": "mlp2(width=8)", "rounds": 2}
    result = run(str(big), tmp_path / "drop", **settings)
    assert [v["why"] for v in result.summary["discarded"]] == [
        f"What the server made of the replies in round {t} is not finite." for t in (1, 2)
    ]
    assert all(is_finite(theta) for theta in weights(result).values())
    with pytest.raises(ComityError, match=r"the replies in round 1 is not finite \(fc1\.weight\)"):
        run(str(big), tmp_path / "stop", on_nonfinite="stop", **settings)


def test_sealed_messages_that_are_not_finite_stay_closed(tmp_path: Path) -> None:
    """The server cannot read what passes between parties: the recipient leaves such a message
    closed, and names its sender.
    """
    gift = tmp_path / "gift.py"
    gift.write_text(
        "import torch\nfrom comity.core import *\nfrom comity.algorithms.solo import"
        " Solo\n@algorithm\nclass Gift(Solo):\n    def round(self, s, server, t):\n        sent ="
        " server.call(self.give, {i: Empty() for i in server.info.parties})\n       "
        " server.call(self.take, {i: Empty() for i in sent}, {(1, 0): sent[1][0], (2, 0):"
        " sent[2][0]})\n        return s\n    @on_party\n    async def give(self, mine, m, party,"
        " key):\n        return mine, {0: seal(Model({'w': torch.full((3,), float('inf') if"
        " party.id == 1 else 1.0)}), to=[0])}\n    @on_party\n    async def take(self, mine, m, party,"
        " key):\n        assert sorted(party.inbox) == ([2] if party.id == 0 else [])\n       "
        " return mine, None\n"
    )
    rows = RunFolder(
        run(str(gift), tmp_path / "run", model="mlp2(width=8)", rounds=1).folder
    ).read_absences()
    assert [tuple(row) for row in rows] == [("east", 1, "take", "nonfinite", 0)]


@record
class Mixed:
    """Every kind of value that a message may hold."""

    numbers: list[Any]
    words: str
    theta: dict[str, torch.Tensor]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_tensor_that_is_not_finite_is_named(bad: float) -> None:
    good = Mixed(
        [1, 2.5, True, None],
        "nan",
        {"w": torch.tensor([1e38, -3.0]), "n": torch.tensor([3]), "e": torch.zeros(0)},
    )
    assert is_finite(good)
    assert first_not_finite(good) == ""
    assert first_not_finite(Mixed([1, bad], "", {})) == "numbers.1"
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        ruined = Mixed(
            [], "", {"a": torch.zeros(2, 2), "b.c": torch.tensor([0.0, bad], dtype=dtype)}
        )
        assert not is_finite(ruined)
        assert first_not_finite(ruined) == "theta.b.c"


def test_finite_values_whose_sum_overflows_are_accepted() -> None:
    assert is_finite(Model({"w": torch.full((1000,), 3e38)}))
    assert is_finite(Model({"w": torch.full((1000,), 6e4, dtype=torch.float16)}))
    assert not is_finite(Model({"w": torch.tensor([math.inf, -math.inf])}))
