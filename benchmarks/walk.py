"""What a reader has to walk through: the functions and modules of Comity that one round crosses,
and the lines of its folders.

    python benchmarks/walk.py

One round of FedAvg with four parties that make one step each, on the engines `loop` and `stacked`:
every function of the package that is entered between the beginning and the end of `round`, counted
once, and how often any of them was entered; then the same for the whole run. Comprehensions and
lambdas are not counted. `--names` lists the functions.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import comity

HOME = Path(comity.__file__).parent
FOLDERS = ("core", "engines", "nets", "algorithms", "parts")


class Walk:
    """Hears of every function that is entered while a round lasts."""

    def __init__(self, whole: bool) -> None:
        self.entered: Counter[tuple[str, str]] = Counter()
        self._whole = whole
        self._inside = whole

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(str(HOME)) or code.co_name.startswith("<"):
            return
        begins = code.co_name == "round" and "algorithms" in code.co_filename
        if event == "call" and (self._inside or begins):
            self._inside = True
            self.entered[code.co_filename, code.co_qualname] += 1
        if event == "return" and begins:
            self._inside = self._whole


def code_lines(path: Path) -> int:
    """Lines without blanks, comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    told = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for part in body:
                if (
                    isinstance(part, ast.Expr)
                    and isinstance(part.value, ast.Constant)
                    and isinstance(part.value.value, str)
                ):
                    told |= set(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(
        1
        for n, line in lines
        if n not in told and line.strip() and not line.strip().startswith("#")
    )


def main() -> None:
    federation = comity.load("digits").partition("iid", parties=4, seed=0)
    print(f"{'engine':9}{'':7}{'functions':>10}{'modules':>9}{'entered':>9}")
    engine: Any
    for engine, whole in (("loop", False), ("stacked", False), ("loop", True)):
        walk = Walk(whole)
        sys.setprofile(walk)
        try:
            comity.run(
                "fedavg",
                federation,
                rounds=1,
                steps=1,
                engine=engine,
                workers=None if engine == "loop" else 1,
            )
        finally:
            sys.setprofile(None)
        modules = {file for file, _ in walk.entered}
        print(
            f"{engine:9}{'run' if whole else 'round':7}{len(walk.entered):>10}{len(modules):>9}{walk.entered.total():>9}"
        )
        if "--names" in sys.argv and not whole:
            for (file, name), count in walk.entered.items():
                print(f"    {Path(file).relative_to(HOME)!s:35}{name:45}{count:>6}")
    for folder in FOLDERS:
        files = sorted((HOME / folder).rglob("*.py"))
        if files:
            print(f"{folder:12}{len(files):>4} files{sum(map(code_lines, files)):>7} lines of code")


if __name__ == "__main__":
    main()
