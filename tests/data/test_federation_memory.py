"""The memory that building a federation from arrays takes, and that its digests do not depend on
how the arrays lie in memory.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from comity.base.samples import Samples, digest_of
from comity.data import Federation

PEAKS = """
import sys
from pathlib import Path
import numpy as np
from comity.data import Federation


def memory(entry):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(entry))


def arrays():
    rng, y = np.random.default_rng(0), np.arange(60) % 3
    return {
        f"p{i}": (rng.random((60, 800), dtype=np.float32), y) for i in range(PARTIES)
    }


PARTIES, BYTES = 600, 600 * 60 * 800 * 4
Federation.from_arrays({"small": (np.zeros((4, 3)), [0, 1, 2, 0])})  # what is loaded on first use
if sys.argv[1] == "kept":
    inputs = arrays()
    before = memory("VmRSS")
    federation = Federation.from_arrays(inputs, classes=3)
    print((memory("VmHWM") - before) / BYTES)
else:
    before = memory("VmRSS")
    federation = Federation.from_arrays(arrays(), classes=3)
    print((memory("VmHWM") - before) / BYTES)
assert len(federation.names) == PARTIES
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
@pytest.mark.parametrize(
    ("use", "most"),
    [
        ("kept", 1.35),  # one copy beside the caller's arrays, and up to 32 MB on the way
        ("passed on", 1.4),  # arrays that only the call holds are freed as they are read
    ],
)
def test_a_federation_takes_the_memory_of_its_samples_once(use: str, most: float) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAKS, use], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < most


def test_a_digest_does_not_depend_on_how_samples_are_cut_into_parts() -> None:
    x, y = torch.rand(9, 2, 3), torch.arange(9) % 4
    parts = [Samples(x[:4], y[:4]), Samples(x[4:], y[4:])]
    assert digest_of(parts) == Samples(x, y).digest()


def test_the_fingerprint_covers_training_and_test_arrays_in_order() -> None:
    x = np.arange(24.0).reshape(8, 3)
    y = np.array([0, 1, 0, 1, 0, 1, 0, 1])
    whole = Federation.from_arrays({"north": (x, y)}, validation=0)
    apart = Federation.from_arrays({"north": ((x[:6], y[:6]), (x[6:], y[6:]))}, validation=0)
    assert whole.split.fingerprint == apart.split.fingerprint
    assert apart.split.parties["north"].test == (6, 7)


def test_samples_begin_where_torch_would_place_them() -> None:
    """Arrays that are used undivided would otherwise keep numpy's alignment."""
    arrays = {f"p{i}": ((np.ones((3 + i, 5)), [0] * (3 + i)),) * 2 for i in range(20)}
    federation = Federation.from_arrays(arrays, validation=0, classes=1)
    for party in federation.parties.values():
        assert party.train.x.data_ptr() % 64 == 0
        assert party.test.x.data_ptr() % 64 == 0
        assert party.train.y.data_ptr() % 64 == 0
