"""Several methods, and training alone beside them, at the sites of a federation.

SOLO is ordered first, so that each site can judge by itself what a method gives it: its gain comes
back, with the interval, and not which of its samples were right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comity.checksums import with_crc
from comity.deploy.job_submission import SubmittedJob, was_ordered
from comity.deploy.server import FAILED_ENDINGS, read_parties
from comity.runs.checkpoint import write_atomically
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.studies.compare import (
    COMPARISON,
    SOLO,
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
    """JobRequest every method, and SOLO before it, under each seed; `conduct` follows a run to its
    end.

    What is in `out` already is taken as it is, or gone on with.
    """
    methods = list(dict.fromkeys([SOLO, *algorithms]))
    check_folders(methods)
    check_settings(base, methods)
    summaries: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    parties: dict[int, Parties] = {}
    for seed in seeds:
        for method in methods:
            folder = run_folder(out, method, seed)
            there = RunFolder(folder)
            summary = there.read_summary()
            if summary is None or summary.get(FAILED_ENDINGS):
                chosen = experiment_of(base, method, seed)
                begun = was_ordered(folder)
                ordered = (
                    SubmittedJob.read(folder)
                    if begun
                    else SubmittedJob.new(federation, chosen, folder, deadline, wait)
                )
                summary = conduct(ordered, folder)
            summaries[method].append(summary)
            parties[seed] = parties.get(seed) or _parties(there, summary)
    notes = [
        f"{method}: {text}"
        for method in methods
        for one in summaries[method]
        for text in one.get("remarks", ())
    ]
    metric = summaries[SOLO][0]["metric"]
    made = findings(base.but(metric=metric), summaries, out, parties, list(dict.fromkeys(notes)))
    write_atomically(out / COMPARISON, json.dumps(with_crc(made.plain()), indent=2) + "\n")
    return made


def _parties(run: RunFolder, summary: Mapping[str, Any]) -> Parties:
    """What is known of sites: how many samples they have, and not of which classes."""
    sites = read_parties(run)
    held = {
        name: SampleCounts(
            (one.said.train,),
            (one.said.test,),
            too_few=one.said.too_few,
            withheld=name in summary.get("withheld", ()),
        )
        for name, one in sites.items()
    }
    return Parties(held, {}, tuple(next(iter(sites.values())).class_names))
