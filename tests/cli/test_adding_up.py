"""`--partial-sums` on the command line: a flag, which a file may have set."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import comity, one_sentence, works

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


def test_a_flag_that_a_file_may_have_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    works("run", "fedavg", *SMALL, "--partial-sums", "--out", "sums")
    assert "partial_sums = true" in Path("sums/config.toml").read_text()
    assert RunFolder(Path("sums")).read_experiment().partial_sums
    works("run", "sums/config.toml", "--no-partial-sums", "--out", "each")
    assert not RunFolder(Path("each")).read_experiment().partial_sums
    said = works("run", "--help").out
    assert "--partial-sums" in said
    assert "[False]" not in said
    assert "that join only after training, and are then evaluated [0]" in " ".join(said.split())
    assert Path("sums/ledger.csv").read_bytes() == Path("each/ledger.csv").read_bytes()


def test_what_cannot_be_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = one_sentence(comity("run", "fedavg+median", *SMALL, "--partial-sums", "--out", "run"), 2)
    assert "fedavg+median cannot have partial sums: median takes the place of the mean" in said
    assert not Path("run").exists()
    with pytest.raises(UsageError, match="--partial-sums is not available in a run at sites"):
        check_at_sites({"partial_sums": True}, None)
