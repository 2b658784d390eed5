"""The option `--partial-sums` on the command line and in a file of settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import comity, one_sentence, succeed

from comity.cli.site_runs import check_at_sites
from comity.errors import UsageError
from comity.runs.folder import RunFolder

SMALL = (
    "--parties",
    "3",
    "--rounds",
    "1",
    "--model",
    "linear",
    "--partition",
    "iid",
    "--engine",
    "process",
    "--workers",
    "2",
)


def test_partial_sums_flag_overrides_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    succeed("run", "fedavg", *SMALL, "--partial-sums", "--out", "sums")
    assert "partial_sums = true" in Path("sums/config.toml").read_text()
    assert RunFolder(Path("sums")).read_experiment().partial_sums
    succeed("run", "sums/config.toml", "--no-partial-sums", "--out", "each")
    assert not RunFolder(Path("each")).read_experiment().partial_sums
    output = succeed("run", "--help").out
    assert "--partial-sums" in output
    assert "[False]" not in output
    assert "that join only after training, and are then evaluated [0]" in " ".join(output.split())
    assert Path("sums/ledger.csv").read_bytes() == Path("each/ledger.csv").read_bytes()


def test_partial_sums_are_refused_before_the_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = one_sentence(
        comity("run", "fedavg+median", *SMALL, "--partial-sums", "--out", "run"), 2
    )
    assert "fedavg+median cannot have partial sums: median takes the place of the mean" in message
    assert not Path("run").exists()
    with pytest.raises(UsageError, match="--partial-sums is not available in a run at sites"):
        check_at_sites({"partial_sums": True}, None)
