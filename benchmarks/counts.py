"""How hard the source is to read, in figures: `python benchmarks/counts.py [FOLDER ...]`.

For each checkout (this one, if none is named):

- tokens a line: tokens of code over lines that hold code
- participles as names: variables, arguments, functions, classes and attributes that are named by a
  bare participle, as `made` or `told`
- old names: identifiers of the vocabulary's first table that are left, as `Letter` or `Net`
- author members: attributes and methods that `core/algorithm.py` gives `Algorithm`
- modules in cycles: the size of the largest strongly connected component of modules, once with
  imports at the top of files only, once with those inside functions as well
- folders in cycles: the same for folders
"""

from __future__ import annotations

import ast
import io
import sys
import token
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PARTICIPLES = frozenset(
    [
        "made",
        "told",
        "given",
        "said",
        "asked",
        "held",
        "shown",
        "heard",
        "found",
        "known",
        "done",
        "drawn",
        "seen",
        "chosen",
        "sent",
        "kept",
        "read",
        "saved",
        "wanted",
        "named",
        "settled",
        "judged",
        "called",
        "answered",
        "lost",
        "begun",
        "written",
        "marked",
        "meant",
        "opened",
        "looked",
        "watched",
        "taken",
        "planned",
        "agreed",
        "counted",
        "moved",
        "ended",
        "measured",
        "wrapped",
        "joined",
        "noted",
    ]
) - {"read", "saved"}  # a verb, and a noun of its own in checkpoints
OLD_NAMES = frozenset(
    [
        "Net",
        "Letter",
        "letter",
        "letters",
        "Work",
        "work",
        "works",
        "Works",
        "RunningWork",
        "parcel",
        "parcels",
        "Postmark",
        "postmark",
        "Task",
        "Look",
        "Attendance",
        "RollCall",
        "hollow",
        "Gate",
        "OneByOne",
        "SideBySide",
        "Introduction",
        "Seats",
        "CommonGround",
        "Outline",
        "Job",
        "Standing",
        "Law",
        "Desk",
        "Courier",
        "Passport",
        "Refusal",
        "Damaged",
        "harmless",
        "BEYOND",
    ]
)
SKIPPED = {
    token.NEWLINE,
    token.NL,
    token.INDENT,
    token.DEDENT,
    token.COMMENT,
    token.ENDMARKER,
    token.ENCODING,
}


def main(folders: list[str]) -> None:
    """Print a table, a column a checkout."""
    columns = [counts(Path(folder) / "src" / "comity") for folder in folders or ["."]]
    for name in columns[0]:
        print(f"{name:42}", *(f"{column[name]:>10}" for column in columns))


def counts(source: Path) -> dict[str, str]:
    """All figures of one source tree."""
    files = sorted(source.rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    names = Counter(name.strip("_") for tree in trees.values() for name in bound_names(tree))
    top, every = imports(source, trees, lazy=False), imports(source, trees, lazy=True)
    return {
        "files": str(len(files)),
        "tokens a line": f"{tokens_a_line(texts.values()):.1f}",
        "participles as names": str(sum(names[word] for word in PARTICIPLES)),
        "old names": str(sum(names[word] for word in OLD_NAMES)),
        "author members": str(author_members(source)),
        "modules in a cycle, imports at the top": str(largest_cycle(top)),
        "modules in a cycle, all imports": str(largest_cycle(every)),
        "folders in a cycle, imports at the top": str(largest_cycle(by_folder(top))),
        "folders in a cycle, all imports": str(largest_cycle(by_folder(every))),
    }


def tokens_a_line(texts: Iterable[str]) -> float:
    """Tokens of code over lines that hold any; docstrings and comments do not count."""
    tokens = 0
    lines = 0
    for text in texts:
        held: set[int] = set()
        before = token.NEWLINE
        for one in tokenize.generate_tokens(io.StringIO(text).readline):
            is_docstring = one.type == token.STRING and before in (token.NEWLINE, token.INDENT)
            if one.type not in SKIPPED and not is_docstring:
                tokens += 1
                held.add(one.start[0])
            if one.type not in (token.NL, token.COMMENT):
                before = one.type
        lines += len(held)
    return tokens / lines


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Names that a file binds: variables, arguments, functions, classes, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def author_members(source: Path) -> int:
    """Members that the class `Algorithm` declares, without those that begin with an underscore."""
    tree = ast.parse((source / "core" / "algorithm.py").read_text(encoding="utf-8"))
    (cls,) = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Algorithm"
    ]
    members = {
        node.target.id
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    members |= {
        node.name for node in cls.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return len({name for name in members if not name.startswith("_")})


def imports(source: Path, trees: Mapping[Path, ast.Module], *, lazy: bool) -> dict[str, set[str]]:
    """Which modules each module imports; `lazy` counts imports inside functions, too."""
    modules = {module_name(source, path): tree for path, tree in trees.items()}
    return {
        name: {m for m in imported(tree, modules, lazy=lazy) if m != name}
        for name, tree in modules.items()
    }


def module_name(source: Path, path: Path) -> str:
    """`comity.core.key` of `core/key.py`."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(["comity", *(part for part in parts if part != "__init__")])


def imported(tree: ast.AST, modules: Mapping[str, ast.Module], *, lazy: bool) -> Iterator[str]:
    """Modules that a tree imports, without those that only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield from (name for name in (whole, node.module) if name in modules)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif lazy or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(node, modules, lazy=lazy)


def by_folder(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The graph of folders; a module at the top counts as a folder of its own."""

    def folder(module: str) -> str:
        return ".".join(module.split(".")[:2])

    folders: dict[str, set[str]] = {folder(name): set() for name in graph}
    for name, targets in graph.items():
        folders[folder(name)] |= {folder(target) for target in targets} - {folder(name)}
    return folders


def largest_cycle(graph: Mapping[str, set[str]]) -> int:
    """The size of the largest strongly connected component; 0 if there is no cycle."""
    reach = {name: reachable(graph, name) for name in graph}
    sizes = [sum(a in reach[b] for b in reach[a]) for a in graph]
    return max((size for size in sizes if size > 1), default=0)


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """All that can be reached from `start`, itself only by a cycle."""
    found: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        name = ahead.pop()
        if name not in found and name in graph:
            found.add(name)
            ahead += graph[name]
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
