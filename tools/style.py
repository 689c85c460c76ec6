"""Print how the code of folders reads: figures to look at, not limits.

    python -m tools.style cudnnlite [FOLDER ...] [--complex 10] [--names]

For each folder, over its Python files but those that a generator wrote:

- tokens a code line: how much a reader has to take in with one line;
- conditional expressions for 1,000 code lines;
- lines of more than 100 columns, in percent of all lines;
- `fmt: skip` and `fmt: off`;
- names that are participles or pronouns, for 1,000 code lines: where one is assigned to, or is a
  parameter, a loop's variable or an attribute that is set;
- signatures in which `Any` stands, of all functions and methods.

`--complex N` lists the N functions with the most branches, `--names` the participles and pronouns.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

COLUMNS = 100
# fmt: off
VAGUE_NAMES = frozenset((
    "given", "told", "found", "each", "own", "known", "wanted", "there", "kept", "asked",
    "crossed", "seen", "made", "done", "here", "others", "taken", "both", "every", "several",
    "some", "any_", "it", "this", "that", "these", "those", "what", "which", "chosen", "posed",
    "meant", "shown", "said", "let", "got", "gone", "tried", "named", "listed",
))
# fmt: on
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.With,
    ast.Assert,
    ast.comprehension,
    ast.match_case,
)


@dataclass
class Figures:
    """What was counted in a folder."""

    files: int = 0
    lines: int = 0
    code_lines: int = 0
    tokens: int = 0
    conditional_expressions: int = 0
    long_lines: int = 0
    format_escapes: int = 0
    functions: int = 0
    functions_with_any: int = 0
    vague_names: Counter[str] = field(default_factory=Counter)
    branches: list[tuple[int, str]] = field(default_factory=list)

    def per_thousand(self, count: int) -> float:
        """Return a count for 1,000 code lines."""
        return 1000 * count / max(self.code_lines, 1)


def python_files(folder: Path) -> Iterator[Path]:
    """Yield the hand-written Python files below a folder; the folder may be a file."""
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
    for path in paths:
        first_lines = path.read_text(encoding="utf-8").splitlines()[:5]
        if not any("generated" in line.lower() for line in first_lines if line.startswith("#")):
            yield path


def measure(folder: Path) -> Figures:
    """Count over all files of a folder."""
    figures = Figures()
    for path in python_files(folder):
        text = path.read_text(encoding="utf-8")
        figures.files += 1
        _count_lines(text, figures)
        _count_tokens(text, figures)
        _count_syntax(path, ast.parse(text), figures)
    return figures


def _count_lines(text: str, figures: Figures) -> None:
    for line in text.splitlines():
        figures.lines += 1
        figures.long_lines += len(line) > COLUMNS
        figures.format_escapes += "# fmt: skip" in line or "# fmt: off" in line


def _count_tokens(text: str, figures: Figures) -> None:
    """Count tokens and the lines that they are on; docstrings are neither."""
    code_lines: set[int] = set()
    is_first_of_statement = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in NOT_CODE:
            is_first_of_statement = is_first_of_statement or token.type == tokenize.NEWLINE
            continue
        is_docstring = is_first_of_statement and token.type == tokenize.STRING
        is_first_of_statement = False
        if not is_docstring:
            figures.tokens += 1
            code_lines.update(range(token.start[0], token.end[0] + 1))
    figures.code_lines += len(code_lines)


def _count_syntax(path: Path, tree: ast.Module, figures: Figures) -> None:
    for node in ast.walk(tree):
        figures.conditional_expressions += isinstance(node, ast.IfExp)
        for name in _bound_names(node):
            if name.strip("_") in VAGUE_NAMES:
                figures.vague_names[name] += 1
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            figures.functions += 1
            figures.functions_with_any += _has_any(node)
            figures.branches.append((_branches(node), f"{path}:{node.lineno} {node.name}"))


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node gives a value to."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr
    elif isinstance(node, ast.arg):
        yield node.arg


def _has_any(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether `Any` stands in a signature."""
    arguments = function.args
    parameters = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        *filter(None, (arguments.vararg, arguments.kwarg)),
    ]
    annotations = [parameter.annotation for parameter in parameters] + [function.returns]
    return any(
        isinstance(part, ast.Name) and part.id == "Any"
        for annotation in annotations
        if annotation is not None
        for part in ast.walk(annotation)
    )


def _branches(function: ast.AST) -> int:
    """Return the number of places where a function may go two ways, boolean operators among them."""
    count = 0
    for node in ast.walk(function):
        count += isinstance(node, BRANCHES)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
    return count


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--complex", type=int, default=0, metavar="N")
    parser.add_argument("--names", action="store_true")
    options = parser.parse_args(arguments)
    print("| folder | files | lines | tokens a code line | conditional expressions per 1,000 |")
    print("    lines over 100 columns | fmt: skip | vague names per 1,000 | signatures with Any |")
    for folder in options.folders:
        figures = measure(folder)
        print(
            f"| {folder} | {figures.files} | {figures.lines}"
            f" | {figures.tokens / max(figures.code_lines, 1):.1f}"
            f" | {figures.per_thousand(figures.conditional_expressions):.0f}"
            f" | {100 * figures.long_lines / max(figures.lines, 1):.1f} %"
            f" | {figures.format_escapes}"
            f" | {figures.per_thousand(sum(figures.vague_names.values())):.1f}"
            f" | {figures.functions_with_any} of {figures.functions} |"
        )
        for count, place in sorted(figures.branches, reverse=True)[: options.complex]:
            print(f"    {count:3} {place}")
        if options.names:
            print("   ", dict(figures.vague_names.most_common(30)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
