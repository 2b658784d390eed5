"""Parties whose samples are replaced by their representations, where the encoder is frozen.

A frozen encoder gives the same representation of a sample in every step of every round. So it is
computed once, and training, evaluation and messages start from it. Results agree with those of a
run that computes representations in each step up to rounding: the encoder sees a party's samples
512 at a time instead of batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from comity.base.samples import Samples
from comity.core.algorithm import AnyAlgorithm
from comity.core.party import Party
from comity.core.wrapper import chain
from comity.models.represented import Represented, frozen_stages
from comity.training.task import LearningTask, in_chunks


def uses_raw_inputs(algorithm: AnyAlgorithm) -> bool:
    """Whether a method uses samples otherwise than through the learning task: it changes, compares
    or sends them. A user's method is assumed to, unless it declares that it does not.
    """
    return any(_uses_raw_inputs(part) for part in chain(algorithm))


def _uses_raw_inputs(part: AnyAlgorithm) -> bool:
    traits = part.traits
    if "samples" in traits.leaves:
        return True
    if traits.raw_inputs is not None:
        return traits.raw_inputs
    return not type(part).__module__.startswith("comity.algorithms.")


def with_representations(parties: Sequence[Party], algorithm: AnyAlgorithm) -> list[Party]:
    """The same parties; those with a frozen encoder and without augmentation have representations
    as samples, and a task that takes these.
    """
    if uses_raw_inputs(algorithm):
        return list(parties)
    representations = _Representations()
    return [
        representations.instead_of_samples(party, stages)
        if (stages := frozen_stages(party.task.network)) and party.training.augment is None
        else party
        for party in parties
    ]


class _Representations:
    """Representations by network and samples: parties may share a network and test samples."""

    def __init__(self) -> None:
        self._tasks: dict[int, LearningTask] = {}
        self._values: dict[tuple[int, int], Tensor] = {}

    def instead_of_samples(self, party: Party, stages: int) -> Party:
        """The party with the outputs of its network's first stages as samples."""
        task = self._tasks.setdefault(
            id(party.task),
            replace(party.task, network=Represented(party.task.network, stages)),
        )

        def of(samples: Samples) -> Samples:
            return replace(samples, x=self._of(party.task, samples.x, stages))

        data = replace(
            party.data,
            train=of(party.data.train),
            validation=of(party.data.validation),
            test=of(party.data.test),
        )
        return replace(party, task=task, data=data)

    def _of(self, task: LearningTask, x: Tensor, stages: int) -> Tensor:
        key = id(task), id(x)
        if key not in self._values:
            self._values[key] = (
                in_chunks(lambda rows: task.network.run({}, rows, False, 0, stages), x)
                if len(x)
                else x.new_zeros(0, *task.network.shape_after(task.network.stages[stages - 1]))
            )
        return self._values[key]
