"""Compare methods, with SOLO as the baseline, at the sites of a federation.

SOLO is submitted first. Each site can then compute by itself what a method gains over SOLO, and
sends this gain with its interval in place of per-sample outcomes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from comity.checksums import with_crc
from comity.deploy.job_submission import SubmittedJob, was_submitted
from comity.deploy.server import FAILED_ENDINGS, read_parties
from comity.names import SOLO
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import RunWarning, read_warnings
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
from comity.studies.party_verdicts import Parties, SampleCounts


def compare_sites(
    federation: Path,
    base: Experiment,
    algorithms: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    conduct: Callable[[SubmittedJob, Path], dict[str, Any]],
    deadline: float,
    wait: float,
) -> Findings:
    """Run SOLO and then every method at the sites, with each seed, and write the comparison.

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
    """
    methods = list(dict.fromkeys([SOLO, *algorithms]))
    check_folders(methods)
    check_settings(base, methods)
    summaries: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    parties: dict[int, Parties] = {}
    for seed in seeds:
        for method in methods:
            folder = run_folder(out, method, seed)
            run = RunFolder(folder)
            summary = run.read_summary()
            if summary is None or summary.get(FAILED_ENDINGS):
                experiment = experiment_of(base, method, seed)
                job = (
                    SubmittedJob.read(folder)
                    if was_submitted(folder)
                    else SubmittedJob.new(federation, experiment, folder, deadline, wait)
                )
                summary = conduct(job, folder)
            summaries[method].append(summary)
            parties[seed] = parties.get(seed) or _parties(run, summary)
    metric = summaries[SOLO][0]["metric"]
    comparison = findings(
        base.but(metric=metric), summaries, out, parties, _warnings_during(summaries)
    )
    write_atomically(out / COMPARISON, json.dumps(with_crc(comparison.plain()), indent=2) + "\n")
    return comparison


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
