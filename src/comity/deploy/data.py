"""A site's data: imported once by the common schema, and split for each run by its settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from comity.checksums import UNREADABLE, read_json, with_crc
from comity.data import Dataset, Federation
from comity.data import load as load_dataset
from comity.data.groups import Groups
from comity.data.importing import read_federation
from comity.data.party_files import find_party_files
from comity.data.preparation import Schema
from comity.data.prepared import save
from comity.errors import CorruptedFile, UsageError
from comity.runs.config import Experiment
from comity.runs.environment import digest
from comity.safe_files import write_atomically

PARTY = "party"
SPLITS = "splits.json"
"""The file in a site's folder with the split of each dataset, by a digest of the data."""
DATA = "sites"
"""The setting `data` of a run between sites."""


def import_site_data(
    source: Path,
    out: Path,
    schema: Path | None,
    classes: int | None = None,
    group: str | None = None,
    party: str | None = None,
) -> Dataset:
    """Import a site's file, or its folder of pictures, and save the dataset.

    Arguments:
        source: the file or folder
        out: the folder that the dataset is written to
        schema: the file of the common schema, for tables
        classes: the number of classes, for arrays
        group: the column or array that identifies patients, if there is one
        party: the site's name, under which the schema has its missing values and units. Default:
            the name of the file
    """
    files = find_party_files(source) if source.is_file() else {source.name: source}
    if party is not None:
        files = dict.fromkeys((party,), next(iter(files.values())))
    dataset = read_federation(
        files,
        source.name,
        schema=Schema.read(schema) if schema else None,
        classes=classes,
        group=group,
    )
    save(dataset, out, files.values())
    return dataset


class SiteSplit(NamedTuple):
    """How a site's records are split: the settings of its first run on these data."""

    seed: int
    test: str
    validation: float

    @staticmethod
    def of(experiment: Experiment) -> SiteSplit:
        """The split that the settings of a run ask for."""
        return SiteSplit(experiment.seed, experiment.test, experiment.validation)

    def __str__(self) -> str:
        return f"seed={self.seed}, test={self.test}, validation={self.validation:g}"


def site_federation(name: str, data: Path, split: SiteSplit) -> Federation:
    """A site's data as a federation of one party.

    The split depends only on the name, the seed and the data. It is therefore the same as in a
    simulation with the data of all sites.

    Arguments:
        name: the site's name, which the party gets
        data: the folder that `import_site_data` wrote
        split: how the records are split
    """
    dataset = load_dataset(str(data))
    if dataset.scale == "shared":
        raise UsageError(
            f"The data of {name} are to be scaled by the statistics of all parties, which sites do"
            " not exchange: use own or fixed."
        )
    groups = dataset.groups.get(PARTY)
    if groups is None or len(groups.names) != 1:
        raise UsageError(
            f"{data} must hold the data of one party, as comity deploy join imports them."
        )
    renamed = replace(dataset, groups={PARTY: Groups((name,), groups.of)})
    return renamed.partition(
        "natural(min=1)", seed=split.seed, test=split.test, validation=split.validation
    )


def fixed_split(
    at: Path, name: str, data: Path, requested: SiteSplit
) -> tuple[SiteSplit, Federation]:
    """The split that all runs on the same data have, and the data so split.

    A server that could choose another split for each run would train on the test records of the
    last one, and could compare models with and without a record. So the first run decides.

    Arguments:
        at: the site's folder, where the split is stored
        name: the site's name
        data: the folder with the site's data
        requested: the split that the settings of this run ask for
    """
    stored = _read_splits(at).get(_data_digest(data))
    split = SiteSplit(*stored) if stored else requested
    return split, site_federation(name, data, split)


def store_split(at: Path, data: Path, split: SiteSplit) -> None:
    """Store the split of the first run on these data. Later calls change nothing."""
    splits = _read_splits(at)
    digest = _data_digest(data)
    if digest not in splits:
        content = {"splits": splits | {digest: list(split)}}
        write_atomically(at / SPLITS, json.dumps(with_crc(content)))


def _read_splits(at: Path) -> dict[str, Any]:
    """The splits of all datasets that this site has had, by a digest of the dataset."""
    path = at / SPLITS
    try:
        content = read_json(path)
        return dict(content["splits"])
    except FileNotFoundError:
        return {}
    except UNREADABLE as why:
        raise CorruptedFile(
            f"{path} is damaged: how the records were split in earlier runs is not known."
        ) from why


def _data_digest(data: Path) -> str:
    return load_dataset(str(data)).fingerprint()


def site_settings(experiment: Experiment) -> Experiment:
    """The settings with those values that are fixed for runs between sites."""
    return experiment.but(
        engine="flare", workers=None, device="cpu", data=DATA, partition="natural", parties=None
    )


def schema_digest(schema: Schema | None) -> str:
    """A digest of the schema that the data follow; empty for data that are no table."""
    return digest(json.dumps(schema.to_dict(), sort_keys=True)) if schema else ""
