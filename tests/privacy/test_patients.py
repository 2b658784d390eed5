"""Patients: `+dp` samples, weighs and accounts for all records of a patient together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import comity
from comity.base.key import Key
from comity.base.record import Params
from comity.base.samples import Samples
from comity.core.release import Release
from comity.data.patients import number_patients
from comity.errors import UsageError
from comity.models import build
from comity.privacy.composition import epsilon
from comity.runs.folder import RunFolder
from comity.training.descent import train
from comity.training.dp_sgd import Sampling, add_clipped, poisson_batches
from comity.training.requests import FitRequest, Private, plain
from comity.training.settings import Training
from comity.training.task import Batch, LearningTask

SMALL: dict[str, Any] = {"rounds": 2, "model": "mlp2(width=8)", "batch": 16, "engine": "loop"}


def task_of(model: str = "mlp2(width=5)", shape: tuple[int, ...] = (3,)) -> LearningTask:
    network = build(model, shape, 2)
    return LearningTask(network, 2, network.cut)


def samples_of(n: int, shape: tuple[int, ...] = (3,), scale: float = 1.0) -> Samples:
    x = torch.randn(n, *shape, generator=Key(3).generator()) * scale
    return Samples(x, torch.arange(n) % 2)


def fit(
    task: LearningTask,
    data: Samples,
    patients: Sequence[int] | None,
    how: Training,
    *,
    clip: float = 0.5,
    noise: float = 1.0,
) -> tuple[Params, list[tuple[float, int]]]:
    """What private training makes of a model, and the trainings that it reports."""
    numbers = None if patients is None else torch.tensor(patients)
    private = Private(data, clip, noise, [], numbers)
    request = FitRequest(plain, task.init(Key(1)), data, Key(4), how, task, None, private=private)
    return train(request).theta, private.trainings


# --- the training


@pytest.mark.parametrize(
    ("model", "shape"), [("mlp2(width=5)", (3,)), ("cnn4(width=4)", (1, 28, 28))]
)
def test_with_one_record_per_patient_bits_are_those_of_records(
    model: str, shape: tuple[int, ...]
) -> None:
    task, data = task_of(model, shape), samples_of(40, shape)
    how = Training(lr=0.3, momentum=0.9, batch=7, epochs=3)
    by_record, trainings = fit(task, data, None, how)
    by_patient, same_trainings = fit(task, data, range(40), how)
    assert trainings == same_trainings == [(7 / 40, 18)]
    for name, value in by_record.items():
        assert torch.equal(by_patient[name], value)


def test_duplicates_of_a_record_change_nothing() -> None:
    """Two records of a patient that are equal add what one of them would."""
    task, single = task_of(), samples_of(24)
    twice = single.take([k // 2 for k in range(48)])
    how = Training(lr=0.3, batch=6, epochs=2)
    one, trainings = fit(task, single, None, how)
    two, same_trainings = fit(task, twice, [k // 2 for k in range(48)], how)
    assert trainings == same_trainings == [(0.25, 8)]
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=0, atol=1e-6)


def test_two_patients_by_hand() -> None:
    """The step is the sum over patients of the mean of their records' clipped gradients."""
    task, data, clip = task_of("linear"), samples_of(3, scale=4.0), 0.2
    theta = trainable(task)
    shares = torch.tensor([0.5, 1.0, 0.5])  # the patients are 0, 1, 0
    expected = {name: torch.zeros_like(value) for name, value in theta.items()}
    for k, share in enumerate(shares):
        add_clipped(expected, loss_of(task), theta, batch_of(data, [k]), clip, float(share))
    after, _ = fit(task, data, [0, 1, 0], Training(lr=1.0, batch=2), clip=clip, noise=0.0)
    for name, value in theta.items():
        torch.testing.assert_close(
            after[name], value.detach() - expected[name] / 2, rtol=0, atol=1e-6
        )


def trainable(task: LearningTask) -> Params:
    return {name: value.requires_grad_() for name, value in task.init(Key(1)).items()}


def loss_of(task: LearningTask) -> Any:
    return lambda theta, batch: plain(task, theta, batch, None)


def batch_of(data: Samples, indices: Sequence[int]) -> Batch:
    chosen = data.take(indices)
    return Batch(chosen.x, chosen.y, torch.tensor(indices, dtype=torch.int64), 0, {})


def clipped_sum(
    task: LearningTask, data: Samples, patients: list[int], blank: int | None
) -> Tensor:
    """The sum of a batch of all patients, of whom one may be blank, in units of the clip norm."""
    theta = trainable(task)
    sizes = Counter(patients)
    there = [k for k, patient in enumerate(patients) if patient != blank]
    into = {name: torch.zeros_like(value) for name, value in theta.items()}
    weights = torch.tensor([1 / sizes[patients[k]] for k in there])
    add_clipped(into, loss_of(task), theta, batch_of(data, there), 1.0, weights)
    return torch.cat([value.flatten() for value in into.values()])


@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_a_patient_changes_the_sum_by_the_clip_norm_at_most(scale: float) -> None:
    task, data = task_of(), samples_of(30, scale=scale)
    data = replace(data, x=data.x.index_fill(0, torch.arange(20), scale))  # 20 equal records
    patients = [0] * 20 + [1] * 5 + [2, 3, 4, 5, 6]
    whole = clipped_sum(task, data, patients, None)
    changes = [
        (whole - clipped_sum(task, data, patients, patient)).norm().item() for patient in range(7)
    ]
    assert max(changes) <= 1 + 1e-4
    if scale == 100:  # each record by itself is clipped
        assert max(changes) > 0.9


def test_the_trainer_gives_a_patient_of_many_records_the_weight_of_one() -> None:
    """A step without noise, with a patient's records and with others in their place: both add the
    clip norm at most. With records as units, each of them adds as much.
    """
    task, many, clip = task_of("linear"), 20, 0.1
    data = samples_of(many + 2)
    labels = torch.tensor([0] * many + [0, 1])
    same = data.x[:1].expand(many, -1)
    theta = task.init(Key(1))

    def sum_of(records: Tensor, patients: Sequence[int] | None) -> Tensor:
        units = many + 2 if patients is None else 3
        samples = Samples(torch.cat([records, data.x[-2:]]), labels)
        how = Training(lr=1.0, batch=units)
        after, _ = fit(task, samples, patients, how, clip=clip, noise=0.0)
        return units * torch.cat([(theta[name] - after[name]).flatten() for name in theta])

    patients = [*[0] * many, 1, 2]
    by_patient, by_record = (
        (sum_of(same, units) - sum_of(-same, units)).norm().item() for units in (patients, None)
    )
    assert by_patient <= 2 * clip + 1e-5
    assert by_record == pytest.approx(many * by_patient, rel=1e-3)
    assert by_patient > clip / 2


def test_all_records_of_a_patient_are_sampled_together() -> None:
    patients = torch.tensor([0, 1, 0, 2, 2, 2] * 50) + 3 * torch.arange(50).repeat_interleave(6)
    samples = Samples(torch.zeros(300, 1), torch.zeros(300, dtype=torch.int64))
    batches = list(poisson_batches(samples, 0.2, 400, Key(5), Training(), patients))
    sizes = []
    for batch in batches:
        there = torch.bincount(patients[batch.indices], minlength=150)
        assert ((there == 0) | (there == torch.bincount(patients))).all()
        sizes.append((there > 0).sum().item())
    assert np.mean(sizes) == pytest.approx(30, abs=1.0)
    assert np.var(sizes) == pytest.approx(150 * 0.2 * 0.8, rel=0.3)


def test_a_dropped_last_batch_leaves_a_training_of_few_patients() -> None:
    """The least batch comes from the number of records, and there are fewer patients."""
    assert Sampling.of(Training(batch=64, epochs=3, min_batch=64), 40) == (1.0, 3)
    assert Sampling.of(Training(batch=64, epochs=3, min_batch=64), 100) == (0.64, 3)


# --- a run


def dataset(per_patient: int, patients: bool = True, n: int = 240) -> comity.Dataset:
    digits = comity.load("digits")
    numbers = number_patients(np.arange(n) // per_patient)
    return replace(digits, x=digits.x[:n], y=digits.y[:n], patients=numbers if patients else None)


@pytest.fixture(scope="module")
def federation() -> comity.Federation:
    return dataset(4).partition("iid", parties=3, seed=0)


def quiet_run(text: str, federation: comity.Federation, **more: Any) -> comity.Result:
    with pytest.warns(UserWarning, match="all records of a patient are protected together"):
        return comity.run(text, federation, **SMALL | more)


def test_the_account_is_that_of_records_with_the_number_of_patients(
    federation: comity.Federation,
) -> None:
    result = quiet_run("fedavg+dp(noise=1.3)", federation)
    privacy = result.summary["privacy"]
    assert privacy["unit"] == "patient"
    for name, party in federation.parties.items():
        patients = len(set(party.patients.tolist()))  # type: ignore[union-attr]
        assert patients < len(party.train) / 2
        steps = math.ceil(patients / SMALL["batch"])
        release = Release("record", "gaussian", 1.0, 1.3, rate=min(1.0, 16 / patients), steps=steps)
        assert privacy["parties"][name] == pytest.approx(epsilon({release: 2}, 1e-5), abs=1e-6)
        rows = [row for row in result.privacy if row.party == name]
        assert {(row.unit, row.rate, row.steps) for row in rows} == {
            ("patient", release.rate, steps)
        }


def test_one_record_per_patient_is_the_run_without_patients() -> None:
    with_patients, without = (
        dataset(1, patients=known).partition("dirichlet(alpha=0.5)", parties=3, seed=1)
        for known in (True, False)
    )
    for one, other in zip(with_patients.parties.values(), without.parties.values(), strict=True):
        assert torch.equal(one.train.x, other.train.x)
        assert torch.equal(one.validation.x, other.validation.x)
        assert torch.equal(one.test.x, other.test.x)
    by_patient = quiet_run("scaffold+dp(noise=0.5)", with_patients)
    by_record = comity.run("scaffold+dp(noise=0.5)", without, **SMALL)
    assert by_patient.summary["parties"] == by_record.summary["parties"]
    assert by_patient.summary["privacy"]["parties"] == by_record.summary["privacy"]["parties"]
    assert by_record.summary["privacy"]["unit"] == "record"


@pytest.mark.parametrize("engine", ["process", "stacked"])
def test_all_engines_protect_patients(
    engine: str, federation: comity.Federation, tmp_path: Any
) -> None:
    runs = {
        name: quiet_run(
            "fedprox+dp(noise=0.5)", federation, engine=name, workers=2, out=tmp_path / name
        )
        for name in ("loop", engine)
    }
    for table in ("privacy.csv", "ledger.csv"):
        texts = {(run.folder / table).read_text() for run in runs.values()}
        assert len(texts) == 1, table
    one, other = (run.metrics for run in runs.values())
    exact = engine == "process"  # stacked evaluates parties together, up to rounding
    for row, same in zip(one, other, strict=True):
        assert row.value == (same.value if exact else pytest.approx(same.value, abs=1e-5))


def noise_of(result: comity.Result) -> float:
    return float(RunFolder(result.folder).read_experiment().set["dp.noise"])


def test_a_budget_is_solved_for_patients(federation: comity.Federation) -> None:
    result = quiet_run("fedavg+dp", federation, budget="epsilon=4")
    assert result.summary["privacy"]["unit"] == "patient"
    assert 3.9 < result.summary["privacy"]["epsilon"] <= 4
    noise = noise_of(result)
    by_record = comity.run("fedavg+dp(level=record)", federation, **SMALL, budget="epsilon=4")
    assert noise > noise_of(by_record)  # there are fewer patients than records


def test_the_number_of_patients_is_charged_and_nothing_else(
    federation: comity.Federation,
) -> None:
    """A number of four bytes goes up beside the number of records."""
    without = replace(
        federation,
        parties={name: replace(p, patients=None) for name, p in federation.parties.items()},
    )
    sums = [
        sum(row.bytes for row in run.ledger if row.kind == "setup" and row.dst == "server")
        for run in (
            quiet_run("fedavg+dp(noise=1)", federation),
            comity.run("fedavg+dp(noise=1)", without, **SMALL),
        )
    ]
    assert sums[0] - sums[1] == 4 * 3


def test_level_record_is_possible_and_said_to_be_less(federation: comity.Federation) -> None:
    with pytest.warns(UserWarning, match="a patient with several records is protected less"):
        result = comity.run("fedavg+dp(level=record,noise=1)", federation, **SMALL)
    assert result.summary["privacy"]["unit"] == "record"


def test_level_patient_needs_patients() -> None:
    unnamed = dataset(4, patients=False).partition("iid", parties=3, seed=0)
    with pytest.raises(UsageError, match="level=patient needs data that name patients"):
        comity.run("fedavg+dp(level=patient,noise=1)", unnamed, **SMALL)


def test_where_some_parties_name_no_patients_records_are_protected(
    federation: comity.Federation,
) -> None:
    first = federation.names[0]
    mixed = replace(
        federation,
        parties={
            name: replace(party, patients=None if name == first else party.patients)
            for name, party in federation.parties.items()
        },
    )
    with pytest.warns(UserWarning, match=f"which those of {first} do not"):
        result = comity.run("fedavg+dp(noise=1)", mixed, **SMALL)
    assert result.summary["privacy"]["unit"] == "record"
    with pytest.raises(UsageError, match=f"those of {first} do not"):
        comity.run("fedavg+dp(level=patient,noise=1)", mixed, **SMALL)


@pytest.mark.parametrize(
    "text", ["relay+ldp(noise=3)+dp(noise=1)", "adcol(noise=gauss_l2)+dp(noise=1)"]
)
def test_noise_on_rows_protects_no_patient(text: str, federation: comity.Federation) -> None:
    with pytest.raises(UsageError, match=r"write dp\(level=record\) to protect records"):
        comity.run(text, federation, **SMALL)
    with pytest.raises(UsageError, match=r"write dp\(level=record\) to protect records"):
        comity.run("relay+ldp+dp", federation, **SMALL, budget="epsilon=8")


def test_own_constants_void_the_protection_of_patients() -> None:
    data = replace(dataset(4), x=dataset(4).x.flatten(1), scale="own", scaled=(3, 4), mean=(0.0,))
    federation = data.partition("iid", parties=3, seed=0)
    result = quiet_run("fedavg+dp(noise=1)", federation)
    assert result.summary["privacy"]["epsilon"] == "infinite"
