"""`python -m comity.cli`."""

from comity.cli import main

main()
