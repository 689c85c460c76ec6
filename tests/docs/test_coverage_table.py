"""The table of all C functions, and the docstrings that it is made of, held against the sources."""

from __future__ import annotations

import re

import pytest
from helpers.extensions import load

import cudnnlite as dnn
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite.devices.device_choice import get_device
from cudnnlite.problems.catalogue import OPERATIONS
from cudnnlite.raw import types

table = load("coverage_table")


@pytest.fixture(scope="module")
def rows_by_name():
    """The rows of the table, which are read from all sources."""
    return {row.name: row for row in table.rows()}


@pytest.fixture(scope="module")
def documented():
    """The public names by the C function that their docstrings name."""
    return table.documented()


def test_what_the_package_calls_is_in_a_public_docstring(documented):
    assert {
        name: modules for name, modules in table.called().items() if name not in documented
    } == {}


def test_what_a_public_docstring_names_as_its_own_is_called(documented):
    assert {name: where for name, where in documented.items() if name not in table.called()} == {}


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


def test_what_is_wrapped_used_inside_or_raw_is_what_the_sources_call(rows_by_name):
    assert {row.use for row in rows_by_name.values()} == {table.WRAPPED, table.INSIDE, table.RAW}
    page = table.page()
    for name, row in rows_by_name.items():
        assert (row.use == table.RAW) == (name not in table.called()) == (row.names == ()), name
        assert f"| `{name}` |" in page
    for name, operation in OPERATIONS.items():
        row = rows_by_name[operation.function]
        assert row.use == table.WRAPPED, name
        if hasattr(dnn, name):
            assert name in row.names
        for function in filter(None, (operation.workspace, operation.reserve)):
            assert rows_by_name[function].use == table.INSIDE, function
    assert rows_by_name["cudnnCreate"].use == rows_by_name["cudnnRNNForward"].use == table.WRAPPED
    assert (
        rows_by_name["cudnnGetRNNTempSpaceSizes"].use
        == rows_by_name["cudnnOpsVersionCheck"].use
        == table.INSIDE
    )
    assert rows_by_name["cudnnReorderFilterAndBias"].use == table.RAW
    assert (
        sum(count for use, count, *_ in table.totals([*rows_by_name.values()]) if use != "all")
        == len(FUNCTIONS)
        == 239
    )


def test_there_is_a_row_for_every_function(rows_by_name):
    assert set(rows_by_name) == set(FUNCTIONS)
    assert {row.header for row in rows_by_name.values()} == set(table.HEADERS)
    row = rows_by_name["cudnnConvolutionForward"]
    assert (row.header, row.since, row.deprecated) == ("cnn", "9.0.0", "9.0.0")
    assert {"convolution_forward", "convolution_forward.plan"} <= set(row.names)


def test_emulated_functions_are_marked(rows_by_name):
    api = get_device("emulated").api  # what it does about each function, as it is when it is bound
    for row in rows_by_name.values():
        record = FUNCTIONS[row.name]
        is_emulated = row.name in table.emulated()
        assert (row.without_gpu == table.EMULATED) == is_emulated
        assert (row.without_gpu == table.GPU) == (record.needs_device and not is_emulated)
    assert rows_by_name["cudnnRNNForward"].without_gpu == table.EMULATED
    assert rows_by_name["cudnnReorderFilterAndBias"].without_gpu == table.GPU
    assert rows_by_name["cudnnCreatePoolingDescriptor"].without_gpu == table.LIBCUDNN
    with pytest.raises(dnn.NotSupportedError, match="does not implement cudnnReorderFilterAndBias"):
        api.cudnnReorderFilterAndBias(None, None, 0, None, None, 0, None, None)
    version = api.cudnnGetMaxDeviceVersion()
    assert version > 0


def test_everything_wrapped_works_without_a_gpu(rows_by_name):
    assert {
        row.name for row in rows_by_name.values() if row.names and row.without_gpu == table.GPU
    } == set()


def test_the_totals_add_up(rows_by_name, documented):
    wrapped, inside, raw, everything = table.totals(list(rows_by_name.values()))
    assert everything[1] == len(FUNCTIONS)
    for use, number, *kinds in (wrapped, inside, raw, everything):
        assert number == sum(kinds), use
    assert [sum(column) for column in zip(wrapped[1:], inside[1:], raw[1:], strict=True)] == list(
        everything[1:]
    )
    assert wrapped[1] + inside[1] == len(documented) >= 60


def test_the_page_has_every_row_and_the_totals(rows_by_name):
    page = table.page()
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == list(rows_by_name)
    for name, cells in rows:
        assert cells.count("|") == 3
        assert (cells.split("|")[0].strip() == "raw") == (not rows_by_name[name].names)
    for use, *numbers in table.totals(list(rows_by_name.values())):
        assert f"| {use} | {' | '.join(map(str, numbers))} |" in page


def test_the_page_in_the_repository_is_up_to_date():
    assert table.PAGE.read_text() == table.page(), "run python docs/_ext/coverage_table.py"


def test_the_built_page_has_the_same_rows_with_links():
    linked = re.sub(r"\{py:obj\}`([\w.]+) <cudnnlite[\w.]*>`", r"`\1`", table.page(is_built=True))
    linked = re.sub(r"\[(`cudnnlite \w+`)\]\(command_line.md\)", r"\1", linked)
    assert linked == table.page() != table.page(is_built=True)
