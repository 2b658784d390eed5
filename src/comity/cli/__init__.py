"""The command line.

This module imports nothing that Python has not loaded already: `main` cannot guard what runs before
it, and Ctrl-C during an import would show a traceback.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line. Every error becomes one sentence on stderr and an exit code."""
    try:
        from comity.cli.entry import enter

        enter()
    except KeyboardInterrupt:  # before `enter` could handle it
        print("comity: Stopped before anything was run.", file=sys.stderr)
        sys.exit(130)
