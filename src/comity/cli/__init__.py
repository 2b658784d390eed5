"""The command line.

Nothing is imported here that Python has not loaded before: whatever comes before `main` cannot be
guarded by it, and Ctrl-C there would be a traceback.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """The entry point: whatever goes wrong is one sentence on stderr and an exit code."""
    try:
        from comity.cli.entry import enter

        enter()
    except KeyboardInterrupt:  # before `enter` could take care of it
        print("comity: Stopped before anything was run.", file=sys.stderr)
        sys.exit(130)
