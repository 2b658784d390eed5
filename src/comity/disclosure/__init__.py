"""`comity disclose RUN --party NAME`: what left one party in a finished run, for the owner of its
data.

`sources` reads the run's folder. `left` finds every kind of value that left, and `words` explains
each. `content` makes sentences and tables of them, which are written as a page in HTML and, by
`pdf`, as A4 sheets.
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
from comity.runs.server_run import ServerRun
from comity.safe_files import write_atomically


def disclose(
    folder: Path,
    party: str,
    out: Path | None = None,
    *,
    server_run: ServerRun | None = None,
    federation: Federation | None = None,
    model: CustomModel | None = None,
    trust: bool = False,
    operator: str = "",
) -> tuple[Path, Path]:
    """Write disclosure-PARTY.html and disclosure-PARTY.pdf, and return their paths.

    Arguments:
        folder: the folder of a finished run
        party: the party's name
        out: the folder to write to; default: the run's folder
        server_run: the run, if it is in memory
        federation: the data, if they were given from Python
        model: the model, if it was given from Python
        trust: run the Python files that the settings of the run name
        operator: who runs the server; default: the operator in site.toml, or in the invitation
    """
    page = page_of(read(folder, party, server_run, federation, model, trust, operator))
    place = out or folder
    if place.exists() and not place.is_dir():
        raise UsageError(
            f"{place} is a file, not a folder: the page is two files, which go into a folder."
        )
    place.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "-", party)
    text, sheets = place / f"disclosure-{name}.html", place / f"disclosure-{name}.pdf"
    write_atomically(text, html(page))
    write_atomically(sheets, pdf(page))
    return text, sheets


def html(page: Page) -> str:
    """The page in HTML, which loads nothing from elsewhere."""
    from jinja2 import Environment

    template = (files("comity.disclosure") / "disclosure.html").read_text(encoding="utf-8")
    css = (files("comity.reporting") / "page.css").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(template).render(page=page, css=css)
    return text.encode("utf-8", "replace").decode()  # a party's name may hold lone surrogates
