"""The pages python.md, your-own.md and those of custom pieces: their files are written, and their
commands and calls run, in order.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import succeed

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "python.md": ((0, 0, 8), ["kept"]),
    "custom-model.md": ((1, 1, 3), ["model-run"]),
    "custom-dataset.md": ((1, 1, 1), ["data-run"]),
    "custom-partition.md": ((1, 1, 1), ["partition-run"]),
    "custom-metric.md": ((1, 1, 1), ["metric-run/fedavg/seed-0"]),
    "your-own.md": ((0, 0, 1), ["given-run"]),
}
"""For each page the number of files, commands and calls, and the runs that they write."""


@pytest.mark.parametrize("page", PAGES)
def test_files_commands_and_calls_of_a_page(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = (DOCS / "how-to" / page).read_text(encoding="utf-8")
    files, commands, calls = 0, 0, 0
    names: dict[str, Any] = {}
    for kind, block in re.findall(
        r"^```(python|console)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE
    ):
        if kind == "console":
            succeed(*shlex.split(block.removeprefix("$ comity ")))
            commands += 1
        elif match := re.match(r"# (\w+\.py)\n", block):
            Path(match[1]).write_text(block, encoding="utf-8")
            files += 1
        else:
            exec(compile(block, f"docs/how-to/{page}", "exec"), names)
            calls += 1
    counts, runs = PAGES[page]
    assert (files, commands, calls) == counts
    assert all((tmp_path / run / "summary.json").exists() for run in runs)
    for module in ("my_model", "my_data", "my_partition", "my_metric"):
        sys.modules.pop(module, None)
