"""When parties learn with each other, and when by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from comity.core import Empty, Training, record


@record
class More:
    """A collaborative step after which another follows in the same round."""


Step = Empty | More
"""A round's last collaborative step, or one of those before it."""


class Schedule:
    """A method whose parties make collaborative steps in a round and then fine-tune on their
    own data. It declares these options.
    """

    collab_steps: int
    tune: Literal["round", "end", "off"]

    def messages(self, reuse: bool) -> list[Step]:
        """A message for each exchange of a round: one if what peers sent is used again (`reuse`),
        else one for each step.
        """
        return [*[More()] * (0 if reuse else self.collab_steps - 1), Empty()]

    def forgets(self, reuse: bool, how: Training) -> list[str]:
        """A warning, if each collaborative step is a training of its own and the optimizer does not
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
        """The training of one exchange: its collaborative steps, and after a round's last the
        epochs that tune.
        """
        steps = self.collab_steps if reuse else 1
        if self.tune != "round" or isinstance(m, More):
            return replace(how, steps=steps)
        return how if steps == 1 else replace(how, steps=steps - 1 + how.steps_for(samples))
