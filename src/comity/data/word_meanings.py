"""Words of different parties that may mean the same: spellings, abbreviations and translations.

The answers are guesses for messages. Nothing is replaced before a user has said so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Set

from comity.data.preparation import fold_case

SYNONYMS = (
    "m male man männlich maennlich mann masculine masculin homme hombre masculino maschio",
    "f female w woman weiblich frau feminine féminin feminin femme mujer femenino femmina",
    "y yes ja j oui si sí true t positive pos present vorhanden",
    "n no nein non false f negative neg absent none",
    "dead deceased died death expired exitus verstorben tot gestorben",
    "alive survived survivor living lebend lebt",
    "ill sick diseased disease case krank patient",
    "healthy well control controls normal gesund",
)
"""Words with the same meaning. A word may have several meanings, as f."""
MEANINGS = tuple(frozenset(line.split()) for line in SYNONYMS)
YES, NO = MEANINGS[2], MEANINGS[3]
NEGATION = re.compile(r"(?:not|no|non|never|without|kein|keine|nicht|ohne)[\s_-]+(.+)")
LONGEST_ABBREVIATION = 4
"""Letters of a word that may abbreviate a longer one, as neg for negative."""
ROMAN = re.compile(r"[ivx]+")
SHORTEST_STEM = 5
"""Letters that a label's name and a word have in common, as in readmission and readmitted."""


def _plain(word: str) -> str:
    """A word in lower case, with letters and digits only."""
    return " ".join(re.findall(r"[^\W_]+", fold_case(word))) or fold_case(word)


def _meanings(word: str, column: str) -> set[frozenset[str]]:
    """The meanings of a word. The column's own name, as in Readmitted, means yes."""
    plain = _plain(word)
    meanings = {meaning for meaning in MEANINGS if plain in meaning}
    negated = NEGATION.fullmatch(fold_case(word))
    if negated and _is_stem(_plain(negated[1]), _plain(column)):
        meanings.add(NO)
    elif _is_stem(plain, _plain(column)):
        meanings.add(YES)
    return meanings


def _is_stem(word: str, name: str) -> bool:
    """Whether a word and a name begin alike."""
    length = min(len(word), len(name), SHORTEST_STEM)
    return length == SHORTEST_STEM and word[:length] == name[:length]


def _abbreviates(short: str, long: str) -> bool:
    """Whether a word may be the beginning of a longer one, as m of male."""
    return (
        len(short) <= LONGEST_ABBREVIATION
        and len(long) >= len(short) + 2
        and long.startswith(short)
        and long.isalpha()
        and not ROMAN.fullmatch(long)
    )


def same_meaning(word: str, other: str, column: str = "") -> bool:
    """Whether two words of a column may mean the same.

    Examples:
        >>> same_meaning("m", "Male"), same_meaning("Readmitted", "yes", "readmitted")
        (True, True)
        >>> same_meaning("II", "III"), same_meaning("ward 1", "ward 2")
        (False, False)
    """
    plain, plain_other = _plain(word), _plain(other)
    if plain == plain_other or _meanings(word, column) & _meanings(other, column):
        return True
    return _abbreviates(plain, plain_other) or _abbreviates(plain_other, plain)


def match_words(words: Set[str], others: Set[str], column: str = "") -> dict[str, str]:
    """Words, and the other words that they may stand for.

    A word with candidates of different meanings is left out. If one of two words has a match, the
    second one stands for what is left.

    Examples:
        >>> match_words({"m", "w"}, {"male", "female"})
        {'m': 'male', 'w': 'female'}
    """
    matches: dict[str, str] = {}
    for word in sorted(words):
        candidates = [other for other in sorted(others) if same_meaning(word, other, column)]
        if candidates and all(same_meaning(candidates[0], other, column) for other in candidates):
            candidate = max(candidates, key=len)
            if candidate not in matches.values():
                matches[word] = candidate
    left, left_others = set(words) - matches.keys(), set(others) - set(matches.values())
    if matches and len(left) == len(left_others) == 1 and len(words) == 2:
        matches[left.pop()] = left_others.pop()
    return dict(sorted(matches.items()))


def differing_words(parties: Mapping[str, Set[str]], column: str = "") -> dict[str, dict[str, str]]:
    """By party: words that only this party has and what they may stand for at other parties.

    A word stands for another one only if the party does not have that one as well. The words of
    most parties are the ones that others stand for; of two parties, the longer words.
    """
    counts = Counter(word for words in parties.values() for word in words)
    replaced: dict[str, dict[str, str]] = {}
    # From the party whose words are the least frequent to the one whose are the most.
    order = sorted(
        parties,
        key=lambda name: (
            max((counts[word] for word in parties[name]), default=0),
            sum(map(len, parties[name])),
        ),
    )
    remaining = {name: set(words) for name, words in parties.items()}
    for party in order:
        others = set().union(*(words for name, words in remaining.items() if name != party))
        own_words = {word for word in parties[party] if word not in others}
        matches = match_words(own_words, others - parties[party], column)
        if matches:
            replaced[party] = matches
            remaining[party] = {matches.get(word, word) for word in parties[party]}
    return {party: replaced[party] for party in parties if party in replaced}
