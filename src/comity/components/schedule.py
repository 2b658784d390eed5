"""A schedule of collaborative steps and local fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from comity.core import Empty, Training, record


@record
class More:
    """A collaborative step that is not the last of its round."""


Step = Empty | More
"""The last collaborative step of a round (`Empty`), or an earlier one (`More`)."""


class StepSchedule:
    """A method whose parties make collaborative steps in a round and then fine-tune on their own
    data. Subclasses declare these options.
    """

    collab_steps: int
    tune: Literal["round", "end", "off"]

    def messages(self, reuse: bool) -> list[Step]:
        """One message per exchange of a round: one in total if the peers' samples are reused
        (`reuse`), else one per step.
        """
        return [*[More()] * (0 if reuse else self.collab_steps - 1), Empty()]

    def forgets(self, reuse: bool, how: Training) -> list[str]:
        """A warning if each collaborative step is a separate training and the optimizer does not
        keep its state between them.
        """
        alone = not reuse and (self.collab_steps > 1 or self.tune != "round")
        if alone and not how.keep and (how.momentum or how.optimizer == "adam"):
            return [
                "Each collaborative step begins with an optimizer that remembers nothing, unless"
                " opt_state is keep."
            ]
        return []

    def stretch(self, m: Step, reuse: bool, how: Training, samples: int) -> Training:
        """The training of one exchange: its collaborative steps and, after the last one of a round,
        the fine-tuning epochs.
        """
        steps = self.collab_steps if reuse else 1
        if self.tune != "round" or isinstance(m, More):
            return replace(how, steps=steps)
        return how if steps == 1 else replace(how, steps=steps - 1 + how.steps_for(samples))
