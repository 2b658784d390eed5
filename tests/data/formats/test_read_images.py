"""Readers of images: single files, folders and lists."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comity.data.formats import read_image, read_image_folder, read_image_list
from comity.errors import UsageError

Image = pytest.importorskip("PIL.Image")


def save(
    path: Path,
    colour: tuple[int, int, int] = (10, 20, 30),
    size: tuple[int, int] = (8, 6),
    mode: str = "RGB",
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)
    return path


class TestOne:
    @pytest.mark.parametrize("suffix", ["png", "bmp", "ppm", "jpeg", "JPG"])
    def test_formats(self, suffix: str, tmp_path: Path) -> None:
        x = read_image(save(tmp_path / f"a.{suffix}"))
        assert (x.shape, x.dtype) == ((3, 6, 8), np.uint8)
        assert np.abs(x.mean(axis=(1, 2)) - [10, 20, 30]).max() < 3

    def test_pixels_are_where_they_belong(self, tmp_path: Path) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "a.png")
        assert np.array_equal(read_image(tmp_path / "a.png"), pixels.transpose(2, 0, 1))

    @pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
    def test_other_modes_become_rgb_or_grey(self, mode: str, tmp_path: Path) -> None:
        suffix = "jpg" if mode == "CMYK" else "png"
        path = save(tmp_path / f"a.{suffix}", mode=mode)
        assert read_image(path).shape == (3, 6, 8)
        assert read_image(path, grey=True).shape == (1, 6, 8)

    def test_resampling_is_smooth(self, tmp_path: Path) -> None:
        board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
        Image.fromarray(board).save(tmp_path / "a.png")
        x = read_image(tmp_path / "a.png", size=16, grey=True)
        assert x.shape == (1, 16, 16)
        assert (
            np.abs(x[0, 2:-2, 2:-2].astype(int) - 127).max() <= 2
        )  # without smoothing it would be 0 or 255

    def test_deep_pictures(self, tmp_path: Path, refuses: Any) -> None:
        path = tmp_path / "deep.png"
        Image.fromarray(np.full((4, 4), 40000, np.uint16)).save(path)
        with refuses(path, "8 bits"):
            read_image(path)

    @pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "ppm"])
    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
    def test_cut_short(self, suffix: str, share: float, tmp_path: Path, refuses: Any) -> None:
        path = tmp_path / f"a.{suffix}"
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)).save(path)
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        with refuses(path, "damaged or cut short"):
            read_image(path)

    def test_not_a_picture_and_not_of_these_formats(self, tmp_path: Path, refuses: Any) -> None:
        path = tmp_path / "a.png"
        path.write_text("hello")
        with refuses(path, "no png"):
            read_image(path)
        save(tmp_path / "a.gif").rename(path)
        with refuses(path, "no png"):
            read_image(path)

    @pytest.mark.parametrize("size", [0, -3])
    def test_size(self, size: int, tmp_path: Path) -> None:
        path = save(tmp_path / "all" / "a.png")
        with pytest.raises(UsageError, match="size must be a side length in pixels"):
            read_image(path, size)
        with pytest.raises(UsageError, match="size must be a side length in pixels"):
            read_image_folder(tmp_path, size)

    def test_without_pillow(
        self, tmp_path: Path, refuses: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = save(tmp_path / "a.png")
        monkeypatch.setitem(sys.modules, "PIL.Image", None)
        with refuses(path, "pillow", "pip install 'comity[data]'"):
            read_image(path)


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for k, name in enumerate(["dog/1.png", "cat/2.jpg", "cat/1.png", "ant/x.BMP"]):
            save(tmp_path / "pets" / name, (k * 50,) * 3)
        (tmp_path / "pets" / "cat" / ".DS_Store").write_text("hidden")
        (tmp_path / "pets" / "readme.txt").write_text("beside the classes")
        return tmp_path / "pets"

    def test_good(self, folder: Path) -> None:
        x, y, classes = read_image_folder(folder, 4)
        assert classes == ("ant", "cat", "dog")
        assert (x.shape, x.dtype, y.dtype) == ((4, 3, 4, 4), np.uint8, np.int64)
        assert y.tolist() == [0, 1, 1, 2]
        assert x[:, 0, 0, 0].tolist() == [150, 100, 50, 0]
        assert read_image_folder(folder, 5, grey=True).x.shape == (4, 1, 5, 5)

    def test_classes_choose_and_order(self, folder: Path) -> None:
        x, y, classes = read_image_folder(folder, 4, classes=["dog", "ant"])
        assert (x[:, 0, 0, 0].tolist(), y.tolist(), classes) == ([0, 150], [0, 1], ("dog", "ant"))

    def test_bad_folders(self, folder: Path, tmp_path: Path, refuses: Any) -> None:
        with refuses(folder, "no folder for the class 'cow'"):
            read_image_folder(folder, 4, classes=["cow"])
        with refuses("nowhere", "no folder"):
            read_image_folder(tmp_path / "nowhere", 4)
        with refuses(folder / "cat", "folder of its own"):
            read_image_folder(folder / "cat", 4)
        (folder / "empty").mkdir()
        with refuses(folder / "empty", "no pictures"):
            read_image_folder(folder, 4)

    @pytest.mark.parametrize("name", ["note.txt", "b.gif", "inner.d"])
    def test_unknown_files_are_refused(self, name: str, folder: Path, refuses: Any) -> None:
        (folder / "cat" / name).write_text("hello")
        with refuses(folder / "cat" / name, "convert it or move it"):
            read_image_folder(folder, 4)

    def test_not_an_image(self, folder: Path, refuses: Any) -> None:
        (folder / "cat" / "3.png").write_bytes(b"\x89PNG\r\n\x1a\n")
        with refuses(folder / "cat" / "3.png", "damaged"):
            read_image_folder(folder, 4)


class TestList:
    def read(self, tmp_path: Path, text: str, **more: Any) -> Any:
        save(tmp_path / "sketch" / "a tree" / "1.png", (10, 10, 10))
        save(tmp_path / "sketch" / "2.png", (20, 20, 20))
        (tmp_path / "sketch_train.txt").write_text(text)
        return read_image_list(tmp_path, tmp_path / "sketch_train.txt", 4, **more)

    def test_good(self, tmp_path: Path) -> None:
        x, y = self.read(tmp_path, "sketch/a tree/1.png 7\n\nsketch/2.png 0\n", classes=8)
        assert (x.shape, y.tolist(), y.dtype) == ((2, 3, 4, 4), [7, 0], np.int64)
        assert x[:, 0, 0, 0].tolist() == [10, 20]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("sketch/2.png", "line 1"),
            ("sketch/2.png 0\nsketch/2.png -1", "line 2"),
            ("sketch/2.png 0.5", "line 1"),
            ("5", "line 1"),
            ("sketch/2.png 8", "0 to 7"),
            ("/etc/passwd 0", "out of the folder"),
            ("a/../../b.png 0", "out of the folder"),
            ("\n \n", "names no pictures"),
        ],
    )
    def test_bad_lists(self, text: str, words: str, tmp_path: Path, refuses: Any) -> None:
        with refuses("sketch_train.txt", words):
            self.read(tmp_path, text, classes=8)

    def test_not_text(self, tmp_path: Path, refuses: Any) -> None:
        (tmp_path / "list.txt").write_bytes(b"\xff\xfe 0")
        with refuses("list.txt", "UTF-8"):
            read_image_list(tmp_path, tmp_path / "list.txt", 4)

    def test_missing_image_is_refused(self, tmp_path: Path, refuses: Any) -> None:
        with refuses("3.png", "There is no file"):
            self.read(tmp_path, "sketch/3.png 0")
