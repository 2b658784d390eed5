"""The pictures of docs/examples.md: runs every example with its own settings, in the folder
runs/examples, and copies the figure that it names.

python docs/site/examples.py [NAME ...]     (some minutes; at_sites needs the extra sites)
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "images" / "examples"
NAMES = (
    "hospital_tables",
    "sensors",
    "writers",
    "text_lora",
    "public_encoder",
    "peer_to_peer",
    "private",
    "at_sites",
)


def script(name: str) -> Path:
    """Return the file of an example."""
    return ROOT / "examples" / f"{name}.py"


def picture_name(name: str) -> str:
    """Return the figure that an example names, without running the example."""
    for statement in ast.parse(script(name).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "PICTURE":
            return str(ast.literal_eval(statement.value))
    raise ValueError(f"{script(name)} names no PICTURE")


def figure(name: str, out: Path) -> Path:
    """Return the file of an example's figure in the folder of its runs."""
    (path,) = out.rglob(f"figures/{picture_name(name)}.svg")
    return path


def main() -> None:
    """Run the examples that were named, or all, and copy their figures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or NAMES:
        out = ROOT / "runs" / "examples" / name
        shutil.rmtree(out, ignore_errors=True)
        subprocess.run([sys.executable, script(name), out], check=True, cwd=ROOT)
        shutil.copy(figure(name, out), PICTURES / f"{name}.svg")


if __name__ == "__main__":
    main()
