"""`python -m cudnnlite`: the command line."""

from cudnnlite.cli import main

main()
