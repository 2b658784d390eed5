"""Compare methods with SOLO, or with the sites' own models, at the sites of a federation.

SOLO is submitted first. On tables, the sites then train plain models, each its own
(`components/own_models.py`), and choose between these and SOLO. So each site can compute by itself
what a method gains over its own model, and sends this gain with its interval in place of per-sample
outcomes.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from comity.checksums import with_crc
from comity.deploy.job_submission import SubmittedJob, was_submitted
from comity.deploy.server import FAILED_ENDINGS, SCHEMA, SitesRefused, read_parties
from comity.names import OWN_MODEL, PLAIN, SOLO
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import RunWarning, read_warnings
from comity.runs.summary import blocks
from comity.safe_files import write_atomically
from comity.studies.compare import (
    COMPARISON,
    Findings,
    check_folders,
    check_settings,
    experiment_of,
    findings,
    run_folder,
)
from comity.studies.own_models import AUTO, parse_plain
from comity.studies.party_verdicts import Parties, SampleCounts
from comity.text import join_names


def compare_sites(
    federation: Path,
    base: Experiment,
    algorithms: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    conduct: Callable[[SubmittedJob, Path], dict[str, Any]],
    deadline: float,
    wait: float,
    plain: str = AUTO,
) -> Findings:
    """Run SOLO, plain models and then every method at the sites, with each seed, and write the
    comparison.

    Runs that are in `out` already are used as they are, or resumed.

    Arguments:
        federation: the operator's folder of the federation
        base: the settings that all runs have in common
        algorithms: the methods
        seeds: the seeds
        out: the folder of the comparison
        conduct: runs a submitted job to its end, and returns the summary of the run
        deadline: how many seconds a site has for a reply
        wait: how many seconds to wait for sites
        plain: the plain models, as `--plain` names them; `auto` is all if the federation has a
            schema, and none otherwise
    """
    methods = list(dict.fromkeys([SOLO, *algorithms]))
    check_folders(methods)
    check_settings(base, methods)
    kinds = plain_models_at_sites(plain, federation)
    own = [*kinds, OWN_MODEL] if kinds else []
    summaries: dict[str, list[dict[str, Any]]] = {m: [] for m in [SOLO, *own, *methods[1:]]}
    parties: dict[int, Parties] = {}
    warnings: list[RunWarning] = []
    for seed in seeds:
        for method in list(summaries):
            if method not in summaries:  # the sites have refused plain models
                continue
            folder = run_folder(out, method, seed)
            run = RunFolder(folder)
            summary = run.read_summary()
            if summary is None or summary.get(FAILED_ENDINGS):
                experiment = _experiment_of(base, method, seed, kinds)
                job = (
                    SubmittedJob.read(folder)
                    if was_submitted(folder)
                    else SubmittedJob.new(federation, experiment, folder, deadline, wait)
                )
                try:
                    summary = conduct(job, folder)
                except SitesRefused as why:
                    if method not in own:
                        raise
                    warnings.append(_without_own_models(why, own, summaries, out))
                    continue
            summaries[method].append(summary)
            parties[seed] = parties.get(seed) or _parties(run, summary)
    metric = summaries[SOLO][0]["metric"]
    if OWN_MODEL in summaries:
        summaries[OWN_MODEL] = [
            summary | {"own_models": _find_choices(k, summaries, kinds)}
            for k, summary in enumerate(summaries[OWN_MODEL])
        ]
        warnings += _without_plain_models(summaries)
    comparison = findings(
        base.but(metric=metric),
        summaries,
        out,
        parties,
        [*warnings, *_warnings_during(summaries)],
    )
    write_atomically(out / COMPARISON, json.dumps(with_crc(comparison.plain()), indent=2) + "\n")
    return comparison


def plain_models_at_sites(plain: str, federation: Path) -> tuple[str, ...]:
    """Return the names of the plain models of a comparison. With `auto`, these are all if the
    federation has a schema, so that its data are tables.
    """
    kinds = parse_plain(plain)
    if kinds is None:
        return tuple(PLAIN.values()) if (federation / SCHEMA).exists() else ()
    return kinds


def _experiment_of(base: Experiment, method: str, seed: int, kinds: Sequence[str]) -> Experiment:
    experiment = experiment_of(base, method, seed)
    if method != OWN_MODEL:
        return experiment
    words = [word for word, kind in PLAIN.items() if kind in kinds]
    return experiment.but(set={"plain": ",".join(words)})


def _without_own_models(
    why: SitesRefused, own: Sequence[str], summaries: dict[str, list[dict[str, Any]]], out: Path
) -> RunWarning:
    """Leave out plain models that a site has refused. Returns the warning."""
    for name in own:
        summaries.pop(name, None)
        if (folder := out / name).is_dir():
            shutil.rmtree(folder)
    return RunWarning("before", f"Gains are over SOLO, as plain models were refused: {why}")


def _find_choices(
    run: int, summaries: Mapping[str, Sequence[Mapping[str, Any]]], kinds: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the model that each site has chosen as its own: that with equal figures.

    A site does not report its choice. It is not known where a policy withholds the figures. A site
    that took no part in the run has SOLO only.
    """

    def figures_of(method: str, party: str) -> list[float | None]:
        return [block["per_party"].get(party) for _, block in blocks(summaries[method][run])]

    choices = {
        party: {"model": SOLO} for party in _absent_from_own_models(summaries, summaries[SOLO][run])
    }
    for party in _parties_of(summaries[OWN_MODEL][run]):
        own = figures_of(OWN_MODEL, party)
        equal = [name for name in (*kinds, SOLO) if figures_of(name, party) == own]
        if equal and any(figure is not None for figure in own):
            choices[party] = {"model": equal[0]}
    return choices


def _parties_of(summary: Mapping[str, Any]) -> list[str]:
    return list(summary["accuracy"]["per_party"])


def _absent_from_own_models(
    summaries: Mapping[str, Sequence[Mapping[str, Any]]], of_solo: Mapping[str, Any]
) -> list[str]:
    """Return the sites that took no part in a run of own models."""
    took_part = set.intersection(*(set(_parties_of(s)) for s in summaries[OWN_MODEL]))
    return [party for party in _parties_of(of_solo) if party not in took_part]


def _without_plain_models(
    summaries: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[RunWarning]:
    absent = _absent_from_own_models(summaries, summaries[SOLO][0])
    if not absent:
        return []
    return [
        RunWarning(
            "before",
            f"{join_names(absent)} took no part in the runs of plain models, which a site policy"
            " can refuse (methods): gains there are over SOLO.",
        )
    ]


def _warnings_during(summaries: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[RunWarning]:
    """The warnings during all runs, each text once. The texts name the method."""
    by_text: dict[str, RunWarning] = {}
    for method, of_method in summaries.items():
        for warning in itertools.chain.from_iterable(map(read_warnings, of_method)):
            if warning.when == "during":
                text = f"{method}: {warning.text}"
                by_text.setdefault(text, replace(warning, text=text))
    return list(by_text.values())


def _parties(run: RunFolder, summary: Mapping[str, Any]) -> Parties:
    """The sites with their numbers of samples; the numbers of each class are not known."""
    sites = read_parties(run)
    sample_counts = {
        name: SampleCounts(
            (site.said.train,),
            (site.said.test,),
            too_few=site.said.too_few,
            withheld=name in summary.get("withheld", ()),
        )
        for name, site in sites.items()
    }
    return Parties(sample_counts, {}, tuple(next(iter(sites.values())).class_names))
