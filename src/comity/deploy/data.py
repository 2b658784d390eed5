"""A site's own data: imported once by the schema that all have agreed on, and cut anew for each run
as its settings say.
"""

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
"""What the settings of a run between sites say of its data."""


def bring(source: Path, out: Path, schema: Path | None, classes: int | None = None) -> Dataset:
    """Import a site's own file, or its one folder of pictures; a table follows the schema, arrays
    have so many classes.
    """
    found = find_party_files(source) if source.is_file() else {source.name: source}
    made = read_federation(
        found, source.name, schema=Schema.read(schema) if schema else None, classes=classes
    )
    save(made, out)
    return made


def own_federation(name: str, data: Path, experiment: Experiment) -> Federation:
    """A site's data as a federation of one, of the site's name, cut in the parts that the settings
    ask for.

    What goes into which part depends on the name, the seed and the data alone, so it is as if all
    data were in one place.
    """
    dataset = load_dataset(str(data))
    if dataset.scale == "shared":
        raise UsageError(
            f"The data of {name} are to be scaled by everybody's figures, which sites do not"
            " exchange: use own or fixed."
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


def schema_mark(schema: Schema | None) -> str:
    """A digest of the schema that data follow; nothing where they are no table."""
    return digest(json.dumps(schema.to_dict(), sort_keys=True)) if schema else ""
