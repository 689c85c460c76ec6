"""A null pointer or descriptor ends no process: we refuse it, or cuDNN returns an error."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from null_arguments import CASES, run


@pytest.mark.processes
def test_no_null_ends_the_process(device: Any) -> None:
    rows = run(device.kind, 1 if device.kind == "emulated" else 8)
    counts = Counter(row.outcome for row in rows)
    assert len(rows) == len(CASES)
    assert sum(row.other_arguments == "legal" for row in rows) > 300, counts
    assert counts["refused"] > 100, counts
    assert [
        row for row in rows if row.outcome.startswith(("died", "lost")) or "Error:" in row.outcome
    ] == []
