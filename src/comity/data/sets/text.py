"""Text classification, with words encoded as numbers."""

from __future__ import annotations

import re
import zlib

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data.dataset import Dataset
from comity.data.files import FileLayout, FilePaths
from comity.data.formats import Table, read_csv
from comity.data.formats.common import labels
from comity.data.library import Card, Entry, register
from comity.data.sets.common import subset_warnings
from comity.data.sets.sums import SUMS

LENGTH = 200
VOCABULARY = 98_635
"""Size of the vocabulary, as in DBE; 0 pads short texts."""
TOPICS = ("World", "Sports", "Business", "Sci/Tech")
AG_NEWS = Card(
    name="agnews",
    samples=127600,
    classes=4,
    shape=(LENGTH,),
    description=(
        f"News by topic: the first {LENGTH} words, each a number below {VOCABULARY:,} (Zhang et al."
        " 2015)"
    ),
    licence="non-commercial research use",
    hub="fancyzhx/ag_news",
)
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


def _news(parts: list[Table], texts: list[list[str]], first: int) -> Dataset:
    """A dataset of training and test texts; the files count classes from `first`."""
    y = np.concatenate(
        [labels(t.place("label"), t.numeric("label"), AG_NEWS.classes, first) for t in parts]
    )
    is_test = np.arange(len(y)) >= len(parts[0])
    return Dataset(
        name=AG_NEWS.name,
        x=torch.from_numpy(encode_texts([*texts[0], *texts[1]])),
        y=torch.from_numpy(y),
        classes=AG_NEWS.classes,
        description=AG_NEWS.description,
        licence=AG_NEWS.licence,
        official_test=torch.from_numpy(is_test),
        mean=(0.0,),
        std=(1.0,),
        class_names=TOPICS,
        warnings=subset_warnings(AG_NEWS, len(y)),
    )


def _with_header(paths: FilePaths) -> Dataset:
    """Read csv files with a header: label and text."""
    parts = [read_csv(path) for path in paths.values()]
    return _news(parts, [[str(text) for text in t["text"]] for t in parts], first=0)


def _original(paths: FilePaths) -> Dataset:
    """Read the original files: class from 1, title and description, without a header."""
    parts = [read_csv(path, header=("label", "title", "text")) for path in paths.values()]
    return _news(
        parts,
        [
            [f"{title} {text}" for title, text in zip(t["title"], t["text"], strict=True)]
            for t in parts
        ],
        first=1,
    )


register(
    Entry(
        AG_NEWS,
        (
            FileLayout(
                _with_header, ("ag_news_train.csv", "ag_news_test.csv"), sums=SUMS["agnews"]
            ),
            FileLayout(_original, ("ag_news_csv/train.csv", "ag_news_csv/test.csv")),
            FileLayout(_original, ("agnews/train.csv", "agnews/test.csv")),
        ),
    )
)
