"""The datasets of the library, read from small files in the layouts of the originals; and errors
for bad files.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from originals import (
    MARKET,
    OFFICE,
    PACS,
    adult,
    agnews,
    cub,
    domainnet,
    eicu,
    emnist_letters,
    fashion,
    har,
    idx,
    leaf,
    market,
    mats,
    mnist,
    mnist_m,
    msmt,
    photo,
    pickled,
    sources,
    tiny,
    usps,
    veri,
    write,
)

from comity.data import Dataset, catalogue, load
from comity.data.files import data_folders
from comity.data.formats import read_csv
from comity.data.sets.identities import query_and_gallery
from comity.data.sets.tables import HEART_FILES
from comity.errors import UsageError
from comity.metrics.retrieval import retrieval


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty COMITY_DATA, and an empty cache."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("COMITY_DATA", str(folder))
    monkeypatch.setenv("COMITY_CACHE", str(tmp_path / "cache"))
    return folder


BUILD: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "mnist": (mnist, {"samples": 4, "y": [0, 9, 0, 9]}),
    "fashion-mnist": (fashion, {"samples": 4, "y": [0, 9, 0, 9]}),
    "emnist-letters": (emnist_letters, {"samples": 4, "y": [0, 25, 0, 25]}),
    "usps": (usps, {"samples": 4, "y": [0, 9, 0, 9]}),
    "mnist-m": (mnist_m, {"samples": 4, "y": [3, 9, 3, 9]}),
    "svhn": (mats(""), {"samples": 4, "y": [0, 3, 0, 3]}),
    "synth-digits": (mats("synth_"), {"samples": 4, "y": [0, 3, 0, 3]}),
    "femnist": (
        leaf,
        {"samples": 4, "y": [0, 1, 0, 1], "groups": {"writer": ("f0001_41", "f0002_11")}},
    ),
    "tiny-imagenet": (tiny, {"samples": 3, "y": [0, 1, 1], "held": [False, False, True]}),
    "cub200": (cub, {"samples": 3, "y": [0, 1, 199], "held": [False, True, False]}),
    "pacs": (
        sources("PACS/kfold", ("photo", "art_painting", "cartoon", "sketch"), PACS),
        {"samples": 140, "groups": {"domain": ("photo", "art_painting", "cartoon", "sketch")}},
    ),
    "office-caltech": (
        sources("office_caltech_10", ("amazon", "dslr"), OFFICE),
        {"samples": 100, "groups": {"domain": ("amazon", "dslr")}},
    ),
    "domainnet": (
        domainnet,
        {"samples": 40, "y": list(range(10)) * 4, "groups": {"domain": ("clipart", "sketch")}},
    ),
    "domainnet-345": (
        domainnet,
        {"samples": 44, "y": list(range(11)) * 4, "groups": {"domain": ("clipart", "sketch")}},
    ),
    "market1501": (
        market,
        {
            "samples": 3,
            "y": [0, 0, 1],
            "classes": 2,
            "groups": {"camera": ("camera 1", "camera 2")},
        },
    ),
    "msmt17": (
        msmt,
        {"samples": 2, "y": [0, 1], "classes": 2, "groups": {"camera": ("camera 1", "camera 2")}},
    ),
    "veri776": (
        veri,
        {"samples": 2, "y": [0, 1], "classes": 2, "groups": {"camera": ("camera 1", "camera 20")}},
    ),
    "eicu": (eicu, {"samples": 6, "y": [0, 1, 0] * 2, "groups": {"hospital": ("north", "south")}}),
    "har": (
        har,
        {"samples": 4, "y": [0, 5, 0, 5], "groups": {"subject": ("person 1", "person 2")}},
    ),
    "adult": (adult, {"samples": 3, "y": [0, 1, 0], "groups": {"doctorate": ("non-phd", "phd")}}),
    "agnews": (agnews, {"samples": 4, "y": [2, 0, 2, 0]}),
}


@pytest.mark.parametrize("name", BUILD)
def test_the_original_files(name: str, here: Path) -> None:
    make, expected = BUILD[name]
    make(here)
    card = next(card for card in catalogue() if card["name"] == name)
    assert card["here"]
    data = load(name)
    assert len(data) == expected["samples"]
    assert data.y.tolist() == expected.get("y", data.y.tolist())
    assert {by: group.names for by, group in data.groups.items()} == expected.get("groups", {})
    assert tuple(data.groups) == card["groups"]
    assert data.classes == expected.get("classes", card["classes"])
    assert data.x.shape[1:] == card["shape"]
    if "held" in expected:
        assert data.official_test is not None
        assert data.official_test.tolist() == expected["held"]
    assert load(name).fingerprint() == data.fingerprint()  # from the cache


def test_har_as_in_pfllibs_files(here: Path) -> None:
    """Channel c at time t has the value 9 t + c: its place in a window of 128 times by 9 channels.
    Reshaped, place k is k.
    """
    window = np.array([[9 * t + c for t in range(128)] for c in range(9)], np.float32)
    is_test = np.array([False, True])
    np.savez(
        here / "uci_har.npz",
        x=np.stack([window, -window]),
        y=np.array([0, 5]),
        subject=np.array([1, 2]),
        is_test=is_test,
    )
    ours, theirs = load("har"), load("har(layout=pfllib)")
    assert ours.x[0, 2, :3].tolist() == [2, 11, 20], "not one row for each channel by default"
    assert torch.equal(load("har(layout=channels)").x, ours.x)
    assert theirs.x.shape == (2, 9, 128)
    assert theirs.x[0].flatten().tolist() == list(range(9 * 128))
    assert theirs.x[1, 0, :4].tolist() == [0, -1, -2, -3], "channels 0 to 3 at time 0"
    assert theirs.x[0, 1, 0] == 128, "channel 128 mod 9 = 2 at time 128 // 9 = 14"
    assert torch.equal(theirs.y, ours.y)
    assert theirs.fingerprint() != ours.fingerprint()
    assert any("without being transposed" in note for note in theirs.warnings)
    assert not any("without being transposed" in note for note in ours.warnings)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("digits(layout=pfllib)", "digits has no options"),
        ("eicu-standin(3)", "eicu-standin has no options"),
        ("har(layout=theirs)", "layout of har must be one of channels, pfllib, not 'theirs'"),
        ("har(colour=red)", "colour"),
        ("hra(layout=pfllib)", "hra"),
        ("har(layout", "not of the form"),
    ],
)
def test_options_that_a_dataset_does_not_have_are_refused(name: str, says: str, here: Path) -> None:
    har(here)
    with pytest.raises(UsageError) as caught:
        load(name)
    assert says in str(caught.value)


def refusal(name: str) -> str:
    """The error message of loading a dataset; empty if it loads."""
    try:
        load(name)
    except UsageError as error:
        return str(error)
    return "Nothing."


@pytest.mark.parametrize("name", BUILD)
def test_bad_files_are_refused_in_one_sentence_or_read(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file of a dataset is removed, emptied, cut or replaced."""
    BUILD[name][0](here)
    monkeypatch.setenv("COMITY_CACHE", os.devnull)
    classes_seen: set[object] = set()
    for path in sorted(p for p in here.rglob("*") if p.is_file()):
        kind = (
            (path.parent, path.suffix) if path.suffix in (".jpg", ".JPEG", ".png", ".txt") else path
        )
        if kind in classes_seen or len(classes_seen) > 8:
            continue
        classes_seen.add(kind)
        content = path.read_bytes()
        for bad in (b"", content[: len(content) // 2], b"\0\xff junk \x80" * 9):
            path.write_bytes(bad)
            message = refusal(name)
            assert re.fullmatch(r"[^\n]+\.", message), message
            assert not re.search(r"[.!?] +[A-Z]", message), message
        path.write_bytes(content)
    load(name)


def relabel(path: str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / path).read_text()
        assert old in text
        (root / path).write_text(text.replace(old, new, 1))

    return change


def remove(path: str) -> Callable[[Path], None]:
    return lambda root: (root / path).unlink()


TINY, CUB = "tiny-imagenet-200/val/val_annotations.txt", "CUB_200_2011/"


@pytest.mark.parametrize(
    ("name", "change", "file", "words"),
    [
        (
            "mnist",
            lambda root: idx(root / "MNIST" / "raw", "train", "t10k", [0, 12]),
            "train-labels",
            ["has the label 12 in row 2"],
        ),
        (
            "emnist-letters",
            lambda root: idx(root, "emnist-letters-train", "emnist-letters-test", [0, 1]),
            "labels",
            ["the label 0"],
        ),
        (
            "usps",
            lambda root: usps(root, labels=(0, 10)),
            "usps.bz2",
            ["has the label 0 in row 1", "from 1 to 10"],
        ),
        ("usps", lambda root: usps(root, value=7), "usps.bz2", ["not between -1 and 1"]),
        (
            "mnist-m",
            relabel("mnist_m/mnist_m_train_labels.txt", "png 3", "png 11"),
            "train_labels.txt",
            ["label 11 in line 1"],
        ),
        (
            "mnist-m",
            relabel("mnist_m/mnist_m_test_labels.txt", "00000000", "../secret"),
            "mnist_m_test_labels.txt",
            ["leads out"],
        ),
        (
            "femnist",
            relabel("femnist/data/test/all_data_0.json", '"y": [1]', '"y": [62]'),
            "all_data_0.json",
            ["the label 62"],
        ),
        (
            "tiny-imagenet",
            relabel(TINY, "n01629819", "n99999999"),
            "val_annotations.txt",
            ["'n99999999'", "has no folder"],
        ),
        (
            "tiny-imagenet",
            relabel(TINY, "\t44\t62", ""),
            "val_annotations.txt",
            ["in line 1, but each line is: a file"],
        ),
        (
            "tiny-imagenet",
            relabel(TINY, "val_0", "../val_0"),
            "val_annotations.txt",
            ["leads out of the folder"],
        ),
        (
            "tiny-imagenet",
            remove("tiny-imagenet-200/val/images/val_0.JPEG"),
            "val_0.JPEG",
            ["There is no file"],
        ),
        (
            "cub200",
            relabel(f"{CUB}image_class_labels.txt", "3 200", "3 201"),
            "image_class_labels.txt",
            ["from 1 to 200"],
        ),
        (
            "cub200",
            relabel(f"{CUB}image_class_labels.txt", "3 200\n", ""),
            "image_class_labels.txt",
            ["has no line for image 3"],
        ),
        (
            "cub200",
            relabel(f"{CUB}train_test_split.txt", "1 1", "1 yes"),
            "train_test_split.txt",
            ["'yes' for image '1'"],
        ),
        (
            "pacs",
            lambda root: (root / "PACS/kfold/photo/dog").rename(root / "PACS/kfold/photo/hound"),
            "photo",
            ["the class 'dog'"],
        ),
        (
            "office-caltech",
            lambda root: write(root / "office_caltech_10/dslr/mug/notes.txt", "x"),
            "notes.txt",
            ["is not a png"],
        ),
        (
            "domainnet",
            relabel("domainnet/sketch_test.txt", "sketch_test.jpg 2", "sketch_test.jpg 5"),
            "sketch_test.txt",
            ["has the label '5'", "headphones is 2 elsewhere"],
        ),
        (
            "market1501",
            lambda root: photo(root / MARKET / "bounding_box_train" / "person.jpg"),
            "person.jpg",
            ["must begin with"],
        ),
        (
            "msmt17",
            relabel("MSMT17_V1/list_val.txt", "_000_", "-"),
            "list_val.txt",
            ["lines are as"],
        ),
        (
            "eicu",
            lambda root: eicu(root, (3, 48, 442)),
            "north.npz",
            ["(3, 48, 442)", "(stays, 200, 442)"],
        ),
        ("eicu", lambda root: eicu(root, y=(0, 1)), "north.npz", ["2 for stays in y but 3 in x"]),
        ("eicu", lambda root: eicu(root, y=(0, 1, 2)), "north.npz", ["the label 2 in row 3"]),
        (
            "adult",
            relabel("adult.data", "Bachelors", "School"),
            "adult.data",
            ["'School' in row 1, which is not a known value"],
        ),
        (
            "agnews",
            relabel("ag_news_csv/test.csv", '"1"', '"5"'),
            "test.csv",
            ["has the label 5 in row 2"],
        ),
    ],
)
def test_wrong_files_are_refused(
    name: str, change: Callable[[Path], Any], file: str, words: list[str], here: Path, refuses: Any
) -> None:
    BUILD[name][0](here)
    change(here)
    with refuses(file, *words):
        load(name)


def test_values_of_usps_are_bytes(here: Path) -> None:
    usps(here)
    assert load("usps").x.flatten()[:6].tolist() == [0, 0, 0, 0, 255, 255]


def test_a_test_part_of_a_fifth_is_always_the_same(here: Path) -> None:
    sources("office_caltech_10", ("amazon", "webcam"), OFFICE)(here)
    data = load("office-caltech")
    assert data.official_test is not None
    assert data.official_test.sum() == 20
    is_test = data.official_test.numpy()
    kinds = set(
        zip(
            data.groups["domain"].of[is_test].tolist(),
            data.y.numpy()[is_test].tolist(),
            strict=True,
        )
    )
    assert len(kinds) == 20  # one of each class and source
    assert [note.split(":")[1] for note in data.warnings] == [
        " 100 of its 2,533 samples are available.",
        " caltech, dslr not available, so there are 2 of its sources.",
        (
            " no list says which images are for testing, so the test part is a fixed fifth of each"
            " class and source."
        ),
    ]
    fed = data.partition("auto", test="official")
    assert {
        name: (len(p.train) + len(p.validation), len(p.test)) for name, p in fed.parties.items()
    } == {
        "amazon": (40, 10),
        "webcam": (40, 10),
    }


def test_the_embedded_hospitals_are_those_of_the_published_file() -> None:
    """Every embedded cell equals that of the published file."""
    source = next(
        (
            f / "heart_disease_4_hospitals.csv"
            for f in data_folders()
            if (f / "heart_disease_4_hospitals.csv").is_file()
        ),
        None,
    )
    if source is None:
        pytest.skip("no heart_disease_4_hospitals.csv in COMITY_DATA")
    theirs = read_csv(source)
    codes = {
        "sex": "female,male", "chest_pain": ",typical angina,atypical angina,non-anginal pain,asymptomatic",
        "resting_ecg": "normal,ST-T abnormal,hypertrophy", "st_slope": ",up,flat,down",
        "thallium": ",,,normal,,,fixed defect,reversible defect",
    }  # fmt: skip
    sites = sorted(set(theirs["site"]))
    ours = [read_csv(HEART_FILES / f"{site}.csv") for site in sites]
    rows = np.concatenate([np.flatnonzero(theirs["site"] == site) for site in sites])
    for name, other in zip(ours[0].names, theirs.names[1:], strict=True):
        values = theirs.numeric(other)[rows]
        cells = np.concatenate([table[name] for table in ours])
        if name == "diagnosis":
            assert (cells == np.where(values > 0, "ill", "healthy")).all()
        elif name in codes:
            words = np.array(codes[name].split(","))
            assert (
                cells == np.where(np.isnan(values), "", words[np.nan_to_num(values).astype(int)])
            ).all()
        else:
            assert np.array_equal(
                np.concatenate([table.numeric(name) for table in ours]), values, equal_nan=True
            )


def test_heart_is_imported_by_its_schema() -> None:
    data = load("heart")
    assert (len(data), data.classes, data.class_names, data.default_partition) == (
        920,
        2,
        ("healthy", "ill"),
        "natural(by=site)",
    )
    assert data.shape == next(card["shape"] for card in catalogue() if card["name"] == "heart")
    fed = data.partition("auto")
    assert fed.names == ["cleveland", "hungarian", "switzerland", "va_long_beach"]
    assert data.schema is not None
    at = [column.name for column in data.schema.columns].index("cholesterol")
    assert at == 4
    cholesterol = data.x[:, 1 + 2 + 4 + 1]
    assert not (cholesterol == 0).any(), "a cholesterol of 0 is not missing"
    assert fed.parties["switzerland"].train.x.isfinite().all()


@pytest.mark.parametrize(
    ("name", "make", "queries", "gallery", "matches"),
    [
        ("market1501", market, [1, 3], [0, 1, 1, 3], 2),
        ("msmt17", msmt, [0], [0], 1),
        ("veri776", veri, [2], [2, 5], 1),
    ],
)
def test_query_and_gallery(
    name: str,
    make: Callable[[Path], None],
    queries: list[int],
    gallery: list[int],
    matches: int,
    here: Path,
) -> None:
    make(here)
    query, rest = query_and_gallery(name)
    numbers = {k: n for n, k in enumerate(sorted({*queries, *gallery}))}
    assert (query.ids.tolist(), rest.ids.tolist()) == (
        [numbers[k] for k in queries],
        [numbers[k] for k in gallery],
    )
    assert query.x.shape[1:] == load(name).x.shape[1:]
    scores = retrieval(query.seen(lambda x: x.flatten(1)), rest.seen(lambda x: x.flatten(1)))
    assert scores.queries == matches  # with the same identity by another camera


def test_missing_re_identification_files_are_refused(here: Path, refuses: Any) -> None:
    with refuses(
        "market1501",
        "put Market-1501-v15.09.15/query, Market-1501-v15.09.15/bounding_box_test into the folder",
    ):
        query_and_gallery("market1501")
    with pytest.raises(UsageError, match="There is no re-identification dataset 'mnist'"):
        query_and_gallery("mnist")


def test_a_list_may_leave_no_picture(here: Path, refuses: Any) -> None:
    domainnet(here)
    for path in (here / "domainnet").glob("*.txt"):
        path.write_text("clipart/zoo/clipart_train.jpg 10\n")
    with refuses("domainnet", "name no pictures of clipart, sketch"):
        load("domainnet")


def test_the_stand_in_for_eicu(here: Path) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    data = load("eicu-standin")
    assert "synthetic" in data.warnings[0]
    assert "SYNTHETIC" in data.description
    fed = data.partition("auto")
    assert len(fed.names) == 14
    assert 0.06 < data.y.double().mean() < 0.1
    late, of = data.x[:, -4:].mean(1).numpy(), data.groups["hospital"].of
    means = np.stack([late[of == k].mean(0) for k in range(14)])
    assert np.std(means, axis=0).mean() > 0.4  # hospitals differ
    centred = late - means[of]
    train = np.arange(len(data)) % 4 != 0
    fit = LogisticRegression(C=0.01, max_iter=500).fit(centred[train], data.y.numpy()[train])
    assert roc_auc_score(data.y.numpy()[~train], fit.decision_function(centred[~train])) > 0.8


def test_pickles_need_trust_once_and_after_damage(here: Path, tmp_path: Path, refuses: Any) -> None:
    pickled(here)
    with refuses(
        "cifar-10-python.tar.gz", "holds pickles", "comity data prepare cifar10 --trust-pickle"
    ):
        load("cifar10")
    assert len(load("cifar10", trust_pickle=True)) == 12
    assert len(load("cifar10")) == 12
    (cached,) = (tmp_path / "cache").iterdir()
    (cached / "y.npy").write_bytes(b"")
    with refuses("cifar-10-python.tar.gz", "holds pickles"):
        load("cifar10")


# The datasets in the COMITY_DATA of these tests.

REAL = [
    ("mnist", 70000, 10000, {}),
    ("fashion-mnist", 40000, 10000, {}),
    ("usps", 9298, 2007, {}),
    ("mnist-m", 9438, 2000, {}),
    ("svhn", 1083, 340, {}),
    ("cifar10", 12000, 2000, {}),
    ("cifar100", 12000, 2000, {}),
    ("femnist", 31278, 3243, {"writer": 207}),
    ("pacs", 2915, 695, {"domain": 4}),
    ("office-caltech", 611, 156, {"domain": 2}),
    ("har", 10299, 2947, {"subject": 30}),
    ("adult", 48842, 16281, {"doctorate": 2}),
    ("agnews", 21652, 7600, {}),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "samples", "test", "groups"), REAL)
def test_the_real_files(name: str, samples: int, test: int, groups: dict[str, int]) -> None:
    if not any(card["name"] == name and card["here"] for card in catalogue()):
        pytest.skip(f"no {name} in COMITY_DATA")
    data = load(name)
    assert (len(data), 0 if data.official_test is None else int(data.official_test.sum())) == (
        samples,
        test,
    )
    assert {by: len(group.names) for by, group in data.groups.items()} == groups
    assert isinstance(data, Dataset)


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "data.md"


def test_commands_on_the_page_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from comity import cli

    monkeypatch.chdir(tmp_path)
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
        for line in block.splitlines()
    ]
    assert lines
    for line in lines:
        program, *words = shlex.split(line, comments=True)
        assert program == "comity"
        monkeypatch.setattr("sys.argv", [program, *words])
        cli.main()  # raises SystemExit on errors
        assert capsys.readouterr().out


def test_the_page_names_every_dataset() -> None:
    text = PAGE.read_text()
    assert [card["name"] for card in catalogue() if f"`{card['name']}`" not in text] == []


def test_first_images_of_svhn_are_split_by_photo(here: Path) -> None:
    """They are all of the official training part, alone and beside a source with its own test
    part.
    """
    draw = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for part, photos in (("train", [7, 7, 3, 3, 3, 5, 9]), ("test", [1, 1, 8])):
        arrays |= {
            f"x_{part}": draw.integers(0, 256, (len(photos), 32, 32, 3), np.uint8),
            f"photo_{part}": np.array(photos),
        }
        arrays |= {f"y_{part}": np.arange(len(photos)) % 10}
    np.savez(here / "svhn_first1083.npz", allow_pickle=False, **arrays)
    mnist(here)
    alone = load("svhn")
    assert alone.cut_by is not None
    assert np.bincount(alone.cut_by).tolist() == [2, 3, 1, 2, 1, 1]
    first_load, data = load("digits-five"), load("digits-five")  # from the cache
    assert first_load.cut_by is not None
    assert data.cut_by is not None
    assert first_load.cut_by.tolist() == data.cut_by.tolist() == [-1] * 4 + alone.cut_by.tolist()
    tests = set()
    for seed in range(8):
        fed = data.partition("domain", seed=seed, test="official(redraw=true)", validation=0)
        assert fed.split.parties["mnist"].test == (2, 3)
        svhn = fed.split.parties["svhn"]
        assert not set(data.cut_by[list(svhn.train)]) & set(data.cut_by[list(svhn.test)])
        tests.add(svhn.test)
    assert len(tests) > 2
