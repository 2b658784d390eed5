"""What a party's optimizer remembers from round to round, and what becomes of an epoch's last
batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from matrix import GOSSIP, ragged, run, short, tables, weights
from plain import Optimizer, Trainer, assert_close, assert_equal, first, stream

import comity
from comity.base.record import leaves
from comity.engines.versions import PartyState
from comity.runs import checkpoint
from comity.runs.checkpoint import Checkpoints
from comity.runs.server_run import Quiet

MODEL = {"model": "mlp2(width=12)", "rounds": 3}
OPTIMIZERS: dict[str, tuple[dict[str, Any], Optimizer]] = {
    "momentum": (
        {"optimizer": "sgd(momentum=0.9,decay=1e-3)", "lr": 0.05},
        lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    ),
    "adam": ({"optimizer": "adam", "lr": 0.01}, lambda params: torch.optim.Adam(params, lr=0.01)),
}
MOMENTUM, MAKE = OPTIMIZERS["momentum"]
EVERYONE = range(4)
NAMES = ("north", "east", "south", "west")


def home(result: comity.Result, name: str = "north") -> PartyState:
    """All that a party has in the last checkpoint."""
    checkpoints = Checkpoints(result.folder / "checkpoints")
    checkpoints.load()
    found = checkpoints.party_state(NAMES.index(name))
    assert isinstance(found, PartyState)
    return found


# --- by torch.optim


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_kept_solo_is_one_long_training(kind: str, tmp_path: Path) -> None:
    """One optimizer over all batches of all rounds, from the first weights."""
    settings, make = OPTIMIZERS[kind]
    result = run("solo", tmp_path, opt_state="keep", epochs=2, **MODEL | settings)
    for i, name in enumerate(NAMES):
        long = Trainer(first(result), make)
        for t in (1, 2, 3):
            long.train(stream(result, i, t, "local"))
        assert_close(result.model(name).theta, long.weights())


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_reset_solo_is_a_new_optimizer_a_round(kind: str, tmp_path: Path) -> None:
    settings, make = OPTIMIZERS[kind]
    result = run("solo", tmp_path, **MODEL | settings)
    theta = first(result)
    for t in (1, 2, 3):
        theta = Trainer(theta, make).train(stream(result, 0, t, "local"))
    assert_close(result.model("north").theta, theta)
    kept = run("solo", tmp_path / "kept", opt_state="keep", **MODEL | settings)
    assert not torch.allclose(
        kept.model("north").theta["fc1.weight"], theta["fc1.weight"], atol=1e-4
    )


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_kept_fedavg_is_an_optimizer_a_party_on_changing_weights(kind: str, tmp_path: Path) -> None:
    """Algorithm 1 with parties whose optimizers live on; half of them take part in a round."""
    settings, make = OPTIMIZERS[kind]
    result = run(
        "fedavg", tmp_path, opt_state="keep", participation=0.5, **MODEL | settings | {"rounds": 4}
    )
    theta, sizes = first(result), ragged().sizes
    trainers = [Trainer(theta, make) for _ in EVERYONE]
    cohorts = [result.job.cohort(t) for t in (1, 2, 3, 4)]
    assert len(set(map(tuple, cohorts))) > 1
    assert len({i for cohort in cohorts for i in cohort}) < sum(
        map(len, cohorts)
    )  # somebody comes again
    for t, cohort in enumerate(cohorts, start=1):
        sent = []
        for i in cohort:
            trainers[i].set(theta)
            sent.append((sizes[i], trainers[i].train(stream(result, i, t, "local"))))
        total = sum(size for size, _ in sent)
        theta = {k: sum((size / total * w[k] for size, w in sent), torch.zeros(())) for k in theta}
    got = result.model("north").theta
    assert all(torch.allclose(got[k], theta[k], atol=1e-6) for k in theta)


def test_fedrep_keeps_the_heads_optimizer_and_the_bodys_apart(tmp_path: Path) -> None:
    """Algorithm 1 with two optimizers that live on: the head's, then the body's."""
    result = run("fedrep", tmp_path, opt_state="keep", head_epochs=2, **MODEL | MOMENTUM)
    body, sizes = (
        {k: v for k, v in first(result).items() if not k.startswith("fc3")},
        ragged().sizes,
    )
    heads = [
        Trainer(first(result), MAKE, only=lambda name: name.startswith("fc3")) for _ in EVERYONE
    ]
    bodies = [
        Trainer(first(result), MAKE, only=lambda name: not name.startswith("fc3")) for _ in EVERYONE
    ]
    for t in (1, 2, 3):
        for i in EVERYONE:
            heads[i].set(body)
            heads[i].train(stream(result, i, t, "local", part="head", epochs=2))
            bodies[i].set(heads[i].weights())
            bodies[i].train(stream(result, i, t, "local"))
        body = {
            k: sum(
                (sizes[i] / sum(sizes) * bodies[i].theta[k].detach() for i in EVERYONE),
                torch.zeros(()),
            )
            for k in body
        }
    got = result.model("east").theta
    assert all(
        torch.allclose(got[k], v, atol=1e-6)
        for k, v in (body | {"fc3.bias": heads[1].theta["fc3.bias"]}).items()
    )
    kept = home(result, "east").moments
    assert sorted(
        sorted({n.partition(".")[0] for n in moments.first}) for moments in kept.values()
    ) == [["fc1", "fc2"], ["fc3"]]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_ditto_keeps_the_global_models_optimizer_and_the_personal_ones_apart(
    kind: str, tmp_path: Path
) -> None:
    """Without a pull, the personal model is SOLO's and the global one FedAvg's, each with its own
    memory.
    """
    settings = MODEL | OPTIMIZERS[kind][0] | {"opt_state": "keep"}
    ours = run("ditto", tmp_path / "ditto", lam=0, **settings)
    alone, averaged = (run(method, tmp_path / method, **settings) for method in ("solo", "fedavg"))
    for name in NAMES:
        assert_equal(ours.model(name).theta, alone.model(name).theta)
    checkpoints = Checkpoints(ours.folder / "checkpoints")
    checkpoints.load()
    assert_equal(checkpoints.server_state(), averaged.model("north").theta)


# --- state is data


def moments_count(result: comity.Result, name: str) -> list[int]:
    return [moments.count for moments in home(result, name).moments.values()]


@pytest.mark.parametrize(("kind", "parts"), [("momentum", 1), ("adam", 2)])
def test_a_checkpoint_holds_the_moments(kind: str, parts: int, tmp_path: Path) -> None:
    """As many steps as were made, and a moment (or two) of each parameter, none of a buffer."""
    result = run("solo", tmp_path, opt_state="keep", rounds=3, **OPTIMIZERS[kind][0])
    trained = {k for k in result.model("north").theta if "~" not in k}
    assert trained < result.model("north").theta.keys()
    for name, size in zip(NAMES, ragged().sizes, strict=True):
        (moments,) = home(result, name).moments.values()
        assert moments.count == 3 * sum(n >= 2 for n in [10] * (size // 10) + [size % 10])
        assert moments.first.keys() == trained
        assert moments.second.keys() == (trained if parts == 2 else set())
        assert all(
            moment.abs().max() > 0 for moment in leaves(moments) if isinstance(moment, torch.Tensor)
        )


@pytest.mark.parametrize(
    "settings",
    [{"opt_state": "reset", **MOMENTUM}, {"opt_state": "keep"}],
    ids=["reset", "plain-sgd"],
)
def test_a_checkpoint_holds_no_moments_that_nobody_needs(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    result = run("solo", tmp_path, **MODEL | settings)
    assert all(home(result, name).moments == {} for name in NAMES)


@pytest.mark.parametrize("text", ["solo", "fedavg", "scaffold+dbe", "fedrep"])
def test_keeping_changes_nothing_with_plain_sgd(text: str, tmp_path: Path) -> None:
    reset, keep = (run(text, tmp_path / how, opt_state=how, **MODEL) for how in ("reset", "keep"))
    assert tables(keep.folder) == tables(reset.folder)
    for name in NAMES:
        assert_equal(keep.model(name).theta, reset.model(name).theta)


KEPT = {"opt_state": "keep", "optimizer": "adam", "lr": 0.01, "rounds": 3, "participation": 0.75}


@pytest.mark.sweep("fedavg+dbe", "adcol")
@pytest.mark.parametrize(
    "text", ["solo", "fedavg", "fedrep", "ditto", "fedavg+dbe", "adcol", GOSSIP], ids=short
)
def test_process_and_resume_equal_loop(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments stay where their party lives, and come back from a checkpoint after round 2."""
    whole = run(text, tmp_path / "loop", **KEPT)
    assert any(moments_count(whole, name) for name in NAMES)

    class Stop(Quiet):
        def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
            if t == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "cut", progress=Stop(), **KEPT)
    others = [
        run(text, tmp_path / "process", engine="process", workers=2, **KEPT),
        run(text, tmp_path / "cut", resume=True, **KEPT),
    ]
    for other in others:
        assert tables(other.folder) == tables(whole.folder)
        for name in NAMES:
            assert_equal(weights(other)[name], weights(whole)[name])
            assert moments_count(other, name) == moments_count(whole, name)


def test_forgetting_at_resume_would_be_noticed(tmp_path: Path) -> None:
    """The test above compares runs that depend on the moments."""
    keep, reset = (
        run("fedavg", tmp_path / how, **KEPT | {"opt_state": how}) for how in ("keep", "reset")
    )
    assert (keep.folder / "metrics.csv").read_bytes() != (reset.folder / "metrics.csv").read_bytes()


def test_a_run_is_not_resumed_with_another_memory(tmp_path: Path) -> None:
    run("solo", tmp_path, **MODEL, opt_state="keep")
    with pytest.raises(comity.UsageError, match="other settings"):
        run("solo", tmp_path, **MODEL, resume=True)


# --- the last batch


def sized(*sizes: int) -> comity.Federation:
    """Parties with exactly so many training samples."""
    x = torch.rand(max(sizes) + 4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(len(x)) % 3
    parties = {f"p{i}": ((x[:n], y[:n]), (x[-4:], y[-4:])) for i, n in enumerate(sizes)}
    made = comity.Federation.from_arrays(parties, validation=0.0)
    assert made.sizes == list(sizes)
    return made


def steps(sizes: list[int], **settings: Any) -> list[int]:
    """How many steps each party makes in two rounds of SOLO."""
    usual: dict[str, Any] = {
        "rounds": 2,
        "epochs": 3,
        "batch": 10,
        "engine": "loop",
        "model": "mlp2(width=4)",
    }
    made = [comity.run("solo", sized(n), **usual | settings).summary["steps"] for n in sizes]
    together = comity.run("solo", sized(*sizes), **usual | settings)
    assert together.summary["steps"] == together.job.cost.steps() == sum(made)
    return made


BATCHNORM = "fedbn-cnn(scale=0.03)"
SIZES = [1, 2, 9, 10, 11, 12, 20, 29]


def test_small_last_batches_are_kept_unless_told() -> None:
    """⌈n/10⌉ an epoch."""
    assert steps(SIZES) == [6 * n for n in (1, 1, 1, 1, 2, 2, 2, 3)]


def test_small_last_batches_are_dropped() -> None:
    """⌊n/10⌋ an epoch; a party that has no whole batch still makes a step with all it has."""
    assert steps(SIZES, last_batch="drop") == [6 * n for n in (1, 1, 1, 1, 1, 1, 2, 2)]


def test_batchnorm_still_needs_two() -> None:
    assert steps(SIZES, model=BATCHNORM) == [6 * n for n in (0, 1, 1, 1, 1, 2, 2, 3)]
    assert steps(SIZES, model=BATCHNORM, last_batch="drop") == [
        6 * n for n in (0, 1, 1, 1, 1, 1, 2, 2)
    ]


@pytest.mark.parametrize("last_batch", ["keep", "drop"])
def test_batches_of_one_are_refused_under_batchnorm(last_batch: str) -> None:
    with pytest.raises(comity.UsageError, match="at least 2"):
        steps([9], model=BATCHNORM, batch=1, last_batch=last_batch)


def test_a_number_of_steps_is_made_of_whole_batches() -> None:
    assert steps([9, 11, 29], last_batch="drop", steps=7, epochs=1) == [2 * 7] * 3


def test_whole_batches_are_a_partys_own() -> None:
    """With 12 samples in batches of 5, two steps an epoch instead of one."""
    fed = sized(12, 12)
    result = comity.run(
        "solo",
        fed,
        rounds=1,
        batch=10,
        last_batch="drop",
        model="mlp2(width=4)",
        engine="loop",
        party={"p1": {"batch": 5}},
    )
    assert result.summary["steps"] == 1 + 2


def test_dropped_batches_by_torch(tmp_path: Path) -> None:
    """East has 23 samples less its validation part, so 2 steps of 10 an epoch: those of the epoch's
    order, then no more.
    """
    result = run("solo", tmp_path, last_batch="drop", epochs=2, **MODEL, lr=0.1)
    theta, data = first(result), result.job.parties[1].data.train
    trainer = Trainer(theta, lambda params: torch.optim.SGD(params, lr=0.1))
    assert len(data) == 21
    for t in (1, 2, 3):
        seen = list(stream(result, 1, t, "local", min_batch=1))
        assert [len(batch.y) for batch in seen] == [10, 10, 1] * 2
        trainer.train(batch for batch in seen if len(batch.y) == 10)
    assert_close(result.model("east").theta, trainer.weights())
