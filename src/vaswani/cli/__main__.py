"""`python -m vaswani.cli` runs the command `vaswani`."""

from vaswani.cli import main

main()
