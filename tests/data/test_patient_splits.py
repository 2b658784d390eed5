"""Patients of imported data: their identifiers are not kept, and their samples stay together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import comity
from comity import cli
from comity.data import load
from comity.data.importing import import_federation
from comity.data.patients import Units, number_patients
from comity.data.split_files import write_party_files
from comity.errors import UsageError

PROTOCOLS = ["own(0.25)", "tail(0.25,gap=0)", "matched(fraction=0.2)", "common(0.2)"]
PARTITIONS = ["natural(by=party)", "iid", "dirichlet(alpha=0.5)", "iid|keep(8)"]


def write_tables(folder: Path, rows: int = 40) -> None:
    """Two parties; a patient has one to three rows, and identifiers occur at both parties."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for party in ("north", "south"):
        lines = ["patient_id,age,sex,label"]
        for row in range(rows):
            age, sex = int(rng.integers(20, 90)), "mf"[row % 2]
            lines.append(f"zz-{row * 2 // 3:03},{age},{sex},{'yes' if row % 3 else 'no'}")
        (folder / f"{party}.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("patients")
    write_tables(home / "mine")
    import_federation(home / "mine", home / "out", group="patient_id")
    return home / "out"


def test_patients_are_numbered_by_their_first_samples() -> None:
    assert number_patients(["b", "a", "b", "c"]).tolist() == [0, 1, 0, 2]
    assert number_patients(np.array([7, 7, 3])).tolist() == [0, 0, 1]


def test_a_patients_class_is_its_most_frequent_one() -> None:
    units = Units(np.array([0, 0, 0, 1, 1]))
    assert units.labels(np.array([1, 2, 2, 1, 0])).tolist() == [2, 0]
    assert units.labels(np.array([0.5, 1.5, 2.5, 3.5, 4.5])).tolist() == [0.5, 3.5]


def test_the_column_is_no_input_and_identifiers_are_not_kept(imported: Path) -> None:
    data = load(str(imported))
    assert data.schema is not None
    assert [column.name for column in data.schema.columns] == ["age", "sex"]
    assert data.patients is not None
    one_party = [row * 2 // 3 for row in range(40)]
    assert data.patients.tolist() == one_party + [27 + number for number in one_party]
    assert not any(b"zz-" in file.read_bytes() for file in imported.iterdir())
    assert any("the samples are of 54 patients" in warning for warning in data.warnings)


def test_the_fingerprint_covers_patients(imported: Path, tmp_path: Path) -> None:
    data = load(str(imported))
    other = replace(data, patients=np.arange(len(data)))
    assert len({data.fingerprint(), other.fingerprint()}) == 2
    federations = [one.partition("auto") for one in (data, other)]
    assert len({federation.fingerprint() for federation in federations}) == 2
    patients = np.load(imported / "patients.npy")
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in imported.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    np.save(copy / "patients.npy", number_patients(patients[::-1]))
    with pytest.raises(UsageError, match="has changed since it was written"):
        load(str(copy))


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("test", PROTOCOLS)
def test_samples_of_a_patient_stay_in_one_part_of_one_party(
    partition: str, test: str, imported: Path
) -> None:
    data = load(str(imported))
    assert data.patients is not None
    parties = None if partition.startswith("natural") else 3
    for seed in range(3):
        federation = data.partition(partition, parties, seed=seed, test=test, validation=0.2)
        places: dict[int, set[str]] = {}
        for name, share in federation.split.parties.items():
            assert share.validation
            for part in ("train", "validation", "test"):
                for position in getattr(share, part):
                    # A common test set is the same for all parties.
                    where = part if part == "test" and test[0] in "mc" else f"{name}/{part}"
                    places.setdefault(int(data.patients[position]), set()).add(where)
        assert all(len(parts) == 1 for parts in places.values())
        for name, party in federation.parties.items():
            train = data.patients[list(federation.split.parties[name].train)]
            assert party.patients is not None
            assert party.patients.tolist() == number_patients(train).tolist()
            assert party.patient_count == len(set(train.tolist()))
        same = data.split(federation.split)
        assert same.fingerprint() == federation.fingerprint()


@pytest.mark.parametrize("test", PROTOCOLS)
def test_one_sample_per_patient_is_split_as_without_patients(test: str) -> None:
    digits = comity.load("digits")
    one = replace(digits, patients=np.arange(len(digits)))
    for partition in ("iid", "dirichlet(alpha=0.5)|keep(100)"):
        splits = [
            data.partition(partition, 4, seed=3, test=test).split.parties for data in (one, digits)
        ]
        assert splits[0] == splits[1]


def test_a_saved_split_that_divides_a_patient_is_refused(imported: Path) -> None:
    data = load(str(imported))
    assert data.patients is not None
    split = data.partition("natural(by=party)").split
    share = split.parties["north"]
    twice = next(
        position
        for position in share.train
        if (data.patients[list(share.train)] == data.patients[position]).sum() > 1
    )
    moved = replace(
        share,
        train=tuple(position for position in share.train if position != twice),
        test=(*share.test, twice),
    )
    with pytest.raises(
        UsageError, match="samples of one patient, or copies of one row, of party 'north' in two"
    ):
        data.split(replace(split, parties={**split.parties, "north": moved}))


def test_numbers_that_are_no_patients_are_refused() -> None:
    digits = comity.load("digits")
    for wrong in ([0, 1], np.arange(len(digits)) + 1, np.zeros(len(digits))):
        with pytest.raises(UsageError, match="patients must give each of the"):
            replace(digits, patients=wrong)  # type: ignore[arg-type]


def test_a_patient_in_two_groups_is_refused(imported: Path) -> None:
    with pytest.raises(UsageError, match="A patient has samples in two groups"):
        replace(load(str(imported)), patients=np.zeros(80, np.int64))


# --- files


def save_arrays(path: Path, **more: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {"x": rng.normal(size=(12, 3)), "y": np.arange(12) % 2}
    np.savez(path, **arrays | more)


def test_arrays_name_patients_as_well(tmp_path: Path) -> None:
    test_part = {"x_test": np.zeros((4, 3)), "y_test": np.arange(4) % 2}
    who = {"who": np.arange(12) // 2, "who_test": np.array([90, 91, 90, 91])}
    save_arrays(tmp_path / "mine" / "north.npz", **test_part, **who)
    data = import_federation(tmp_path / "mine", tmp_path / "out", group="who")
    assert data.patients is not None
    assert data.patients.tolist() == [*(np.arange(12) // 2).tolist(), 6, 7, 6, 7]
    party = data.partition("auto", test="official").parties["north"]
    assert len(party.test) == 4
    words = np.array(["a", "b", "c"] * 4)
    save_arrays(tmp_path / "words" / "north.npz", who=words)
    data = import_federation(tmp_path / "words", tmp_path / "out2", group="who")
    assert data.patients is not None
    assert data.patients.tolist() == [0, 1, 2] * 4


def test_an_official_test_part_that_divides_a_patient_is_refused(tmp_path: Path) -> None:
    test_part = {"x_test": np.zeros((2, 3)), "y_test": np.arange(2), "who_test": np.array([0, 9])}
    save_arrays(tmp_path / "mine" / "north.npz", who=np.arange(12) // 2, **test_part)
    data = import_federation(tmp_path / "mine", tmp_path / "out", group="who")
    with pytest.raises(UsageError, match="inside and outside of the official test part"):
        data.partition("auto", test="official")
    assert len(data.partition("auto", test="own(0.25)").parties["north"].test)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "has no array called who"),
        ({"who": np.zeros(3, np.int64)}, r"who of shape \(3,\)"),
        ({"who": np.linspace(0, 1, 12)}, "a whole number or a text"),
    ],
)
def test_arrays_without_patients_are_refused(
    arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_arrays(tmp_path / "mine" / "north.npz", **arrays)
    with pytest.raises(UsageError, match=message):
        import_federation(tmp_path / "mine", tmp_path / "out", group="who")


def test_a_row_without_a_patient_is_refused(tmp_path: Path) -> None:
    write_tables(tmp_path / "mine")
    file = tmp_path / "mine" / "north.csv"
    file.write_text(file.read_text().replace("zz-001,", ",", 1))
    with pytest.raises(UsageError, match="has no 'patient_id' in row 3: each row needs"):
        import_federation(tmp_path / "mine", tmp_path / "out", group="patient_id")
    with pytest.raises(UsageError, match="has no column 'person' that identifies patients"):
        import_federation(tmp_path / "mine", tmp_path / "out", group="person")


def test_an_agreed_schema_has_no_column_of_patients(tmp_path: Path, imported: Path) -> None:
    write_tables(tmp_path / "mine")
    schema = load(str(imported)).schema
    assert schema is not None
    data = import_federation(tmp_path / "mine", tmp_path / "out", group="patient_id", schema=schema)
    assert torch.equal(data.x, load(str(imported)).x)
    column = replace(schema.columns[0], name="patient_id")
    odd = replace(schema, columns=(column, *schema.columns[1:]))
    with pytest.raises(UsageError, match="make a schema with --drop patient_id"):
        import_federation(tmp_path / "mine", tmp_path / "out2", group="patient_id", schema=odd)


def test_pictures_name_no_patients(tmp_path: Path) -> None:
    (tmp_path / "mine" / "north" / "cats").mkdir(parents=True)
    with pytest.raises(UsageError, match="these parties bring pictures"):
        import_federation(tmp_path / "mine", tmp_path / "out", group="patient_id")


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "mine")
    options = ["--group", "patient_id", "--drop", "patient_id"]
    monkeypatch.setattr("sys.argv", ["comity", "data", "import", "mine", "--out", "out", *options])
    assert cli.main() in (0, None)
    assert "the samples are of 54 patients" in capsys.readouterr().out


def test_split_files_name_patients(imported: Path, tmp_path: Path) -> None:
    data = load(str(imported))
    federation = data.partition("natural(by=party)")
    write_party_files(federation, str(imported), tmp_path / "files")
    again = import_federation(tmp_path / "files", tmp_path / "out", group="patient_id")
    assert again.patients is not None
    assert torch.equal(again.x, data.x)
    assert again.patients.tolist() == data.patients.tolist()  # type: ignore[union-attr]
