"""`comity disclose RUN --party NAME`: what left one party in a finished run, for whoever answers
for its data.

`sources` reads the run's folder, `left` finds every kind of value that left, `words` says what each
is, `content` makes sentences and tables of it all; they are written as a page in HTML and, by
`pdf`, as sheets of A4.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from comity.data import Federation
from comity.disclosure.content import Page, page_of
from comity.disclosure.pdf import pdf
from comity.disclosure.sources import read
from comity.errors import UsageError
from comity.models import CustomModel
from comity.runs.checkpoint import write_atomically
from comity.runs.server_run import ServerRun


def disclose(
    folder: Path,
    party: str,
    out: Path | None = None,
    *,
    made: ServerRun | None = None,
    federation: Federation | None = None,
    model: CustomModel | None = None,
    trust: bool = False,
) -> tuple[Path, Path]:
    """Write disclosure-PARTY.html and disclosure-PARTY.pdf into a run's folder, or into `out`;
    where they are.

    `made` is the run made concrete, if it is at hand; data and models that were given from Python
    are given again.
    """
    page = page_of(read(folder, party, made, federation, model, trust))
    place = out or folder
    if place.exists() and not place.is_dir():
        raise UsageError(
            f"{place} is a file, not a folder: the page is two files, which go into a folder."
        )
    place.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "-", party)
    text, sheets = place / f"disclosure-{name}.html", place / f"disclosure-{name}.pdf"
    write_atomically(text, html(page))
    sheets.write_bytes(pdf(page))
    return text, sheets


def html(page: Page) -> str:
    """The page in HTML, complete in itself."""
    from jinja2 import Environment

    template = (files("comity.disclosure") / "disclosure.html").read_text(encoding="utf-8")
    css = (files("comity.reporting") / "page.css").read_text(encoding="utf-8")
    made = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(template)
    return (
        made.render(page=page, css=css).encode("utf-8", "replace").decode()
    )  # a party's name need not be text
