"""The emulated device runs and refuses what an H200 with cuDNN 9.19 ran and refused: 932 recorded combinations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cudnnlite as dnn
from cudnnlite.specs.rnn_rules import why_not

from record_rnn_support import BASE, lengths_of, outcome  # isort: skip  (beside this file)

ROWS = json.loads((Path(__file__).parent / "data" / "rnn_support.json").read_text())["rows"]
LARGEST_RUN, LARGEST_REFUSED = 192, 512  # of larger networks, which take NumPy too long, only what is refused is called
# Recorded before the plan told cuDNN of padding for batch-major data; it refused each algorithm then.
BEFORE_PADDING = {"layout": "batch_major"}


def name(row: list[Any]) -> str:
    return " ".join([row[0], *(f"{key}={value}" for key, value in row[1].items()), row[2]]) if len(row) == 4 else ""


@pytest.fixture(scope="module")
def emulated() -> Any:
    with dnn.Handle("emulated") as handle:
        yield handle


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_the_rule_is_what_was_recorded(row: list[Any]) -> None:
    cell, variant, algorithm, recorded = row
    if variant == BEFORE_PADDING:
        assert [item.split()[-1] for item in recorded] == ["BAD_PARAM", "BAD_PARAM"]
        return
    options = {
        key: value for key, value in (BASE | variant).items() if key not in ("batch", "steps", "lengths", "layout")
    }
    batch, steps = (BASE | variant)["batch"], (BASE | variant)["steps"]
    lengths = lengths_of(variant.get("lengths"), batch, steps)
    full = lengths is None or min(lengths) == steps
    spec, kind = dnn.RNNSpec(cell, **options), dnn.RNNAlgo[algorithm]
    assert bool(why_not(spec, kind, full=full)) == (recorded[0] != "ok")
    if len(recorded) == 3:
        assert bool(why_not(spec, kind, full=full, backward=True)) == (recorded[2] != "ok")


def is_called(row: list[Any]) -> bool:
    most = LARGEST_RUN if "ok" in row[3] else LARGEST_REFUSED
    return row[1] != BEFORE_PADDING and (BASE | row[1])["hidden_size"] <= most


@pytest.mark.parametrize("row", list(filter(is_called, ROWS)), ids=name)
def test_the_outcome_is_what_was_recorded(emulated: dnn.Handle, row: list[Any]) -> None:
    cell, variant, algorithm, recorded = row
    assert outcome(emulated, cell, variant, algorithm) == recorded
