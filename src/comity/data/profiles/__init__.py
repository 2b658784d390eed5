"""Profiles: what the columns of each party's table look like, side by side (`comity data profile`).

`edges` chooses the bins that all parties share, `cells` decides which counts may be shown,
`profile` computes the profile of a party, and `findings` says what looks wrong.
"""

from __future__ import annotations

from comity.data.profiles.edges import Range, common_ranges
from comity.data.profiles.findings import findings
from comity.data.profiles.profile import (
    NO_PROTECTION,
    ColumnProfile,
    PartyProfile,
    PartyTable,
    Profile,
    ProfiledColumn,
    Protection,
    own_ranges,
    party_table,
    profile_data,
    profile_table,
    profiled_columns,
)

__all__ = [
    "NO_PROTECTION",
    "ColumnProfile",
    "PartyProfile",
    "PartyTable",
    "Profile",
    "ProfiledColumn",
    "Protection",
    "Range",
    "common_ranges",
    "findings",
    "own_ranges",
    "party_table",
    "profile_data",
    "profile_table",
    "profiled_columns",
]
