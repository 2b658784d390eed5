"""Pictures of many kinds, in the folders of their makers: Tiny-ImageNet and Caltech-UCSD Birds."""

from __future__ import annotations

from pathlib import Path

from comity.data.dataset import Dataset
from comity.data.files import Found, Way
from comity.data.formats import picture_files
from comity.data.formats.common import bad, folder_of, inside, quote
from comity.data.library import Card, Entry, register
from comity.data.sets.common import Shot, album, table, within

TINY = Card(
    name="tiny-imagenet",
    samples=110000,
    classes=200,
    shape=(3, 64, 64),
    description=(
        "Photos of 200 kinds at 64 x 64 (Stanford CS231n); its val part is the official test part"
    ),
    licence="research use; the photos' rights are their owners'",
    hub="zh-plus/tiny-imagenet",
)
CUB = Card(
    name="cub200",
    samples=11788,
    classes=200,
    shape=(3, 128, 128),
    description="Photos of 200 kinds of birds (Wah et al. 2011), at 128 x 128",
    licence="non-commercial research use; the photos' rights are their owners'",
)


def _tiny(found: Found) -> Dataset:
    """`train/<wnid>/images/*.JPEG`, and `val/images` with `val/val_annotations.txt`; classes in the
    order of their wnids.
    """
    root = found["tiny-imagenet-200"]
    kinds = [path.name for path in inside(folder_of(root / "train")) if path.is_dir()]
    label = {kind: k for k, kind in enumerate(kinds)}
    shots = [
        Shot(path, label[kind])
        for kind in kinds
        for path in picture_files(root / "train" / kind / "images")
    ]
    notes = root / "val" / "val_annotations.txt"
    for name, kind, *_ in table(notes, "a file", "a class", *("a place in the picture",) * 4):
        if kind not in label:
            raise bad(
                notes,
                f"has {quote(name)} of the class {quote(kind)}, of which {root / 'train'} has no"
                " folder",
            )
        shots.append(Shot(within(root / "val" / "images", name, notes), label[kind], test=True))
    return album(TINY, root, shots, class_names=tuple(kinds))


def _cub(found: Found) -> Dataset:
    """`images/` and three lists by the image's number: its file, its class from 1, and whether it
    is for training.
    """
    root = found["CUB_200_2011"]
    files = {row[0]: row[1] for row in table(root / "images.txt", "a number", "a file")}
    answers = _numbered(root / "image_class_labels.txt", "a class", files, CUB.classes, first=1)
    train = _numbered(root / "train_test_split.txt", "0 or 1", files, 2, first=0)
    shots = [
        Shot(
            within(root / "images", name, root / "images.txt"),
            answers[number],
            test=not train[number],
        )
        for number, name in files.items()
    ]
    return album(CUB, root, shots, class_names=_names(root / "classes.txt"))


def _numbered(
    path: Path, what: str, files: dict[str, str], many: int, first: int
) -> dict[str, int]:
    """What a list says of each image, counted from 0."""
    found = {}
    for number, value in table(path, "a number", what):
        if not value.isdecimal() or not first <= int(value) < first + many:
            raise bad(
                path,
                f"has {quote(value)} for image {quote(number)}, but it must be from {first} to"
                f" {first + many - 1}",
            )
        found[number] = int(value) - first
    lost = next((number for number in files if number not in found), None)
    if lost is not None:
        raise bad(path, f"says nothing of image {lost}, which images.txt names")
    return found


def _names(path: Path) -> tuple[str, ...]:
    """`001.Black_footed_Albatross` and so on, where the list is there."""
    return tuple(name for _, name in table(path, "a number", "a name")) if path.is_file() else ()


register(Entry(TINY, (Way(_tiny, ("tiny-imagenet-200",), "tiny-imagenet-200/"),)))
register(Entry(CUB, (Way(_cub, ("CUB_200_2011",), "CUB_200_2011/"),)))
