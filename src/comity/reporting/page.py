"""The HTML page: the sections of all groups, the charts' specifications and data, and the library
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
from typing import TYPE_CHECKING, Any, TypeGuard

from markupsafe import Markup

from comity.charts.chart import Chart, Data
from comity.charts.themes import CONFIG, DARK, LIGHT
from comity.data.files import cache_folder
from comity.reporting.blocks import Block, Code, Facts, Pictures, Section, Table, Text
from comity.reporting.charts import method_colours, unique_name
from comity.reporting.gather import RunGroup
from comity.reporting.setting import describe_setting
from comity.safe_files import write_atomically

if TYPE_CHECKING:
    from jinja2 import Template


class Page:
    """Builds a page. Charts and data tables get names that are unique in it."""

    def __init__(self) -> None:
        self.charts: dict[str, dict[str, Any]] = {}
        self.data: dict[str, Mapping[str, Any]] = {}
        self._names: dict[int, str] = {}
        self._group = ""

    def html(
        self,
        title: str,
        folder: Path,
        groups: Sequence[tuple[RunGroup, list[Section]]],
        front: Sequence[Block],
        together: Sequence[Block] = (),
    ) -> str:
        """Return the HTML of the whole page.

        Args:
            title: the title of the page
            folder: the folder that the page is about
            groups: the groups with their sections
            front: blocks before everything else
            together: blocks about all groups together
        """
        front_blocks = [self.render(block) for block in front]
        together_blocks = [self.render(block) for block in together]
        group_contexts: list[dict[str, Any]] = []
        for k, (group, sections) in enumerate(groups):
            self._group = f"g{k}"
            name = group.name or group.title
            anchor = unique_name(
                f"setting={_slug(name)}", {context["place"] for context in group_contexts}
            )
            prefix = f"{anchor}/" if len(groups) > 1 else ""
            section_contexts = [
                {
                    "place": prefix + section.name,
                    "name": section.name,
                    "title": section.title,
                    "folded": section.folded,
                    "blocks": [
                        self.render(block) for block in _widen_single_halves(section.blocks)
                    ],
                }
                for section in sections
            ]
            group_contexts.append(
                {
                    "id": self._group,
                    "place": anchor,
                    "name": name,
                    "about": describe_setting(group),
                    "headline": sections[0].headline if len(groups) > 1 else "",
                    "sections": section_contexts,
                    "methods": method_colours(group),
                }
            )
        content = {
            "charts": self.charts,
            "data": self.data,
            "themes": {"light": LIGHT, "dark": DARK},
            "config": CONFIG,
        }
        text = _template().render(
            title=title,
            folder=str(folder),
            groups=group_contexts,
            front=front_blocks,
            together=together_blocks,
            css=_asset("page.css"),
            script=_asset("page.js"),
            library=library(),
            content=_json(content),
            version=version("comity"),
        )
        return text.encode("utf-8", "replace").decode()  # file names may be invalid Unicode

    def render(self, block: Block) -> Markup:
        """Return the HTML of a block."""
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
        slug = f"chart-{len(self.charts)}-{_slug(name)}"
        self.charts[slug] = {
            "name": chart.name,
            "title": chart.title,
            "alt": chart.caption,
            "data": self._add_data(chart.data),
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
            f'aria-label="{html.escape(chart.caption)}"></div>'
            f"<figcaption>{html.escape(chart.caption)}</figcaption></figure>"
        )

    def _add_data(self, data: Data) -> str:
        """Add a data table to the page, unless it is there, and return its name in the page."""
        if id(data) not in self._names:
            name = data.name if self._group in ("", "g0") else f"{data.name}-{self._group}"
            name = unique_name(name, self.data)
            self._names[id(data)] = name
            self.data[name] = {column: _pack(values) for column, values in data.columns.items()}
        return self._names[id(data)]


def _slug(name: str) -> str:
    """Return a name with only letters, digits and hyphens, for use in URLs."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name)


def _table(table: Table) -> Markup:
    def cell(tag: str, text: str, k: int) -> str:
        css = "figure" if table.is_figure(k) else "word long" if len(text) > 40 else "word"
        css += " minor" if table.heads[k] in table.minor else ""
        scope = ' scope="col"' if tag == "th" else ""
        return f'<{tag} class="{css}"{scope}>{html.escape(text)}</{tag}>'

    def line(n: int, row: Sequence[str]) -> str:
        css = " class=best" if n == table.best else ""
        cells = "".join(cell("td", text, k) for k, text in enumerate(row))
        return f"<tr{css}>{cells}</tr>"

    title = html.escape(table.title)
    head = "".join(cell("th", text, k) for k, text in enumerate(table.heads))
    body = "".join(line(n, row) for n, row in enumerate(table.rows))
    content = (
        f'<table data-name="{html.escape(table.name)}"><caption>{title}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">{content}</div>'
    if table.folded:
        return Markup(f"<details><summary>{title}</summary>{scroll}</details>")
    return Markup(scroll)


def _facts(facts: Facts) -> Markup:
    rows = "".join(
        f"<dt>{html.escape(question)}</dt><dd>{html.escape(answer)}</dd>"
        for question, answer in facts.rows.items()
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


def _widen_single_halves(blocks: Sequence[Block]) -> list[Block]:
    """Give the whole width to a chart of half the width that has no other beside it."""
    widened: list[Block] = []
    halves_before = 0
    for k, block in enumerate(blocks):
        follower = blocks[k + 1] if k + 1 < len(blocks) else None
        if not _is_half(block):
            widened.append(block)
            halves_before = 0
            continue
        single = halves_before % 2 == 0 and not _is_half(follower)
        widened.append(replace(block, half=False) if single else block)
        halves_before += 1
    return widened


def _is_half(block: Block | None) -> TypeGuard[Chart]:
    return isinstance(block, Chart) and block.half


def _code(code: Code) -> Markup:
    return Markup(
        f"<div><h3>{html.escape(code.title)}</h3><pre"
        f' tabindex="0">{html.escape(code.text)}</pre></div>'
    )


def _pack(values: Sequence[Any]) -> Any:
    """Return a column for JSON: words as indices into a list, and None for NaN and infinity."""
    if any(isinstance(v, str) for v in values):
        words = list(dict.fromkeys(v for v in values if v is not None))
        number = {word: k for k, word in enumerate(words)}
        return {"words": words, "at": [-1 if v is None else number[v] for v in values]}
    return [None if isinstance(v, float) and not math.isfinite(v) else v for v in values]


def _json(content: Any) -> str:
    """Return JSON for a script element, escaped so that no text can end the element."""
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
    """Return the JavaScript of Vega-Lite, which vl-convert bundles without a network.

    Bundling takes seconds, so the result is cached in a file.
    """
    import vl_convert

    path = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    if not path.exists():
        bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
        bundle = bundle.replace("</script", "<\\/script")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, bundle)
        except OSError:
            return bundle
    return path.read_text(encoding="utf-8")
