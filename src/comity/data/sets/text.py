"""Text, as numbers of words."""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from comity.data.dataset import Dataset
from comity.data.files import Found, Way
from comity.data.formats import read_csv
from comity.data.library import Card, Entry, register

LENGTH = 200
VOCABULARY = 98_635  # the size of DBE's; 0 is for where a text has ended
TOPICS = ("World", "Sports", "Business", "Sci/Tech")
AG_NEWS = Card("agnews", 127600, 4, (LENGTH,), f"News by topic: the first {LENGTH} words, each a number below {VOCABULARY:,} (Zhang et al. "
               "2015)", "non-commercial research use", hub="fancyzhx/ag_news")
WORD = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")


def numbers(texts: list[str]) -> NDArray[np.float32]:
    """Words and marks in lower case, as fixed numbers by a checksum: a vocabulary counted over all texts would be pooled data.

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


def _news(train: tuple[NDArray[Any], list[str]], test: tuple[NDArray[Any], list[str]]) -> Dataset:
    y = np.concatenate([train[0], test[0]]).astype(np.int64)
    x = numbers(train[1] + test[1])
    held = np.arange(len(y)) >= len(train[0])
    return Dataset(AG_NEWS.name, torch.from_numpy(x), torch.from_numpy(y), 4, AG_NEWS.description, AG_NEWS.licence,
                   torch.from_numpy(held), (0.0,), (1.0,), class_names=TOPICS)


def _with_header(found: Found) -> Dataset:
    parts = [read_csv(found[f]) for f in ("ag_news_train.csv", "ag_news_test.csv")]
    return _news(*((t.numeric("label"), [str(v) for v in t["text"]]) for t in parts))


def _original(found: Found) -> Dataset:
    """The authors' own train.csv and test.csv: class from 1, title, description, no header."""
    parts = [read_csv(found[f], header=("label", "title", "text")) for f in ("train.csv", "test.csv")]
    return _news(*((t.numeric("label") - 1, [f"{a} {b}" for a, b in zip(t["title"], t["text"], strict=True)]) for t in parts))


register(Entry(AG_NEWS, (Way(_with_header, ("ag_news_train.csv", "ag_news_test.csv")), Way(_original, ("train.csv", "test.csv")))))
