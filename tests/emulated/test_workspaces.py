"""What runs without workspace on the emulated device, against what did on a GPU.

The GPU's part was recorded by tools/record/workspaces.py.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from helpers.extents import ALL, each_extent, rows_of, traits
from test_support import RECORDED as SUPPORT
from test_support import algorithms_of, specs_of

import cudnnlite as dnn
from cudnnlite.emulated.workspaces import needs_workspace
from tools.record import workspaces as record_workspaces
from tools.record.support import CASES

FILE = Path(__file__).parent / "data" / "workspaces.json"
RECORDED = {
    tuple(combination): (table, outcomes)
    for *combination, table, outcomes in json.loads(FILE.read_text())["rows"]
}
every_operation = pytest.mark.parametrize("operation", record_workspaces.RUN)

# The algorithms that ran without workspace on the GPU and need some on the emulated device, and in
# how many of the rows.  Which kernel a GPU takes for them depends on sizes in ways that the
# recordings do not explain.
STRICTER = {
    "forward": {"GEMM": 96, "IMPLICIT_PRECOMP_GEMM": 211},
    "backward_data": {"ALGO_1": 209},
    "backward_filter": {"ALGO_1": 8},
}


def is_stricter(combination):
    """Return whether the emulated device refuses a descriptor call that ran on the GPU.

    In NDHWC cuDNN has a single algorithm, so there is none to fall back to where the emulated
    device needs workspace for it.
    """
    operation, rank, dtype, layout, groups, dilation, _, math = combination
    if (rank, layout) != (5, "last"):
        return False
    if operation == "backward_filter":
        return math == "fma" and dilation == 2  # with other sizes the GPU needed some, too
    if operation == "forward" and groups == 1 and math != "fma":
        return dtype == "bfloat16" or (dtype == "float32" and dilation == 2)
    return False


def rows_of_operation(operation):
    return {key: row for key, row in RECORDED.items() if key[0] == operation}


def names_in(table, *, without_workspace=False):
    return {algorithm for algorithm, _, nbytes in table if not without_workspace or nbytes == 0}


def outcome_of(table):
    """Return what a descriptor call without workspace ends with, for the supported algorithms."""
    if not table:
        return "NotSupportedError"
    return "ok" if names_in(table, without_workspace=True) else "NoAlgorithmError"


def test_the_recording_is_of_the_present_combinations():
    assert set(RECORDED) == set(record_workspaces.combinations())
    assert len(RECORDED) == 1296


@every_operation
def test_algorithms_need_no_less_than_on_the_gpu(operation):
    """The GPU lists an algorithm for each math type; without workspace one of them is enough."""
    stricter, outcomes = Counter(), Counter()
    with dnn.Handle("emulated") as handle:
        for combination, (gpu_table, (_, gpu_outcome, _)) in rows_of_operation(operation).items():
            operands, keywords = record_workspaces.operands_of(handle, combination)
            table = record_workspaces.table_of(handle, operation, operands, keywords)
            assert names_in(table) == names_in(gpu_table), combination
            free = names_in(table, without_workspace=True)
            gpu_free = names_in(gpu_table, without_workspace=True)
            assert free <= gpu_free, combination
            stricter.update(gpu_free - free)
            expected = "NoAlgorithmError" if is_stricter(combination) else gpu_outcome
            assert outcome_of(table) == expected, combination
            outcomes[gpu_outcome, expected] += 1
    assert stricter == STRICTER[operation]
    assert outcomes["ok", "ok"] > 300


@each_extent
@every_operation
def test_calls_without_workspace_end_as_on_the_gpu(operation, extent):
    interfaces = Counter()
    rows = rows_of(rows_of_operation(operation).items(), extent, traits_of)
    with dnn.Handle("emulated") as handle:
        for combination, (_, gpu_outcomes) in rows:
            operands, keywords = record_workspaces.operands_of(handle, combination)
            outcomes = record_workspaces.outcomes_of(handle, operation, operands, keywords)
            expected = list(gpu_outcomes)
            if is_stricter(combination):
                expected[record_workspaces.INTERFACES.index("descriptor")] = "NoAlgorithmError"
            assert outcomes == expected, combination
            interfaces.update(outcomes)
    assert interfaces.total() == len(record_workspaces.INTERFACES) * len(rows)
    assert interfaces["ok"] > len(rows)
    assert len(rows) == 432 or extent != ALL


def traits_of(row):
    """Return each parameter of a convolution with how its calls ended, on the GPU and here."""
    combination, (_, gpu_outcomes) = row
    return traits(combination, gpu_outcomes, is_stricter(combination))


@pytest.mark.parametrize("name", ["convolution_backward_data", "convolution_backward_filter"])
def test_gradients_of_other_sizes_need_no_less_than_on_the_gpu(name):
    """The tables of what a GPU supports have workspaces of further sizes and layouts."""
    compared = Counter()
    for row, results in SUPPORT[name]["rows"]:
        if any(status == "BAD_PARAM" for status, *_ in results):
            continue  # a descriptor was refused, and there are no specs to ask about
        x, w, conv, _ = specs_of(row)
        for algorithm, (status, _, nbytes, *_) in zip(algorithms_of(name), results, strict=False):
            if status != "SUCCESS":
                continue
            assert needs_workspace(algorithm, x, w, conv) or nbytes == 0, (row, algorithm)
            compared[algorithm.name] += 1
    assert compared["ALGO_0"] > 400
    assert compared["ALGO_1"] > 400
    assert {row[0] for row, _ in SUPPORT[name]["rows"]} == set(CASES)
