"""A site's data: imported once by the common schema, and split for each run by its settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from comity.data import Dataset, Federation
from comity.data import load as load_dataset
from comity.data.groups import Groups
from comity.data.importing import read_federation
from comity.data.party_files import find_party_files
from comity.data.preparation import Schema
from comity.data.prepared import save
from comity.errors import UsageError
from comity.runs.config import Experiment
from comity.runs.environment import digest

PARTY = "party"
DATA = "sites"
"""The setting `data` of a run between sites."""


def import_site_data(
    source: Path, out: Path, schema: Path | None, classes: int | None = None
) -> Dataset:
    """Import a site's file, or its folder of pictures, and save the dataset.

    Arguments:
        source: the file or folder
        out: the folder that the dataset is written to
        schema: the file of the common schema, for tables
        classes: the number of classes, for arrays
    """
    files = find_party_files(source) if source.is_file() else {source.name: source}
    dataset = read_federation(
        files, source.name, schema=Schema.read(schema) if schema else None, classes=classes
    )
    save(dataset, out, files.values())
    return dataset


def site_federation(name: str, data: Path, experiment: Experiment) -> Federation:
    """A site's data as a federation of one party, split as the settings of a run say.

    The split depends only on the name, the seed and the data. It is therefore the same as in a
    simulation with the data of all sites.

    Arguments:
        name: the site's name, which the party gets
        data: the folder that `import_site_data` wrote
        experiment: the settings of the run
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
        "natural(min=1)",
        seed=experiment.seed,
        test=experiment.test,
        validation=experiment.validation,
    )


def schema_digest(schema: Schema | None) -> str:
    """A digest of the schema that the data follow; empty for data that are no table."""
    return digest(json.dumps(schema.to_dict(), sort_keys=True)) if schema else ""
