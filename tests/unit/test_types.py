"""What a type checker sees: user code that it passes, errors that it finds, and the code in README, docs, notebooks."""

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
