"""What the server and every party of a run both know: the settings, what parties say of themselves,
and what follows.

Nothing here needs data. A simulation builds it once; between sites each side builds it for itself,
so that tasks and party numbers are never sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from comity import models
from comity.base.record import record
from comity.base.samples import PartyData
from comity.data import Federation
from comity.data.augment import Augment
from comity.errors import UsageError, unknown
from comity.metrics.metrics import Metric, count_by_class, has_too_few
from comity.models.pretrained import InitialWeights, initial_weights
from comity.models.referenced_weights import INITIAL_WEIGHTS, WeightsReference
from comity.runs.config import Experiment
from comity.training.settings import Training
from comity.training.task import LearningTask, batchnorm_private


@record
class PartyInfo:
    """What one party says of itself before a run. Nobody else learns more of its data."""

    train: int
    """The number of training samples."""
    validation: int
    test: int
    judged: list[str]
    """The splits (validation, test) for whose samples the run's metric is defined."""
    too_few: bool
    """Whether it has too few test samples to be judged by."""
    counts: list[int] | None = None
    """The number of training samples per class, if the party reveals it."""
    own_constants: bool = False
    """Whether its inputs are scaled or imputed with statistics of its own records. Then one record
    affects all others.
    """
    patients: int | None = None
    """The number of patients that the training samples are of; None if the data name none."""

    @staticmethod
    def of(
        data: PartyData,
        classes: int,
        metric: Metric,
        counts: bool = True,
        own_constants: bool = False,
    ) -> PartyInfo:
        """What a party with these data says, with or without the `counts` of its classes."""
        splits = [
            name
            for name, part in (("validation", data.validation), ("test", data.test))
            if len(part) and metric.is_defined(part.y)
        ]
        return PartyInfo(
            train=len(data.train),
            validation=len(data.validation),
            test=len(data.test),
            judged=splits,
            too_few=has_too_few(count_by_class(data.test.y, classes), metric),
            counts=list(count_by_class(data.train.y, classes)) if counts else None,
            own_constants=own_constants,
            patients=data.patient_count,
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
    """The value 0 after preprocessing, by channel. Augmentation fills with it."""
    shared_columns: int = 0
    """The number of columns whose sums and squares parties send, so that all scale them alike."""
    class_names: tuple[str, ...] = ()

    @staticmethod
    def of(federation: Federation, metric: Metric) -> PartyInfos:
        """What the parties of a simulated federation say, for a run that is judged by this
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
        """The mean total variation distance between a party's class distribution and that of all: 0
        if equal, near 1 if disjoint.

        0 in regression; None if a party does not reveal its class counts.
        """
        party_counts = [info.counts for info in self.parties.values()]
        if any(counts is None for counts in party_counts):
            return None
        counts = torch.tensor(party_counts, dtype=torch.float64)
        overall = counts.sum(0) / counts.sum()
        shares = counts / counts.sum(1, keepdim=True)
        return float((shares - overall).abs().sum(1).mean() / 2)


@dataclass(frozen=True)
class Roster:
    """Who takes part in a run, and under which numbers.

    Parties that are left out have no number. Newcomers, who join after the last round, have the
    highest numbers.
    """

    names: tuple[str, ...]
    """All that take part. A party's number is its position here."""
    places: tuple[int, ...]
    """Their numbers in the whole federation."""
    from_start: int
    """How many take part from the start."""
    invited: tuple[str, ...]
    """All parties of the whole federation but newcomers, whether they take part or were left
    out.
    """

    @staticmethod
    def of(experiment: Experiment, all_names: Sequence[str]) -> Roster:
        """The roster of a run. Refuses settings that name unknown parties, or leave nobody to start
        with.
        """
        left_out = experiment.without or ()
        for name in (*experiment.party, *left_out):
            if name not in all_names:
                raise unknown("party called", name, all_names)
        if experiment.newcomers >= len(all_names):
            raise UsageError(
                f"All {len(all_names)} parties would be newcomers: at least one must be there from"
                " the start."
            )
        first_late = len(all_names) - experiment.newcomers
        places = tuple(place for place, name in enumerate(all_names) if name not in left_out)
        from_start = sum(place < first_late for place in places)
        if not from_start:
            raise UsageError(
                "Without these parties nobody is there from the start: leave out fewer."
            )
        return Roster(
            tuple(all_names[place] for place in places),
            places,
            from_start,
            tuple(all_names[:first_late]),
        )


@dataclass(frozen=True)
class RunContext:
    """What follows from an experiment's settings and from what parties say of themselves."""

    experiment: Experiment
    party_infos: PartyInfos
    modules: models.CustomModel | None = None
    """A user's network, instead of one that the settings name."""
    run_folder: Path | None = None
    """The folder of a run between sites, which has the initial weights if the settings name their
    digest.
    """
    _tasks: dict[str, LearningTask] = field(default_factory=dict, repr=False)

    @cached_property
    def roster(self) -> Roster:
        """Who takes part."""
        return Roster.of(self.experiment, self.party_infos.names)

    @cached_property
    def training(self) -> Training:
        """The training settings of all parties without settings of their own."""
        return self.experiment.training()

    @cached_property
    def augment(self) -> Augment | None:
        """The augmentation of training samples."""
        return Augment.read(self.experiment.augment, self.party_infos.black, self.party_infos.shape)

    @cached_property
    def initial_weights(self) -> list[InitialWeights]:
        """Where the initial weights of the parties' networks come from, one entry for each network
        with given weights.
        """
        networks = {id(t): t.network for t in map(self.task, self.roster.names)}.values()
        starts = map(initial_weights, networks)
        return [start for start in starts if start is not None]

    def task(self, party: str) -> LearningTask:
        """A party's learning task. Parties whose networks have the same name share one object."""
        settings = self.experiment.party.get(party)
        party_model = settings.model if settings else None
        name = party_model or self.experiment.model
        if name not in self._tasks:
            use_modules = self.modules is not None and not party_model
            self._tasks[name] = self._build_task(
                self.modules if use_modules else name, name == self.experiment.model
            )
        return self._tasks[name]

    def _build_task(self, model: str | models.CustomModel | None, is_common: bool) -> LearningTask:
        """The task of a network. The setting `weights` is for the common network only."""
        assert model is not None
        classes = self.party_infos.classes
        outputs = max(1, classes)  # one output in regression
        weights = self._weights_file() if is_common else None
        redraw = self.experiment.init != "common"
        network = models.build(model, self.party_infos.shape, outputs, weights, redraw)
        return LearningTask(
            network,
            classes,
            self.experiment.cut or network.cut,
            batchnorm_private(network, self.experiment.bn),
        )

    def _weights_file(self) -> str | None:
        """The file of initial weights, if the settings name one."""
        reference = WeightsReference.read(self.experiment.weights)
        if reference is None:
            return self.experiment.weights
        if self.run_folder is None:
            raise UsageError(
                "The initial weights are named by their digest, which only runs between sites can"
                " use: name a file."
            )
        file = self.run_folder / INITIAL_WEIGHTS
        reference.read_file(file)
        return str(file)
