"""What a type checker says about user code, wrong code, and the code in README, docs, notebooks."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
from markdown_pages import PAGES

ROOT = Path(__file__).parents[2]
TYPES = ROOT / "tests" / "types"
pytest.importorskip("mypy", reason="mypy is not installed")
# mypy reads NumPy and all of the package first.
pytestmark = [pytest.mark.processes, pytest.mark.exhaustive]

# Pages are checked less strictly, because the types of other libraries take longer to find than all
# of ours.
CONFIGURATION = """
[mypy]
strict = true
ignore_missing_imports = true
[mypy-pages.*]
allow_untyped_defs = true
disallow_untyped_defs = false
disallow_incomplete_defs = false
disallow_untyped_calls = false
disallow_subclassing_any = false
implicit_reexport = true
strict_optional = false
allow_redefinition = true
disable_error_code = var-annotated, no-redef, operator, index
[mypy-torch.*,matplotlib.*,IPython.*,onnx.*,PIL.*,sklearn.*,scipy.*,cupy.*]
follow_imports = skip
"""
# Errors that pages show on purpose, and names of NumPy, Python and notebooks that the checker does
# not know.
KNOWN = re.compile(
    r'"cudnnGetTensorSizeInByte"|cudnnGetTensorSizeInBytes.*cudnnFilterDescriptor_t|'
    r'"(abs|assert_allclose|append|savez)"'
    r'|"ArgumentError" has no attribute "function"|\*list\[DeviceArray\]'
)


USERS = (TYPES / "accepted.py", TYPES / "refused.py")


@pytest.fixture(scope="module")
def sources():
    """The code of each page and notebook, by its name."""
    code_by_page = {
        page.name: [block.text for block in page.in_language("python")] for page in PAGES
    }
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        cells = [
            cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"
        ]
        code_by_page[path.name] = [
            re.sub(r"(?m)^( *)[%!].*", r"\1pass", "".join(cell["source"])) for cell in cells
        ]
    return code_by_page


@pytest.fixture(scope="module")
def findings(sources, tmp_path_factory):
    """What mypy says of all of it: by file and line the errors, and the types that are revealed."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "pages").mkdir()
    (folder / "pages" / "__init__.py").touch()
    for number, texts in enumerate(sources.values()):
        (folder / "pages" / f"page{number}.py").write_text("\n".join(texts))
    (folder / "mypy.ini").write_text(CONFIGURATION)
    settings = (f"--config-file={folder / 'mypy.ini'}", f"--cache-dir={folder}")
    files = map(str, (*USERS, *sorted(folder.glob("pages/*.py"))))
    # In this process mypy would leave a million objects, which take seconds to collect.
    mypy = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context"]
    process = subprocess.run(
        [*mypy, *settings, *files], capture_output=True, text=True, check=False
    )
    assert not process.stderr  # mypy's own errors
    texts_by_line = {}
    for line in process.stdout.splitlines():
        name, number, kind, text = re.match(r".*?(\w+)\.py:(\d+): (\w+): (.*)", line).groups()
        if kind == "error" or "Revealed" in text:
            texts_by_line.setdefault((name, int(number)), []).append(text)
    return texts_by_line


@pytest.mark.parametrize("path", USERS, ids=lambda path: path.stem)
def test_user_code(findings, path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = findings.get((path.stem, number), [""])[0]
        if "# error: " in line:
            assert text.endswith(f"[{line.split('# error: ')[1]}]"), (line, text)
        elif "reveal_type" in line:
            assert "Revealed" in text, (line, text)
            revealed = re.sub(r"tuple\[.*?fallback=([\w.]+)\]", r"\1", text.split('"')[1])
            plain = re.sub(r"\w+\.|\[Any, Any\]", "", revealed)
            assert plain == line.split("  # ")[1], (line, text)
        else:
            assert not text, (line, text)


def test_code_in_readme_docs_and_notebooks(findings, sources):
    assert len(sources) > 30
    names = {f"page{number}": name for number, name in enumerate(sources)}
    unknown = [
        (names.get(name, name), line, text)
        for (name, line), texts in findings.items()
        for text in texts
        if name not in {path.stem for path in USERS} and not KNOWN.search(text)
    ]
    assert unknown == []
