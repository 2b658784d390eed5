"""The tree in which replies are added: its bits depend on the replies and their positions only."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from comity.core import Averaging, Model, Params, average, record
from comity.core.aggregate import AveragedReplies, ReplyTree, SumNode
from comity.engines.reply_sums import assign_ranges, is_worth_adding
from comity.engines.stacked.block_sums import BlockSums
from comity.errors import ComityError

pytestmark = pytest.mark.quick


@record
class TwoModels:
    """A reply of two models."""

    one: Params
    other: Params


def reply_of(i: int) -> TwoModels:
    """Numbers of very different sizes, so that another order of additions gives other bits."""
    draw = torch.Generator().manual_seed(i)
    sizes = 10.0 ** torch.randint(-6, 7, (5,), generator=draw)
    first = torch.randn(5, generator=draw) * sizes
    second = torch.randn(2, 2, generator=draw)
    return TwoModels(
        {"w": first, "count~": torch.tensor(100 + i)}, {"w": second, "b": second[0].double()}
    )


def weight_of(i: int) -> float:
    return 1.0 + i % 7


def bits(value: TwoModels) -> list[bytes]:
    tensors: list[Tensor] = [*value.one.values(), *value.other.values()]
    return [tensor.numpy().tobytes() for tensor in tensors]


def recursive_sum(present: Sequence[bool]) -> TwoModels:
    """The definition: a power of two of positions is divided into halves, again and again."""

    def plus(a: Params, b: Params) -> Params:
        return {k: a[k] + b[k] if a[k].is_floating_point() else a[k] for k in a}

    def total(begin: int, size: int) -> TwoModels | None:
        if begin >= len(present):
            return None
        if size == 1:
            if not present[begin]:
                return None
            reply, weight = reply_of(begin), weight_of(begin)
            return TwoModels(
                *(
                    {k: v * weight if v.is_floating_point() else v for k, v in model.items()}
                    for model in vars(reply).values()
                )
            )
        left, right = (total(at, size // 2) for at in (begin, begin + size // 2))
        if left is None or right is None:
            return left or right
        return TwoModels(plus(left.one, right.one), plus(left.other, right.other))

    whole = total(0, 1 << (len(present) - 1).bit_length())
    assert whole is not None
    return whole


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[bool], list[int], list[int], bool]:
    """Which replies count, the worker of each party, an order of arrival, and whether workers say
    which replies do not count.
    """
    count = draw(st.integers(1, 40))
    present = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    present[draw(st.integers(0, count - 1))] = True
    in_ranges = draw(st.booleans())
    workers = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    if in_ranges:
        workers.sort()
    return present, workers, list(draw(st.permutations(range(count)))), draw(st.booleans())


@settings(max_examples=200, deadline=None)
@given(calls())
def test_bits_are_the_same_for_any_workers_absences_and_order(
    call: tuple[list[bool], list[int], list[int], bool],
) -> None:
    present, worker_of, order, tells_absent = call
    count = len(present)
    nodes: list[SumNode] = []
    for worker in set(worker_of):
        part = ReplyTree[TwoModels](count)
        for i in (i for i in order if worker_of[i] == worker):
            if present[i]:
                part.add(i, reply_of(i), weight_of(i))
            elif tells_absent:
                part.skip(i)
        nodes += part.nodes()
    before = [bits(node.total) for node in nodes]
    whole = ReplyTree[TwoModels](count)
    for n in sorted(range(len(nodes)), key=lambda n: order[n % count]):
        whole.add_node(nodes[n])
    weights = {i: weight_of(i) for i in range(count) if present[i]}
    mean, parties = whole.mean(weights)
    expected = recursive_sum(present)
    divided = TwoModels(
        *(
            {k: v / sum(weights.values()) if v.is_floating_point() else v for k, v in m.items()}
            for m in vars(expected).values()
        )
    )
    assert bits(mean) == bits(divided)
    assert parties == list(weights)
    assert [bits(node.total) for node in nodes] == before, "what others sent is not written to"
    assert int(mean.one["count~"]) == 100 + min(weights), "of the first party that counts"


@given(st.integers(1, 200), st.integers(1, 6))
def test_a_worker_with_a_range_has_few_sums(count: int, workers: int) -> None:
    assigned = [
        ids for ids in assign_ranges(dict.fromkeys(range(count), 50), workers, {}) if ids
    ] if count >= 16 * workers else [list(range(count))]  # fmt: skip
    for ids in assigned:
        tree = ReplyTree[Model](count)
        for i in ids:
            tree.add(i, Model({"w": torch.ones(1)}), 1.0)
        assert sum(node.size for node in tree.nodes()) == len(ids)
        assert len(tree.nodes()) <= 2 * count.bit_length()
        assert len(tree._tree._nodes) == len(tree.nodes()), "other sums are not kept"
    assert is_worth_adding(assigned, count)


@given(st.integers(32, 500), st.integers(1, 6), st.data())
def test_ranges_have_about_equal_loads(count: int, workers: int, data: st.DataObject) -> None:
    if count < 16 * workers:
        return
    loads = dict(
        enumerate(data.draw(st.lists(st.integers(20, 60), min_size=count, max_size=count)))
    )
    stay = data.draw(st.dictionaries(st.sampled_from(range(count)), st.integers(0, workers - 1), max_size=5))  # fmt: skip
    assigned = assign_ranges(loads, workers, stay)
    assert sorted(i for ids in assigned for i in ids) == list(range(count))
    assert all(i in assigned[w] for i, w in stay.items())
    share = sum(loads.values()) / workers
    # A range ends at a multiple of a power of two: half of it, or a party, may be too much. Its
    # parties may be large ones.
    slack = 60 * (count / workers / 16 + 1) + 60 * len(stay)
    assert all(abs(sum(loads[i] for i in ids) - share) <= 2 * slack for ids in assigned)


def test_scattered_parties_are_not_worth_adding() -> None:
    assert not is_worth_adding([list(range(0, 20, 2)), list(range(1, 20, 2))], 20)
    assert is_worth_adding([list(range(20))], 20)
    assert is_worth_adding([[0, 1, 2], [3]], 4)


def test_few_sums_are_in_memory() -> None:
    tree = ReplyTree[Model](1000)
    most = 0
    for i in range(1000):
        if i % 10:
            tree.add(i, Model({"w": torch.ones(1)}), 1.0)
        else:
            tree.skip(i)
        most = max(most, len(tree._tree._nodes))
    assert most <= 10
    assert len(tree.nodes()) == 1


def test_other_replies_than_those_that_count_are_noticed() -> None:
    tree = ReplyTree[Model](2)
    tree.add(0, Model({"w": torch.ones(1)}), 1.0)
    with pytest.raises(ComityError, match="fault of the engine"):
        tree.mean({0: 1.0, 1: 1.0})


def test_averages_in_a_method_have_the_same_bits() -> None:
    """So that a method that averages by itself can equal its parent bit for bit."""
    models = {i: reply_of(i).one for i in range(13)}
    weights = {i: weight_of(i) for i in models}
    tree, averaging = ReplyTree[Model](13), Averaging()
    for i, theta in models.items():
        tree.add(i, Model(theta), weights[i])
        averaging.add(theta, weights[i])
    expected = tree.mean(weights).value.theta
    for mean in (averaging.value(), average(models, weights)):
        assert [*mean] == [*expected]
        assert all(torch.equal(mean[k], expected[k]) for k in expected)


def test_sums_in_a_tree_are_nearer_to_the_exact_mean_than_sums_in_order() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1)) / 100 + 1
    tree, in_order = Averaging(), torch.zeros(())
    for value in values:
        tree.add({"w": value}, 50.0)
        in_order += value * 50.0
    exact = float(sum(map(Fraction, values.tolist()), Fraction()) / 1000)
    mean = float(tree.value()["w"])
    assert abs(mean - exact) < abs(float(in_order / 50_000) - exact)
    assert abs(mean - exact) <= 12 * 2.0**-24 * abs(exact)


# Blocks of parties that were trained together.


def stacked(count: int, seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(count, 3, 2, generator=draw),
        "scale": torch.randn(count, generator=draw),
        "count~": torch.arange(count) + 10 * seed,
    }


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_rows_of_stacked_weights_are_added_with_the_same_bits(data: st.DataObject) -> None:
    """Blocks have any positions, and some of their replies do not count."""
    count = data.draw(st.integers(2, 40))
    ordered = data.draw(st.booleans())
    positions = list(range(count)) if ordered else data.draw(st.permutations(range(count)))
    cut = data.draw(st.integers(1, count - 1))
    lost = data.draw(st.sets(st.sampled_from(range(count)), max_size=count - 1))
    sums, tree = BlockSums(count), ReplyTree[Model](count)
    for block, at in ((stacked(cut, 1), positions[:cut]), (stacked(count, 2), positions[cut:])):
        for row, position in enumerate(at):
            theta = {k: v[row] for k, v in block.items()}
            if position in lost:
                theta["w"].fill_(float("nan"))
                sums.skip(position)
                tree.skip(position)
                continue
            like = sums.add(position, Model(theta), weight_of(position))
            tree.add(position, Model(theta), weight_of(position))
            assert all(v.is_meta and v.shape == theta[k].shape for k, v in like.theta.items())
    for node, expected in zip(sums.nodes(), tree.nodes(), strict=True):
        assert (node.level, node.index, node.size) == (
            expected.level,
            expected.index,
            expected.size,
        )
        for name, value in expected.total.theta.items():
            assert torch.equal(node.total.theta[name], value)


def test_complete_blocks_are_added_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[int] = []
    monkeypatch.setattr(ReplyTree, "add", lambda *arguments: added.append(arguments[1]))
    block, sums = stacked(64, 1), BlockSums(64)
    for i in range(64):
        sums.add(i, Model({k: v[i] for k, v in block.items()}), 1.0)
    assert [(node.level, node.index, node.size) for node in sums.nodes()] == [(6, 0, 64)]
    assert not added


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda theta: theta["w"].clone(), id="copy"),
        pytest.param(lambda theta: theta["w"].t().clone().t(), id="other-strides"),
        pytest.param(lambda theta: theta["w"] - 1, id="result"),
    ],
)
def test_replies_that_are_no_rows_are_added_one_by_one(change) -> None:
    block, sums, tree = stacked(6, 3), BlockSums(6), ReplyTree[Model](6)
    for i in range(6):
        theta = {k: v[i] for k, v in block.items()}
        reply = Model(theta | {"w": change(theta)})
        sums.add(i, reply, weight_of(i))
        tree.add(i, reply, weight_of(i))
    weights = {i: weight_of(i) for i in range(6)}
    assert len(sums.nodes()) == 1
    assert sums.nodes()[0].total.theta["w"].equal(tree.nodes()[0].total.theta["w"])
    assert torch.equal(sums.mean(weights).value.theta["w"], tree.mean(weights).value.theta["w"])


@record
class Judged(Model):
    """A reply with a value beside its weights."""

    loss: float


@pytest.mark.parametrize("kind", [lambda: ReplyTree(2), lambda: BlockSums(2), AveragedReplies])
def test_replies_that_cannot_be_averaged_are_refused(kind) -> None:
    theta = {"w": torch.ones(1)}
    for reply, why in (
        (theta, "but a dict is none"),
        (Judged(theta, 0.5), r"but Judged.loss holds no parameters: go through server\.replies"),
    ):
        with pytest.raises(ComityError, match=why):
            kind().add(0, reply, 1.0)
    sums = kind()
    sums.add(0, Model(theta), 1.0)
    with pytest.raises(ComityError, match="must be of one type to be averaged, but one is a Two"):
        sums.add(1, TwoModels(theta, theta), 1.0)
    with pytest.raises(ComityError, match="w is"):
        sums.add(1, Model({"w": torch.ones(2)}), 1.0)
