"""Learning tasks: a network divided into features and head, a loss, and the parameters that stay
private.
"""

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
from comity.training.gradient_count import count_pass
from comity.training.kernels import mean_cross_entropy, squared_error


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
    """A digest of a network's fixed tensors beside its parameters (`models/low_rank.py`); empty if
    it has none.
    """
    digest: str = getattr(network, "fixed", "")
    return digest


@dataclass(slots=True)
class Batch:
    """A mini-batch as a loss receives it."""

    x: Tensor
    y: Tensor
    indices: Tensor
    """The positions of its samples among the party's."""
    number: int
    """The number of batches before it in this training."""
    scratch: dict[str, Tensor]
    """Exists for one training. A loss may store values here for the next batch, or for its party
    function to read at the end.
    """
    rows: dict[str, Tensor] = field(default_factory=dict)
    """Further values of its samples (see `Samples.rows`)."""
    draws: Any = None
    """What the training's `draw` returned for this batch: random values are passed as data."""


def _stackable(cls: type) -> None:
    """Register a task class as a pytree whose leaves are its tensors and those of nested tasks.

    Parties' tasks may differ in these (as DBE's consensus does) and still be trained in one batch.
    All other fields must be equal.
    """

    def flatten(task: Any) -> tuple[list[Any], tuple[list[str], dict[str, Any]]]:
        parts = {f.name: getattr(task, f.name) for f in fields(task)}
        inner = [name for name, value in parts.items() if isinstance(value, Tensor | LearningTask)]
        return [parts.pop(name) for name in inner], (inner, parts)

    def unflatten(values: Iterable[Any], context: tuple[list[str], dict[str, Any]]) -> Any:
        task: Any = object.__new__(cls)  # skips the checks of its constructor: only tensors differ
        task.__dict__.update(context[1], **dict(zip(context[0], values, strict=True)))
        return task

    def with_names(task: Any) -> tuple[list[Any], tuple[list[str], dict[str, Any]]]:
        values, context = flatten(task)
        return [
            (pytree.GetAttrKey(name), value) for name, value in zip(context[0], values, strict=True)
        ], context

    pytree.register_pytree_node(cls, flatten, unflatten, flatten_with_keys_fn=with_names)


CACHED_INITS = 4
_INITIAL_WEIGHTS: dict[tuple[int, int, torch.dtype], tuple[Network, Params]] = {}
"""Initial weights by network and key, shared by all parties. It holds the networks, so that their
ids stay unique.
"""


@dataclass(frozen=True)
class LearningTask:
    """A network divided after the stage `cut`: the stages up to it compute the representation z,
    the rest is the head.
    """

    network: Network
    classes: int
    """The number of classes; 0 for regression."""
    cut: str
    private: frozenset[str] = field(default=frozenset())
    """Names that never leave a party with any method (the BatchNorm policy and wrappers add to
    it).
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
    def _cut_index(self) -> int:
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
        """The dtype of every parameter and buffer."""
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
        stages = set(self.network.stages[self._cut_index :])
        return frozenset(k for k in self.shapes if k.partition(".")[0] in stages)

    @property
    def trains_encoder(self) -> bool:
        """Whether any parameter before the cut is trained: a frozen encoder has none."""
        return any(not is_buffer(name) for name in self.shapes.keys() - self.head_names)

    @property
    def norm_names(self) -> frozenset[str]:
        """The parameters and buffers of BatchNorm layers, found by the layers' type."""
        return self.network.norms

    def bytes(self, without: frozenset[str] = frozenset()) -> int:
        """The size of the model in a message, without the named entries."""
        return sum(size for name, (_, size) in self.shapes.items() if name not in without)

    @property
    def personal(self) -> LearningTask:
        """The task without terms that a wrapper applies to shared parameters only: for models that
        never leave the party.
        """
        return self

    @property
    def plain(self) -> LearningTask:
        """The task without a wrapper's changes, cut where the model is: for representations that
        were not computed from data.
        """
        return self

    def keeping(self, names: frozenset[str]) -> LearningTask:
        """The same task with these names private, too."""
        return replace(self, private=self.private | names)

    def init(self, key: Key) -> Params:
        """Initial weights. For one key they are the same tensors for every party with this
        architecture.
        """
        cache_key = (id(self.network), key.bits, torch.get_default_dtype())
        if cache_key not in _INITIAL_WEIGHTS:
            while len(_INITIAL_WEIGHTS) >= CACHED_INITS:
                del _INITIAL_WEIGHTS[next(iter(_INITIAL_WEIGHTS))]
            _INITIAL_WEIGHTS[cache_key] = self.network, self.network.init(key)
        return dict(_INITIAL_WEIGHTS[cache_key][1])

    def features(self, theta: Params, x: Tensor, train: bool = False) -> Tensor:
        """The representation z of x."""
        count_pass(theta, x)
        return self.network.run(theta, x, train, 0, self._cut_index)

    def head(self, theta: Params, z: Tensor, train: bool = False) -> Tensor:
        """Logits from a representation."""
        return self.network.run(theta, z, train, self._cut_index, self._end)

    def logits(self, theta: Params, x: Tensor) -> Tensor:
        """The party's prediction: logits, or the predicted value in regression."""
        return self.head(theta, self.features(theta, x))

    def objective(self, theta: Params, z: Tensor, batch: Batch) -> Tensor:
        """The loss of a batch whose representation has been computed."""
        return self.criterion(self.head(theta, z, train=True), z, batch)

    def criterion(self, logits: Tensor, z: Tensor, batch: Batch) -> Tensor:
        """The loss of logits and their representation. Wrappers add their terms here."""
        return (
            mean_cross_entropy(logits, batch.y) if self.classes else squared_error(logits, batch.y)
        )

    def loss(self, theta: Params, batch: Batch) -> Tensor:
        """The training loss of a batch."""
        return self.objective(theta, self.features(theta, batch.x, train=True), batch)


_stackable(LearningTask)


def in_chunks(function: Callable[[Tensor], Tensor], x: Tensor, rows: int = 512) -> Tensor:
    """`function(x)` without gradients, a few hundred rows at a time."""
    with torch.no_grad():
        if x.shape[0] <= rows:
            return function(x)
        return torch.cat([function(part) for part in x.split(rows)])


BN_POLICIES = ("all", "params_only", "none")


def batchnorm_private(network: Network, policy: str) -> frozenset[str]:
    """The BatchNorm names that a policy keeps at the party: none, the running statistics, or all of
    them.
    """
    if policy not in BN_POLICIES:
        raise UsageError(f"bn must be one of {', '.join(BN_POLICIES)}, not {policy!r}.")
    if policy == "all":
        return frozenset()
    return frozenset(n for n in network.norms if policy == "none" or is_buffer(n))
