"""What a type checker sees: user code that it passes, errors that it finds, and the code in README, docs, notebooks."""

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
from markdown_pages import PAGES

ROOT = Path(__file__).parents[2]
TYPES = ROOT / "tests" / "types"
api = pytest.importorskip("mypy.api")


def mypy(*arguments):
    """Run mypy in this process; return its lines."""
    out, errors, _ = api.run([*map(str, arguments), "--config-file=", "--no-error-summary", "--hide-error-context"])
    assert not errors
    return out.splitlines()


def test_user_code(tmp_path):
    said = mypy("--strict", f"--cache-dir={tmp_path}", TYPES / "accepted.py", TYPES / "refused.py")
    found = {}
    for line in said:
        name, number, kind, text = re.match(r".*?(\w+)\.py:(\d+): (\w+): (.*)", line).groups()
        if kind == "error" or "Revealed" in text:
            found.setdefault((name, int(number)), text)
    for path in (TYPES / "accepted.py", TYPES / "refused.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            text = found.pop((path.stem, number), "")
            if "# error: " in line:
                assert text.endswith(f"[{line.split('# error: ')[1]}]"), (line, text)
            elif "reveal_type" in line:
                told = re.sub(r"tuple\[.*?fallback=([\w.]+)\]", r"\1", text.split('"')[1])
                plain = re.sub(r"\w+\.|\[Any, Any\]", "", told)
                assert plain == line.split("  # ")[1], (line, text)
            else:
                assert not text, (line, text)
    assert not found


# What pages show because it is wrong, and what NumPy's, Python's and a notebook's own names are to a type checker.
KNOWN = re.compile(
    r'"cudnnGetTensorSizeInByte"|cudnnGetTensorSizeInBytes.*cudnnFilterDescriptor_t|"(abs|assert_allclose|append|savez)"'
    r'|"ArgumentError" has no attribute "function"|\*list\[DeviceArray\]'
)


def test_code_in_readme_docs_and_notebooks(tmp_path):
    names = {}
    sources = {page.name: [block.text for block in page.in_language("python")] for page in PAGES}
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        sources[path.name] = [re.sub(r"(?m)^( *)[%!].*", r"\1pass", "".join(cell["source"])) for cell in cells]
    for number, (name, texts) in enumerate(sources.items()):
        names[f"page{number}"] = name
        (tmp_path / f"page{number}.py").write_text("\n".join(texts))
    assert len(names) > 30
    said = mypy(
        "--strict", "--no-strict-optional", "--allow-untyped-defs", "--allow-untyped-calls", "--implicit-reexport",
        "--allow-redefinition", "--ignore-missing-imports", f"--cache-dir={tmp_path}", *tmp_path.glob("page*.py"),
        *(f"--disable-error-code={code}" for code in ("var-annotated", "no-redef", "operator", "index")),
    )  # fmt: skip
    found = [re.sub(r".*?(page\d+)\.py", lambda page: names[page[1]], line) for line in said if ": error:" in line]
    assert [line for line in found if not KNOWN.search(line)] == []
