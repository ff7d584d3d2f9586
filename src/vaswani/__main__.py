"""`python -m vaswani` runs the command `vaswani`."""

from vaswani.cli import main

main()
