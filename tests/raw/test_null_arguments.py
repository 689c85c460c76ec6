"""A null pointer or descriptor, where C would follow it, ends no process: it is refused, or C says so."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from null_arguments import CASES, run


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_no_null_ends_the_process(device: Any) -> None:
    rows = run(device.kind, 2 if device.kind == "emulated" else 8)
    assert sum(legal for _, _, legal, _ in rows) > 300  # beside the arguments of a legal call
    assert len(rows) == len(CASES)
    told = Counter(outcome.partition(":")[0] for *_, outcome in rows)
    assert [row for row in rows if "died" in row[3] or "lost" in row[3] or "Error:" in row[3]] == []
    assert told["refused"] > 100, told
