"""The emulated device runs and refuses what an H200 with cuDNN 9.19 ran and refused.

932 combinations were recorded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.extents import ALL, SAMPLE, each_extent, rows_of, traits

import cudnnlite as dnn
from cudnnlite.specs.rnn_rules import why_not

from tools.record.rnn_support import BASE, lengths_of, outcome  # isort: skip  (beside this file)

ROWS = json.loads((Path(__file__).parent / "data" / "rnn_support.json").read_text())["rows"]
# Larger networks take NumPy too long; of these, only what is refused is called.
LARGEST_RUN = 192
LARGEST_REFUSED = 512
# These rows are from before the plan enabled padding for batch-major data: each algorithm refused.
BEFORE_PADDING = {"layout": "batch_major"}
GROUPS = sorted({(row[0], row[2]) for row in ROWS})


def rule(cell: str, variant: dict[str, Any], algorithm: str) -> list[bool]:
    """Return whether our rule refuses a network, and its training."""
    problem = BASE | variant
    batch, steps = problem["batch"], problem["steps"]
    lengths = lengths_of(problem.get("lengths"), batch, steps)
    full = lengths is None or min(lengths) == steps
    options = {
        key: value
        for key, value in problem.items()
        if key not in ("batch", "steps", "lengths", "layout")
    }
    spec, kind = dnn.RNNSpec(cell, **options), dnn.enums.RNNAlgo[algorithm]
    return [bool(why_not(spec, kind, full=full, backward=backward)) for backward in (False, True)]


def test_the_rule_is_what_was_recorded() -> None:
    before = [row[3] for row in ROWS if row[1] == BEFORE_PADDING]
    assert {item.split()[-1] for recorded in before for item in recorded} == {"BAD_PARAM"}
    for cell, variant, algorithm, recorded in ROWS:
        if variant != BEFORE_PADDING:
            refused = [recorded[at] != "ok" for at in (0, 2) if at < len(recorded)]
            assert rule(cell, variant, algorithm)[: len(refused)] == refused, (
                cell,
                variant,
                algorithm,
            )


def is_called(row: list[Any]) -> bool:
    largest = LARGEST_RUN if "ok" in row[3] else LARGEST_REFUSED
    return row[1] != BEFORE_PADDING and (BASE | row[1])["hidden_size"] <= largest


def traits_of(row: list[Any]) -> list[str]:
    """Return the cell, and each option of a network with the algorithm and how its calls ended."""
    cell, variant, algorithm, recorded = row
    return [
        f"{cell} by {algorithm}",
        *traits(sorted(variant.items(), key=str), algorithm, recorded),
    ]


SAMPLES = {extent: rows_of(filter(is_called, ROWS), extent, traits_of) for extent in (SAMPLE, ALL)}


@each_extent
@pytest.mark.parametrize(("cell", "algorithm"), GROUPS)
def test_the_outcome_is_what_was_recorded(cell: str, algorithm: str, extent: str) -> None:
    rows = [row for row in SAMPLES[extent] if (row[0], row[2]) == (cell, algorithm)]
    assert rows
    with dnn.Handle("emulated") as handle:
        for _, variant, _, recorded in rows:
            assert outcome(handle, cell, variant, algorithm) == recorded, variant
