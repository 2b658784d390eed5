"""Measure the length of sentences in Markdown pages.

    python scripts/readability.py README.md docs          # one line a page, and one for all
    python scripts/readability.py --long README.md        # also print sentences of over 30 words

Code blocks, tables, headings and pictures do not count. A list item counts as a sentence. Inline
code counts as one word.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

LONG = 30
"""A sentence with more words than this is long."""
FENCED = re.compile(r"^ *```.*?^ *```", flags=re.MULTILINE | re.DOTALL)
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|et al|vs|cf|eq|app|sec|fig|al|no)\.", re.IGNORECASE)


def sentences(text: str) -> list[str]:
    """The sentences of a Markdown text, without markup."""
    text = FENCED.sub("\n\n", text)
    text = re.sub(r"^---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)  # pictures
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)  # links
    text = re.sub(r"`[^`\n]*`", "code", text)
    text = re.sub(r"^\s*(#|\||:::|<).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*([-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        line = " ".join(paragraph.split())
        line = ABBREVIATIONS.sub(r"\1", re.sub(r"[*_]{1,2}(?=\w)|(?<=[\w.!?:])[*_]{1,2}", "", line))
        found += re.split(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*[A-Z0-9+~])", line)
    return [sentence for sentence in found if count_words(sentence) > 1]


def count_words(sentence: str) -> int:
    """Words and numbers of a sentence."""
    return len(re.findall(r"[^\W_][^\s]*", sentence))


def pages(paths: Iterable[Path]) -> list[Path]:
    """The Markdown files among paths and in folders."""
    return [
        page for path in paths for page in (sorted(path.rglob("*.md")) if path.is_dir() else [path])
    ]


def line(name: str, lengths: list[int]) -> str:
    """The figures of a page or of all."""
    mean = sum(lengths) / max(1, len(lengths))
    share = sum(n > LONG for n in lengths) / max(1, len(lengths))
    return f"{name:<44} {len(lengths):>9,} {mean:>6.1f} {share:>9.1%} {max(lengths, default=0):>8}"


def main() -> None:
    """Print the figures of the pages that are named."""
    parser = argparse.ArgumentParser(description="Measure the length of sentences.")
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--long", action="store_true", help="print long sentences")
    parser.add_argument("--skip", action="append", default=[], help="leave out paths with this")
    arguments = parser.parse_args()
    print(f"{'page':<44} {'sentences':>9} {'words':>6} {'over 30':>9} {'longest':>8}")
    total: list[int] = []
    for page in pages(arguments.paths):
        if any(part in str(page) for part in arguments.skip):
            continue
        found = sentences(page.read_text(encoding="utf-8"))
        lengths = [count_words(sentence) for sentence in found]
        total += lengths
        print(line(str(page), lengths))
        if arguments.long:
            for sentence in found:
                if count_words(sentence) > LONG:
                    print(f"    {count_words(sentence)}: {sentence}")
    print(line("all", total))


if __name__ == "__main__":
    main()
