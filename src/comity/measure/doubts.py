"""What a reader of a run's figures must know: who was not heard, what was left out, which rounds do not count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from comity.core.participation import ABSENT, NOT_FINITE

MOST_NAMED = 8  # parties or rounds in a sentence


def doubts(summary: Mapping[str, Any]) -> list[str]:
    """A sentence each; none if everybody was heard and all was finite."""
    absent: Mapping[str, Mapping[str, int]] = summary.get("absent", {})
    return [
        *_not_heard(absent),
        *_left_out(absent),
        *_void(summary.get("void", ())),
        *_at_the_end(summary["accuracy"].get("as_of", {})),
        *_diverged(summary.get("diverged", ())),
    ]


def _not_heard(absent: Mapping[str, Mapping[str, int]]) -> list[str]:
    missed = {party: {kind: n for kind, n in kinds.items() if kind in ABSENT} for party, kinds in absent.items()}
    told = [
        f"{party} {sum(kinds.values())} ({', '.join(f'{n} {kind}' for kind, n in kinds.items())})"
        for party, kinds in missed.items()
        if kinds
    ]
    return [f"Calls that were missed: {few(told)}."] if told else []


def _left_out(absent: Mapping[str, Mapping[str, int]]) -> list[str]:
    left = [f"{party} {kinds[NOT_FINITE]}" for party, kinds in absent.items() if kinds.get(NOT_FINITE)]
    return [f"Replies that were left out, as their values are not finite: {few(left)}; a smaller lr may help."] if left else []


def _void(rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rounds:
        return []
    which = few([str(one["round"]) for one in rounds])
    return [f"{'Rounds' if len(rounds) > 1 else 'Round'} {which} did not count: {_lower(rounds[0]['why'])}"]


def _at_the_end(as_of: Mapping[str, int | None]) -> list[str]:
    late = [f"{party} (its accuracy is that of round {t})" for party, t in as_of.items() if t is not None]
    never = [party for party, t in as_of.items() if t is None]
    said = [f"Not heard at the end: {few(late)}."] if late else []
    return said + ([f"Never heard, and in no mean: {few(never)}."] if never else [])


def _diverged(parties: Sequence[str]) -> list[str]:
    return [f"The loss of {few(list(parties))} is not finite, or beyond a million; try a smaller lr."] if parties else []


def few(names: Sequence[str]) -> str:
    """Names in a sentence, not too many of them."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
