"""`comity audit`: its table, its JSON, its page with pictures, and its errors."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

import comity
from comity.checksums import without_crc
from comity.cli import main
from comity.data import Dataset
from comity.runs.folder import MESSAGES

FEW: dict[str, Any] = {"parties": 3, "partition": "iid", "model": "mlp2(width=100)", "rounds": 1}


def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *args: object
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["comity", *map(str, args)])
    code = 0
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with recorded messages, and a run without them."""
    home = tmp_path_factory.mktemp("audit") / "all"
    comity.compare(["adcol", "fedavg"], out=home, record_messages=True, **FEW)
    comity.run("fedavg", out=home / "other", **FEW)
    return home


def test_one_table_of_all_runs(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = command(capsys, monkeypatch, "audit", runs)
    assert code == 0, err
    lines = out.split("\n")
    assert lines[1].split() == [
        "method",
        "attack",
        "success",
        "guessing",
        "at",
        "1%",
        "at",
        "0.1%",
        "ε",
        "claimed",
        "ε",
        "shown",
        "accuracy",
        "bytes",
    ]
    methods = [line.split()[0] for line in lines[2:] if line.endswith("B")]
    assert methods == ["adcol"] * 5 + ["fedavg"] * 3 + ["solo"]
    assert "0.500" in out
    assert "One that fails shows nothing" in out
    assert f"{runs / 'other'} has no recorded messages, and is left out." in err.replace("\n", " ")


def test_column_of_the_runs_own_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is judged by AUC has its AUC under that name, not under "accuracy"."""
    settings = FEW | {"model": "linear", "record_messages": True}
    comity.run("fedavg", out=tmp_path / "one", data="heart", metric="auc", **settings)
    code, out, err = command(capsys, monkeypatch, "audit", tmp_path / "one")
    assert code == 0, err
    assert out.split("\n")[1].split()[-2:] == ["AUC", "bytes"]
    page = (tmp_path / "one" / "audit.html").read_text()
    assert ">AUC<" in page
    assert ">accuracy<" not in page
    [entry] = json.loads((tmp_path / "one" / "audit.json").read_text())["runs"]
    summary = json.loads((tmp_path / "one" / "summary.json").read_text())
    assert (entry["metric"], entry["figure"]) == ("auc", summary["auc"]["mean"])
    assert "accuracy" not in entry

    comity.run("fedavg", out=tmp_path / "two", data="heart", metric="accuracy", **settings)
    code, out, err = command(capsys, monkeypatch, "audit", tmp_path)
    assert code == 0, err
    assert out.split("\n")[1].split()[-2:] == ["figure", "bytes"]
    assert "AUC " in out
    assert "accuracy " in out


def test_json_output_and_audit_json(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = command(capsys, monkeypatch, "audit", runs, "--json")
    assert code == 0
    content = without_crc(json.loads((runs / "audit.json").read_text()))
    assert content["runs"] == json.loads(out)["runs"]
    adcol = content["runs"][0]
    assert adcol["epsilon_claimed"] == "infinite"
    first = adcol["attacks"][0]
    assert first["attack"] == "membership: rows, first weights"
    assert first["low"] <= first["success"] <= first["high"]
    assert first["power"]
    assert adcol["epsilon_shown"] == max(
        item["epsilon"] for item in adcol["attacks"] if item["epsilon"] is not None
    )


def test_audit_page_embeds_its_pictures(runs: Path) -> None:
    comity.audit(runs)
    page = (runs / "audit.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page
    assert "has no power here" in page
    (picture,) = (runs / "audit").glob("adcol-decoder-first-weights.png")
    blob = picture.read_bytes()
    assert blob.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", blob[16:24])
    assert (width, height) == (12 * 66, 2 * 66), "not two rows of twelve samples"


def test_a_run_by_itself(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs / "fedavg" / "seed-0"
    code, out, _ = command(capsys, monkeypatch, "audit", run)
    assert code == 0
    assert (run / "audit.html").exists()
    assert "membership: updates" in out


@pytest.mark.parametrize(
    ("which", "sentence"),
    [
        ("other", "has no recorded messages"),
        ("nowhere", "There is no folder"),
        ("audit", "holds no run"),
    ],
)
def test_folders_without_recorded_messages_are_refused(
    which: str,
    sentence: str,
    runs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (runs / "audit").mkdir(exist_ok=True)
    code, _, err = command(capsys, monkeypatch, "audit", runs / which)
    assert code != 0
    assert sentence in err
    assert err.count("\n") == 1


def test_damaged_recorded_messages_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    comity.run("fedavg", out=tmp_path / "run", record_messages=True, **FEW)
    messages = tmp_path / "run" / MESSAGES
    messages.write_bytes(messages.read_bytes()[:-1] + b"?")
    code, _, err = command(capsys, monkeypatch, "audit", tmp_path / "run")
    assert code != 0
    assert "damaged" in err
    assert not (tmp_path / "run" / "audit.json").exists()


def test_regression_data_are_refused(tmp_path: Path) -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    days = Dataset("days", x, x.sum(1), 0)
    fed = days.partition("iid", parties=2, seed=0)
    comity.run("fedavg", fed, out=tmp_path / "run", record_messages=True, rounds=1, model="linear")
    with pytest.raises(comity.UsageError, match="the label of these data is a number"):
        comity.audit(tmp_path / "run", fed)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_noisy_class_counts_are_reported_as_noisy(tmp_path: Path) -> None:
    sentences = {}
    for name in ("relay", "relay+ldp(noise=2)"):
        comity.run(name, out=tmp_path / name, record_messages=True, **FEW)
        audits = comity.audit(tmp_path / name)
        sentences[name] = " ".join(
            untried.sentence for audited in audits for untried in audited.untried
        )
    assert "they are sent as they are" in sentences["relay"]
    assert "as they are" not in sentences["relay+ldp(noise=2)"]
    assert "they are behind noise" in sentences["relay+ldp(noise=2)"]
