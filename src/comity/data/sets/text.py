"""Text classification, with words encoded as numbers."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data.dataset import Dataset
from comity.data.files import FilePaths
from comity.data.formats import RawTable, read_csv
from comity.data.formats.common import labels
from comity.data.sets.common import build_dataset, subset_warnings
from comity.data.sets.descriptions import Description, register_datasets

LENGTH = 200
VOCABULARY = 98_635
"""Size of the vocabulary, as in DBE; 0 pads short texts."""
WORD = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")


def encode_texts(texts: list[str]) -> NDArray[np.float32]:
    """Encode lower-case words and punctuation marks as numbers, by a checksum.

    A vocabulary built from all texts would use pooled data of the parties. Whole numbers up to 2^24
    are exact in 32-bit floats.
    """
    encoded = np.zeros((len(texts), LENGTH), dtype=np.float32)
    number_of: dict[str, int] = {}
    for row, text in zip(encoded, texts, strict=True):
        for k, word in enumerate(WORD.findall(text.lower())[:LENGTH]):
            if word not in number_of:
                number_of[word] = 1 + zlib.crc32(word.encode()) % (VOCABULARY - 1)
            row[k] = number_of[word]
    return encoded


def _news(
    card: Description, parts: list[RawTable], texts: list[list[str]], first_label: int
) -> Dataset:
    """A dataset of training and test texts; the files count classes from `first_label`."""
    y = np.concatenate(
        [labels(t.place("label"), t.numeric("label"), card.classes, first_label) for t in parts]
    )
    is_test = np.arange(len(y)) >= len(parts[0])
    return build_dataset(
        card,
        torch.from_numpy(encode_texts([*texts[0], *texts[1]])),
        torch.from_numpy(y),
        official_test=torch.from_numpy(is_test),
        mean=(0.0,),
        std=(1.0,),
        warnings=subset_warnings(card, len(y)),
    )


def _with_header(card: Description, paths: FilePaths) -> Dataset:
    """Read csv files with a header: label and text."""
    parts = [read_csv(path) for path in paths.values()]
    return _news(card, parts, [[str(text) for text in t["text"]] for t in parts], first_label=0)


def _original(card: Description, paths: FilePaths) -> Dataset:
    """Read the original files: class from 1, title and description, without a header."""
    parts = [read_csv(path, header=("label", "title", "text")) for path in paths.values()]
    return _news(
        card,
        parts,
        [
            [f"{title} {text}" for title, text in zip(t["title"], t["text"], strict=True)]
            for t in parts
        ],
        first_label=1,
    )


register_datasets(
    Path(__file__).with_suffix(".toml"), readers={"csv": _with_header, "original-csv": _original}
)
