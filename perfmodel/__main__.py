"""`python -m perfmodel` is the command `perfmodel`."""

from perfmodel.cli import main

main()
