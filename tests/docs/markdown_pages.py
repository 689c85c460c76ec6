"""README, CONTRIBUTING, CHANGELOG and the pages of docs as code blocks, headings and links."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

from cudnnlite.cached_property import cached_property

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"( *)(`{3,}|~{3,})([^`]*)")
_MARK = re.compile(r"<!-- command: (\w+) -->")
_HEADING = re.compile(r"(#{1,6}) +(.*?)(?: +#+)?$")
_LINK = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]: +(\S+)",
    re.MULTILINE,
)
_ROLE = re.compile(r"\{py:\w+\}`(?:[^`<]*<)?~?([\w.]+)>?`")
_PROSE_DIRECTIVES = {
    "note",
    "warning",
    "tip",
    "important",
    "caution",
    "hint",
    "seealso",
    "admonition",
    "dropdown",
}


class Block(NamedTuple):
    """A fenced block.

    Attributes
    ----------
    language : str
        What stands behind the fence: 'python', '{toctree}'; empty if nothing does.
    text : str
        What is inside, without the block's own indentation.
    line : int
        The line of the page on which the text begins.
    mark : str
        The name in a comment `command: name` before it.
    """

    language: str
    text: str
    line: int
    mark: str = ""


class Page:
    """A page of Markdown.

    Attributes
    ----------
    path : Path
        The file.
    name : str
        Its path within the repository.
    blocks : list of Block
        The fenced blocks, in order; those in notes and warnings too.
    prose : str
        What is outside of them; line numbers are the page's.
    unclosed : int
        The line of a fence that is never closed; 0 if there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.relative_to(ROOT).as_posix()
        self.blocks: list[Block] = []
        self.unclosed = 0
        self.prose = self._take_apart(path.read_text(encoding="utf-8").split("\n"))

    def __repr__(self) -> str:
        return self.name

    def _take_apart(self, lines: list[str]) -> str:
        prose: list[str] = []
        notes: list[
            str
        ] = []  # the fences of the directives around this line whose content is prose
        mark, number = "", 0
        while number < len(lines):
            line = lines[number]
            number += 1
            fence_line = _FENCE.fullmatch(line)
            if fence_line is None:
                prose.append(line)
                marked = _MARK.fullmatch(line)
                mark = marked[1] if marked else mark if not line.strip() else ""
                continue
            _, fence, info = fence_line.groups()
            prose.append("")
            if notes and line.strip() == notes[-1]:
                notes.pop()
                continue
            language = info.strip().partition(" ")[0]
            if language.strip("{}") in _PROSE_DIRECTIVES and language.startswith("{"):
                notes.append(fence)
                continue
            first = number
            while number < len(lines) and lines[number].strip() != fence:
                number += 1
            if number == len(lines):
                self.unclosed = first
                break
            prose += [""] * (number + 1 - first)
            text = textwrap.dedent("\n".join([*lines[first:number], ""]))
            self.blocks.append(Block(language, text, first + 1, mark))
            number += 1
            mark = ""
        return "\n".join(prose)

    def in_language(self, *languages: str) -> list[Block]:
        """Return the blocks in one of these languages."""
        return [block for block in self.blocks if block.language in languages]

    @cached_property
    def anchors(self) -> set[str]:
        """The anchors of this page: those that GitHub makes of headings, and explicit targets."""
        anchors = set(re.findall(r"^\(([\w-]+)\)=$", self.prose, re.MULTILINE))
        for line in self.prose.split("\n"):
            heading = _HEADING.fullmatch(line)
            if heading:
                slug = anchor_of(heading[2])
                number = 0
                while (f"{slug}-{number}" if number else slug) in anchors:
                    number += 1
                anchors.add(f"{slug}-{number}" if number else slug)
        return anchors

    @property
    def links(self) -> list[tuple[int, str]]:
        """Every link that is not to another host, with its line."""
        text = re.sub(
            r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", lambda code: " " * len(code[0]), self.prose
        )
        lines_and_links = [
            (self.prose[: link.start()].count("\n") + 1, link[1] or link[2])
            for link in _LINK.finditer(text)
        ]
        return [
            (line, link)
            for line, link in lines_and_links
            if not re.match(r"[a-z][a-z0-9+.-]*:", link)
        ]

    @property
    def roles(self) -> list[tuple[int, str]]:
        """Every Python name in a role such as {py:func}, with its line."""
        return [
            (self.prose[: role.start()].count("\n") + 1, role[1])
            for role in _ROLE.finditer(self.prose)
        ]


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading: lower case, no punctuation, hyphens for spaces."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def all_pages() -> list[Page]:
    """Return every page."""
    docs = (path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
    paths = [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *sorted(docs),
    ]
    return [Page(path) for path in paths]


PAGES = all_pages()
