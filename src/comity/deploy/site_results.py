"""What a site has after a run: its own summary, its model, its page, and the measurements of its
representations. Nothing of it leaves the site.
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
from comity.deploy.data import SiteSplit, fixed_split
from comity.deploy.policy import SitePolicy
from comity.deploy.site_evaluation import JOINED
from comity.deploy.site_run import SiteRun
from comity.deploy.site_setup import build_site, data_digest, restrict_to_party
from comity.deploy.site_store import States, read_roster, read_view
from comity.errors import ComityError, UsageError
from comity.measure.mdl import CHEAP, Settings
from comity.measure.representations import PartyModel
from comity.measure.study import study_models
from comity.reporting import PAGE, report
from comity.runs.build import SimulatedRun
from comity.runs.caveats import add_caveats
from comity.runs.folder import OUTCOMES, RunFolder
from comity.runs.result import Deployed, Result
from comity.runs.summary import summarise
from comity.runs.tables import LEDGER, METRICS, PRIVACY
from comity.studies.export import CARD, export

MODEL = "model"


@dataclass(repr=False)
class AtSite(Result):
    """The result of a finished run at a site, with the site's own model."""

    run: SiteRun | None = None

    def model(self, party: str) -> Deployed:
        assert self.run is not None
        content, version = read_view(self.folder)
        site = self.run.restore_site(version)
        data = self.run.federation
        names = data.class_names or tuple(map(str, range(data.classes)))
        inputs = Inputs(data.shape, data.preprocess.for_party(party), data.schema_at(party))
        task, theta = site.deployed(Message(content, version))
        return Deployed(task, theta, inputs, names, site.calibration(task, theta))

    def state(self, party: str) -> object:
        assert self.run is not None
        return self.run.active.site.mine


def measure(
    at: Path,
    run: RunFolder,
    layers: Sequence[str] | None = None,
    samples: int = 2000,
    seed: int = 0,
    mdl: Settings | None = CHEAP,
    report_progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measure the representations of the site's model on its own data, as `comity measure` does.

    Everything that this needs is at the site. Measures that need other parties' representations are
    listed as not measured.

    Arguments:
        at: the site's folder
        run: the site's folder of a finished run
        layers: the layers to measure; default: those that `comity measure` chooses
        samples: the largest number of samples
        seed: the seed of the measurements
        mdl: the settings of the description length; None leaves it out
        report_progress: is called with a text for each step
    """
    policy = SitePolicy.read(at)
    run.check_begun()
    if not run.is_finished:
        raise UsageError(
            f"Run {run.path.name} is not finished at {policy.name}: there is no model to look at"
            " yet."
        )
    run.check()
    experiment = run.read_experiment()
    requested = SiteSplit.of(experiment)
    _, federation = fixed_split(at, policy.name, policy.data, requested)
    if data_digest(at, federation) != run.read_environment()["fingerprint"]:
        raise UsageError(
            f"The data of {policy.name} have changed since run {run.path.name} was begun."
        )
    infos = read_roster(run.path)
    if policy.name not in infos:
        raise UsageError(
            f"{policy.name} took no part in run {run.path.name}: site.toml had another name then."
        )
    site, server_run = build_site(run, at, policy.name, experiment, federation, infos)
    if site.party.id >= server_run.context.roster.from_start:
        raise UsageError(
            f"{policy.name} was a newcomer in run {run.path.name}, and newcomers are not measured."
        )
    content, version = read_view(run.path)
    if version is not None:
        site.restore(States(run.path).read(version), version)
    _, theta = site.deployed(Message(content, version))
    offer = PartyModel(site.algorithm.party_for(site.party, site.mine), theta)
    return study_models(
        restrict_to_party(site.party, server_run),
        [site.party],
        [offer],
        layers,
        samples,
        seed,
        mdl,
        policy.name,
        progress=report_progress,
    )


def finish(run: SiteRun, rounds: int, model: bool, log: Callable[[str], None]) -> None:
    """Write the summary, the model and the page into the site's folder of the run.

    Existing files are kept, so that an ending that failed can be repeated. A model that cannot be
    written does not prevent the page.

    Arguments:
        run: the run at this site
        rounds: how many rounds the run had
        model: whether the model is written
        log: writes a line to the site's log

    Raises `ComityError` at the end if something was not written. Its message may leave the site.
    """
    failures: list[str] = []

    def write(part: str, write_part: Callable[[], list[str]]) -> None:
        try:
            for text in write_part():
                log(text)
        except Exception as why:
            log(f"{part} was not written: {traceback.format_exc()}")
            reason = str(why) if isinstance(why, ComityError) else "its own log says why."
            failures.append(f"its {part} was not written: {reason}")

    write("summary", lambda: _write_summary(run, rounds))
    if run.folder.is_finished:
        if model:
            write("model", lambda: _write_model(run))
        write("page", lambda: _write_page(run))
    if failures:
        raise ComityError(" ".join(failures))


def _write_summary(run: SiteRun, rounds: int) -> list[str]:
    folder, server_run = run.folder, run.active.server_run
    if folder.is_finished:
        return [f"run {run.name} had ended here before"]
    bytes_by_kind = Counter[str]()
    for row in run.tables.ledger():
        bytes_by_kind[row.kind] += row.bytes
    outcome = {
        "rounds": rounds,
        "steps": run.tables.steps,
        "discarded": [],
        "privacy": run.account.summary(server_run.privacy.assumptions()),
    }
    rows = _with_joined(run.tables.metrics(), rounds)
    summary = summarise(server_run, rows, [], bytes_by_kind, outcome, {}, needs_figures=False)
    add_caveats(summary)
    names = (METRICS.name, LEDGER.name, PRIVACY.name, OUTCOMES)
    paths = [folder.path / name for name in names if (folder.path / name).exists()]
    folder.write_summary(summary, {path.name: Checksum.of(path.read_bytes()) for path in paths})
    return []


def _with_joined(rows: list[Note], rounds: int) -> list[Note]:
    """The rows, where a newcomer's metrics after joining also count as those of the last round."""
    stage = f"-{JOINED}"
    rows_after_joining = [row for row in rows if row.split.endswith(stage)]
    return rows + [
        row._replace(round=rounds, split=row.split.removesuffix(stage))
        for row in rows_after_joining
    ]


def _write_model(run: SiteRun) -> list[str]:
    out, server_run = run.folder.path / MODEL, run.active.server_run
    if (out / CARD).exists():
        return []
    shutil.rmtree(out, ignore_errors=True)  # the remains of an export that failed
    job = SimulatedRun(
        server_run.experiment,
        server_run.context,
        server_run.algorithm,
        server_run.info,
        federation=run.federation,
        parties=[run.active.site.party],
    )
    summary = run.folder.read_summary()
    assert summary is not None
    warnings = export(AtSite(run.folder.path, job, summary, run=run), run.party, out)
    return [*warnings, f"the model is in {out}: python predict.py there answers for new samples"]


def _write_page(run: SiteRun) -> list[str]:
    if (run.folder.path / PAGE).exists():
        return []
    return [f"the page of this run is {report(run.folder.path, quick=True)}"]
