"""The table of all C functions, and the docstrings that it is made of, held against the sources."""

from __future__ import annotations

import re

import pytest
from extensions import load

import cudnnlite as dnn
from cudnnlite._raw import types
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite.devices.choice import get_device
from cudnnlite.problems.catalogue import OPERATIONS

table = load("coverage_table")
ROWS = {row.name: row for row in table.rows()}
DOCUMENTED, CALLED = table.documented(), table.called()


def test_what_the_package_calls_is_in_a_public_docstring():
    assert {name: modules for name, modules in CALLED.items() if name not in DOCUMENTED} == {}


def test_what_a_public_docstring_names_as_its_own_is_called():
    assert {name: where for name, where in DOCUMENTED.items() if name not in CALLED} == {}


def test_every_name_in_a_public_docstring_exists():
    places = {
        (where, name)
        for where, doc, _ in table.public_docstrings()
        for name in table.NAME.findall(doc)
    }
    assert len(places) > 100
    assert {
        (where, name)
        for where, name in places
        if name not in FUNCTIONS and not hasattr(types, name)
    } == set()


def test_what_is_wrapped_used_inside_or_raw_is_what_the_sources_call():
    assert {row.use for row in ROWS.values()} == {table.WRAPPED, table.INSIDE, table.RAW}
    page = table.page()
    for name, row in ROWS.items():
        assert (row.use == table.RAW) == (name not in CALLED) == (row.names == ()), name
        assert f"| `{name}` |" in page
    for name, operation in OPERATIONS.items():
        row = ROWS[operation.function]
        assert row.use == table.WRAPPED, name
        if hasattr(dnn, name):
            assert name in row.names
        for function in filter(None, (operation.workspace, operation.reserve)):
            assert ROWS[function].use == table.INSIDE, function
    assert ROWS["cudnnCreate"].use == ROWS["cudnnRNNForward"].use == table.WRAPPED
    assert ROWS["cudnnGetRNNTempSpaceSizes"].use == ROWS["cudnnOpsVersionCheck"].use == table.INSIDE
    assert ROWS["cudnnReorderFilterAndBias"].use == table.RAW
    assert (
        sum(count for use, count, *_ in table.totals([*ROWS.values()]) if use != "all")
        == len(FUNCTIONS)
        == 239
    )


def test_there_is_a_row_for_every_function():
    assert set(ROWS) == set(FUNCTIONS)
    assert {row.header for row in ROWS.values()} == set(table.HEADERS)
    row = ROWS["cudnnConvolutionForward"]
    assert (row.header, row.since, row.deprecated) == ("cnn", "9.0.0", "9.0.0")
    assert {"convolution_forward", "convolution_forward.plan"} <= set(row.names)


def test_emulated_functions_are_marked():
    api = get_device("emulated").api  # what it does about each function, as it is when it is bound
    for row in ROWS.values():
        record = FUNCTIONS[row.name]
        is_emulated = row.name in table.emulated()
        assert (row.without_gpu == table.EMULATED) == is_emulated
        assert (row.without_gpu == table.GPU) == (record.needs_device and not is_emulated)
    assert ROWS["cudnnRNNForward"].without_gpu == table.EMULATED
    assert ROWS["cudnnReorderFilterAndBias"].without_gpu == table.GPU
    assert ROWS["cudnnCreatePoolingDescriptor"].without_gpu == table.LIBCUDNN
    with pytest.raises(dnn.NotSupportedError, match="does not implement cudnnReorderFilterAndBias"):
        api.cudnnReorderFilterAndBias(None, None, 0, None, None, 0, None, None)
    version = api.cudnnGetMaxDeviceVersion()
    assert version > 0


def test_everything_wrapped_works_without_a_gpu():
    assert {
        row.name for row in ROWS.values() if row.names and row.without_gpu == table.GPU
    } == set()


def test_the_totals_add_up():
    wrapped, inside, raw, everything = table.totals(list(ROWS.values()))
    assert everything[1] == len(FUNCTIONS)
    for use, number, *kinds in (wrapped, inside, raw, everything):
        assert number == sum(kinds), use
    assert [sum(column) for column in zip(wrapped[1:], inside[1:], raw[1:], strict=True)] == list(
        everything[1:]
    )
    assert wrapped[1] + inside[1] == len(DOCUMENTED) >= 60


def test_the_page_has_every_row_and_the_totals():
    page = table.page()
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == list(ROWS)
    for name, cells in rows:
        assert cells.count("|") == 3
        assert (cells.split("|")[0].strip() == "raw") == (not ROWS[name].names)
    for use, *numbers in table.totals(list(ROWS.values())):
        assert f"| {use} | {' | '.join(map(str, numbers))} |" in page


def test_the_page_in_the_repository_is_up_to_date():
    assert table.PAGE.read_text() == table.page(), "run python docs/_ext/coverage_table.py"


def test_the_built_page_has_the_same_rows_with_links():
    linked = re.sub(r"\{py:obj\}`([\w.]+) <cudnnlite[\w.]*>`", r"`\1`", table.page(is_built=True))
    linked = re.sub(r"\[(`cudnnlite \w+`)\]\(command_line.md\)", r"\1", linked)
    assert linked == table.page() != table.page(is_built=True)
