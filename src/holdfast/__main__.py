"""``python -m holdfast``: the command line."""

from .cli import main

main()
