"""A learning task that wraps another and adds to it: a second head, a valve before the head, or
another rule for predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from comity.core import LearningTask, Params


@dataclass(frozen=True, kw_only=True)
class Around(LearningTask):
    """A task around another. The inner task computes the representations and names the head, even
    if a wrapper has changed the inner task.
    """

    inner: LearningTask

    @classmethod
    def of(cls, task: LearningTask, private: frozenset[str] = frozenset(), **more: Any) -> Self:
        """Wrap `task`. The names in `private` become private in addition to the task's own."""
        return cls(task.network, task.classes, task.cut, task.private | private, inner=task, **more)

    @property
    def head_names(self) -> frozenset[str]:
        return self.inner.head_names

    def features(self, theta: Params, x: Tensor, train: bool = False) -> Tensor:
        return self.inner.features(theta, x, train)
