"""What looks wrong in a profile: other units, codes for missing values, other words, other labels.

Findings are made from the figures of a profile alone, so that they tell nothing that is withheld.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from comity.data.conversions import Spread, unit_groups
from comity.data.profiles.edges import CODES
from comity.data.profiles.profile import (
    QUANTILES,
    WORDS,
    ColumnProfile,
    PartyProfile,
    Profile,
    ProfiledColumn,
)
from comity.text import join_names

SCALE_FACTOR = 4.0
"""Ratio of medians that suggests another unit."""
KNOWN_FACTORS = {
    18.02: "as between mg/dl and mmol/l of glucose",
    38.67: "as between mg/dl and mmol/l of cholesterol",
    88.42: "as between µmol/l and mg/dl of creatinine",
    10.0: "as between cm and mm",
    100.0: "as between m and cm",
    1000.0: "as between g and mg",
}
FACTOR_TOLERANCE = 0.15
SHARE_DIFFERENCE = 0.2
"""Difference of shares of missing values, or of a class, that is worth a sentence."""
RARE = 0.01
"""Words with a smaller share are not compared."""


def findings(profile: Profile) -> list[str]:
    """Sentences about what looks wrong."""
    sentences: list[str] = []
    for column in profile.columns:
        by_party = {name: party.columns[column.name] for name, party in profile.parties.items()}
        sentences += _missing_findings(column, profile.parties)
        if column.kind == WORDS:
            sentences += _word_findings(column, profile.parties)
            sentences += _share_findings(column, profile.parties) if column.is_label else []
        else:
            sentences += _scale_findings(column, by_party)
            sentences += _code_findings(column, profile.parties)
    return sentences


def missing_share(party: PartyProfile, column: str) -> float | None:
    """The share of rows in which a column is missing; None if it is withheld."""
    missing = party.columns[column].missing
    return None if missing is None else min(1.0, missing / party.rows) if party.rows else 0.0


def _most_missing(party: PartyProfile, column: str) -> float:
    """The largest share of rows that may lack a column, where the share is withheld."""
    share = missing_share(party, column)
    return min(1.0, party.protection.records / max(1, party.rows)) if share is None else share


def _missing_findings(column: ProfiledColumn, parties: Mapping[str, PartyProfile]) -> list[str]:
    shares = {name: missing_share(party, column.name) or 0.0 for name, party in parties.items()}
    least = min(shares.values(), default=0.0)
    often = {name: share for name, share in shares.items() if share - least >= SHARE_DIFFERENCE}
    if not often:
        return []
    others = [_most_missing(p, column.name) for name, p in parties.items() if name not in often]
    places = join_names(f"{name} ({share:.0%})" for name, share in often.items())
    return [f"{column.name} is often missing at {places}; elsewhere at most {max(others):.0%} are."]


def _known_quantiles(figures: ColumnProfile) -> list[float]:
    return [value for value in figures.quantiles if value is not None]


def _middle(figures: ColumnProfile) -> float | None:
    """The median of a column; None if it is not known."""
    place = QUANTILES.index(0.5)
    return figures.quantiles[place] if len(figures.quantiles) > place else None


def _scale_findings(column: ProfiledColumn, parties: Mapping[str, ColumnProfile]) -> list[str]:
    """Parties whose median lies outside of what most values are elsewhere, by a large factor, and
    groups of parties whose medians are apart.
    """
    if groups := _groups_apart(column.name, parties):
        return groups
    middles = {name: _middle(figures) for name, figures in parties.items()}
    present = {name: value for name, value in middles.items() if value is not None}
    sentences = []
    for name, value in present.items():
        elsewhere = [other for party, other in present.items() if party != name]
        if not elsewhere:
            continue
        usual = median(elsewhere)
        if usual * value <= 0 or 1 / SCALE_FACTOR < value / usual < SCALE_FACTOR:
            continue
        spans = [_known_quantiles(parties[party]) for party in present if party != name]
        if any(min(span) <= value <= max(span) for span in spans):
            continue
        sentences.append(
            f"{column.name} has a median of about {value:.3g} at {name} and {usual:.3g} elsewhere,"
            f" {_ratio(value, usual)}: another unit?"
        )
    return sentences


def _ratio(value: float, usual: float) -> str:
    """How many times larger or smaller a median is, and what that may come from."""
    factor = max(value / usual, usual / value)
    reason = next(
        (
            f", {text}"
            for known_factor, text in KNOWN_FACTORS.items()
            if abs(factor / known_factor - 1) <= FACTOR_TOLERANCE
        ),
        "",
    )
    larger = "larger" if abs(value) > abs(usual) else "smaller"
    return f"{factor:.3g} times {larger}{reason}"


def _groups_apart(column: str, parties: Mapping[str, ColumnProfile]) -> list[str]:
    """Sentences about several parties that may have another unit than several others."""
    spreads = {}
    for name, figures in parties.items():
        middle, quantiles = _middle(figures), _known_quantiles(figures)
        if middle is not None:
            spreads[name] = Spread(quantiles[0], middle, quantiles[-1])
    groups = unit_groups(column, spreads)
    if sum(len(group) > 1 for group in groups) < 2:
        return []
    medians = [median(spreads[name].middle for name in group) for group in groups]
    most = max(groups, key=len)
    usual = medians[groups.index(most)]
    return [
        f"{column} has a median of about {value:.3g} at {join_names(group)} and {usual:.3g} at"
        f" {join_names(most)}, {_ratio(value, usual)}: another unit? Numbers cannot show which side"
        " is right."
        for group, value in zip(groups, medians, strict=True)
        if group != most
    ]


def _code_findings(column: ProfiledColumn, parties: Mapping[str, PartyProfile]) -> list[str]:
    """Parties with many rows in the bin of a number that often stands for a missing value."""
    sentences = []
    for name, party in parties.items():
        for low, high, count in party.columns[column.name].histogram:
            if count and count > 1 and low in CODES and high == low + 1:
                sentences.append(
                    f"{column.name} is {low:g} in about {count} of {party.rows} rows at {name}, far"
                    " from the other values: a code for a missing value?"
                )
    return sentences


def _shares(column: ProfiledColumn, party: PartyProfile) -> dict[str, float]:
    """The share of each word among all rows; 0 if its count is withheld."""
    counts = party.columns[column.name].counts
    return {word: (counts[word] or 0) / max(1, party.rows) for word in column.words}


def _word_findings(column: ProfiledColumn, parties: Mapping[str, PartyProfile]) -> list[str]:
    """Parties that have words that no other party has."""
    shares = {name: _shares(column, party) for name, party in parties.items()}
    sentences = []
    for name, own in shares.items():
        others = [other for party, other in shares.items() if party != name]
        if not others:
            continue
        extra = [
            word for word in column.words if own[word] >= RARE and not any(o[word] for o in others)
        ]
        lacking = [
            word for word in column.words if not own[word] and all(o[word] >= RARE for o in others)
        ]
        if extra:
            lacks = f", where nobody seems to have {_quoted(lacking)}" if lacking else ""
            verb = "is" if len(extra) == 1 else "are"
            sentences.append(
                f"{column.name}: {_quoted(extra)} {verb} found only at {name}{lacks}: another"
                " spelling?"
            )
    return sentences


def _quoted(words: list[str]) -> str:
    return join_names((repr(word) for word in words), 6)


def _share_findings(column: ProfiledColumn, parties: Mapping[str, PartyProfile]) -> list[str]:
    """Classes whose shares differ much between parties. Of two classes only the last is named."""
    shares = {name: _shares(column, party) for name, party in parties.items()}
    words = column.words[1:] if len(column.words) == 2 else column.words
    sentences = []
    for word in words:
        by_share = sorted(shares, key=lambda name: shares[name][word])
        if not by_share:
            continue
        low, high = shares[by_share[0]][word], shares[by_share[-1]][word]
        if high - low >= SHARE_DIFFERENCE:
            sentences.append(
                f"{column.name} is {word!r} in about {low:.0%} of the rows at {by_share[0]} and"
                f" {high:.0%} at {by_share[-1]}."
            )
    return sentences
