"""Image datasets in their original folders: Tiny-ImageNet and Caltech-UCSD Birds."""

from __future__ import annotations

from pathlib import Path

from comity.data.dataset import Dataset
from comity.data.files import FilePaths
from comity.data.formats import picture_files
from comity.data.formats.common import existing_folder, file_error, list_folder, quote
from comity.data.sets.common import ImageFile, image_file_dataset, path_inside, table
from comity.data.sets.descriptions import Description, register_datasets


def _tiny(card: Description, paths: FilePaths) -> Dataset:
    """Read `train/<wnid>/images/*.JPEG`, and `val/images` with `val/val_annotations.txt`.

    Classes are sorted by wnid.
    """
    root = paths["tiny-imagenet-200"]
    kinds = [path.name for path in list_folder(existing_folder(root / "train")) if path.is_dir()]
    label = {kind: k for k, kind in enumerate(kinds)}
    images = [
        ImageFile(path, label[kind])
        for kind in kinds
        for path in picture_files(root / "train" / kind / "images")
    ]
    annotations = root / "val" / "val_annotations.txt"
    for name, kind, *_ in table(annotations, "a file", "a class", *("a place in the picture",) * 4):
        if kind not in label:
            raise file_error(
                annotations,
                f"has {quote(name)} of the class {quote(kind)}, of which {root / 'train'} has no"
                " folder",
            )
        images.append(
            ImageFile(
                path_inside(root / "val" / "images", name, annotations), label[kind], test=True
            )
        )
    return image_file_dataset(card, root, images, class_names=tuple(kinds))


def _cub(card: Description, paths: FilePaths) -> Dataset:
    """Read `images/` and three lists: the file, the class from 1, and the part of each image."""
    root = paths["CUB_200_2011"]
    files = {row[0]: row[1] for row in table(root / "images.txt", "a number", "a file")}
    labels = _read_numbers(root / "image_class_labels.txt", "a class", files, card.classes, first=1)
    train = _read_numbers(root / "train_test_split.txt", "0 or 1", files, 2, first=0)
    images = [
        ImageFile(
            path_inside(root / "images", name, root / "images.txt"),
            labels[number],
            test=not train[number],
        )
        for number, name in files.items()
    ]
    return image_file_dataset(card, root, images, class_names=_names(root / "classes.txt"))


def _read_numbers(
    path: Path, what: str, files: dict[str, str], count: int, first: int
) -> dict[str, int]:
    """The value of each image in a list, converted to start at 0."""
    values = {}
    for number, value in table(path, "a number", what):
        if not value.isdecimal() or not first <= int(value) < first + count:
            raise file_error(
                path,
                f"has {quote(value)} for image {quote(number)}, but it must be from {first} to"
                f" {first + count - 1}",
            )
        values[number] = int(value) - first
    missing = next((number for number in files if number not in values), None)
    if missing is not None:
        raise file_error(path, f"has no line for image {missing}, which is in images.txt")
    return values


def _names(path: Path) -> tuple[str, ...]:
    """Class names, as in `001.Black_footed_Albatross`; none if the list is missing."""
    return tuple(name for _, name in table(path, "a number", "a name")) if path.is_file() else ()


register_datasets(
    Path(__file__).with_suffix(".toml"), readers={"tiny-imagenet": _tiny, "cub200": _cub}
)
