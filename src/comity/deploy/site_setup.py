"""The beginning of a run at a site: its party, what it says of itself, and its folder."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from comity.base.key import Key
from comity.base.samples import Split
from comity.core.party import Party
from comity.data import Federation
from comity.deploy.data import site_settings
from comity.deploy.policy import SitePolicy
from comity.deploy.site_store import run_secret, secret_of
from comity.engines.site import Site
from comity.errors import UsageError
from comity.metrics.metrics import Metric
from comity.models.referenced_weights import INITIAL_WEIGHTS, WeightsReference
from comity.runs import config
from comity.runs.config import Experiment
from comity.runs.context import PartyInfo, PartyInfos, RunContext
from comity.runs.environment import digest, environment
from comity.runs.folder import RunFolder
from comity.runs.party_side import make_party
from comity.runs.server_run import ServerRun, judged_by
from comity.runs.server_side import resolve_method
from comity.safe_files import make_private_folder


def data_digest(at: Path, federation: Federation) -> str:
    """A digest of a site's data under its secret. It only shows whether the data have changed."""
    return hmac.new(secret_of(at), federation.fingerprint().encode(), "sha256").hexdigest()


def build_site(
    run: RunFolder,
    at: Path,
    party: str,
    experiment: Experiment,
    federation: Federation,
    infos: Mapping[str, PartyInfo],
) -> tuple[Site, ServerRun]:
    """A site's party at the beginning of a run, and the run.

    Arguments:
        run: the site's folder of the run
        at: the site's folder
        party: the site's name
        experiment: the settings
        federation: the site's data
        infos: the descriptions of all parties
    """
    party_infos = PartyInfos(
        infos,
        federation.shape,
        federation.classes,
        federation.preprocess.black,
        class_names=federation.class_names,
    )
    common = RunContext(experiment, party_infos, run_folder=run.path)
    algorithm, info = resolve_method(common)
    names = common.roster.names
    if party not in names:
        raise UsageError(f"{party} is left out of this run.")
    built_party = make_party(common, names.index(party), federation.parties[party])
    root = Key.root(experiment.seed, run_secret(at, run.path.name), binds=True)
    return Site(algorithm, built_party, root), ServerRun(experiment, common, algorithm, info)


def restrict_to_party(party: Party, run: ServerRun) -> ServerRun:
    """The run as if it had only this party."""
    info = replace(
        run.info,
        names=(party.name,),
        sizes=(len(party.data.train),),
        tasks=(party.task,),
        newcomers=(),
        peers=(),
        patients=(party.data.patient_count,),
    )
    return replace(run, info=info)


def describe_party(federation: Federation, policy: SitePolicy, metric: Metric) -> PartyInfo:
    """The site's description of its data.

    A part of the data is used to judge models only if it has so many samples, or patients, that the
    scores may leave.
    """
    data = federation.parties[policy.name]
    info = PartyInfo.of(
        data,
        federation.classes,
        metric,
        counts=policy.class_counts,
        own_constants=federation.own_constants,
    )
    splits: tuple[Split, ...] = ("validation", "test")
    enough = {split for split in splits if data.group_size(split) >= policy.records}
    return replace(info, judged=[split for split in info.judged if split in enough])


def begin_folder(
    run: RunFolder, experiment: Experiment, federation: Federation, data: str, party: str
) -> None:
    """Write the first files of the site's folder of a run, or check that they are the same.

    `data` is the digest of the site's data.
    """
    settings, split = config.write(experiment), federation.split.to_json()
    if not run.has_run:
        for folder in (run.path.parent.parent, run.path.parent, run.path):
            make_private_folder(folder)
        run.begin(settings, environment(settings, data, split=split), split=split)
        return
    before = run.read_environment()
    if before["config"] != digest(settings):
        raise UsageError(f"Run {run.path.name} was begun with other settings at {party}.")
    if before["fingerprint"] != data:
        raise UsageError(f"The data of {party} have changed since run {run.path.name} was begun.")


def needs_weights(run: RunFolder, experiment: Experiment) -> bool:
    """Whether a run has initial weights that this site has yet to be sent."""
    reference = WeightsReference.read(experiment.weights)
    if reference is None:
        return False
    try:
        reference.read_file(run.path / INITIAL_WEIGHTS)
    except UsageError:
        return True
    return False


def check_order(order: Mapping[str, Any], run: str, experiment: Experiment, classes: int) -> None:
    """Refuse a run other than the one in the job that the submitter signed.

    A job that asks for a profile begins no run. A job without settings continues a run that was
    begun with the settings of an earlier job.
    """
    settings = order.get("settings")
    signed = judged_by(site_settings(config.experiment(settings)), classes) if settings else None
    if (
        order.get("profile")
        or order.get("run") != run
        or (signed is not None and signed != experiment)
    ):
        raise UsageError("The server asks for another run than the submitter has signed.")
