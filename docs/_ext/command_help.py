"""The directive `command-options`: what a command does, and its arguments and options in tables.

Every option has an anchor and an entry in the index: `--input (cudnnlite autotune)`.  What can be
had without Sphinx is `commands()` and `panels_of()`, which a test holds against the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Words = tuple[str, ...]


class Row(NamedTuple):
    """A row of a table.

    Attributes
    ----------
    names : tuple of str
        The option's names, or the argument's in capitals.
    value : str
        What its value looks like; empty for a flag.
    default : str
        What is taken without it; empty if nothing is.
    help : str
        What it does.
    """

    names: tuple[str, ...]
    value: str
    default: str
    help: str


def commands() -> dict[Words, Any]:
    """Return every command by the words that stand before its options: ("cache", "show")."""
    import typer

    from cudnnlite.cli.app import app

    def walk(command: Any, words: Words) -> Iterator[tuple[Words, Any]]:
        for name, child in getattr(command, "commands", {}).items():
            yield (*words, name), child
            yield from walk(child, (*words, name))

    return dict(walk(typer.main.get_command(app), ()))


def usage_of(words: Words, command: Any) -> str:
    """Return how a command is called."""
    if hasattr(command, "commands"):
        return " ".join(("cudnnlite", *words, "COMMAND"))
    arguments = [_row(param).names[0] for param in command.params if not _is_option(param)]
    return " ".join(("cudnnlite", *words, "[OPTIONS]", *arguments))


def panels_of(command: Any) -> dict[str, list[Row]]:
    """Return the rows of a command's tables by title, in the order of its parameters."""
    panels: dict[str, list[Row]] = {}
    for param in command.params:
        title = "Arguments"
        if _is_option(param):
            title = getattr(param, "rich_help_panel", None) or "Options"
        panels.setdefault(title, []).append(_row(param))
    return panels


def _is_option(param: Any) -> bool:
    return param.opts[0].startswith("-")


def _row(param: Any) -> Row:
    names = (*param.opts, *param.secondary_opts)
    if not _is_option(param):
        name = param.metavar or param.name.upper()
        return Row((name,), "", "", getattr(param, "help", None) or "")
    value = ""
    if not param.is_flag:
        value = param.metavar or "VALUE"
    shown = param.show_default
    default = shown if isinstance(shown, str) else ""
    if not default and shown and param.default is not None and not param.is_flag:
        default = str(param.default)
    return Row(names, value, default, param.help or "")


def anchor_of(words: Words, name: str) -> str:
    """Return the anchor of an option: "autotune--input"."""
    return "-".join((*words, "")) + name.lstrip("-") if words else name


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    from docutils import nodes
    from sphinx import addnodes
    from sphinx.util.docutils import SphinxDirective

    def option_cell(words: Words, row: Row) -> Any:
        paragraph = nodes.paragraph()
        for name in row.names:
            title = f"{name} (cudnnlite {' '.join(words)})"
            anchor = anchor_of(words, name)
            entry = ("single", title, anchor, "", None)
            paragraph += addnodes.index(entries=[entry])
            text = f"{name} {row.value}".strip()
            paragraph += nodes.literal(text, text, ids=[anchor])
            paragraph += nodes.Text(" ")
        return paragraph

    def help_cell(row: Row) -> Any:
        text = row.help
        if row.default:
            text = f"{text} Without it: {row.default}.".strip()
        return nodes.paragraph(text, text)

    def table_of(words: Words, rows: list[Row]) -> Any:
        body = nodes.tbody()
        for row in rows:
            cells = (option_cell(words, row), help_cell(row))
            body += nodes.row("", *(nodes.entry("", cell) for cell in cells))
        group = nodes.tgroup("", cols=2)
        group += [nodes.colspec(colwidth=width) for width in (2, 3)]
        group += body
        return nodes.table("", group, classes=["options"])

    class CommandOptions(SphinxDirective):
        """Of one command: ``{command-options} cache show``."""

        required_arguments = 1
        final_argument_whitespace = True

        def run(self) -> list[nodes.Node]:
            """Return usage, description and tables; the page is read again at every build."""
            self.env.note_reread()
            words = tuple(self.arguments[0].split())
            command = commands()[words]
            usage = usage_of(words, command)
            result: list[nodes.Node] = [nodes.literal_block(usage, usage, language="text")]
            for text in (command.help or "", command.epilog or ""):
                for paragraph in filter(None, text.split("\n\n")):
                    result.append(nodes.paragraph("", " ".join(paragraph.split())))
            for title, rows in panels_of(command).items():
                result += [nodes.rubric("", title), table_of(words, rows)]
            return result

    app.add_directive("command-options", CommandOptions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
