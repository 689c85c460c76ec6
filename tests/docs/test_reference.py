"""What the pages of the reference state themselves is true of the package.

That is enums, the tree of errors and the command line.
"""

from __future__ import annotations

import enum
import inspect
import re
from pathlib import Path

import pytest
from helpers.extensions import load

import cudnnlite as dnn
from cudnnlite._raw import check
from cudnnlite._raw.enums import C_MEMBERS
from cudnnlite.dtypes import ARRAY_DTYPES, dtype_name, parse_dtype
from cudnnlite.workbench.doctor.environment import VARIABLES

PUBLIC = load("public_names").things()
PAGES = Path(__file__).parents[2] / "docs" / "reference"
# The pages with tables of enums.
ENUM_PAGES = [Path(page).name for page in load("code_links").ENUM_PAGES]
ENUMS = "\n".join((PAGES / f"{page}.md").read_text(encoding="utf-8") for page in ENUM_PAGES)
ERRORS = (PAGES / "errors.md").read_text(encoding="utf-8")
PUBLIC_ENUMS = [
    name for name, kind in PUBLIC.items() if inspect.isclass(kind) and issubclass(kind, enum.Enum)
]


def section(name):
    """The part of the page of enums that is about one of them."""
    return re.search(rf"^##+ {name}\n(.*?)(?=^#+ |\Z)", ENUMS, re.MULTILINE | re.DOTALL)[1]


def rows(text):
    """The cells of the tables in a text, without their headings."""
    lines = [line.strip("| ").split(" | ") for line in text.split("\n") if line.startswith("| ")]
    return [
        cells
        for cells in lines
        if cells[0] not in ("member", "status") and not cells[0].startswith("---")
    ]


@pytest.mark.parametrize("name", PUBLIC_ENUMS)
def test_the_table_of_an_enum_is_the_enum(name):
    kind = PUBLIC[name]
    table = rows(section(name))
    c_names = dict(zip(kind.__members__, C_MEMBERS[kind], strict=True))
    assert [(cells[0].strip("`"), cells[1].strip("`"), int(cells[2])) for cells in table] == sorted(
        ((member.name, c_names[member.name], int(member)) for member in kind),
        key=lambda row: row[2],
    )
    assert all(len(cells) == 4 and cells[3] for cells in table)  # each with its meaning


@pytest.mark.parametrize("name", PUBLIC_ENUMS)
def test_the_page_of_enums_has_or_links_each(name):
    page = (PAGES / "enums.md").read_text(encoding="utf-8")
    links = (f"[{name}]({other}.md#{name.lower()})" for other in ENUM_PAGES)
    assert f"\n## {name}\n" in page or any(link in page for link in links)


def test_older_names_of_statuses_are_there():
    aliases = {
        name: int(member)
        for name, member in dnn.enums.Status.__members__.items()
        if name != member.name
    }
    assert aliases
    assert dict(re.findall(r"`(\w+)` ?\n?\((\d+)\)", section("Status"))) == {
        k: str(v) for k, v in aliases.items()
    }


def test_the_guide_lists_every_dtype_of_arrays():
    guide = PAGES.parent / "guide" / "index.md"
    text = " ".join(guide.read_text(encoding="utf-8").split())
    (sentence,) = re.findall(r"The data types are (.*?) in layout NCHW_VECT_C", text)
    listed = re.findall(r"\w*\d\w*", sentence)
    assert sorted(listed) == sorted(map(dtype_name, ARRAY_DTYPES))


def test_the_dtypes_of_the_table_are_those_that_are_taken():
    for member, _, _, meaning in rows(section("DataType")):
        kind = dnn.DataType[member.strip("`")]
        if meaning.startswith("none"):
            with pytest.raises(dnn.ArgumentError):
                parse_dtype(kind)
        else:
            assert parse_dtype(meaning.partition(":")[0]) == kind


def data_layout(name):
    return (
        dnn.specs.RNNDataSpec((4, 1), [4], layout=name)
        if name == "packed"
        else dnn.specs.RNNDataSpec((4, 4, 1), layout=name)
    )


@pytest.mark.parametrize(
    ("name", "member_of"),
    [
        ("MathType", lambda word: dnn.ConvolutionSpec(math_type=word).math_type),
        ("RNNBiasMode", lambda word: dnn.RNNSpec("lstm", 4, 4, bias=word).bias),
        ("RNNDataLayout", lambda word: data_layout(word).layout),
    ],
)
def test_the_other_names_of_members_are_taken(name, member_of):
    matches = {
        member.strip("`"): re.match(r'Also `"(\w+)"`', meaning)
        for member, _, _, meaning in rows(section(name))
    }
    synonyms = {match[1]: member for member, match in matches.items() if match}
    assert len(synonyms) >= 2
    for word, member in synonyms.items():
        assert member_of(word) == PUBLIC[name][member]


def tree(kind, prefix=""):
    """Lines as in the page, of the classes below one, in the order of the module."""
    ours = [value for value in vars(dnn.errors).values() if inspect.isclass(value)]
    children = [kind_of_error for kind_of_error in ours if kind in kind_of_error.__bases__]
    for number, child in enumerate(children):
        last = number == len(children) - 1
        other_bases = [base for base in child.__bases__ if base is not kind]
        remarks = [
            f" ({base.__name__})" if base not in ours else f", which is a {base.__name__} too"
            for base in other_bases
        ]
        yield f"{prefix}{'└── ' if last else '├── '}{child.__name__}{''.join(remarks)}"
        yield from tree(child, prefix + ("    " if last else "│   "))


def normal(lines):
    """Without what only the order of siblings decides: branches are compared as paths."""
    path, paths = [], set()
    for line in lines:
        branch, name = re.fullmatch(r"((?:│   |    )*(?:├── |└── )?)(.*)", line).groups()
        depth = len(branch) // 4
        path = [*path[:depth], name]
        paths.add("/".join(path))
    return paths


def test_the_tree_of_errors_is_the_tree():
    lines = (
        re.search(r"^```text\n(CudnnliteError\n.*?)^```", ERRORS, re.MULTILINE | re.DOTALL)[1]
        .rstrip("\n")
        .split("\n")
    )
    assert normal(lines) == normal(["CudnnliteError", *tree(dnn.CudnnliteError)])


def test_the_exceptions_of_statuses_are_as_the_table_says():
    kinds = {}
    for statuses, exception, _ in rows(ERRORS):
        numbers = [int(number) for number in re.findall(r"\d+", statuses)]
        low, high = (numbers[0], numbers[-1])
        kinds[range(low, high + 1)] = PUBLIC[exception.strip("`")]
    assert len(kinds) == 6
    for status in dnn.enums.Status:
        if status:
            fitting = [kind for numbers, kind in kinds.items() if status in numbers]
            expected = (
                dnn.errors.AllocationError if dnn.errors.AllocationError in fitting else fitting[0]
            )
            assert type(check.status_error("cudnnCreate", status, "", None)) is expected


COMMANDS = load("command_help")


@pytest.mark.parametrize("words", COMMANDS.commands(), ids=" ".join)
def test_every_command_is_on_the_page_of_the_command_line(words):
    page = (PAGES / "command_line.md").read_text(encoding="utf-8")
    name = " ".join(words)
    section = re.search(
        rf"^##+ cudnnlite {name}\n(.*?)(?=^##+ |\Z)", page, re.MULTILINE | re.DOTALL
    )
    assert f"```{{command-options}} {name}\n```" in section[1]
    command = COMMANDS.commands()[words]
    is_group = hasattr(command, "commands")
    assert is_group or f"$ cudnnlite {name}" in section[1]  # tests/docs/test_commands.py runs it


def test_the_tables_of_options_are_the_commands():
    assert len(COMMANDS.commands()) > 10
    anchors = []
    for words, command in COMMANDS.commands().items():
        panels = COMMANDS.panels_of(command)
        rows_of_command = [row for rows in panels.values() for row in rows]
        assert len(rows_of_command) == len(command.params)
        anchors += [
            COMMANDS.anchor_of(words, name) for row in rows_of_command for name in row.names
        ]
    assert len(set(anchors)) == len(anchors)
    autotune = COMMANDS.commands()[("autotune",)]
    assert COMMANDS.usage_of(("autotune",), autotune) == "cudnnlite autotune [OPTIONS]"
    panels = COMMANDS.panels_of(autotune)
    assert {"One convolution", "Recurrent networks", "Where"} <= set(panels)
    options = {row.names[0]: row for rows in panels.values() for row in rows}
    assert (options["--input"].value, options["--input"].default) == ("NxCxHxW", "")
    assert options["--objective"].default == "latency"
    assert options["--explain"].value == ""
    assert "--explain" in options["--explain"].names
    assert "-v" in options["--explain"].names
    trace = COMMANDS.commands()[("trace",)]
    assert COMMANDS.usage_of(("trace",), trace) == "cudnnlite trace [OPTIONS] SCRIPT ARGUMENTS"


def test_every_option_has_a_help_sentence():
    without = [
        f"{' '.join(words)} {row.names[0]}: {row.help!r}"
        for words, command in COMMANDS.commands().items()
        for rows_of_panel in COMMANDS.panels_of(command).values()
        for row in rows_of_panel
        if not re.fullmatch(r"\S.* .*[.)]", row.help, re.DOTALL)
    ]
    assert not without


@pytest.mark.processes
def test_the_exit_codes_are_those_of_the_command_line(commands, tmp_path, monkeypatch):
    page = (PAGES / "command_line.md").read_text(encoding="utf-8")
    stated = {int(cells[0]) for cells in rows(page) if cells[0].isdigit()}
    from cudnnlite.cli import common

    assert stated == {
        0,
        1,
        common.USAGE,
        common.SOME_FAILED,
        common.INTERRUPTED,
        common.CLOSED_PIPE,
    }
    monkeypatch.setenv("CUDNNLITE_DEVICE", "emulated")
    monkeypatch.setenv("CUDNNLITE_TUNING_CACHE", str(tmp_path / "none"))
    processes = [
        commands.run(*words)
        for words in (
            ["cache", "show"],
            ["cache", "merge", str(tmp_path / "missing")],
            ["cache", "shwo"],
        )
    ]
    assert [process.returncode for process in processes] == [0, 1, 2]


def test_every_operation_is_documented_with_its_functions():
    extension = load("operation_functions")
    pages = "\n".join(path.read_text(encoding="utf-8") for path in PAGES.glob("*.md"))
    operations = extension.operations()
    assert len(operations) > 35
    names = re.findall(
        r"^\.\. autofunction:: cudnnlite\.(\w+)\n\n\.\. operation-functions:: \1$",
        pages,
        re.MULTILINE,
    )
    assert sorted(names) == sorted(name for name in operations if extension.functions_of(name))
    assert pages.count(".. operation-functions::") == len(names) > 30
    assert "autofunction:: cudnnlite.convolution_forward.find" in "".join(
        extension.directives("convolution_forward")
    )
    for name, operation in operations.items():
        for function_name in {"plan", "problem", "heuristic", "find"} - set(
            extension.functions_of(name)
        ):
            refusal = getattr(operation, function_name, None)
            assert refusal is None or "Raise ArgumentError" in refusal.__doc__


def test_operations_and_their_functions_are_shown_with_the_signature_that_they_state():
    pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install 'cudnnlite[dev]'")
    extension = load("operation_functions")
    signatures = [
        extension.own_signature(None, "function", "", one, None, "(*args)", "Any")
        for one in (dnn.pooling_forward, dnn.pooling_forward.plan, dnn.pooling_forward.problem)
    ]
    assert [text.partition(",")[0] for text, _ in signatures] == [
        "(handle: Handle",
        "(handle: Handle",
        "(x: Operand",
    ]
    assert [returned for _, returned in signatures] == ["DeviceArray", "OperationPlan", "Problem"]
    assert extension.own_signature(None, "function", "", dnn.pack_sequences, None, "", "") is None
    assert extension.own_signature(None, "class", "", dnn.Handle, None, "", "") is None


def test_the_environment_variables_are_those_that_info_shows():
    page = (PAGES / "environment.md").read_text(encoding="utf-8")
    names = [name for cells in rows(page) for name in re.findall(r"`([A-Z0-9_]+)`", cells[0])]
    assert sorted(names) == sorted(VARIABLES)
