"""A virtual environment for each peer of `peers.py` and `beside.py`, made once in `benchmarks/.venvs`.

torch comes first, alone and pinned: any other request for it pulls gigabytes of GPU packages. A constraint keeps it so.
"""

from __future__ import annotations

import subprocess
import sysconfig
import venv
from pathlib import Path

HOME = Path(__file__).resolve().parent / ".venvs"
TORCH = "torch==2.13.0"

# fluke asks for torchvision, which comes only for GPUs from PyPI and then refuses to be imported beside a torch for CPUs. fluke's
# datasets and ResNets use it, and nothing of ours: it is installed without its dependencies, these by name, and a stand-in for
# torchvision that has every name and does nothing. (pytest and coverage, which it asks for as well, nobody imports.)
FLUKE = (
    "numpy pandas scikit-learn torchmetrics rich typer wandb datasets psutil tensorboard clearml matplotlib seaborn diskcache "
    "opacus cerberus hydra-core requests pyyaml omegaconf"
)
STAND_IN = """
import sys
import types
from importlib.machinery import ModuleSpec


class Absent(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for part in ("", ".models", ".datasets", ".datasets.utils", ".transforms"):
    sys.modules["torchvision" + part] = Absent("torchvision" + part)
    sys.modules["torchvision" + part].__spec__ = ModuleSpec("torchvision" + part, None)  # torchmetrics asks whether it is there
"""

PACKAGES = {
    "pfl": [["pfl==0.6.0"]],
    "fluke": [["--no-deps", "fluke-fl==0.8.1"], FLUKE.split()],
    "flower": [["flwr[simulation]==1.41.0"]],
    "pfllib": [["numpy==2.4.6"]],
}
"""What pip is asked for after torch, call by call."""


def python(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there; a RuntimeError says why it cannot be."""
    folder = HOME / peer
    interpreter, done = folder / "bin" / "python", folder / "ready"
    if done.exists():
        return interpreter
    print(f"Setting up {folder} (once; a minute or two) ...", flush=True)
    venv.create(folder, clear=True, with_pip=True)
    (folder / "constraints.txt").write_text(TORCH + "\n")
    pip = [
        str(interpreter),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "-c",
        "constraints.txt",
    ]
    for wanted in ([TORCH], *PACKAGES[peer]):
        said = subprocess.run(
            [*pip, *wanted], cwd=folder, capture_output=True, text=True, check=False
        )
        if said.returncode:
            raise RuntimeError(f"pip install {' '.join(wanted)} failed: {last_line(said.stderr)}")
    if peer == "fluke":
        packages = sysconfig.get_path("purelib", vars={"base": str(folder)})
        Path(packages, "torchvision.py").write_text(STAND_IN)
    done.touch()
    return interpreter


def last_line(text: str) -> str:
    """What an error's output ends with."""
    return next(
        (line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing"
    )
