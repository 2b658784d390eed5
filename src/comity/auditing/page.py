"""audit.html: the table, a description of each attack, and pictures of reconstructions, in one file
that loads nothing.
"""

from __future__ import annotations

import base64
import html
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from comity.auditing.audit import CANNOT, NO_ATTACK, WORDS, RunAudit, table
from comity.auditing.finding import Finding
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
"""Narrow columns, as the table has ten, and larger first sentences of attacks."""


def page(place: Path, audits: list[RunAudit]) -> str:
    """The content of audit.html for the runs in a folder."""
    heads, rows = table(audits)
    results = Table("audit", "What attacks could do with what was sent", heads, rows, words=WORDS)
    parts = [_blocks([Text(CANNOT, "lead"), results, Text(READING)])]
    for run in audits:
        parts.append(
            f"<section><h2>{html.escape(run.name)}</h2><div"
            f" class=blocks>{_run(run)}</div></section>"
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
    " attacks of a run together; 0 says nothing. The column after it: the run's own metric, as the"
    " mean of the parties; no attack is judged by it. noise in messages, account: checks of what a"
    " run declares, with what was measured and whether that is right."
)


def _run(run: RunAudit) -> str:
    """The section of one run."""
    parts = []
    for finding in run.findings:
        parts.append(_blocks(_finding_blocks(finding)))
        if finding.attack in run.pictures:
            parts.append(_figure(finding, run.pictures[finding.attack]))
    if run.canaries:
        sentence = run.canaries.sentence
        parts.append(_blocks([Text(sentence, "plain" if run.canaries.power else "missing")]))
    parts += [
        _blocks([Text(check.sentence, "missing" if check.verdict == "no power" else "plain")])
        for check in run.checks
    ]
    parts += [_blocks([Text(attack.sentence, "missing")]) for attack in run.untried]
    return "".join(parts) or _blocks([Text(NO_ATTACK, "missing")])


def _finding_blocks(finding: Finding) -> list[Block]:
    """The result of an attack in sentences."""
    figures = finding.figures
    blocks: list[Block] = [
        Text(finding.sentence, "lead" if finding.power else "missing"),
        Text(finding.how),
    ]
    rates = [
        f"{name.removeprefix('tpr_at_')}: {rate[0]:.1%} ({rate[1]:.1%} to {rate[2]:.1%})"
        for name, rate in figures.items()
        if name.startswith("tpr_at_") and rate
    ]
    if rates:
        blocks.append(
            Text(
                f"True positives at a false positive rate of {'; of '.join(rates)}."
                f" {figures['members']:,} samples that were trained on, {figures['others']:,} that"
                " were not."
            )
        )
    return [*blocks, *(Text(text) for text in finding.notes)]


def _figure(finding: Finding, png: bytes) -> str:
    """The pictures of a reconstruction attack."""
    assert finding.pictures is not None
    source = "data:image/png;base64," + base64.b64encode(png).decode()
    caption = html.escape(
        f"Above: samples of {finding.pictures.party}. Below: what the attack made of them."
        " The best, then the median."
    )
    return (
        f'<figure><h3>{html.escape(finding.attack)}</h3><img src="{source}"'
        f' style="max-width:100%" alt="{caption}"><figcaption>{caption}</figcaption></figure>'
    )


def _blocks(blocks: list[Block]) -> str:
    """Blocks as on a report's page."""
    page = Page()
    return "".join(page.render(block) for block in blocks)
