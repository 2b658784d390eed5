"""A task that adds something to another: a second head, a valve before the head, another way to
answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from comity.core import LearningTask, Params


@dataclass(frozen=True, kw_only=True)
class Around(LearningTask):
    """A task around another, which makes the representations and says what is a head, also if a
    wrapper has changed it.
    """

    inner: LearningTask

    @classmethod
    def of(cls, task: LearningTask, private: frozenset[str] = frozenset(), **more: Any) -> Self:
        """Such a task around this one, with these names private too."""
        return cls(task.network, task.classes, task.cut, task.private | private, inner=task, **more)

    @property
    def head_names(self) -> frozenset[str]:
        return self.inner.head_names

    def features(self, theta: Params, x: Tensor, train: bool = False) -> Tensor:
        return self.inner.features(theta, x, train)
