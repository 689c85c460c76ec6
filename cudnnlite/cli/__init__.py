"""The command line; importing this imports no command."""

from __future__ import annotations

import signal
import sys

from cudnnlite._raw.dependencies import how_to_install, packages_behind
from cudnnlite.cli import ctrl_c


def main() -> None:
    """Run the command line: what the script `cudnnlite` and `python -m cudnnlite` do."""
    ctrl_c.replace(signal.default_int_handler, ctrl_c.end_quietly)
    try:
        from cudnnlite.cli.app import run

        run()
    except ImportError as error:
        packages = packages_behind(error)
        if not packages:
            raise
        names = " and ".join(packages)
        sys.exit(f"cudnnlite: {error}; cudnnlite needs {names}: {how_to_install(packages)}")


__all__ = ["main"]
