"""What share of a run's rounds one function takes: by default the looking for values that are not
finite.

    python benchmarks/shares.py [--method scaffold] [--engine stacked] [--parties 50] [--function is_finite]

Small networks and seven steps a round, where such a cost shows most. By Python's profiler, which
makes small calls dearer: the share is an upper bound.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile

from bare import LR, data_of

import comity


def main() -> None:
    """Profile a run of eight rounds."""
    options = argparse.ArgumentParser()
    options.add_argument("--method", default="scaffold")
    options.add_argument("--engine", default="stacked")
    options.add_argument("--parties", type=int, default=50)
    options.add_argument("--function", default="is_finite")
    args = options.parse_args()
    pairs = data_of("mlp2")[: args.parties]
    federation = comity.Federation.from_arrays(
        {f"p{i}": (x[:94], y[:94]) for i, (x, y) in enumerate(pairs)}, classes=10
    )
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder:
        profile.enable()
        how = {
            "model": "mlp2",
            "lr": LR,
            "rounds": 8,
            "engine": args.engine,
            "workers": 1,
            "eval_every": 8,
        }
        comity.run(args.method, federation, out=f"{folder}/run", **how)
        profile.disable()
    spent = {
        key[2]: cumulated
        for key, (_, _, _, cumulated, _) in pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    }
    print(
        f"{args.method} on {args.engine}, {args.parties} parties: {args.function}"
        f" {spent[args.function] / spent['go_on']:.1%}"
    )


if __name__ == "__main__":
    main()
