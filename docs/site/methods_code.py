"""Writes docs/project/methods-code.md: five methods before and after the method contract was rebuilt.

`python docs/site/methods_code.py` quotes the present code. `--before` first reads the earlier code
and its counts from git into methods_before.json. Tests compare the page with the source.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import textwrap
import token
import tokenize
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "project" / "methods-code.md"
BEFORE = Path(__file__).with_name("methods_before.json")
FOLDER = "src/comity/algorithms"
COMMIT = "e1554f0"
INTRO = """\
# Five methods before and after

The method contract was rebuilt after commit e1554f0: new names, declarations gathered in `traits`, and everything about
bytes and privacy in an accounting class beside the method ([Architecture](../concepts/architecture.md)). This page shows five methods before and
now. `python docs/site/methods_code.py` writes it; the code is quoted from the source.

*Members* are the names that the method's class defines, without its options. *Tokens* are those of code, without comments and
docstrings. Files have more lines now because lines end at column 100 instead of 130, statements are not joined, and each field of a
reply is described for the disclosure page. The golden files of results did not change.
"""
NAMES = """
| before | now |
| --- | --- |
| `server`, `client` | `init_server`, `init_party` |
| `view`, `model` | `message_for`, `deployed_model` |
| `welcome`, `onboard`, `settled` | `warm_up`, `catch_up`, `newcomer_state` |
| `@work`, `Net`, `net.call(self.local, letters)` | `@on_party`, `Server`, `server.call(self.local, messages)` |
| `shares`, `self_contained`, `start_weights`, `bytes_formula`, ... in the class | fields of `traits` |
| `traffic`, `releases`, `wire_shapes`, `declared_trainings`, ... in the class | methods of the accounting class |
"""


@dataclass(frozen=True)
class Method:
    """A method of the page: its title, file, classes, and the functions that are quoted."""

    title: str
    file: str
    classes: tuple[str, ...]
    heart: tuple[str, ...]
    heart_before: tuple[str, ...]
    text: str


METHODS = (
    Method(
        "FedAvg",
        "fedavg.py",
        ("AveragedModel", "FedAvg"),
        ("AveragedModel.round",),
        ("AveragedModel.round",),
        "Only names have changed.",
    ),
    Method(
        "SCAFFOLD",
        "scaffold.py",
        ("Scaffold",),
        ("Scaffold.round",),
        ("Scaffold.round",),
        "`traffic` has moved to `ScaffoldAccounting`.",
    ),
    Method(
        "ADCOL",
        "adcol.py",
        ("Adcol",),
        ("Adcol.round", "Adcol.train_discriminator"),
        ("Adcol.round",),
        "`round` is Algorithm 1 now. The variant of appendix B.14 has a function of its own (`round_by_cohort`), and logging"
        " has another.",
    ),
    Method(
        "DBE",
        "dbe.py",
        ("Dbe",),
        ("Dbe.start",),
        ("Dbe.start",),
        "A wrapper has no `round` of its own. Its exchange is Algorithm 1, l.1-3, before round 1.",
    ),
    Method(
        "Fed-SPS",
        "fed_sps.py",
        ("FedSps",),
        ("FedSps.exchange", "FedSps.answers"),
        ("FedSps.exchange", "FedSps.answers"),
        "`PeerToPeer.round` calls `exchange` with the round's parties.",
    ),
)


@dataclass(frozen=True)
class Source:
    """The counts of a method's file, and its quoted functions."""

    lines: int
    tokens: int
    members: int
    code: str

    @classmethod
    def of(cls, text: str, classes: tuple[str, ...], heart: tuple[str, ...]) -> Source:
        """Count and quote a file."""
        tree = ast.parse(text)
        bodies = {
            node.name: node.body
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name in classes
        }
        members = [name for body in bodies.values() for node in body for name in names_of(node)]
        code = "\n".join(quote(text, bodies, name) for name in heart)
        return cls(len(text.splitlines()), count_tokens(text), len(members), code)


def names_of(node: ast.stmt) -> list[str]:
    """The members that a statement of a class body defines; an option counts as none."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets]
    if isinstance(node, ast.AnnAssign):
        is_option = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "option"
        return [] if is_option else [ast.unparse(node.target)]
    return []


def count_tokens(text: str) -> int:
    """The tokens of code, without docstrings and comments."""
    layout = (token.NEWLINE, token.NL, token.INDENT, token.DEDENT, token.COMMENT, token.ENDMARKER)
    count = 0
    before = token.NEWLINE
    for item in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = item.type == token.STRING and before in (token.NEWLINE, token.INDENT)
        if item.type not in layout and not is_docstring:
            count += 1
        if item.type not in (token.NL, token.COMMENT):
            before = item.type
    return count


def quote(text: str, bodies: dict[str, list[ast.stmt]], name: str) -> str:
    """The lines of a method such as `FedAvg.round`, with its decorators."""
    class_name, function_name = name.split(".")
    (node,) = (
        node
        for node in bodies[class_name]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function_name
    )
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(lines)) + "\n"


def read_before(method: Method) -> Source:
    """The method's file at the earlier commit, from git."""
    arguments = ["git", "show", f"{COMMIT}:{FOLDER}/{method.file}"]
    result = subprocess.run(arguments, cwd=ROOT, capture_output=True, check=True, encoding="utf-8")
    return Source.of(result.stdout, method.classes, method.heart_before)


def read_now(method: Method) -> Source:
    """The method's present file."""
    text = (ROOT / FOLDER / method.file).read_text(encoding="utf-8")
    return Source.of(text, method.classes, method.heart)


def page() -> str:
    """The whole page."""
    before = {name: Source(**counts) for name, counts in json.loads(BEFORE.read_text()).items()}
    now = {method.title: read_now(method) for method in METHODS}
    rows = ["| method | lines | tokens | members |", "| --- | --- | --- | --- |"]
    sections = []
    for method in METHODS:
        old, new = before[method.title], now[method.title]
        counts = (
            f"{old.lines} → {new.lines}",
            f"{old.tokens:,} → {new.tokens:,}",
            f"{old.members} → {new.members}",
        )
        rows.append(f"| {method.title} | {' | '.join(counts)} |")
        sections.append(
            f"## {method.title}\n\n{method.text}\n\n"
            f"Before:\n\n```python\n{old.code}```\n\nNow:\n\n```python\n{new.code}```\n"
        )
    return "\n".join([INTRO, *rows, NAMES, *sections])


def main() -> None:
    """Write the page; with `--before`, also the earlier code and counts."""
    if "--before" in sys.argv[1:]:
        content = {method.title: asdict(read_before(method)) for method in METHODS}
        BEFORE.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
