"""The table of cuDNN's faults on the page `reference/faults.md`, made of `faults.FAULTS` at build."""

from __future__ import annotations

from typing import Any

from cudnnlite.graph.faults import FAULTS, Fault

PAGE = "reference/faults"
MARK = "<!-- the table of faults -->"
_OUTCOMES = {
    "right": "right",
    "wrong": "wrong numbers",
    "fails": "an error when it runs",
    "context": "the device is lost",
    "process": "the process ends",
    "not served": "no engine",
}


def table() -> str:
    """Return the rows in Markdown: one for each fault."""
    versions = sorted({version for fault in FAULTS for version in fault.seen})
    head = ["what", "operation", "engines", *(f"cuDNN {version}" for version in versions)]
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    for fault in FAULTS:
        outcomes = [_OUTCOMES.get(fault.seen.get(version, ""), "") for version in versions]
        operation = f"`{fault.operation}`" if fault.operation else "any"
        cells = [fault.name, operation, _engines(fault), *outcomes]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _engines(fault: Fault) -> str:
    if fault.engines is None:
        return "all: refused"
    if isinstance(fault.engines, frozenset):
        return ", ".join(map(str, sorted(fault.engines)))
    return "all but 0"


def _read_page(app: Any, name: str, source: list[str]) -> None:
    """Sphinx calls this for each page that it reads."""
    if name == PAGE:
        source[0] = source[0].replace(MARK, table())


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("source-read", _read_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
