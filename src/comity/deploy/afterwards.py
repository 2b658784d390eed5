"""After a run, at a site: its own summary, its model to use, its page, its representations
measured. Nothing of it leaves.
"""

from __future__ import annotations

import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comity.base.call import Message
from comity.checksums import Checksum
from comity.core.server import Note
from comity.data.inputs import Inputs
from comity.deploy.data import own_federation
from comity.deploy.policy import SitePolicy
from comity.deploy.site_run import JOINED, SiteRun, as_far_as, data_mark, seated
from comity.deploy.site_store import States, read_seats, read_view
from comity.errors import ComityError, UsageError
from comity.measure.mdl import CHEAP, Settings
from comity.measure.representations import PartyModel
from comity.measure.study import study_models
from comity.reporting import PAGE, report
from comity.runs.build import SimulatedRun
from comity.runs.folder import OUTCOMES, RunFolder
from comity.runs.result import Deployed, Result
from comity.runs.summary import summarise
from comity.runs.tables import LEDGER, METRICS, PRIVACY
from comity.studies.export import CARD, export

MODEL = "model"


@dataclass(repr=False)
class AtSite(Result):
    """A finished run as the site knows it, with its own model."""

    run: SiteRun | None = None

    def model(self, party: str) -> Deployed:
        assert self.run is not None
        content, version = read_view(self.folder)
        site = self.run.brought(version)
        own = self.run.federation
        names = own.class_names or tuple(map(str, range(own.classes)))
        inputs = Inputs(own.shape, own.preprocess.for_party(party), own.schema)
        return Deployed(*site.deployed(Message(content, version)), inputs, names)

    def state(self, party: str) -> object:
        assert self.run is not None
        return self.run.seat.site.mine


def measure(
    at: Path,
    run: RunFolder,
    layers: Sequence[str] | None = None,
    samples: int = 2000,
    seed: int = 0,
    mdl: Settings | None = CHEAP,
    told: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """What `comity measure` says of a party, of a finished run at the site whose folder this is:
    its own model on its own data.

    All that it takes is at home. What would need others' representations is named, and not
    measured.
    """
    policy = SitePolicy.read(at)
    run.check_begun()
    if not run.ended:
        raise UsageError(
            f"Run {run.path.name} is not finished at {policy.name}: there is no model to look at"
            " yet."
        )
    run.check()
    experiment = run.read_experiment()
    own = own_federation(policy.name, policy.data, experiment)
    if data_mark(at, own) != run.read_environment()["fingerprint"]:
        raise UsageError(
            f"The data of {policy.name} have changed since run {run.path.name} was begun."
        )
    said = read_seats(run.path)
    if policy.name not in said:
        raise UsageError(
            f"{policy.name} took no part in run {run.path.name}: site.toml had another name then."
        )
    site, whole = seated(run, at, policy.name, experiment, own, said)
    if site.party.id >= whole.context.roster.from_start:
        raise UsageError(
            f"{policy.name} was a newcomer in run {run.path.name}, and newcomers are not measured."
        )
    content, version = read_view(run.path)
    if version is not None:
        site.restore(States(run.path).read(version), version)
    _, theta = site.deployed(Message(content, version))
    offer = PartyModel(site.algorithm.party_for(site.party, site.mine), theta)
    return study_models(
        as_far_as(site.party, whole),
        [site.party],
        [offer],
        layers,
        samples,
        seed,
        mdl,
        policy.name,
        progress=told,
    )


def finish(run: SiteRun, rounds: int, model: bool, say: Callable[[str], None]) -> None:
    """Write the summary, the model, if wanted, and the page into the site's folder of the run.

    What is there already is kept, so that an ending that failed can be repeated. The page is
    written also where the model cannot be.

    Arguments:
        run: the run at this site
        rounds: how many rounds the run had
        model: whether the model is written
        say: writes a sentence to the site's own log

    Raises `ComityError` at the end if something was not written: the sentence may leave the site.
    """
    failures: list[str] = []

    def write(part: str, writing: Callable[[], list[str]]) -> None:
        try:
            for text in writing():
                say(text)
        except Exception as why:
            say(f"{part} was not written: {traceback.format_exc()}")
            reason = str(why) if isinstance(why, ComityError) else "its own log says why."
            failures.append(f"its {part} was not written: {reason}")

    write("summary", lambda: _write_summary(run, rounds))
    if run.folder.ended:
        if model:
            write("model", lambda: _write_model(run))
        write("page", lambda: _write_page(run))
    if failures:
        raise ComityError(" ".join(failures))


def _write_summary(run: SiteRun, rounds: int) -> list[str]:
    folder, server_run = run.folder, run.seat.server_run
    if folder.ended:
        return [f"run {run.name} had ended here before"]
    total = Counter[str]()
    for row in run.book.ledger():
        total[row.kind] += row.bytes
    made = {"rounds": rounds, "steps": run.book.steps, "remarks": [], "discarded": []}
    made["privacy"] = run.account.summary(server_run.privacy.assumptions())
    rows = _with_joined(run.book.metrics(), rounds)
    summary = summarise(server_run, rows, [], total, made, {}, needs_figures=False)
    tables = (METRICS.name, LEDGER.name, PRIVACY.name, OUTCOMES)
    written = [name for name in tables if (folder.path / name).exists()]
    sums = {name: Checksum.of((folder.path / name).read_bytes()) for name in written}
    folder.write_summary(summary, sums)
    return []


def _with_joined(rows: list[Note], rounds: int) -> list[Note]:
    """These rows, and a newcomer's figures after it has joined as those after the last round."""
    stage = f"-{JOINED}"
    joined = [row for row in rows if row.split.endswith(stage)]
    return rows + [
        row._replace(round=rounds, split=row.split.removesuffix(stage)) for row in joined
    ]


def _write_model(run: SiteRun) -> list[str]:
    out, server_run = run.folder.path / MODEL, run.seat.server_run
    if (out / CARD).exists():
        return []
    shutil.rmtree(out, ignore_errors=True)  # what was left of an export that failed
    known = (server_run.experiment, server_run.context, server_run.algorithm, server_run.info)
    job = SimulatedRun(*known, federation=run.federation, parties=[run.seat.site.party])
    summary = run.folder.read_summary()
    assert summary is not None
    warnings = export(AtSite(run.folder.path, job, summary, run=run), run.party, out)
    return [*warnings, f"the model is in {out}: python predict.py there answers for new samples"]


def _write_page(run: SiteRun) -> list[str]:
    if (run.folder.path / PAGE).exists():
        return []
    return [f"the page of this run is {report(run.folder.path, quick=True)}"]
