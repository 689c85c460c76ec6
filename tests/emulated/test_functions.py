"""The table of emulated functions: it lists every emulation, and a search for a C name finds it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import cudnnlite.emulated
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite.emulated.functions import (
    EMULATED_OPERATIONS,
    EMULATIONS,
    IMPLEMENTATIONS,
    OPERATION_EMULATIONS,
)
from cudnnlite.emulated.operation_call import OperationEmulation
from cudnnlite.emulated.registry import Emulation
from cudnnlite.problems.catalogue import OPERATIONS

FOLDER = Path(cudnnlite.emulated.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
# These operations are emulated by C functions that read their arguments by hand.
BY_HAND = {name for name in OPERATIONS if name.startswith("convolution_")} | {"rnn_forward"}


def documented_functions():
    """Yield C function and docstring of each emulation."""
    for emulation in EMULATIONS:
        yield emulation.function, emulation.implementation.__doc__
    for emulation in OPERATION_EMULATIONS:
        yield emulation.operation.function, emulation.compute.__doc__
        if emulation.operation.workspace:
            yield emulation.operation.workspace, emulation.workspace.__doc__


def test_every_emulation_is_listed_once():
    emulations = [*EMULATIONS, *OPERATION_EMULATIONS]
    defined = [
        value
        for name in MODULES
        for value in vars(import_module(f"cudnnlite.emulated.{name}")).values()
        if isinstance(value, (Emulation, OperationEmulation))
    ]
    assert {id(emulation) for emulation in emulations} == {id(emulation) for emulation in defined}
    assert len(emulations) == len({id(emulation) for emulation in emulations})


def test_no_c_function_is_emulated_twice():
    by_hand = [emulation.function for emulation in EMULATIONS]
    declared = {function for function, _ in documented_functions()} - set(by_hand)
    assert len(by_hand) == len(set(by_hand))
    assert len(IMPLEMENTATIONS) == len(by_hand) + len(declared)
    assert len(EMULATED_OPERATIONS) == len(OPERATION_EMULATIONS)
    assert set(IMPLEMENTATIONS) <= set(FUNCTIONS)


def test_every_declared_operation_is_emulated():
    emulated = {operation.name for operation in EMULATED_OPERATIONS}
    assert emulated == {*OPERATIONS} - BY_HAND | {"convolution_backward_bias"}
    assert {OPERATIONS[name].function for name in BY_HAND} <= set(IMPLEMENTATIONS)


def test_docstrings_begin_with_the_c_function():
    for function, docstring in documented_functions():
        assert docstring.startswith(f"`{function}`: "), function


@pytest.mark.parametrize("function", IMPLEMENTATIONS)
def test_a_search_for_a_c_function_finds_one_module(function):
    name = re.compile(rf"\b{function}\b")
    modules = [module for module in MODULES if name.search((FOLDER / f"{module}.py").read_text())]
    assert len(modules) == 1, modules


def test_emulations_of_declarations_are_in_the_module_of_that_name():
    for operation, emulation in EMULATED_OPERATIONS.items():
        module = emulation.compute.__module__.rpartition(".")[2]
        declarations = import_module(f"cudnnlite.problems.{module}")
        assert operation in vars(declarations).values(), operation


# Imports each module that is named, as the first of its folder.
IMPORT_ALONE = """
import sys
from importlib import import_module

for name in sys.argv[1:]:
    for imported in [*sys.modules]:
        if imported.startswith("cudnnlite.emulated"):
            del sys.modules[imported]
    import_module(f"cudnnlite.emulated.{name}")
"""


@pytest.mark.processes
def test_every_module_can_be_imported_first():
    subprocess.run([sys.executable, "-c", IMPORT_ALONE, *MODULES], check=True)


@pytest.mark.processes
def test_importing_the_folder_imports_no_module():
    code = (
        "import sys, cudnnlite.emulated\n"
        "print([name for name in sys.modules if name.startswith('cudnnlite.emulated.')])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert process.stdout.strip() == "[]"
