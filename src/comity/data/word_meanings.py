"""Words of different parties that may mean the same: spellings, abbreviations and translations.

The answers are guesses for messages. Nothing is replaced before a user has said so.
"""

from __future__ import annotations

import re
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


def mixed_words(words: Set[str], frequency: Mapping[str, int], column: str = "") -> dict[str, str]:
    """Words of one party, and the words of the same party that they may stand for.

    Different words of one party mostly have different meanings. They are taken for one meaning
    only if two meanings are written in two ways (f and female beside m and male), if one word
    abbreviates the other (y beside yes), or if one is the column's own name (Readmitted beside
    yes). The more frequent word is the one that the other stands for.

    Examples:
        >>> mixed_words({"f", "m", "female", "male"}, {})
        {'f': 'female', 'm': 'male'}
        >>> mixed_words({"absent", "negative", "positive"}, {})
        {}
    """
    groups = [{word for word in words if _plain(word) in meaning} for meaning in MEANINGS]
    several = [group for group in groups if len(group) > 1]
    is_second_notation = len(several) > 1
    meanings: dict[str, str] = {}
    for group in several:
        shared = set().union(*(other for other in several if other is not group))
        target = max(group - shared or group, key=lambda word: (frequency.get(word, 0), len(word)))
        meanings |= {
            word: target
            for word in group - shared - {target}
            if is_second_notation or _is_short_form(_plain(word), _plain(target))
        }
    for group, meaning in ((groups[MEANINGS.index(YES)], YES), (groups[MEANINGS.index(NO)], NO)):
        own_words = {
            w for w in words if _plain(w) not in meaning and meaning in _meanings(w, column)
        }
        if group and len(own_words) == 1:
            target = max(group - meanings.keys(), key=lambda word: frequency.get(word, 0))
            meanings[own_words.pop()] = target
    return dict(sorted(meanings.items()))


def _is_short_form(word: str, other: str) -> bool:
    """Whether one of two words is the first letter of the other, or an abbreviation of it."""
    short, long = sorted((word, other), key=len)
    # None is no abbreviation by no.
    return (
        long.startswith(short) if len(short) == 1 else len(short) > 2 and _abbreviates(short, long)
    )


def differing_words(parties: Mapping[str, Set[str]], column: str = "") -> dict[str, str]:
    """Words, and the other words of the column that they may stand for.

    A word stands for another one only if no party has both, or if a party mixes two notations
    (`mixed_words`). The words of most parties are the ones that others stand for; of words that are
    equally frequent, the longer ones.

    Examples:
        >>> parties = {"a": {"male", "female"}, "b": {"m", "w"}, "c": {"m", "w"}}
        >>> differing_words(parties | {"d": {"male", "female"}, "e": {"male"}})
        {'m': 'male', 'w': 'female'}
    """
    parties_of: dict[str, set[str]] = {}
    for party, words in parties.items():
        for word in words:
            parties_of.setdefault(word, set()).add(party)

    meanings: dict[str, str] = {}

    def replace_word(word: str, meaning: str) -> None:
        meanings.update({other: meaning for other, old in meanings.items() if old == word})
        meanings[word] = meaning
        parties_of[meaning] |= parties_of.pop(word)

    for words in parties.values():
        present = {word for word in words if word in parties_of}
        frequency = {word: len(parties_of[word]) for word in present}
        for word, meaning in mixed_words(present, frequency, column).items():
            replace_word(word, meaning)

    def words_only_at(names: Set[str]) -> set[str]:
        return {word for word, places in parties_of.items() if places <= names}

    # From words of the fewest parties to those of the most.
    groups_of_parties = sorted(
        {frozenset(places) for places in parties_of.values()},
        key=lambda names: (len(names), sum(map(len, words_only_at(names))), sorted(names)),
    )
    for names in groups_of_parties:
        others = {word for word, places in parties_of.items() if not places & names}
        for word, meaning in match_words(words_only_at(names), others, column).items():
            if len(parties_of[word]) <= len(parties_of[meaning]):
                replace_word(word, meaning)
    return dict(sorted(meanings.items()))


def parties_apart(parties: Mapping[str, Set[str]]) -> list[list[str]]:
    """Groups of parties whose classes may be the same in other words; empty if there are none.

    The groups have no word in common, or one word that all parties with several words have: no,
    yes at some parties but no, Readmitted at others.

    Examples:
        >>> parties_apart({"a": {"yes", "no"}, "b": {"no"}, "c": {"1st", "2nd"}, "d": {"1st"}})
        [['a', 'b'], ['c', 'd']]
        >>> parties_apart({"a": {"I", "II"}, "b": {"II", "III"}, "c": {"III", "I"}})
        []
    """
    if len(set().union(*parties.values())) <= 2:
        return []
    with_several = [set(words) for words in parties.values() if len(words) > 1]
    of_all = set.intersection(*with_several) if with_several else set()
    for shared in (set[str](), *({word} for word in sorted(of_all))):
        groups: list[list[str]] = []
        for party, words in parties.items():
            if not words - shared:
                continue
            near = [
                group for group in groups if any((parties[name] & words) - shared for name in group)
            ]
            groups = [group for group in groups if group not in near]
            groups.append([*(name for group in near for name in group), party])
        if len(groups) > 1:
            return sorted(sorted(group, key=list(parties).index) for group in groups)
    return []
