"""The command line."""

from cudnnlite.cli.app import app, main

__all__ = ["app", "main"]
