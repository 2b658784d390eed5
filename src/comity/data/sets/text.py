"""Text, as numbers of words."""

from __future__ import annotations

import re
import zlib

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data.dataset import Dataset
from comity.data.files import Found, Way
from comity.data.formats import Table, read_csv
from comity.data.formats.common import labels
from comity.data.library import Card, Entry, register
from comity.data.sets.common import partly
from comity.data.sets.sums import SUMS

LENGTH = 200
VOCABULARY = 98_635  # the size of DBE's; 0 is for where a text has ended
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


def numbers(texts: list[str]) -> NDArray[np.float32]:
    """Words and marks in lower case, as fixed numbers by a checksum: a vocabulary counted over all
    texts would be pooled data.

    Whole numbers up to 2^24 are exact in 32-bit floats.
    """
    made = np.zeros((len(texts), LENGTH), dtype=np.float32)
    known: dict[str, int] = {}
    for row, text in zip(made, texts, strict=True):
        for k, word in enumerate(WORD.findall(text.lower())[:LENGTH]):
            if word not in known:
                known[word] = 1 + zlib.crc32(word.encode()) % (VOCABULARY - 1)
            row[k] = known[word]
    return made


def _news(parts: list[Table], texts: list[list[str]], first: int) -> Dataset:
    """Training and test texts, whose classes the files count from `first`."""
    y = np.concatenate(
        [labels(t.place("label"), t.numeric("label"), AG_NEWS.classes, first) for t in parts]
    )
    held = np.arange(len(y)) >= len(parts[0])
    return Dataset(
        name=AG_NEWS.name,
        x=torch.from_numpy(numbers([*texts[0], *texts[1]])),
        y=torch.from_numpy(y),
        classes=AG_NEWS.classes,
        description=AG_NEWS.description,
        licence=AG_NEWS.licence,
        official_test=torch.from_numpy(held),
        mean=(0.0,),
        std=(1.0,),
        class_names=TOPICS,
        warnings=partly(AG_NEWS, len(y)),
    )


def _with_header(found: Found) -> Dataset:
    parts = [read_csv(path) for path in found.values()]
    return _news(parts, [[str(text) for text in t["text"]] for t in parts], first=0)


def _original(found: Found) -> Dataset:
    """The authors' own files: class from 1, title, description, no header."""
    parts = [read_csv(path, header=("label", "title", "text")) for path in found.values()]
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
            Way(_with_header, ("ag_news_train.csv", "ag_news_test.csv"), sums=SUMS["agnews"]),
            Way(_original, ("ag_news_csv/train.csv", "ag_news_csv/test.csv")),
            Way(_original, ("agnews/train.csv", "agnews/test.csv")),
        ),
    )
)
