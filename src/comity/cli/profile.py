"""The command `comity data profile`: all parties' columns side by side, and what looks wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comity.cli.options import Out, Settings, data_app, free_folder, print_warning, with_experiment
from comity.cli.site_runs import AtSites, Deadline, Wait
from comity.errors import UsageError
from comity.runs.config import experiment

if TYPE_CHECKING:
    from comity.data.profiles import PartyProfile, Profile, ProfiledColumn

MAX_PARTIES = 8  # parties side by side in the table


@data_app.command("profile")
@with_experiment
def profile_data(
    settings: Settings,
    out: Out = None,
    records: Annotated[
        int, typer.Option("--records", help="withhold counts below this number, as a site would")
    ] = 0,
    rounding: Annotated[
        int, typer.Option("--rounding", help="round counts to multiples of this number")
    ] = 1,
    federation: AtSites = None,
    deadline: Deadline = 600,
    wait: Wait = 60,
) -> None:
    """Show the columns of all parties side by side, and what looks wrong.

    With --federation, each site sends the counts that its policy allows.
    """
    from comity.cli import screen
    from comity.data.profiles import findings
    from comity.reporting.profile_page import write_profile

    if federation is None:
        profile = _simulated(settings, records, rounding)
    else:
        profile = _at_sites(settings, records, rounding, federation, deadline, wait)
    folder = out or free_folder(f"profile-{Path(profile.name).name}")
    show_profile(profile)
    for sentence in findings(profile):
        print_warning(sentence)
    for name, why in profile.refusals.items():
        print_warning(f"{name} sent no profile: {why}")
    page = write_profile(profile, folder)
    screen.out.print(f"The page is {page}", soft_wrap=True)


def _simulated(settings: Settings, records: int, rounding: int) -> Profile:
    from comity.data import load, profiles
    from comity.runs.build import federation_of

    if records < 0 or rounding < 1:
        raise UsageError("--records takes a number from 0 on, and --rounding one from 1 on.")
    base = experiment(settings)
    parties = federation_of(base).without(base.without or ())
    return profiles.profile_data(parties, load(base.data), profiles.Protection(records, rounding))


def _at_sites(
    settings: Settings,
    records: int,
    rounding: int,
    federation: Path,
    deadline: float,
    wait: float,
) -> Profile:
    from comity.cli import screen
    from comity.deploy.profile_submission import order_profile

    flags = [f"--{name.replace('_', '-')}" for name in sorted(settings)]
    flags += ["--records"] if records else []
    flags += ["--rounding"] if rounding != 1 else []
    if flags:
        raise UsageError(
            f"{flags[0]} is not available with --federation: each site has its own data and policy."
        )
    return order_profile(
        federation, deadline, wait, lambda text: screen.out.print(text, soft_wrap=True)
    )


def show_profile(profile: Profile) -> None:
    """Print a short table: the middle of each column, and its missing values, by party."""
    from comity.cli import screen

    parties = dict(list(profile.parties.items())[:MAX_PARTIES])
    rows = [
        [column.name, *(_cell(column, party) for party in parties.values())]
        for column in profile.columns
    ]
    sizes = ["rows", *(f"{party.rows:,}" for party in parties.values())]
    screen.table(["column", *parties], [sizes, *rows], f"{profile.name}: profile", words=1)
    screen.print_legend(
        "median (5% to 95%), or the most frequent word; then the share of missing values, if it is"
        " known and not 0. ?: withheld or not known."
    )
    if len(parties) < len(profile.parties):
        screen.out.print(f"The table shows only the first {MAX_PARTIES} parties.")


def _cell(column: ProfiledColumn, party: PartyProfile) -> str:
    """The content of one cell of the table."""
    from comity.data.profiles.findings import missing_share
    from comity.data.profiles.profile import WORDS

    own = party.columns[column.name]
    if column.kind == WORDS:
        counts = {word: count for word, count in own.counts.items() if count}
        frequent = max(counts, key=lambda word: counts[word], default="")
        text = f"{frequent} {min(1, counts[frequent] / party.rows):.0%}" if frequent else "?"
    else:
        low, _, middle, _, high = [
            "?" if value is None else f"{value:.4g}" for value in own.quantiles
        ] or ["?"] * 5
        text = f"{middle} ({low} to {high})"
    share = missing_share(party, column.name)
    return f"{text}; {share:.0%}" if share else text
