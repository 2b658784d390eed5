"""Records to bytes and back, over safetensors and over shared memory."""

from __future__ import annotations

import gc
import os
from importlib import import_module

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comity.base.record import name_of, record_type
from comity.core import Empty, Model, payload, record
from comity.errors import ComityError
from comity.wire.channel import Channel
from comity.wire.codec import decode, encode, flatten, unflatten

pytestmark = pytest.mark.quick


@record
class Bag:
    thing: object
    other: object


DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
shapes = st.lists(st.integers(0, 4), max_size=3)
tensors = st.builds(
    lambda shape, kind: torch.arange(float(torch.Size(shape).numel())).reshape(shape).to(kind),
    shapes,
    st.sampled_from(DTYPES),
)
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
)
trees = st.recursive(
    plain | tensors | st.builds(Empty),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner, max_size=3)
        | st.builds(Bag, inner, inner)
    ),
    max_leaves=8,
)


def is_equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and torch.equal(a, b)
        )
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(is_equal, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(is_equal(a[k], b[k]) for k in a)
    if isinstance(a, Bag):
        return isinstance(b, Bag) and is_equal(a.thing, b.thing) and is_equal(a.other, b.other)
    return type(a) is type(b) and a == b


@given(trees)
def test_trees_round_trip(tree):
    assert is_equal(decode(encode(tree)), tree)
    sender, receiver = Channel.pair()
    sender.send(tree)
    assert is_equal(receiver.receive(), tree)
    sender.close()
    receiver.close()


def test_object_in_many_messages_is_encoded_once_and_charged_to_each():
    weights = {"w": torch.zeros(1000)}
    messages = {i: Model(weights) for i in range(50)}
    skeleton, leaves = flatten(messages)
    assert len(leaves) == 1
    assert len(encode(messages)) < 8000
    back = unflatten(skeleton, leaves)
    assert back[0].theta is back[49].theta
    assert payload(messages) == 50 * 4000


def test_payload_of_each_type():
    message = Bag(
        {"w": torch.zeros(3), "n": torch.zeros(2, dtype=torch.int32)}, [1, 0.5, True, "abc", None]
    )
    assert payload(message) == 12 + 8 + 4 + 4 + 1 + 3


@pytest.mark.parametrize(
    "harm", [lambda b: b[:40], lambda b: b"x" * 50, lambda b: b"", lambda b: b[:-3]]
)
def test_damaged_blob_is_refused(harm):
    with pytest.raises(ComityError, match="damaged or foreign"):
        decode(harm(encode(Model({"w": torch.ones(5)}))))


def test_object_that_is_not_a_record_is_refused():
    with pytest.raises(TypeError, match="neither a record"):
        flatten(object())


def test_received_tensors_are_aligned_like_torchs_own():
    sender, receiver = Channel.pair()
    sender.send([torch.ones(3), torch.ones(5, dtype=torch.uint8), torch.ones(7)])
    assert all(t.data_ptr() % 64 == 0 for t in receiver.receive())


@pytest.mark.slow
def test_memory_files_are_reused_after_reading():
    sender, receiver = Channel.pair()
    for k in range(20):
        sender.send(torch.full((1000,), float(k)))
        tensor = receiver.receive()
        assert tensor[0] == k
        del tensor
        gc.collect(0)  # the youngest are enough: all of a long test session would take a second
        receiver.send(None)
        sender.receive()
    assert sender._numbers <= 2


def test_message_in_use_is_not_overwritten():
    sender, receiver = Channel.pair()
    tensors = []
    for k in range(5):
        sender.send(torch.full((1000,), float(k)))
        tensors.append(receiver.receive())
        receiver.send(None)
        sender.receive()
    assert [t[0].item() for t in tensors] == [0, 1, 2, 3, 4]


def test_padding_in_a_reused_memory_file_is_zero():
    sender, receiver = Channel.pair()
    sender.send(torch.full((256,), 0xAA, dtype=torch.uint8))
    receiver.receive()
    gc.collect(0)
    receiver.send(None)
    sender.receive()  # gives the file back
    sender.send([torch.ones(3), torch.ones(5, dtype=torch.uint8)])
    receiver.receive()
    assert sender._numbers == 1
    assert bytes(receiver._mapped[1][12:64]) == bytes(52)
    assert bytes(receiver._mapped[1][69:128]) == bytes(59)


def test_no_descriptor_is_left_open():
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    gc.collect()
    before = count()
    sender, receiver = Channel.pair()
    for size in (10, 1000, 20, 3000, 40, 5000, 60, 7000):
        sender.send(torch.zeros(size))
        receiver.receive()
        receiver.send(torch.zeros(size))
        sender.receive()
    sender.close()
    receiver.close()
    gc.collect()
    assert count() <= before


@pytest.mark.parametrize(
    ("earlier", "current"),
    [
        ("comity.core.record:Empty", "comity.base.record:Empty"),
        ("comity.core.record:Model", "comity.base.record:Model"),
        ("comity.core.training:Moments", "comity.training.settings:Moments"),
        ("comity.parts.bank:Upload", "comity.components.bank:Upload"),
        ("comity.parts.pilot:Mean", "comity.components.pilot:Mean"),
    ],
)
def test_records_are_found_under_their_earlier_names(earlier, current):
    """States that were saved before a module was moved can still be read."""
    assert earlier != current
    import_module(current.partition(":")[0])
    assert name_of(record_type(earlier)) == current


def test_unknown_record_type_is_refused():
    with pytest.raises(KeyError):
        record_type("comity.parts.bank:Nothing")
