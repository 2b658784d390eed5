"""What the server and every party of a run know alike: the settings, what parties say of
themselves, and what follows from these.

Nothing here needs anybody's data. In a simulation all of it is in one place; between sites each
side makes it for itself, so that tasks and seats never travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from comity import models
from comity.metrics.metrics import Metric, count_by_class, has_too_few
from comity.base.record import record
from comity.base.samples import PartyData
from comity.training.task import LearningTask, batchnorm_private
from comity.training.settings import Training
from comity.data import Federation
from comity.data.augment import Augment
from comity.errors import UsageError, unknown
from comity.runs.config import Experiment


@record
class PartyInfo:
    """What one party says of itself before a run: all that anybody else learns of its data."""

    train: int
    """How many samples it has to learn from."""
    validation: int
    test: int
    judged: list[str]
    """The splits (validation, test) whose samples have a figure by the run's metric."""
    too_few: bool
    """Whether its test samples are too few to judge it by."""
    counts: list[int] | None = None
    """How many training samples it has of each class, where that may be told."""
    own_constants: bool = False
    """Whether its inputs are scaled or filled in by figures of its own records: then one record
    moves what all others are.
    """

    @staticmethod
    def of(
        data: PartyData,
        classes: int,
        metric: Metric,
        counts: bool = True,
        own_constants: bool = False,
    ) -> PartyInfo:
        """What a party with these data would say, with the `counts` of its classes or without."""
        judged = [
            name
            for name, part in (("validation", data.validation), ("test", data.test))
            if len(part) and metric.is_defined(part.y)
        ]
        few = has_too_few(count_by_class(data.test.y, classes), metric)
        own = list(count_by_class(data.train.y, classes)) if counts else None
        return PartyInfo(
            len(data.train), len(data.validation), len(data.test), judged, few, own, own_constants
        )


@dataclass(frozen=True)
class PartyInfos:
    """What all parties of a federation say of themselves before a run."""

    parties: Mapping[str, PartyInfo]
    """By name, in the federation's order."""
    shape: tuple[int, ...]
    """The shape of one sample."""
    classes: int
    black: tuple[float, ...]
    """What preprocessing makes of the value 0, channel by channel: augmentation fills in with it.
    """
    shared_columns: int = 0
    """Of how many columns they send sums and squares, so that all scale them alike."""
    class_names: tuple[str, ...] = ()

    @staticmethod
    def of(federation: Federation, metric: Metric) -> PartyInfos:
        """What the parties of a simulated federation would say, in a run that is judged by that
        metric.
        """
        return PartyInfos(
            {
                name: PartyInfo.of(
                    data, federation.classes, metric, own_constants=federation.own_constants
                )
                for name, data in federation.parties.items()
            },
            federation.shape,
            federation.classes,
            federation.preprocess.black,
            federation.shared_columns,
            federation.class_names,
        )

    @property
    def names(self) -> list[str]:
        """The parties' names, in order."""
        return list(self.parties)

    def label_skew(self) -> float | None:
        """The mean total variation distance between a party's class shares and everybody's: 0
        alike, towards 1 disjoint.

        0 where there are no classes, None where somebody does not tell how many samples of each
        class it has.
        """
        told = [said.counts for said in self.parties.values()]
        if any(own is None for own in told):
            return None
        counts = torch.tensor(told, dtype=torch.float64)
        everybody = counts.sum(0) / counts.sum()
        return float((counts / counts.sum(1, keepdim=True) - everybody).abs().sum(1).mean() / 2)


@dataclass(frozen=True)
class Roster:
    """Who takes part in a run, and under which numbers.

    Parties that are left out have no number, and the others are counted without them; newcomers,
    who join after the last round, are counted last.
    """

    names: tuple[str, ...]
    """All that take part; a party's number is its position here."""
    places: tuple[int, ...]
    """Their numbers in the whole federation."""
    from_start: int
    """How many take part from the start."""
    invited: tuple[str, ...]
    """All of the whole federation that are no newcomers, whether they take part or were left out.
    """

    @staticmethod
    def of(experiment: Experiment, everybody: Sequence[str]) -> Roster:
        """The seats of a run, if the names in its settings are those of parties, and somebody is
        there to begin.
        """
        left_out = experiment.without or ()
        for name in (*experiment.party, *left_out):
            if name not in everybody:
                raise unknown("party called", name, everybody)
        if experiment.newcomers >= len(everybody):
            raise UsageError(
                f"All {len(everybody)} parties would be newcomers: at least one must be there from"
                " the start."
            )
        first_late = len(everybody) - experiment.newcomers
        places = tuple(place for place, name in enumerate(everybody) if name not in left_out)
        from_start = sum(place < first_late for place in places)
        if not from_start:
            raise UsageError(
                "Without these parties nobody is there from the start: leave out fewer."
            )
        return Roster(
            tuple(everybody[place] for place in places),
            places,
            from_start,
            tuple(everybody[:first_late]),
        )


@dataclass(frozen=True)
class RunContext:
    """What follows from an experiment's settings and the parties' introductions."""

    experiment: Experiment
    introductions: PartyInfos
    modules: models.CustomModel | None = None
    """A user's own network, in place of one that the settings name."""
    _tasks: dict[str, LearningTask] = field(default_factory=dict, repr=False)

    @cached_property
    def seats(self) -> Roster:
        """Who takes part."""
        return Roster.of(self.experiment, self.introductions.names)

    @cached_property
    def training(self) -> Training:
        """How everybody trains who has no ways of its own."""
        return self.experiment.training()

    @cached_property
    def augment(self) -> Augment | None:
        """The random changes to training samples."""
        return Augment.read(
            self.experiment.augment, self.introductions.black, self.introductions.shape
        )

    def task(self, party: str) -> LearningTask:
        """A party's task; parties whose networks have one name share one object."""
        own = self.experiment.party.get(party)
        its_own = own.model if own else None
        name = its_own or self.experiment.model
        if name not in self._tasks:
            self._tasks[name] = self._made(
                self.modules if self.modules is not None and not its_own else name
            )
        return self._tasks[name]

    def _made(self, model: str | models.CustomModel) -> LearningTask:
        classes = self.introductions.classes
        network = models.build(
            model, self.introductions.shape, max(1, classes)
        )  # one answer, if it is a number
        return LearningTask(
            network,
            classes,
            self.experiment.cut or network.cut,
            batchnorm_private(network, self.experiment.bn),
        )
