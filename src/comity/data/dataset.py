"""A dataset: all samples in one place, before they are shared out to parties."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from comity.base.key import Key
from comity.base.samples import Ints, PartyData, Samples, combine, numbers
from comity.data import partitions, protocols, shifts
from comity.data.custom_partitions import OwnPartition, name_of
from comity.data.federation import Federation, Preprocess, Sums, share
from comity.data.formats.common import few
from comity.data.groups import GROUPED, Groups, Piece
from comity.data.preparation import Schema
from comity.data.split import Indices, Share, Split
from comity.data.steps import STEPS, Steps
from comity.errors import UsageError
from comity.plugins import is_code
from comity.spec import Spec, coerce, parse
from comity.spec import split as cut

AUTO = "auto"
COMMON = "dirichlet(alpha=0.5)"  # the partition of data without parties of their own


WITHOUT_CLASSES = ("iid", "natural", "domain", "quantity", "lognormal")
"""The partitions that do not look at classes."""


def _pair(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[float, float]:
    return mean[0], std[0]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Pooled samples. Images are N x C x H x W with values in [0, 1], or as bytes (uint8) from 0 to
    255.

    `mean` and `std` (one number, or one a channel) are fixed constants, applied after a party's
    feature shift: statistics of the pooled data would tell each party about the others. With
    `scale="own"` the columns or channels `scaled` have mean 0 and spread 1 by the party's own
    training samples instead, with `"shared"` by those of all parties, whose sums and squares are an
    exchange, and charged. With `missing="impute"`, values that are not numbers become the mean of
    the party's own training samples (0 where it has none, which is `mean` before it is applied),
    and a column that says so is added for each feature that is missing somewhere.
    """

    name: str
    x: Tensor = field(repr=False)
    y: Tensor = field(repr=False)
    classes: int  # 0 where the label is a number that is to be predicted
    description: str = ""
    licence: str = ""
    official_test: Tensor | None = field(
        default=None, repr=False
    )  # a mask: what its makers set aside for testing
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    groups: Mapping[str, Groups] = field(
        default_factory=dict, repr=False
    )  # whom or where each sample comes from
    home: str = COMMON  # the partition that `auto` means
    missing: Literal["refuse", "impute"] = "refuse"
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what a user should know: what is missing, what was changed
    scale: Literal["fixed", "own", "shared"] = "fixed"
    scaled: tuple[int, ...] = ()
    schema: Schema | None = field(
        default=None, repr=False
    )  # of a table: what its columns were, before they became numbers
    cut_by: Ints | None = field(default=None, repr=False)
    """Where others than its makers set a part aside for testing: the number of the whole (a photo)
    that each sample is of and that must stay in one part; -1 for samples whose part is official.
    """

    def __post_init__(self) -> None:
        coerce("missing", self.missing, Literal["refuse", "impute"])
        coerce("scale", self.scale, Literal["fixed", "own", "shared"])
        self._take_values()
        for by, group in self.groups.items():
            if not isinstance(group, Groups):
                raise UsageError(
                    f"The grouping {by!r} of {self._called} must be comity.data.Groups(names, of)."
                )
            group.check(by, len(self.y))
        self._check_ranges()
        self._check_constants()
        self._check_official_test()
        self._check_cut()

    @property
    def _called(self) -> str:
        """How refusals name the dataset."""
        return f"dataset {self.name!r}"

    def _take_values(self) -> None:
        """Samples and labels as tensors of the types that training needs, checked; bytes stay
        bytes.
        """
        if isinstance(self.x, np.ndarray) and self.x.dtype == np.uint8:
            object.__setattr__(self, "x", torch.from_numpy(np.require(self.x, requirements="CW")))
        if (
            isinstance(self.x, Tensor)
            and self.x.dtype == torch.uint8
            and self.x.dim() == 4
            and len(self.x)
        ):
            # Bytes stay where they are, too: a memory-mapped file is shared by all processes. Their
            # labels are checked.
            labels = Samples.of(
                self._called, np.zeros((len(self.x), 1)), self.y, amounts=self.amounts
            )
            object.__setattr__(self, "y", labels.y)
            return
        plain = self.missing != "impute"
        checked = (
            Samples.of(self._called, self.x, self.y, amounts=self.amounts)
            if plain
            else self._with_holes()
        )
        object.__setattr__(self, "x", checked.x)
        object.__setattr__(self, "y", checked.y)

    def _with_holes(self) -> Samples:
        """A table's samples and labels: all but the missing values are checked, which stay missing
        (NaN).
        """
        given = numbers(f"The x of {self._called}", self.x)
        if given.ndim != 2:
            raise UsageError(
                f"Missing values are filled in tables only; a sample of {self._called} has shape"
                f" {given.shape[1:]}."
            )
        holes = np.isnan(given)
        whole = torch.from_numpy(np.where(holes, 0, given))
        checked = Samples.of(self._called, whole, self.y, amounts=self.amounts)
        return replace(checked, x=checked.x.masked_fill(torch.from_numpy(holes), torch.nan))

    def _check_ranges(self) -> None:
        """Labels must be less than `classes`, and pixels between 0 and 1."""
        if coerce("classes", self.classes, int) and self.y.max() >= self.classes:
            raise UsageError(
                f"A label of {self._called} is {int(self.y.max())}, but labels must be less than"
                f" classes={self.classes}."
            )
        if self.x.dim() == 4 and not self._bytes and not 0 <= self.x.min() <= self.x.max() <= 1:
            raise UsageError(
                f"The images of {self._called} have values from {self.x.min():g} to"
                f" {self.x.max():g}; bring them to between 0 and 1."
            )

    def _check_constants(self) -> None:
        """`mean` and `std` must be numbers, one or one a channel."""
        for constant in ("mean", "std"):
            object.__setattr__(
                self, constant, coerce(constant, getattr(self, constant), tuple[float, ...])
            )
        if any(len(c) not in (1, self.x.shape[1]) for c in (self.mean, self.std)) or not all(
            s > 0 for s in self.std
        ):
            raise UsageError(
                f"mean and std of {self._called} must be one number or one a channel, and std more"
                " than 0."
            )

    def _check_official_test(self) -> None:
        """The official test part must leave something to learn from."""
        mask = self.official_test
        if mask is not None and not (
            isinstance(mask, Tensor)
            and mask.dtype == torch.bool
            and mask.shape == self.y.shape
            and mask.any()
            and not mask.all()
        ):
            raise UsageError(
                f"official_test of {self._called} must be a mask with true for some samples and"
                " false for others."
            )

    def _check_cut(self) -> None:
        """What may be cut anew is cut already, and by wholes."""
        cut = self.cut_by
        if cut is None:
            return
        if self.official_test is None or cut.dtype.kind not in "iu" or cut.shape != self.y.shape:
            raise UsageError(
                f"cut_by of {self._called} must be a whole number a sample, and official_test say"
                " which are for testing."
            )
        held = self.official_test.numpy()
        if np.intersect1d(cut[held & (cut >= 0)], cut[~held & (cut >= 0)]).size:
            raise UsageError(
                f"cut_by of {self._called} has a whole that is both in training and test."
            )

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        kinds = f"{self.classes} classes" if self.classes else "a number to predict"
        return f"<dataset {self.name}: {len(self):,} samples of shape {self.shape}, {kinds}>"

    def _repr_html_(self) -> str:
        from comity.notebook.views import of_dataset

        return of_dataset(self)

    @property
    def amounts(self) -> bool:
        """Whether labels are numbers that are to be predicted, not classes."""
        return self.classes == 0

    @property
    def _bytes(self) -> bool:
        return self.x.dtype == torch.uint8

    @cached_property
    def preprocess(self) -> Preprocess:
        """What is done to the values; what is filled in depends on the party."""
        many = max(len(self.mean), len(self.std))
        mean, std = ((c * many)[:many] for c in (self.mean, self.std))
        return Preprocess(255.0 if self._bytes else 1.0, mean, std, self.marked)

    @cached_property
    def marked(self) -> tuple[int, ...]:
        """The features that are missing somewhere, or may be by the schema: each gets a column that
        says where.
        """
        if self.schema:
            return self.schema.marked
        return (
            tuple(torch.where(self.x.isnan().any(0))[0].tolist())
            if self.missing == "impute"
            else ()
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample as a model sees it."""
        first, *rest = self.x.shape[1:]
        return (first + len(self.marked), *rest)

    @cached_property
    def _fingerprint(self) -> str:
        groups = [(by, g.names, combine(g.of.tolist())) for by, g in self.groups.items()]
        more: list[object] = [groups, self.missing] if groups or self.missing != "refuse" else []
        if self.scale != "fixed" or self.schema:
            more += [self.scale, self.scaled, self.schema and asdict(self.schema)]
        return combine((Samples(self.x, self.y).digest(), self.classes, self.mean, self.std, *more))

    def fingerprint(self) -> str:
        """A short name for exactly these values."""
        return self._fingerprint

    def partition(
        self,
        spec: str | OwnPartition,
        parties: int | None = None,
        seed: int = 0,
        test: str = "own(0.25)",
        validation: float = 0.1,
    ) -> Federation:
        """Share the samples out, as in `dirichlet(alpha=0.1)|shift(kinds=none,invert)`.

        `auto` follows the data's own parties where there are some. There are 10 parties unless
        told, or unless the data have their own. `spec` may be the path of a saved split (`.json`),
        which then decides everything; or one's own partition, as a file (`./mine.py`) or a function
        of labels, number of parties and a generator, which gives each party's positions.

        Examples:
            >>> digits = Dataset("halves", torch.rand(40, 3), torch.arange(40) % 2, classes=2)
            >>> def halves(y, parties, rng):
            ...     return np.array_split(np.arange(len(y)), parties)
            >>> digits.partition(halves, parties=2).split.partition
            'given:halves'
        """
        parties = None if parties is None else coerce("parties", parties, int)
        given = None if isinstance(spec, str) else spec
        spec = spec if isinstance(spec, str) else name_of(spec)
        if spec.endswith(".json"):
            federation = self.split(spec)
            if parties not in (None, len(federation.parties)):
                raise UsageError(
                    f"The split {spec!r} has {len(federation.parties)} parties, not {parties}."
                )
            return federation
        first, chained = self._read(spec)
        steps = Steps.read(chained)
        own = given is not None or is_code(first.name)
        if self.amounts:
            self._check_without_classes(WITHOUT_CLASSES[0] if own else first.name, steps)
        rule = protocols.read(test)
        validation = protocols.check_validation(validation)
        seed = coerce("seed", seed, int)
        # A key of its own for each purpose: a test or shift setting must not change who gets which
        # sample.
        key = Key.root(seed).fold("data")
        y = (
            np.zeros(len(self), np.int64) if self.amounts else self.y.numpy()
        )  # parts are drawn class by class
        official = None if self.official_test is None else self.official_test.numpy()
        kept = rule.reserve(y, official, self.cut_by, key.fold("reserve").numpy())
        pool, common = np.flatnonzero(~kept), np.flatnonzero(kept)
        groups = {by: g.take(pool) for by, g in self.groups.items()}
        seen = self.y.numpy() if own else y
        owned = partitions.divide(
            first, seen[pool], groups, parties, key.fold("partition").numpy(), given
        )

        shares: dict[str, Share] = {}
        for i, (name, piece) in enumerate(owned.items()):
            if isinstance(piece, Piece):
                mine = np.sort(pool[piece.positions])
                source = common[self.groups[piece.by].of[common] == piece.group]
            else:
                mine = np.sort(pool[piece])
                source = None
            learn, held = rule.divide(name, y, mine, common, source, key.fold("test", name).numpy())
            learn = steps.keep(name, y, learn, key)
            labels = steps.labels(i, self.classes, key)
            shares[name] = share(
                name,
                y,
                learn,
                held,
                validation=validation,
                key=key,
                shift=steps.shift(i),
                labels=labels,
            )
        text = "|".join(map(str, [first, *chained]))
        made = self._build(
            Split(self.name, self.fingerprint(), text, test, validation, seed, shares)
        )
        if parties is None or first.name not in GROUPED:
            return made
        everybody = partitions.divide(first, y[pool], groups, None, key.fold("partition").numpy())
        return replace(made, notes=(*made.notes, *self._left_out(everybody, owned)))

    def _left_out(self, everybody: Iterable[str], there: Collection[str]) -> list[str]:
        """A sentence, if some of the data's own parties take no part."""
        others = [name for name in everybody if name not in there]
        told = (
            f"{self.name}: {len(there)} parties are asked for, so {len(others)} of the data's own"
            " take no part: "
        )
        return [f"{told}{few(others, 10)}."] if others else []

    def _read(self, spec: str) -> tuple[Spec, list[Spec]]:
        """The partition that a text names, and the steps after it."""
        first, *chained = [parse(part) for part in cut(spec, "|")]
        if first.name == AUTO:
            if first.args or first.options:
                raise UsageError(
                    f"auto takes no options, as in {spec!r}; name a partition instead."
                )
            first, *more = [parse(part) for part in cut(self.home, "|")]
            return first, [*more, *chained]
        if is_code(first.name):
            return replace(first, name=str(Path(first.name).resolve())), chained
        return (parse("iid"), [first, *chained]) if first.name in STEPS else (first, chained)

    @staticmethod
    def _check_without_classes(partition: str, steps: Steps) -> None:
        if partition not in WITHOUT_CLASSES or steps.concepts:
            named = "concept" if steps.concepts else partition
            raise UsageError(
                f"{named} shares out by class, but the label of these data is a number: use"
                f" {', '.join(WITHOUT_CLASSES)}."
            )

    def split(self, source: Split | str | Path) -> Federation:
        """The federation of a saved split, exactly as it was."""
        split = source if isinstance(source, Split) else Split.read(source)
        if split.fingerprint != self.fingerprint():
            raise UsageError(
                f"The split was made for other data (dataset {split.dataset!r}), not for"
                f" {self.name!r} as it is here; use the dataset it was made for."
            )
        split.check(len(self), self.classes or 1)
        return self._build(split)

    def _build(self, split: Split) -> Federation:
        """The parties' tensors, from a split alone: a new split and a saved one take the same way."""
        shifted = protocols.read(split.test).shifted
        key = Key.root(split.seed).fold("data", "shift")
        done = self._scaled_for(split)
        everyone = cache(self._take)  # what is the same for all parties is held once
        parties: dict[str, PartyData] = {}
        fills: dict[str, Tensor] = {}
        for name, part in split.parties.items():
            how = done.for_party(name)
            seen = part.train + part.validation + (part.test if shifted else ())
            order = tuple(
                sorted(seen)
            )  # noise belongs to a sample, whichever part of the data it is in
            own = self._take(order, how, part.shift, key.fold(name))
            train, validation = (
                own.take(np.searchsorted(order, i)) for i in (part.train, part.validation)
            )
            test = (
                own.take(np.searchsorted(order, part.test)) if shifted else everyone(part.test, how)
            )
            if self.missing == "impute":  # from what the party trains on, and nothing else
                own_means = train.x.nanmean(0).nan_to_num(0.0)
                fills[name] = torch.zeros_like(own_means) if self._fills_by_constants else own_means
            parties[name] = self._finished(
                PartyData(train, validation, test), part, fills.get(name), how
            )
        done = replace(done, fills={name: tuple(fill.tolist()) for name, fill in fills.items()})
        return Federation(
            self.name,
            parties,
            self.classes,
            self.shape,
            split,
            self.notes,
            done,
            self.class_names,
            self.schema,
            len(self.scaled) + self.amounts if self.scale == "shared" else 0,
            self.scale != "fixed" or (self.missing == "impute" and not self._fills_by_constants),
        )

    @property
    def _fills_by_constants(self) -> bool:
        """Whether missing numbers become the schema's constants: where numbers are scaled by those,
        nothing is a party's own.
        """
        return self.schema is not None and self.schema.scale == "fixed"

    def _scaled_for(self, split: Split) -> Preprocess:
        """What is done to each party's values in this split: constants come from what it trains on,
        unless they are fixed.
        """
        if self.scale == "fixed":
            return self.preprocess
        sums = {
            name: Sums.of(self.x[list(part.train)], self.scaled)
            for name, part in split.parties.items()
        }
        channels = self.x.shape[1]
        made = self.preprocess
        if self.amounts:
            labels = {
                name: Sums.of(self.y[list(part.train)][:, None], (0,))
                for name, part in split.parties.items()
            }
            own_label = {name: _pair(*one.constants(1, (0,))) for name, one in labels.items()}
            label = _pair(*sum(labels.values(), Sums.nothing((0,))).constants(1, (0,)))
            made = (
                replace(made, own_label=own_label)
                if self.scale == "own"
                else replace(made, label=label)
            )
        if self.scale == "own":
            return replace(
                made, own={name: one.constants(channels, self.scaled) for name, one in sums.items()}
            )
        mean, std = sum(sums.values(), Sums.nothing(self.scaled)).constants(channels, self.scaled)
        return replace(made, mean=mean, std=std)

    def _finished(
        self, data: PartyData, part: Share, fill: Tensor | None, how: Preprocess
    ) -> PartyData:
        """A party's samples with its own names for the classes, labels that are numbers scaled, and
        missing values filled in.
        """
        parts = [data.train, data.validation, data.test]
        if part.labels is not None:
            names = torch.tensor(part.labels)
            parts = [replace(s, y=names[s.y]) for s in parts]
        if fill is not None:
            parts = [replace(s, x=self.preprocess.filled(s.x, fill)) for s in parts]
        if self.amounts:
            parts = [replace(s, y=(s.y - how.label[0]) / how.label[1]) for s in parts]
        return PartyData(parts[0], parts[1], parts[2], how.label[1], (how.mean, how.std))

    def _take(
        self, indices: Indices, how: Preprocess, shift: str | None = None, key: Key | None = None
    ) -> Samples:
        """These samples, shifted and then normalised."""
        samples = Samples(self.x, self.y).take(indices)
        if not (shift and key):
            return Samples(how.normal(samples.x), samples.y)
        values = samples.x.float() / how.divisor if self._bytes else samples.x
        x = shifts.apply(shift, values, key)
        return Samples(replace(how, divisor=1.0).normal(x), samples.y)
