"""audit.html: the table, what each attack did in words, and pictures of what came back; one file
that loads nothing.
"""

from __future__ import annotations

import base64
import html
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from comity.auditing.audit import CANNOT, HEADS, WORDS, Audited
from comity.reporting.blocks import Block, Table, Text
from comity.reporting.page import Page

THEME = (
    "document.documentElement.dataset.theme = matchMedia('(prefers-color-scheme: dark)').matches ?"
    " 'dark' : 'light';"
)

CLOSE = """
section p.lead { font-size: 1rem; margin-top: .9rem; }
h2, p { overflow-wrap: anywhere; }
@media (min-width: 50rem) {
  th, td { padding-inline: .4rem; white-space: normal; }
  td.word { overflow-wrap: anywhere; min-width: 7rem; }
}
"""
"""Ten columns beside each other, and an attack's first sentence told from the rest."""


def page(place: Path, found: list[Audited]) -> str:
    """The whole file."""
    table = Table(
        "audit",
        "What attacks could do with what was sent",
        HEADS,
        [row for one in found for row in one.rows()],
        words=WORDS,
    )
    parts = [_blocks([Text(CANNOT, "lead"), table, Text(READING)])]
    for one in found:
        parts.append(
            f"<section><h2>{html.escape(one.name)}</h2><div"
            f" class=blocks>{_run(one)}</div></section>"
        )
    title = html.escape(f"Audit of {place.resolve().name}")
    css = (files("comity.reporting") / "page.css").read_text(encoding="utf-8")
    return (
        (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport"'
            f' content="width=device-width">'
            f"<title>{title}</title><link rel=icon"
            f" href='data:,'><style>{css}{CLOSE}</style><script>{THEME}</script></head><body>"
            '<header><div class="bar"><strong class="brand">Comity</strong><span'
            f' class="where">{title}</span></div></header>'
            f"<main>{''.join(parts)}</main>"
            f"<footer>Made by Comity {html.escape(version('comity'))}. The page is complete in"
            " itself: it loads nothing.</footer>"
            "</body></html>\n"
        )
        .encode("utf-8", "replace")
        .decode()
    )


READING = (
    "success: of membership the AUC (how often a sample that was trained on is ranked above one"
    " that was not), of a decoder and of inversion the share of samples that were re-identified or"
    " recovered, with an interval that allows for ten attacks. guessing: what that is for who knows"
    " nothing of what was sent. at 1%, 0.1%: of those that were trained on, how many are found"
    " where so many of the others are taken for such. *: no power, as intervals do not exclude"
    " guessing. ε shown: the least epsilon of a record that explains the success, at 95% for all"
    " attacks of a run together; 0 says nothing."
)


def _run(one: Audited) -> str:
    blocks: list[Block] = []
    parts = []
    for found in one.findings:
        blocks = [Text(found.says, "lead" if found.power else "missing"), Text(found.how)]
        rates = [f"{name.removeprefix('tpr_at_')}: {told[0]:.1%} ({told[1]:.1%} to {told[2]:.1%})"
                 for name, told in found.figures.items() if name.startswith("tpr_at_") and told]  # fmt: skip
        if rates:
            counts = (
                f"{found.figures['members']:,} samples that were trained on,"
                f" {found.figures['others']:,} that were not"
            )
            blocks.append(
                Text(f"True positives at a false positive rate of {'; of '.join(rates)}. {counts}.")
            )
        blocks += [Text(text) for text in found.notes]
        parts.append(_blocks(blocks))
        if found.attack in one.pictures:
            source = (
                "data:image/png;base64," + base64.b64encode(one.pictures[found.attack]).decode()
            )
            assert found.pictures is not None
            caption = (
                f"Above: samples of {found.pictures.party}. Below: what the attack made of them."
                " The best, then the median."
            )
            parts.append(
                f'<figure><h3>{html.escape(found.attack)}</h3><img src="{source}"'
                ' style="max-width:100%" '
                f'alt="{html.escape(caption)}"><figcaption>{html.escape(caption)}</figcaption></figure>'
            )
    if one.canaries:
        parts.append(
            _blocks([Text(one.canaries.says, "plain" if one.canaries.power else "missing")])
        )
    parts += [_blocks([Text(each.says, "missing")]) for each in one.untried]
    if not parts:
        parts.append(
            _blocks([Text("Nothing was sent that an attack is known for here.", "missing")])
        )
    return "".join(parts)


def _blocks(blocks: list[Block]) -> str:
    """As on a report's page."""
    page = Page()
    return "".join(page.render(block) for block in blocks)
