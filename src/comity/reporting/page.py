"""The page itself: every group's sections, the charts' specifications and data, and the library
that draws them, in one file.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from comity.data.files import cache_folder
from comity.reporting.blocks import Block, Chart, Code, Data, Facts, Pictures, Section, Table, Text
from comity.reporting.charts import colour_of, unused
from comity.reporting.gather import Group
from comity.reporting.themes import CONFIG, DARK, LIGHT
from comity.runs.checkpoint import write_atomically

if TYPE_CHECKING:
    from jinja2 import Template


class Page:
    """A page under construction: charts and data get names that are unique in it."""

    def __init__(self) -> None:
        self.charts: dict[str, dict[str, Any]] = {}
        self.data: dict[str, Mapping[str, Any]] = {}
        self._names: dict[int, str] = {}
        self._group = ""

    def html(
        self,
        title: str,
        folder: Path,
        groups: Sequence[tuple[Group, list[Section]]],
        front: Sequence[Block],
    ) -> str:
        """The whole file."""
        first = [self.rendered(block) for block in front]
        made: list[dict[str, Any]] = []
        for k, (group, sections) in enumerate(groups):
            self._group = f"g{k}"
            name = group.name or group.title
            place = unused(f"setting={_plain(name)}", {one["place"] for one in made})
            before = f"{place}/" if len(groups) > 1 else ""
            parts = [
                {
                    "place": before + s.name,
                    "name": s.name,
                    "title": s.title,
                    "folded": s.folded,
                    "blocks": [self.rendered(b) for b in _paired(s.blocks)],
                }
                for s in sections
            ]
            headline = sections[0].headline if len(groups) > 1 else ""
            own = {"id": self._group, "place": place, "name": name, "headline": headline}
            made.append({**own, "sections": parts, "methods": colour_of(group)})
        content = {
            "charts": self.charts,
            "data": self.data,
            "themes": {"light": LIGHT, "dark": DARK},
            "config": CONFIG,
        }
        text = _template().render(
            title=title,
            folder=str(folder),
            groups=made,
            front=first,
            css=_asset("page.css"),
            script=_asset("page.js"),
            library=library(),
            content=_json(content),
            version=version("comity"),
        )
        return text.encode("utf-8", "replace").decode()  # a file's name need not be text

    def rendered(self, block: Block) -> Markup:
        """A block as HTML."""
        if isinstance(block, Chart):
            return self._chart(block)
        if isinstance(block, Table):
            return _table(block)
        if isinstance(block, Text):
            role = ' role="note"' if block.kind in ("warning", "missing") else ""
            return Markup(f'<p class="{block.kind}"{role}>{html.escape(block.text)}</p>')
        if isinstance(block, Facts):
            return _facts(block)
        if isinstance(block, Pictures):
            return _pictures(block)
        return _code(block)

    def _chart(self, chart: Chart) -> Markup:
        name = f"{self._group}-{chart.name}" if self._group != "g0" else chart.name
        slug = f"chart-{len(self.charts)}-{_plain(name)}"
        self.charts[slug] = {
            "name": chart.name,
            "title": chart.title,
            "alt": chart.alt,
            "data": self._put(chart.data),
            "spec": chart.spec,
            "options": [vars(box) for box in chart.checkboxes],
            "group": self._group,
            "method": chart.method,
        }
        kind = ' class="half"' if chart.half else ""
        return Markup(
            f'<figure{kind}><div class="head"><h3>{html.escape(chart.title)}</h3><div'
            ' class="tools"></div></div>'
            f'<div class="chart" id="{slug}" style="--tall: {chart.spec.get("height", 0)}px"'
            ' role="img" '
            f'aria-label="{html.escape(chart.alt)}"></div>'
            f"<figcaption>{html.escape(chart.alt)}</figcaption></figure>"
        )

    def _put(self, data: Data) -> str:
        """A table of data, once; its name in the page."""
        if id(data) not in self._names:
            plain = data.name if self._group in ("", "g0") else f"{data.name}-{self._group}"
            name = unused(plain, self.data)
            self._names[id(data)] = name
            self.data[name] = {column: _packed(values) for column, values in data.columns.items()}
        return self._names[id(data)]


def _plain(name: str) -> str:
    """A name as it can stand in an address."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name)


def _table(table: Table) -> Markup:
    def cell(kind: str, text: str, k: int) -> str:
        how = "figure" if table.is_figure(k) else "word long" if len(text) > 40 else "word"
        how += " minor" if table.heads[k] in table.minor else ""
        scope = ' scope="col"' if kind == "th" else ""
        return f'<{kind} class="{how}"{scope}>{html.escape(text)}</{kind}>'

    head = "".join(cell("th", text, k) for k, text in enumerate(table.heads))
    body = "".join(
        f"<tr{' class=best' if n == table.best else ''}>{''.join(cell('td', text, k) for k, text in enumerate(row))}</tr>"
        for n, row in enumerate(table.rows)
    )
    caption = f"<caption>{html.escape(table.title)}</caption>"
    whole = (
        "<table"
        f' data-name="{html.escape(table.name)}">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    )
    scroll = (
        '<div class="scroll" tabindex="0" role="region"'
        f' aria-label="{html.escape(table.title)}">{whole}</div>'
    )
    return Markup(
        f"<details><summary>{html.escape(table.title)}</summary>{scroll}</details>"
        if table.folded
        else scroll
    )


def _facts(facts: Facts) -> Markup:
    rows = "".join(
        f"<dt>{html.escape(asked)}</dt><dd>{html.escape(said)}</dd>"
        for asked, said in facts.rows.items()
    )
    return Markup(f'<dl class="facts">{rows}</dl>')


def _pictures(pictures: Pictures) -> Markup:
    rows = "".join(
        f'<div class="strip"><span>{html.escape(name)}</span><img src="{source}" style="--share:'
        f' {share:.3f}" alt="samples of {html.escape(name)}"></div>'
        for name, (source, share) in pictures.rows.items()
    )
    title = html.escape(pictures.title)
    alt = html.escape(pictures.alt)
    return Markup(f"<figure><h3>{title}</h3>{rows}<figcaption>{alt}</figcaption></figure>")


def _paired(blocks: Sequence[Block]) -> list[Block]:
    """A half that would stand alone in its row gets the whole of it."""
    found: list[Block] = []
    row = 0
    for k, block in enumerate(blocks):
        half = isinstance(block, Chart) and block.half
        follows = blocks[k + 1] if k + 1 < len(blocks) else None
        if (
            half
            and row % 2 == 0
            and not (isinstance(follows, Chart) and follows.half)
            and isinstance(block, Chart)
        ):
            found.append(replace(block, half=False))
        else:
            found.append(block)
        row = row + 1 if half else 0
    return found


def _code(code: Code) -> Markup:
    return Markup(
        f"<div><h3>{html.escape(code.title)}</h3><pre"
        f' tabindex="0">{html.escape(code.text)}</pre></div>'
    )


def _packed(values: Sequence[Any]) -> Any:
    """A column: words by number, and nothing that JSON does not know."""
    if any(isinstance(v, str) for v in values):
        words = list(dict.fromkeys(v for v in values if v is not None))
        number = {word: k for k, word in enumerate(words)}
        return {"words": words, "at": [-1 if v is None else number[v] for v in values]}
    return [None if isinstance(v, float) and not math.isfinite(v) else v for v in values]


def _json(content: Any) -> str:
    """For a script element: no text in it can end the element."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _template() -> Template:
    from jinja2 import Environment

    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        _asset("page.html")
    )


def _asset(name: str) -> str:
    return (files("comity.reporting") / name).read_text(encoding="utf-8")


def library() -> str:
    """Vega-Lite's code, put together by vl-convert without any network; kept, as that takes
    seconds.
    """
    import vl_convert

    kept = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    if not kept.exists():
        made = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace(
            "</script", "<\\/script"
        )
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(kept, made)
        except OSError:
            return made
    return kept.read_text(encoding="utf-8")
