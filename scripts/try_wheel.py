"""Install the built wheel in an empty environment, and run README.md's example and the demo.

    python scripts/try_wheel.py                # the wheel in dist/
    python scripts/try_wheel.py --borrow       # with the dependencies of this environment: quick

Dependencies come from pip's index, torch first and exactly as in constraints.txt. Set TORCH_INDEX
to the index of its CPU build, otherwise pip on Linux takes the CUDA build with several gigabytes.
Nothing of the checkout is used but README.md and constraints.txt.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGED = {"experiments": "adcol/table1", "datasets": "agnews"}
"""Something that `comity list` reads from files in the package."""


def run(*command: object, cwd: Path) -> str:
    """Run a command, which must succeed, and return its stdout."""
    environment = {**os.environ, "PYTHONPATH": "", "COMITY_DATA": "", "COMITY_REPORT": "1"}
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        words = " ".join(map(str, command))
        raise SystemExit(f"{words} failed with exit code {result.returncode}:\n{result.stderr}")
    return result.stdout


def install(wheel: Path, folder: Path, borrow: bool) -> Path:
    """Create an environment with the wheel, and return the folder of its commands."""
    venv.create(folder / "env", with_pip=True)
    commands = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    pip = [commands / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if borrow:
        run(*pip, "--no-deps", wheel, cwd=folder)
        where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        packages = Path(run(commands / "python", "-c", where, cwd=folder).strip())
        here = sysconfig.get_paths()["purelib"]
        (packages / "dependencies.pth").write_text(here + "\n", encoding="utf-8")
        return commands
    constraints = ROOT / "constraints.txt"
    text = constraints.read_text(encoding="utf-8")
    (torch,) = re.findall(r"^torch==\S+$", text, re.MULTILINE)
    index = os.environ.get("TORCH_INDEX")
    run(*pip, *(["--index-url", index] if index else []), torch, cwd=folder)
    run(*pip, "-c", constraints, wheel, cwd=folder)
    return commands


def example() -> str:
    """Return the Python example of README.md."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(code)


def main() -> None:
    """Install the wheel and use it."""
    parser = argparse.ArgumentParser(description="Use the wheel in an empty environment.")
    parser.add_argument("wheel", nargs="?", type=Path, help="by default the wheel in dist/")
    parser.add_argument(
        "--borrow", action="store_true", help="use the dependencies of this environment"
    )
    arguments = parser.parse_args()
    wheels = [arguments.wheel] if arguments.wheel else sorted((ROOT / "dist").glob("*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"dist/ has {len(wheels)} wheels, and 1 was expected: make package")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = install(wheels[0].resolve(), folder, arguments.borrow)
        where = "import comity.calls; print(comity.calls.__file__)"
        place = run(commands / "python", "-c", where, cwd=folder).strip()
        if not Path(place).resolve().is_relative_to(folder.resolve()):
            raise SystemExit(f"comity was imported from {place} and not from the wheel")
        print(run(commands / "comity", "--version", cwd=folder).strip(), "from", wheels[0].name)
        (folder / "example.py").write_text(example(), encoding="utf-8")
        print(run(commands / "python", "example.py", cwd=folder).strip())
        for kind, item in PACKAGED.items():
            if item not in run(commands / "comity", "list", kind, cwd=folder):
                raise SystemExit(f"comity list {kind} does not name {item}: a file is not packaged")
        run(commands / "comity", "demo", "--help", cwd=folder)
        lines = run(commands / "comity", "demo", "--rounds", "1", cwd=folder).splitlines()
        answers = [line for line in lines if line.startswith("Answer: ")]
        print(*answers, sep="\n")
        if len(answers) != 3 or not (folder / "demo" / "report.html").is_file():
            raise SystemExit("comity demo did not end with three answers and a page")
    print("The wheel works.")


if __name__ == "__main__":
    sys.exit(main())
