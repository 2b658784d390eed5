"""Sites with tables in folders of their own, of which profiles are asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from in_process_sites import HUB, Handed, Root, Sites

from comity.data.profiles import Profile
from comity.data.tables import agreed_schema
from comity.deploy.data import import_site_data
from comity.deploy.policy import write
from comity.deploy.profile_server import DATA
from comity.deploy.server import FAILURE, PROFILES, SCHEMA, serve

ALLOWED = {"profiles = 0": "profiles = 1"}
"""The change to a new site's policy that allows one profile."""


class TableSites(Sites):
    """Sites with one table each.

    Arguments:
        folder: where the sites are
        tables: the table of each site, with the column `outcome` as the label
        changes: to the new policies of all sites
        group: the column with the patient of each row, if there is one
        scale: how numbers are scaled
    """

    def __init__(
        self,
        folder: Path,
        tables: Mapping[str, pd.DataFrame],
        changes: Mapping[str, str] = ALLOWED,
        group: str | None = None,
        scale: str = "own",
    ) -> None:
        self.folder, self.names = folder, sorted(tables)
        self.root = Root()
        files = folder / "files"
        files.mkdir(parents=True)
        (folder / "hub").mkdir()
        for name, table in tables.items():
            table.to_csv(files / f"{name}.csv", index=False)
        drop = (group,) if group else ()
        schema = agreed_schema([files], label="outcome", scale=scale, drop=drop)
        schema.write(folder / "hub" / SCHEMA)
        for name in self.names:
            self.site(name).mkdir()
            import_site_data(
                files / f"{name}.csv",
                self.site(name) / "data",
                folder / "hub" / SCHEMA,
                None,
                group,
            )
            write(self.site(name), name, "data")
            self.change(name, changes)

    def profile(self, run: str = "p1", transport: Handed | None = None) -> Profile:
        """A profile of all sites' data, as the server collects it."""
        out = self.folder / "hub" / PROFILES / run
        self.ask(run, transport)
        assert not (out / FAILURE).exists(), (out / FAILURE).read_text()
        return Profile.read(out / DATA)

    def ask(self, run: str = "p1", transport: Handed | None = None) -> str:
        """Ask for a profile. Returns why it failed, or nothing."""
        order: dict[str, Any] = {"run": run, "profile": True}
        serve(
            transport or self.transport(),
            json.loads(json.dumps(order)),
            self.folder / "hub",
            identity=self.root.identity(HUB),
        )
        failure = self.folder / "hub" / PROFILES / run / FAILURE
        return failure.read_text() if failure.exists() else ""
