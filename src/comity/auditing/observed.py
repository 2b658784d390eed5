"""Finds values in the recorded messages by their form: updates, weights, gradients, rows of
representations, and class means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from comity.auditing.view import View
from comity.base.call import CallId
from comity.base.record import Params, is_record
from comity.runs.recording import RecordedMessage
from comity.training.task import LearningTask

NO_WEIGHTS = frozenset(("grads", "c", "dc"))
"""Fields with the names and shapes of weights that are no weights: gradients, and SCAFFOLD's
control variates.
"""


class Update(NamedTuple):
    """The weights that a party got, and those that it sent back."""

    call: CallId
    field: str
    """The field of the reply that they are in."""
    party: int
    before: Params
    after: Params


class Gradient(NamedTuple):
    """A gradient that a party computed for another, or for the server."""

    round: int
    party: int
    grads: Params


class Rows(NamedTuple):
    """Representations of a party's samples, one in each row."""

    round: int
    party: int
    z: Tensor


class Means(NamedTuple):
    """A party's class means, with the numbers of samples if it sent them. `space` says whether they
    are means of representations ("features") or of logits ("logits").
    """

    round: int
    party: int
    means: Tensor
    counts: Tensor | None
    space: str


def inside(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor and every dict of tensors in a message, with the name of its field."""
    if isinstance(tree, Tensor):
        yield name, tree
    elif is_record(tree):
        for field, value in vars(tree).items():
            yield from inside(value, field)
    elif (
        isinstance(tree, dict)
        and tree
        and all(isinstance(v, Tensor) and isinstance(k, str) for k, v in tree.items())
    ):
        yield name, tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from inside(value, name)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from inside(value, name)


def params_in(tree: Any, task: LearningTask) -> dict[str, Params]:
    """By field: the dicts with the names and shapes of a model's weights."""
    shapes = task.shapes
    return {
        name: node
        for name, node in inside(tree)
        if isinstance(node, dict)
        and all(k in shapes and tuple(v.shape) == shapes[k][0] for k, v in node.items())
    }


def by_parties(view: View) -> Iterator[tuple[int, RecordedMessage]]:
    """The messages of parties to the server or to each other, without those of newcomers."""
    for message in view.messages():
        if message.kind != "message" and message.src in view.parties:
            yield message.src, message


def updates(view: View) -> Iterator[Update]:
    """The weights in replies with those in the messages that they answer, under the same field."""
    sent_weights: dict[int, Any] = {}
    call = None
    for message in view.messages():
        if message.call != call:
            sent_weights, call = {}, message.call
        if message.kind == "message":
            sent_weights |= dict.fromkeys(message.to, message.content)
        elif message.kind == "reply" and message.src in view.parties:
            task = view.party(message.src).task
            received, replied = (
                params_in(sent_weights.get(message.src), task),
                params_in(message.content, task),
            )
            for name in replied.keys() & received.keys() - NO_WEIGHTS:
                if replied[name].keys() == received[name].keys():
                    yield Update(message.call, name, message.src, received[name], replied[name])


def last_weights(view: View) -> dict[int, Params]:
    """The last weights that each party sent, with the initial ones of layers that it keeps."""
    weights: dict[int, Params] = {}
    for party, message in by_parties(view):
        for name, theta in params_in(message.content, view.party(party).task).items():
            if name not in NO_WEIGHTS:
                weights[party] = theta
    return {i: view.first(i) | theta for i, theta in sorted(weights.items())}


def gradients(view: View) -> Iterator[Gradient]:
    """All gradients, in the order of the messages."""
    for party, message in by_parties(view):
        grads = params_in(message.content, view.party(party).task).get("grads")
        if grads:
            yield Gradient(message.call.round, party, grads)


def rows(view: View) -> Iterator[Rows]:
    """The arrays of representations, if the method declares that its parties send some."""
    if "representations" not in view.leaves:
        return
    for party, message in by_parties(view):
        width = view.party(party).task.width
        for _, node in inside(message.content):
            if (
                isinstance(node, Tensor)
                and node.dim() == 2
                and node.shape[1] == width
                and node.is_floating_point()
            ):
                yield Rows(message.call.round, party, node)


def means(view: View) -> Iterator[Means]:
    """The class means, if the method declares that its parties send some.

    Arrays of several sets of class means count only if a message has no single set.
    """
    if "means" not in view.leaves:
        return
    for party, message in by_parties(view):
        task = view.party(party).task
        parts = dict(inside(message.content))
        counts = parts.get("counts")
        tables = {
            name: node
            for name, node in parts.items()
            if isinstance(node, Tensor) and node.is_floating_point()
        }
        plain = {name: node for name, node in tables.items() if _by_class(node, task)}
        sets = {
            name: table
            for name, node in tables.items()
            if node.dim() == 3
            for table in node
            if _by_class(table, task)
        }
        for name, node in (plain or sets).items():
            space = "logits" if name == "logits" or node.shape[1] != task.width else "features"
            yield Means(
                message.call.round,
                party,
                node,
                counts if isinstance(counts, Tensor) else None,
                space,
            )


def _by_class(table: Tensor, task: LearningTask) -> bool:
    """Whether an array has a row for each class, of representations or of logits."""
    return (
        table.dim() == 2
        and len(table) == task.classes
        and table.shape[1] in (task.width, task.classes)
    )
