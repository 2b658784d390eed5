"""Optimizer state that a party keeps between rounds, and what happens to an epoch's last batch."""

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


def saved_state(result: comity.Result, name: str = "north") -> PartyState:
    """A party's state in the last checkpoint."""
    checkpoints = Checkpoints(result.folder / "checkpoints")
    checkpoints.load()
    state = checkpoints.party_state(NAMES.index(name))
    assert isinstance(state, PartyState)
    return state


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
    keeping = run("solo", tmp_path / "kept", opt_state="keep", **MODEL | settings)
    assert not torch.allclose(
        keeping.model("north").theta["fc1.weight"], theta["fc1.weight"], atol=1e-4
    )


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_kept_fedavg_is_an_optimizer_a_party_on_changing_weights(kind: str, tmp_path: Path) -> None:
    """Algorithm 1 with parties that keep their optimizers; half of them take part in a round."""
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
    )  # at least one party takes part twice
    for t, cohort in enumerate(cohorts, start=1):
        replies = []
        for i in cohort:
            trainers[i].set(theta)
            replies.append((sizes[i], trainers[i].train(stream(result, i, t, "local"))))
        total = sum(size for size, _ in replies)
        theta = {
            k: sum((size / total * w[k] for size, w in replies), torch.zeros(())) for k in theta
        }
    final_weights = result.model("north").theta
    assert all(torch.allclose(final_weights[k], theta[k], atol=1e-6) for k in theta)


def test_fedrep_keeps_the_heads_optimizer_and_the_bodys_apart(tmp_path: Path) -> None:
    """Algorithm 1 with two optimizers that are kept: the head's, then the body's."""
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
    final_weights = result.model("east").theta
    assert all(
        torch.allclose(final_weights[k], v, atol=1e-6)
        for k, v in (body | {"fc3.bias": heads[1].theta["fc3.bias"]}).items()
    )
    moments_by_part = saved_state(result, "east").moments
    assert sorted(
        sorted({n.partition(".")[0] for n in moments.first}) for moments in moments_by_part.values()
    ) == [["fc1", "fc2"], ["fc3"]]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_ditto_keeps_the_global_models_optimizer_and_the_personal_ones_apart(
    kind: str, tmp_path: Path
) -> None:
    """Without a pull, the personal model is SOLO's and the global one FedAvg's, each with its own
    optimizer state.
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
    return [moments.count for moments in saved_state(result, name).moments.values()]


@pytest.mark.parametrize(("kind", "parts"), [("momentum", 1), ("adam", 2)])
def test_a_checkpoint_holds_the_moments(kind: str, parts: int, tmp_path: Path) -> None:
    """The checkpoint has the number of steps and one or two moments per parameter, none for
    buffers.
    """
    result = run("solo", tmp_path, opt_state="keep", rounds=3, **OPTIMIZERS[kind][0])
    trainable = {k for k in result.model("north").theta if "~" not in k}
    assert trainable < result.model("north").theta.keys()
    for name, size in zip(NAMES, ragged().sizes, strict=True):
        (moments,) = saved_state(result, name).moments.values()
        assert moments.count == 3 * sum(n >= 2 for n in [10] * (size // 10) + [size % 10])
        assert moments.first.keys() == trainable
        assert moments.second.keys() == (trainable if parts == 2 else set())
        assert all(
            moment.abs().max() > 0 for moment in leaves(moments) if isinstance(moment, torch.Tensor)
        )


@pytest.mark.parametrize(
    "settings",
    [{"opt_state": "reset", **MOMENTUM}, {"opt_state": "keep"}],
    ids=["reset", "plain-sgd"],
)
def test_a_checkpoint_holds_no_unused_moments(settings: dict[str, Any], tmp_path: Path) -> None:
    result = run("solo", tmp_path, **MODEL | settings)
    assert all(saved_state(result, name).moments == {} for name in NAMES)


@pytest.mark.parametrize("text", ["solo", "fedavg", "scaffold+dbe", "fedrep"])
def test_keeping_changes_nothing_with_plain_sgd(text: str, tmp_path: Path) -> None:
    reset, keep = (run(text, tmp_path / how, opt_state=how, **MODEL) for how in ("reset", "keep"))
    assert tables(keep.folder) == tables(reset.folder)
    for name in NAMES:
        assert_equal(keep.model(name).theta, reset.model(name).theta)


KEEP = {"opt_state": "keep", "optimizer": "adam", "lr": 0.01, "rounds": 3, "participation": 0.75}


@pytest.mark.sweep("fedavg+dbe", "adcol")
@pytest.mark.parametrize(
    "text", ["solo", "fedavg", "fedrep", "ditto", "fedavg+dbe", "adcol", GOSSIP], ids=short
)
def test_process_and_resume_equal_loop(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments stay in the party's worker and are restored from a checkpoint after round 2."""
    whole = run(text, tmp_path / "loop", **KEEP)
    assert any(moments_count(whole, name) for name in NAMES)

    class Stop(Quiet):
        def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
            if t == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "cut", progress=Stop(), **KEEP)
    others = [
        run(text, tmp_path / "process", engine="process", workers=2, **KEEP),
        run(text, tmp_path / "cut", resume=True, **KEEP),
    ]
    for other in others:
        assert tables(other.folder) == tables(whole.folder)
        for name in NAMES:
            assert_equal(weights(other)[name], weights(whole)[name])
            assert moments_count(other, name) == moments_count(whole, name)


def test_keep_and_reset_give_different_runs(tmp_path: Path) -> None:
    """Otherwise the test above would pass even if a resumed run lost its moments."""
    keep, reset = (
        run("fedavg", tmp_path / how, **KEEP | {"opt_state": how}) for how in ("keep", "reset")
    )
    assert (keep.folder / "metrics.csv").read_bytes() != (reset.folder / "metrics.csv").read_bytes()


def test_resume_refuses_another_opt_state(tmp_path: Path) -> None:
    run("solo", tmp_path, **MODEL, opt_state="keep")
    with pytest.raises(comity.UsageError, match="other settings"):
        run("solo", tmp_path, **MODEL, resume=True)


# --- the last batch


def federation_of_sizes(*sizes: int) -> comity.Federation:
    """Parties with exactly these numbers of training samples."""
    x = torch.rand(max(sizes) + 4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(len(x)) % 3
    parties = {f"p{i}": ((x[:n], y[:n]), (x[-4:], y[-4:])) for i, n in enumerate(sizes)}
    federation = comity.Federation.from_arrays(parties, validation=0.0)
    assert federation.sizes == list(sizes)
    return federation


def steps(sizes: list[int], **settings: Any) -> list[int]:
    """The number of steps of each party in two rounds of SOLO."""
    usual: dict[str, Any] = {
        "rounds": 2,
        "epochs": 3,
        "batch": 10,
        "engine": "loop",
        "model": "mlp2(width=4)",
    }
    steps_per_party = [
        comity.run("solo", federation_of_sizes(n), **usual | settings).summary["steps"]
        for n in sizes
    ]
    together = comity.run("solo", federation_of_sizes(*sizes), **usual | settings)
    assert together.summary["steps"] == together.job.cost.steps() == sum(steps_per_party)
    return steps_per_party


BATCHNORM = "fedbn-cnn(scale=0.03)"
SIZES = [1, 2, 9, 10, 11, 12, 20, 29]


def test_small_last_batches_are_kept_by_default() -> None:
    """⌈n/10⌉ an epoch."""
    assert steps(SIZES) == [6 * n for n in (1, 1, 1, 1, 2, 2, 2, 3)]


def test_small_last_batches_are_dropped() -> None:
    """⌊n/10⌋ an epoch; a party with less than one batch still makes one step with all its samples."""
    assert steps(SIZES, last_batch="drop") == [6 * n for n in (1, 1, 1, 1, 1, 1, 2, 2)]


def test_batchnorm_needs_two_samples_per_batch() -> None:
    assert steps(SIZES, model=BATCHNORM) == [6 * n for n in (0, 1, 1, 1, 1, 2, 2, 3)]
    assert steps(SIZES, model=BATCHNORM, last_batch="drop") == [
        6 * n for n in (0, 1, 1, 1, 1, 1, 2, 2)
    ]


@pytest.mark.parametrize("last_batch", ["keep", "drop"])
def test_batches_of_one_are_refused_under_batchnorm(last_batch: str) -> None:
    with pytest.raises(comity.UsageError, match="at least 2"):
        steps([9], model=BATCHNORM, batch=1, last_batch=last_batch)


def test_steps_use_full_batches_only() -> None:
    assert steps([9, 11, 29], last_batch="drop", steps=7, epochs=1) == [2 * 7] * 3


def test_dropping_uses_the_partys_own_batch_size() -> None:
    """With 12 samples in batches of 5, two steps an epoch instead of one."""
    fed = federation_of_sizes(12, 12)
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
    """East has 23 samples less its validation part, so 2 steps of 10 an epoch, in the epoch's
    order.
    """
    result = run("solo", tmp_path, last_batch="drop", epochs=2, **MODEL, lr=0.1)
    theta, data = first(result), result.job.parties[1].data.train
    trainer = Trainer(theta, lambda params: torch.optim.SGD(params, lr=0.1))
    assert len(data) == 21
    for t in (1, 2, 3):
        batches = list(stream(result, 1, t, "local", min_batch=1))
        assert [len(batch.y) for batch in batches] == [10, 10, 1] * 2
        trainer.train(batch for batch in batches if len(batch.y) == 10)
    assert_close(result.model("east").theta, trainer.weights())
