"""What a party learns: a model cut into features and head, a loss, and what of it is private."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from comity.base.key import Key
from comity.base.record import Params, is_buffer
from comity.errors import UsageError
from comity.training.kernels import cross_entropy, squared_error


class Network(Protocol):
    """A model as an ordered stack of named stages (`models/stack.py`, `models/modules.py`)."""

    @property
    def name(self) -> str: ...
    @property
    def stages(self) -> tuple[str, ...]: ...
    @property
    def cut(self) -> str: ...
    @property
    def norms(self) -> frozenset[str]: ...
    def init(self, key: Key) -> Params: ...
    def run(self, theta: Params, x: Tensor, train: bool, begin: int, end: int) -> Tensor: ...
    def shape_after(self, stage: str) -> tuple[int, ...]: ...
    @property
    def draws(self) -> bool: ...
    @property
    def dense(self) -> bool: ...
    def layer_stream(self, key: Key) -> AbstractContextManager[object]: ...


def fixed_in(network: Network) -> str:
    """A digest of what a network holds beside its parameters (`models/low_rank.py`); empty if there
    is nothing.
    """
    found: str = getattr(network, "fixed", "")
    return found


@dataclass(slots=True)
class Batch:
    """A mini-batch, as a loss gets it."""

    x: Tensor
    y: Tensor
    indices: Tensor
    """Where its samples stand among the party's."""
    number: int
    """How many batches of this training came before it."""
    scratch: dict[str, Tensor]
    """Lives for one training: a loss may leave here what it needs at the next batch, or what its
    work reads at the end.
    """
    rows: dict[str, Tensor] = field(default_factory=dict)
    """What else belongs to its samples (see `Samples.rows`)."""
    drawn: Any = None
    """What the training's `draw` made for this batch: randomness comes as data."""


def _stackable(cls: type) -> None:
    """Make a task class a pytree whose leaves are its tensors and those of tasks within it.

    By these parties' tasks may differ (DBE's consensus) and still be trained together; all other
    fields must be equal.
    """

    def flatten(task: Any) -> tuple[list[Any], tuple[list[str], dict[str, Any]]]:
        parts = {f.name: getattr(task, f.name) for f in fields(task)}
        inner = [name for name, value in parts.items() if isinstance(value, Tensor | LearningTask)]
        return [parts.pop(name) for name in inner], (inner, parts)

    def unflatten(values: Iterable[Any], context: tuple[list[str], dict[str, Any]]) -> Any:
        made: Any = object.__new__(cls)  # checked when it was made: only its tensors are others now
        made.__dict__.update(context[1], **dict(zip(context[0], values, strict=True)))
        return made

    def with_names(task: Any) -> tuple[list[Any], tuple[list[str], dict[str, Any]]]:
        values, context = flatten(task)
        return [
            (pytree.GetAttrKey(name), value) for name, value in zip(context[0], values, strict=True)
        ], context

    pytree.register_pytree_node(cls, flatten, unflatten, flatten_with_keys_fn=with_names)


REMEMBERED = 4
_FIRST: dict[tuple[int, int, torch.dtype], tuple[Network, Params]] = {}
"""Initial weights by network and key: a thousand parties start with one and the same; holds the
networks, so that ids stay.
"""


@dataclass(frozen=True)
class LearningTask:
    """A network cut after the stage `cut`: what comes before it makes the representation z, what
    follows is the head.
    """

    network: Network
    classes: int
    """0 where the label is a number that is to be predicted."""
    cut: str
    private: frozenset[str] = field(default=frozenset())
    """Names that never leave a party, whatever the algorithm (the BatchNorm policy and wrappers add
    to it).
    """

    def __init_subclass__(cls) -> None:
        _stackable(cls)

    def __post_init__(self) -> None:
        if self.cut not in self.network.stages[:-1]:
            raise UsageError(
                f"{self.network.name} cannot be cut after {self.cut!r}; it has"
                f" {', '.join(self.network.stages[:-1])}."
            )

    @cached_property
    def _at(self) -> int:
        return self.network.stages.index(self.cut) + 1

    @cached_property
    def _end(self) -> int:
        return len(self.network.stages)

    @cached_property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], int]]:
        """Shape and bytes of every parameter and buffer."""
        return {k: (tuple(v.shape), v.nbytes) for k, v in self.init(Key(0)).items()}

    @cached_property
    def dtypes(self) -> dict[str, torch.dtype]:
        """What kind of numbers every parameter and buffer holds."""
        return {k: v.dtype for k, v in self.init(Key(0)).items()}

    @cached_property
    def z_shape(self) -> tuple[int, ...]:
        """The shape of one representation."""
        return self.network.shape_after(self.cut)

    @property
    def width(self) -> int:
        """The number of values in one representation."""
        return int(torch.Size(self.z_shape).numel())

    @property
    def head_names(self) -> frozenset[str]:
        """The names of the head's parameters and buffers."""
        stages = set(self.network.stages[self._at :])
        return frozenset(k for k in self.shapes if k.partition(".")[0] in stages)

    @property
    def norm_names(self) -> frozenset[str]:
        """The names that belong to BatchNorm layers, found by the layers' type."""
        return self.network.norms

    def bytes(self, without: frozenset[str] = frozenset()) -> int:
        """What the model weighs on the wire."""
        return sum(size for name, (_, size) in self.shapes.items() if name not in without)

    @property
    def personal(self) -> LearningTask:
        """The task without what a wrapper asks of shared parameters only: for models that never
        leave the party.
        """
        return self

    @property
    def plain(self) -> LearningTask:
        """The task without anything of a wrapper's, cut where the model is: for representations
        that no data made.
        """
        return self

    def keeping(self, names: frozenset[str]) -> LearningTask:
        """The same task with these names private too."""
        return replace(self, private=self.private | names)

    def init(self, key: Key) -> Params:
        """Initial weights: for one key the same for every party that has this architecture, and the
        same tensors.
        """
        place = (id(self.network), key.bits, torch.get_default_dtype())
        if place not in _FIRST:
            while len(_FIRST) >= REMEMBERED:
                del _FIRST[next(iter(_FIRST))]
            _FIRST[place] = self.network, self.network.init(key)
        return dict(_FIRST[place][1])

    def features(self, theta: Params, x: Tensor, train: bool = False) -> Tensor:
        """The representation z of x."""
        return self.network.run(theta, x, train, 0, self._at)

    def head(self, theta: Params, z: Tensor, train: bool = False) -> Tensor:
        """Logits from a representation."""
        return self.network.run(theta, z, train, self._at, self._end)

    def logits(self, theta: Params, x: Tensor) -> Tensor:
        """What the party would answer."""
        return self.head(theta, self.features(theta, x))

    def objective(self, theta: Params, z: Tensor, batch: Batch) -> Tensor:
        """The loss of a batch whose representation is known."""
        return self.criterion(self.head(theta, z, train=True), z, batch)

    def criterion(self, logits: Tensor, z: Tensor, batch: Batch) -> Tensor:
        """The loss of answers and of the representation they came from: wrappers add their terms
        here.
        """
        return cross_entropy(logits, batch.y) if self.classes else squared_error(logits, batch.y)

    def loss(self, theta: Params, batch: Batch) -> Tensor:
        """The training loss of a batch."""
        return self.objective(theta, self.features(theta, batch.x, train=True), batch)


_stackable(LearningTask)


def in_chunks(function: Callable[[Tensor], Tensor], x: Tensor, rows: int = 512) -> Tensor:
    """`function(x)` without gradients, a few hundred rows at a time."""
    with torch.no_grad():
        parts = [function(part) for part in x.split(rows)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


BN_POLICIES = ("all", "params_only", "none")


def batchnorm_private(network: Network, policy: str) -> frozenset[str]:
    """Which BatchNorm names a policy keeps at home: none of them, the running statistics, or all of
    them.
    """
    if policy not in BN_POLICIES:
        raise UsageError(f"bn must be one of {', '.join(BN_POLICIES)}, not {policy!r}.")
    if policy == "all":
        return frozenset()
    return frozenset(n for n in network.norms if policy == "none" or is_buffer(n))
