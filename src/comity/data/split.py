"""`Split`: which samples each party trains, validates and tests on (`split.json` of a run)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from comity.errors import UsageError
from comity.wire.ledger import EVERYBODY, SERVER

Indices = tuple[int, ...]
RESERVED = {SERVER: "the server", EVERYBODY: "all parties together"}
"""Names that stand in the tables for others than a party."""


@dataclass(frozen=True)
class Share:
    """One party's samples, as positions in the dataset.

    For `Federation.from_arrays` they are positions in the party's own arrays.
    """

    train: Indices
    validation: Indices
    test: Indices
    shift: str | None = None
    """The feature shift of this party, as in "rotate" or "rotate|noise"."""
    labels: Indices | None = None
    """The party's number for each class, if it differs from the other parties' (concept shift)."""


@dataclass(frozen=True)
class Split:
    """All that is needed, besides the dataset, to rebuild a federation."""

    dataset: str
    fingerprint: str
    """Fingerprint of the dataset: the positions are valid for these data only."""
    partition: str
    test: str
    validation: float
    seed: int
    parties: dict[str, Share]

    def to_json(self) -> str:
        """The split as one line of JSON."""
        return _adapter.dump_json(self).decode()

    @staticmethod
    def from_json(text: str, source: str = "This text") -> Split:
        """Parse the output of `to_json`; `source` names the text in error messages."""
        try:
            return _adapter.validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(
                f"{source} is not a split written by Comity ({where or 'as a whole'}: "
                f"{first['msg']}); use the split.json of a run."
            ) from error

    @staticmethod
    def read(path: str | Path) -> Split:
        """Read the split in the file at `path`."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"The split file {str(path)!r} cannot be read; check its path."
            ) from error
        return Split.from_json(text, f"The file {str(path)!r}")

    def check(self, samples: int, classes: int) -> None:
        """Check the split against a dataset's number of samples and classes.

        Raises:
            UsageError: if positions do not exist, or a party trains on test samples.
        """
        if not self.parties:
            raise UsageError("The split names no parties; use the split.json of a run.")
        for name, share in self.parties.items():
            _check_share(name, share, samples, classes)
        uses = np.zeros(samples, dtype=np.int64)
        for share in self.parties.values():
            np.add.at(uses, list(share.train + share.validation), 1)
        for name, share in self.parties.items():
            if (uses[list(share.train + share.validation)] > 1).any():
                raise UsageError(
                    f"The split uses a training sample of party {name!r} twice; the file is"
                    " damaged."
                )
            if uses[list(share.test)].any():
                raise UsageError(
                    f"The split tests party {name!r} on a sample that is trained on; the file is"
                    " damaged."
                )


def _check_share(name: str, share: Share, samples: int, classes: int) -> None:
    """Check one party's share by itself."""
    check_name(name)
    if share.labels is not None and sorted(share.labels) != list(range(classes)):
        raise UsageError(
            f"The split must give party {name!r} a name for each of {classes} classes; the file is"
            " damaged."
        )
    if not share.train or not share.test:
        raise UsageError(
            f"The split leaves party {name!r} without training or without test samples."
        )
    for index in chain(share.train, share.validation, share.test):
        if not 0 <= index < samples:
            raise UsageError(
                f"The split gives party {name!r} sample {index}, but the dataset has samples 0 to"
                f" {samples - 1}."
            )


def check_name(name: object) -> None:
    """Refuse a party name that cannot be used in csv files, file names and commands."""
    if not isinstance(name, str) or not re.fullmatch(r"\w([\w .-]{0,62}\w)?", name):
        raise UsageError(
            f"A party cannot be called {name!r}; use up to 64 letters, digits, and inside also"
            " spaces, dots and hyphens."
        )
    if meaning := RESERVED.get(name.lower()):
        raise UsageError(
            f"A party cannot be called {name!r}, which stands for {meaning}; choose another name."
        )


_adapter = TypeAdapter(Split)
