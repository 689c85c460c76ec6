"""The directive `command-help`: what `--help` prints for every command, asked when the docs are built."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

COLUMNS = "88"  # what fits beside the page's two sidebars


def commands() -> Iterator[tuple[str, ...]]:
    """Yield every command, as the words that stand before its options: (), ("demo",), ("cache", "show"), ..."""
    import typer

    from cudnnlite.cli.app import app

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, (*words, name))

    yield from walk(typer.main.get_command(app), ())


def help_of(words: tuple[str, ...]) -> str:
    """Return what `cudnnlite <words> --help` prints in a terminal of that many columns, without colours."""
    plain = {
        "COLUMNS": COLUMNS,
        "TERMINAL_WIDTH": COLUMNS,
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PYTHONIOENCODING": "utf-8",
    }
    done = subprocess.run(
        [sys.executable, "-m", "cudnnlite", *words, "--help"],
        env={
            name: value
            for name, value in os.environ.items()
            if name not in ("FORCE_COLOR", "GITHUB_ACTIONS")
        }
        | plain,
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").split("\n")).replace(
        "python -m cudnnlite", "cudnnlite"
    )


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective

    class CommandHelp(SphinxDirective):
        """A section for every command."""

        def run(self) -> list[nodes.Node]:
            """Return the sections; the page is read again at every build."""
            self.env.note_reread()
            sections: list[nodes.Node] = []
            for words in commands():
                title = " ".join(("cudnnlite", *words))
                block = nodes.literal_block(text := help_of(words), text, language="text")
                section = nodes.section(
                    "", nodes.title("", "", nodes.literal("", title)), block, names=[title]
                )
                self.state.document.note_implicit_target(section, section)
                sections.append(section)
            return sections

    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
