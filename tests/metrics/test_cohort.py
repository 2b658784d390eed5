"""Many parties' predictions scored together: the same bits as one by one."""

from __future__ import annotations

import math

import pytest
import torch

from comity.base.key import Key
from comity.base.samples import PartyData, Samples
from comity.metrics import cohort
from comity.metrics.cohort import Predictions, blocks_of, figures_of
from comity.metrics.evaluation import Predicted, evaluate_logits, predict, score_predicted
from comity.metrics.metrics import METRICS, metrics_for
from comity.wire.codec import encode


def some_parties(classes: int, parties: int = 40) -> list[PartyData]:
    """Parties of 0 to 39 samples. Some have ties, one class only, or a model that has diverged."""
    generator = Key.root(classes).generator()

    def samples(party: int) -> Samples:
        count = int(torch.randint(40, (1,), generator=generator))
        x = torch.randn(count, classes, generator=generator)
        y = torch.randint(classes, (count,), generator=generator)
        if party % 4 == 1:
            x = x.round()
        if party % 4 == 2:
            y = torch.full((count,), party % classes)
        if party == 7 and count:
            x[0, 0] = math.nan
        if party == 11 and count:
            x[0, 0] = math.inf
        return Samples(x, y)

    return [PartyData(samples(i), samples(i), samples(i)) for i in range(parties)]


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_cohort_is_scored_as_its_parties_alone(classes: int, final: bool) -> None:
    parties = some_parties(classes)
    predicted = [predict(lambda x: x, classes, data) for data in parties]
    together = score_predicted(predicted, final, "macro_f1")
    alone = [evaluate_logits(lambda x: x, classes, data, final, "macro_f1") for data in parties]
    assert [encode(one) for one in together] == [encode(one) for one in alone]


@pytest.mark.parametrize("classes", [2, 3, 17])
@pytest.mark.parametrize("most", [1, 1 << 10, 1 << 30])
def test_blocks_of_any_size_have_the_bits_of_each_metric(
    classes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohort, "MAX_ELEMENTS", most)
    parties = [
        Predictions(data.test.x, data.test.y) for data in some_parties(classes) if len(data.test)
    ]
    metrics = metrics_for(classes)
    figures = figures_of(list(blocks_of(parties)), [metric.name for metric in metrics])
    for party, found in zip(parties, figures, strict=True):
        alone = {metric.name: metric.of(*party) for metric in metrics}
        assert repr(found) == repr({k: v for k, v in alone.items() if v is not None})


def test_parties_with_other_numbers_of_logits_are_not_mixed() -> None:
    wide, narrow = torch.randn(4, 5), torch.randn(4, 3)
    y = torch.tensor([0, 1, 2, 0])
    blocks = list(blocks_of([Predictions(wide, y), Predictions(narrow, y), Predictions(narrow, y)]))
    assert [len(block.parties) for block in blocks] == [1, 2]


def test_amounts_are_scored_in_their_own_units() -> None:
    y = torch.tensor([1.0, 2.0, 4.0])
    data = [PartyData(Samples(y, y), Samples(y, y), Samples(y, y), unit) for unit in (1.0, 10.0)]
    predicted = [Predicted(0, party, y[:, None] + 1, y[:, None] + 1) for party in data]
    first, second = score_predicted(predicted, True, "r2")
    assert (first.test.figures["mae"], second.test.figures["mae"]) == (1.0, 10.0)
    assert first.test.loss == second.test.loss


def test_the_calls_of_a_metric_grow_with_blocks_not_with_parties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    metric = METRICS["macro_f1"]
    figures = metric.figures
    monkeypatch.setitem(vars(metric), "figures", lambda *args: calls.append(1) or figures(*args))
    y = torch.tensor([0, 1, 2])
    parties = [Predictions(torch.randn(3, 3), y) for _ in range(64)]
    assert len(figures_of(list(blocks_of(parties)), ["macro_f1"])) == 64
    assert len(calls) <= 2
