"""`comity audit` as people and programs meet it: a table, figures, a page with pictures, and one
sentence for what is wrong.
"""

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
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with a tape, and a run without one beside it."""
    home = tmp_path_factory.mktemp("audit") / "all"
    comity.compare(["adcol", "fedavg"], out=home, record_messages=True, **FEW)
    comity.run("fedavg", out=home / "other", **FEW)
    return home


def test_one_table_of_all_runs(
    several: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = command(capsys, monkeypatch, "audit", several)
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
    assert f"{several / 'other'} has no recorded messages, and is left out." in err.replace(
        "\n", " "
    )


def test_figures_are_in_a_file(
    several: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = command(capsys, monkeypatch, "audit", several, "--json")
    assert code == 0
    told = without_crc(json.loads((several / "audit.json").read_text()))
    assert told["runs"] == json.loads(out)["runs"]
    adcol = told["runs"][0]
    assert adcol["epsilon_claimed"] == "infinite"
    first = adcol["attacks"][0]
    assert first["attack"] == "membership: rows, first weights"
    assert first["low"] <= first["success"] <= first["high"]
    assert first["power"]
    assert adcol["epsilon_shown"] == max(
        one["epsilon"] for one in adcol["attacks"] if one["epsilon"] is not None
    )


def test_the_page_has_pictures_and_loads_nothing(several: Path) -> None:
    comity.audit(several)
    page = (several / "audit.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page
    assert "has no power here" in page
    (picture,) = (several / "audit").glob("adcol-decoder-first-weights.png")
    blob = picture.read_bytes()
    assert blob.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", blob[16:24])
    assert (width, height) == (12 * 66, 2 * 66), (
        "twelve samples above, and what was made of them below"
    )


def test_a_run_by_itself(
    several: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = several / "fedavg" / "seed-0"
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
def test_what_cannot_be_audited_is_refused(
    which: str,
    sentence: str,
    several: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (several / "audit").mkdir(exist_ok=True)
    code, _, err = command(capsys, monkeypatch, "audit", several / which)
    assert code != 0
    assert sentence in err
    assert err.count("\n") == 1


def test_a_damaged_tape_is_not_attacked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    comity.run("fedavg", out=tmp_path / "run", record_messages=True, **FEW)
    messages = tmp_path / "run" / MESSAGES
    messages.write_bytes(messages.read_bytes()[:-1] + b"?")
    code, _, err = command(capsys, monkeypatch, "audit", tmp_path / "run")
    assert code != 0
    assert "damaged" in err
    assert not (tmp_path / "run" / "audit.json").exists()


def test_labels_that_are_numbers_are_refused(tmp_path: Path) -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    days = Dataset("days", x, x.sum(1), 0)
    fed = days.partition("iid", parties=2, seed=0)
    comity.run("fedavg", fed, out=tmp_path / "run", record_messages=True, rounds=1, model="linear")
    with pytest.raises(comity.UsageError, match="the label of these data is a number"):
        comity.audit(tmp_path / "run", fed)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_counts_behind_noise_are_not_said_to_be_in_the_open(tmp_path: Path) -> None:
    said = {}
    for name in ("relay", "relay+ldp(noise=2)"):
        comity.run(name, out=tmp_path / name, record_messages=True, **FEW)
        told = comity.audit(tmp_path / name)
        said[name] = " ".join(each.sentence for one in told for each in one.untried)
    assert "they are sent as they are" in said["relay"]
    assert "as they are" not in said["relay+ldp(noise=2)"]
    assert "they are behind noise" in said["relay+ldp(noise=2)"]
