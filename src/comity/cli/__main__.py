"""Runs the command line as `python -m comity.cli`."""

from comity.cli import main

main()
