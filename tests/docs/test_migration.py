"""The pages about migrating.

The programs print what others compute, and lines and functions are those that the pages name.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.extensions import load
from markdown_pages import ROOT, Page
from migration_programs import FOLDER, NAMES, assert_same_results, run_python
from oracles import onnx_convolution
from rnn_oracles import onnx_rnn
from scipy.special import softmax

import cudnnlite as dnn
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite.problems.catalogue import OPERATIONS
from cudnnlite.raw import types

FROM_C = Page(ROOT / "docs/howto/migrate_from_c.md")
FROM_CUPY = Page(ROOT / "docs/howto/migrate_from_cupy.md")
TITLES = {
    "convolution with search": "convolution_with_search",
    "LSTM forward": "lstm_forward",
    "small network": "small_network",
}
# functions that give no status to look at
UNCHECKED = {
    "cudnnGetVersion",
    "cudnnGetErrorString",
    "cudnnGetLastErrorString",
    "cudaGetErrorString",
}


def ramp(shape, start):
    """Return the values that all programs fill arrays with, from their description alone."""
    count = int(np.prod(shape))
    return np.array([((7 * i + start) % 13 - 6) / 8 for i in range(count)]).reshape(shape)


def told(values):
    flat = values.ravel()
    checksum = sum((i % 5 + 1) * value for i, value in enumerate(flat.tolist()))
    three = " ".join(f"{flat[i]:.6f}" for i in (0, flat.size // 2, flat.size - 1))
    return f"{checksum:.6f}", three


def expected_convolution():
    y = onnx_convolution(ramp((4, 8, 28, 28), 3), ramp((16, 8, 3, 3), 5), (1, 1), (1, 1), (1, 1))
    checksum, values = told(y)
    return f"shape 4 16 28 28\nchecksum {checksum}\nvalues {values}\n"


def expected_lstm():
    parts = [
        (f"layer{layer}.{direction}.{kind}.{gate}", 8, 8 if kind == "recurrent" else (5, 16)[layer])
        for layer in (0, 1)
        for direction in ("forward", "backward")
        for kind in ("input", "recurrent")
        for gate in "ifgo"
    ]
    weights = {}
    for number, (name, rows, columns) in enumerate(parts):
        weights[name] = ramp((rows, columns), 2 * number)
        weights[f"{name}.bias"] = ramp((rows,), 2 * number + 1)
    result = onnx_rnn("lstm", weights, ramp((6, 3, 5), 3), lengths=[6, 4, 2])
    lines = []
    for name, values in zip(("y", "hy", "cy"), result, strict=True):
        checksum, three = told(values)
        lines.append(f"{name} checksum {checksum} values {three}\n")
    return "".join(lines)


def expected_network():
    y = onnx_convolution(
        ramp((4, 3, 16, 16), 3), ramp((8, 3, 3, 3), 5), (1, 1), (1, 1), (1, 1)
    ) + ramp((1, 8, 1, 1), 1)
    pooled = np.maximum(y, 0).reshape(4, 8, 8, 2, 8, 2).max((3, 5))
    scores = pooled.reshape(4, -1) @ ramp((10, 8 * 8 * 8), 2).T / 64 + ramp((1, 10), 4)
    lines = (("pooled", pooled), ("scores", scores), ("odds", softmax(scores, axis=1)))
    return "".join(
        f"{name} checksum {told(values)[0]} values {told(values)[1]}\n" for name, values in lines
    )


EXPECTED = {
    "convolution_with_search": expected_convolution,
    "lstm_forward": expected_lstm,
    "small_network": expected_network,
}


@pytest.mark.processes
@pytest.mark.parametrize("name", NAMES)
def test_the_program_is_right_and_prints_what_the_page_shows(name):
    printed = run_python(name, "emulated")
    assert_same_results(printed, EXPECTED[name]())
    output = FROM_C.in_language("text")[NAMES.index(name)].text
    assert_same_results(printed, output)


# ---------------------------------------------------------------- lines


def lines_of_c(path: Path) -> int:
    """Count the lines with code."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
    return sum(bool(line.strip()) for line in code.splitlines())


def lines_of_python(path: Path) -> int:
    """Count the lines with code; a docstring is none."""
    text = path.read_text()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))
            and ast.get_docstring(node) is not None
        ):
            docstrings.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(
        bool(line.split("#")[0].strip()) and number not in docstrings for number, line in lines
    )


def test_lines_are_as_many_as_the_page_says():
    rows = re.findall(r"^\| ([\w ]+) \| (\d+) \| (\d+) \|$", FROM_C.path.read_text(), re.MULTILINE)
    assert [title for title, _, _ in rows] == [*TITLES]
    for title, in_c, in_python in rows:
        name = TITLES[title]
        assert int(in_c) == lines_of_c(FOLDER / f"{name}.c")
        assert int(in_python) == lines_of_python(FOLDER / f"{name}.py")


def test_nothing_is_said_to_lack_a_wrapper_that_has_one():
    """Of the C functions, and of CuPy's whose names are ours."""
    wrapped = {row.name for row in load("coverage_table").rows() if row.names}
    left = FROM_CUPY.path.read_text().partition("These have no wrapper here")[2].partition("## ")[0]
    words = set(re.findall(r"`(\w+)`", left))
    assert words
    assert words & wrapped == set()
    assert words & set(dnn.__all__) == set()
    (other_names,) = re.findall(r"^\| any other: (.*?) \|", FROM_C.path.read_text(), re.M)
    assert set(re.findall(r"`(\w+)`", other_names)) & wrapped == set()


def test_every_layer_has_a_row():
    """In the table of C functions; what needs no row says none."""
    text = FROM_C.path.read_text()
    assert [
        op.function for op in OPERATIONS.values() if op.writes and f"`{op.function}`" not in text
    ] == []


# ---------------------------------------------------------------- the sources


def test_the_page_shows_the_files_themselves():
    text = FROM_C.path.read_text()
    assert text.count("literalinclude") == 2 * len(NAMES)
    includes = re.findall(
        r"^```\{literalinclude\} (\S+)\n:language: (\w+)\n```$", text, re.MULTILINE
    )
    languages = {"c": "c", "py": "python"}
    expected = [
        (FOLDER / f"{name}.{ending}", language)
        for name in NAMES
        for ending, language in languages.items()
    ]
    assert [
        ((FROM_C.path.parent / path).resolve(), language) for path, language in includes
    ] == expected
    assert {path.stem for path in FOLDER.iterdir() if path.is_file()} == {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_c_program_looks_at_every_status(name):
    code = re.sub(r"/\*.*?\*/", "", (FOLDER / f"{name}.c").read_text(), flags=re.DOTALL)
    code = re.sub(
        r"^#define.*?[^\\]\n", "", code, flags=re.DOTALL | re.MULTILINE
    )  # the macros that look
    called = re.findall(r"(\w*\(?)\b(cudnn[A-Z]\w+|cuda[A-Z]\w+)\(", code)
    assert len(called) > 20
    for before, function in called:
        if function not in UNCHECKED:
            assert before == ("CUDNN(" if function.startswith("cudnn") else "CUDA("), function


@pytest.mark.parametrize("name", NAMES)
def test_the_c_program_calls_what_cudnn_9_has_had_from_the_first(name):
    called = set(re.findall(r"\b(cudnn[A-Z]\w+)\(", (FOLDER / f"{name}.c").read_text()))
    assert len(called) > 10
    for function in called:
        assert FUNCTIONS[function].since in (None, "9.0.0"), function


def test_what_the_c_program_makes_it_destroys():
    for name in NAMES:
        code = (FOLDER / f"{name}.c").read_text()
        creations, destructions = (
            re.findall(rf"\bcudnn{verb}(\w*)\(&?(\w+)\)", code) for verb in ("Create", "Destroy")
        )
        if (
            "static cudnnTensorDescriptor_t tensor" in code
        ):  # which makes them, and arrays of them are destroyed and freed
            assert {kind for kind, _ in creations} == {kind for kind, _ in destructions}
            assert "cudaFree(arrays[i])" in code
            continue
        assert sorted(creations) == sorted(destructions)
        allocated = re.findall(r"cudaMalloc\((?:\(void \*\*\))?&(\w+)", code)
        freed = re.findall(r"cudaFree\((\w+)\)", code)
        assert allocated
        if "copy_to_device" in code:  # it allocates for x and w
            allocated = [*(part for part in allocated if part != "device"), "x_data", "w_data"]
        assert sorted(allocated) == sorted(freed)


# ---------------------------------------------------------------- what the tables name


def table_rows(page: Page) -> list[tuple[str, str]]:
    """Return the rows of tables with two columns, heads included."""
    return re.findall(r"^\| (.+?) \| (.+) \|$", page.path.read_text(), re.MULTILINE)


def names_in(text: str) -> list[str]:
    """Return the C names that are set as code."""
    return re.findall(r"`(cudnn[A-Z]\w+)", text)


def test_c_functions_of_the_tables_exist_or_are_gone():
    before, after = FROM_C.path.read_text().split("| in older C |")
    present, absent = names_in(before), names_in(after[: after.index("\n## ")])
    assert len(present) > 40
    for name in present:
        assert name in FUNCTIONS or hasattr(types, name), name
    assert len(absent) > 15
    for name in absent:
        assert name not in FUNCTIONS, name


def test_c_functions_of_the_cupy_page_exist():
    names = names_in(FROM_CUPY.path.read_text())
    assert names  # the others have wrappers
    for name in names:
        assert name in FUNCTIONS or hasattr(types, name), name


def test_calls_in_tables_have_the_arguments_that_a_function_takes():
    """Code within a line does not run: its arguments are bound to the signature alone."""
    count = 0
    for path in (ROOT / "docs").rglob("*.md"):
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for code in re.findall(r"`(dnn\.[^`\n]+)`", text):
            try:
                calls = [call for call in ast.walk(ast.parse(code)) if isinstance(call, ast.Call)]
            except SyntaxError:  # an excerpt
                continue
            for call in calls:
                function = getattr(dnn, ast.unparse(call.func).removeprefix("dnn."), None)
                is_cut = any(ast.unparse(argument) == "..." for argument in call.args)
                if function is None or is_cut:
                    continue
                keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
                inspect.signature(function).bind_partial(*call.args, **keywords)
                count += 1
    assert count > 100


@pytest.mark.parametrize("page", [FROM_C, FROM_CUPY], ids=str)
def test_python_names_of_the_tables_are_public(page):
    names = [name for row in table_rows(page) for name in re.findall(r"\bdnn\.(\w+)", row[1])]
    assert len(names) > 10
    for name in names:
        assert name in dnn.__all__, name


def test_every_function_that_the_c_programs_call_is_in_the_table():
    """So that whoever ports one of them finds all of it."""
    names = {name for row in table_rows(FROM_C) for name in names_in(row[0])}
    for name in NAMES:
        called = set(re.findall(r"\b(cudnn[A-Z]\w+)\(", (FOLDER / f"{name}.c").read_text()))
        missing = called - names
        assert not missing


def test_every_descriptor_is_created_and_destroyed_in_the_table():
    names = {name for row in table_rows(FROM_C) for name in names_in(row[0])}
    without_class = re.compile("FusedOps")  # only `handle.api` reaches them
    descriptors = {
        name
        for name in FUNCTIONS
        if re.match("cudnn(Create|Destroy)", name) and not without_class.search(name)
    }
    assert len(descriptors) > 30
    assert descriptors - names == set()
