"""Size and time of the report of a large comparison: five methods, three seeds, twenty parties,
a hundred rounds.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from pathlib import Path

import pytest
from report_page import ReportPage, read_json, without_checksums

from comity import run
from comity.reporting import report

METHODS, SEEDS, PARTIES, ROUNDS = ("solo", "fedavg", "fedprox", "scaffold", "adcol"), 3, 20, 100
NAMES = [f"p{i}" for i in range(PARTIES)]


def write_run(original: Path, folder: Path, method: str, seed: int) -> None:
    """Write the files of a run of a hundred rounds, without checksums, with the original's
    outcomes.
    """
    shutil.copytree(original, folder)
    config = (folder / "config.toml").read_text(encoding="utf-8")
    config = re.sub(r'algorithm = ".*"', f'algorithm = "{method}"', config)
    config = re.sub(
        r"\nseed = 0", f"\nseed = {seed}", re.sub(r"rounds = \d+", f"rounds = {ROUNDS}", config)
    )
    (folder / "config.toml").write_text(config, encoding="utf-8")
    without_checksums(folder)
    summary = read_json(folder / "summary.json")
    final = summary["accuracy"]["per_party"]
    metrics, ledger, total = (
        ["round,party,split,metric,value"],
        ["round,call,src,dst,kind,bytes"],
        0,
    )
    for t in range(ROUNDS + 1):
        for name in NAMES:
            value = final[name] * (1 - math.exp(-t / 20)) / (1 - math.exp(-ROUNDS / 20))
            for split in ("validation", "test"):
                metrics += [
                    f"{t},{name},{split},accuracy,{value}",
                    f"{t},{name},{split},loss,{1 - value}",
                ]
            if t and method != "solo":
                ledger += [
                    f"{t},local,server,{name},down,12345",
                    f"{t},local,{name},server,up,12345",
                ]
                total += 2 * 12345
            ledger.append(f"{t},evaluate,{name},server,eval,178")
    summary |= {"algorithm": method, "rounds": ROUNDS, "bytes": summary["bytes"] | {"total": total}}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    (folder / "metrics.csv").write_text("\n".join([*metrics, ""]), encoding="utf-8")
    (folder / "ledger.csv").write_text("\n".join([*ledger, ""]), encoding="utf-8")


@pytest.mark.long
@pytest.mark.usefixtures("library")
def test_report_of_a_large_comparison(tmp_path: Path) -> None:
    original = tmp_path / "original"
    run(
        "fedavg",
        out=original,
        parties=PARTIES,
        partition="iid",
        model="linear",
        rounds=1,
        engine="loop",
    )
    for method in METHODS:
        for seed in range(SEEDS):
            write_run(original, tmp_path / "big" / method / f"seed-{seed}", method, seed)
    begin = time.process_time()
    path = report(tmp_path / "big", quick=True)
    seconds = time.process_time() - begin
    print(
        f"{path.stat().st_size / 1e6:.2f} MB in {seconds:.1f} s of computing"
    )  # pytest -s shows it
    page = ReportPage(path)
    assert not page.failed_sections
    assert not page.notes, page.notes
    assert path.stat().st_size < 8e6
    assert seconds < 60  # usually two
    assert len(page.rows("curves")) == len(METHODS) * (ROUNDS + 1) * (PARTIES + 1)
    assert (
        max(row["bytes"] for row in page.rows("curves") if row["party"] == "")
        == 2 * 12345 * ROUNDS * PARTIES
    )
