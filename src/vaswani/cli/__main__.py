"""`python -m vaswani.cli` is the command `vaswani`; launchers start it so."""

from vaswani.cli import main

main()
