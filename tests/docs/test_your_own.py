"""The page on one's own pieces is true: its files are written, its commands and calls are run, in their order."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from harness import works

TEXT = (Path(__file__).parents[2] / "docs" / "your-own.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|console)\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    files, commands, calls = 0, 0, 0
    names: dict[str, Any] = {}
    for kind, text in BLOCKS:
        if kind == "console":
            works(*shlex.split(text.removeprefix("$ comity ")))
            commands += 1
        elif named := re.match(r"# (\w+\.py)\n", text):
            Path(named[1]).write_text(text, encoding="utf-8")
            files += 1
        else:
            exec(compile(text, "docs/your-own.md", "exec"), names)
            calls += 1
    assert (files, commands, calls) == (4, 4, 5)
    for run in ("model-run", "data-run", "partition-run", "metric-run/fedavg/seed-0", "given-run"):
        assert (tmp_path / run / "summary.json").exists()
    for module in ("my_model", "my_data", "my_partition", "my_metric"):
        sys.modules.pop(module, None)
