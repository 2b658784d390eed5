"""On a terminal of 80 columns sentences break between words, and columns that do not fit follow
below.
"""

from __future__ import annotations

import pytest
from harness import Nursery, frames, on_terminal

from comity.cli import screen


@pytest.fixture(scope="module")
def screen_lines(nursery: Nursery) -> list[str]:
    code, output = on_terminal(nursery, "data", "inspect", "--data", "heart")
    assert code == 0
    return [line.rstrip() for line in frames(output)]


def test_nothing_is_wider_than_the_screen(screen_lines: list[str]) -> None:
    assert max(map(len, screen_lines)) <= 80


def test_sentences_break_between_words(screen_lines: list[str]) -> None:
    text = " ".join(screen_lines)
    assert "accuracy says little there, so judge by balanced_accuracy or auc (--metric)." in text
    assert any(line.endswith("and 78 others: accuracy") for line in screen_lines)


def test_columns_that_do_not_fit_follow_below(screen_lines: list[str]) -> None:
    heads = [line.split("  ")[0] for line in screen_lines]
    assert heads.count("5th, middle, 95th") == 2
    assert heads.count("max_heart_rate") == 3, "once for missing values, and twice for quantiles"


def test_to_a_program_a_sentence_is_one_line(nursery: Nursery) -> None:
    result = nursery.run("data", "inspect", "--data", "heart")
    assert any(
        line.endswith("or auc (--metric).") and line.startswith("Warning:")
        for line in result.out.splitlines()
    )


def test_every_column_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "out", screen.Screen(width=20))
    columns = ["name", "a", "a long column", "c", "wider than all the screen is"]
    parts = screen._split_columns(columns, [["x", "1", "2", "3", "4"]], 1)
    assert [part[0] for part in parts] == [0] * len(parts)
    assert [k for part in parts for k in part[1:]] == [1, 2, 3, 4]
