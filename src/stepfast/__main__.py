"""``python -m stepfast``: the command line."""

from .cli import main

main()
