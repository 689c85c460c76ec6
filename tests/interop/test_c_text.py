"""Texts of users in C code.

A compiler finds nothing of a comment's text in the program, and all of a string's text in the
string.
"""

from __future__ import annotations

import itertools
import linecache
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudnnlite as dnn
from cudnnlite.workbench.tracing.c_text import comment, string_literal

from .c_toolchain import WARNINGS, CToolchain

pytestmark = pytest.mark.processes
NASTY = [
    *(
        '*\\ system("id"); //',
        '*/ system("id"); /*',
        '*\\\n/ system("id"); /*',
        '*??/\n/ system("id"); //',
    ),
    *(
        "*\\\r\n/",
        "*\\ \n/",
        "ends in \\",
        "ends in ??/",
        "ends in *",
        "/",
        "*",
        "",
        "/*/",
        "*/*",
        "**//",
        "\0*/\0",
    ),
    *(
        "\u202e*/\u2066",
        "\x1b[31m",
        "\ud800*/\udcff",
        "\x85*\x85/\u2028",
        "\ufeff",
        "caf\u00e9 \u6771\u4eac \U0001f600",
    ),
    *("%s %n", "\\u0022", "\\N{DIGIT ONE}", "'\"", 'R"(x', "??'??!??-"),
]
SHORT = [
    "".join(word) for length in range(1, 6) for word in itertools.product("*/\\?\n ", repeat=length)
]


@pytest.fixture(scope="module")
def gcc() -> str:
    """The compiler."""
    path = shutil.which("gcc") or shutil.which("cc")
    if path is None:
        pytest.skip("neither gcc nor cc is installed")
    return path


def compiled(gcc: str, source: Path, *options: str) -> str:
    """Compile without a warning, and return what is printed; trigraphs are part of C11."""
    command = [gcc, *WARNINGS, "-Wno-overlength-strings", *options, str(source)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[:2000]
    return process.stdout


def test_of_comments_a_compiler_reads_nothing(gcc: str, tmp_path: Path) -> None:
    texts = [*NASTY, *SHORT]
    lines = [f"{comment(text)} int x{number};" for number, text in enumerate(texts)]
    lines += [f"{comment(*NASTY)} int several;", f"{comment(*reversed(NASTY))} int others;"]
    source = tmp_path / "comments.c"
    source.write_bytes("\n".join([*lines, ""]).encode())
    names = [f"x{number}" for number in range(len(texts))] + ["several", "others"]
    assert compiled(gcc, source, "-E", "-P").split() == [
        word for name in names for word in ("int", f"{name};")
    ]
    compiled(gcc, source, "-fsyntax-only")


def after_splicing(text: str) -> str:
    """Return a text after a compiler's first two phases: trigraphs and continued lines."""
    return re.sub(r"\\\s*\n", "", text.replace("??/", "\\"))


@given(
    st.lists(
        st.text(st.sampled_from("*/\\?\n\r\t \0\x85\u202e\ud800a\"'") | st.characters()),
        min_size=1,
        max_size=3,
    )
)
def test_a_comment_ends_where_it_ends(texts: list[str]) -> None:
    text_of_comment = comment(*texts)
    text_of_comment.encode()
    inside = after_splicing(text_of_comment).removeprefix("/*").removesuffix("*/")
    assert len(inside) == len(text_of_comment) - 4
    assert "*/" not in f"{inside}*"
    assert "/*" not in inside
    assert all(character.isprintable() for character in text_of_comment.replace("\n", ""))


def test_a_string_literal_is_its_text(gcc: str, tmp_path: Path) -> None:
    texts = [*NASTY, *SHORT, "".join(map(chr, range(1, 0x180)))]
    literals = ",\n".join(f"L({string_literal(text)})" for text in texts)
    source, program = tmp_path / "strings.c", tmp_path / "strings"
    source.write_text(
        "#include <stdio.h>\n#define L(text) {text, sizeof text}\n"
        f"static const struct {{ const char *text; size_t size; }} all[] = {{\n{literals}\n}};\n"
        "int main(void)\n{\n    for (size_t i = 0; i < sizeof all / sizeof *all; i++)\n"
        "        fwrite(all[i].text, 1, all[i].size, stdout);\n    return 0;\n}\n",
        encoding="ascii",
    )
    compiled(gcc, source, "-o", str(program))
    printed = subprocess.run([str(program)], capture_output=True, check=True).stdout
    assert printed == b"".join(text.encode(errors="surrogatepass") + b"\0" for text in texts)


def test_a_scripts_name_and_line_stay_in_the_comment(
    toolchain: CToolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each text names a script of its own; all scripts are one program."""
    texts = [text for text in NASTY if "\0" not in text]
    line = "dnn.softmax_forward(handle, handle.array(ones)).numpy()"
    with dnn.trace() as traced, dnn.Handle("emulated") as handle:
        for number, text in enumerate(texts):
            name = f"{text}.py"
            code: Any = compile(line, "script", "exec").replace(co_filename=name)
            cached = (len(line), None, [f"{line}  # {text}"], name)
            monkeypatch.setitem(linecache.cache, name, cached)
            # Equal calls would be a loop, with one comment.
            ones = np.ones((1, 4 + number), np.float32)
            exec(code, {"dnn": dnn, "handle": handle, "ones": ones})
    traced.save(tmp_path)
    program = (tmp_path / "program.c").read_text(encoding="utf-8")
    without_comments = re.sub(r"/\*.*?\*/", "", program, flags=re.DOTALL)
    assert without_comments.count("cudnnSoftmaxForward(") == len(texts)
    assert "system" not in without_comments
    assert program.count(".py:1") >= len(texts)
    toolchain.build(tmp_path / "program.c", tmp_path / "program")


def test_a_scripts_name_may_be_no_path() -> None:
    line = "dnn.softmax_forward(handle, handle.array(ones)).numpy()"
    code = compile(line, "script", "exec").replace(co_filename="a\0b.py")
    with dnn.trace() as traced, dnn.Handle("emulated") as handle:
        exec(code, {"dnn": dnn, "handle": handle, "ones": np.ones((1, 4), np.float32)})
    assert "/* a<U+0000>b.py:1: */" in " ".join(traced.as_c().split())
