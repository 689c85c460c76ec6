"""What a plan chooses, why it passes others over, and what is refused, as it was recorded.

`tools/record/choices.py` records a device; a device or a version without a recording is told as an
expected failure.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import cudnnlite as dnn
from tools.record.choices import FOLDER, LISTED, Case, cases, file_of, listing, record

CASES: dict[str, Case] = dict(cases())
# A test takes the cases whose names begin alike.
GROUPS = sorted({name.split(",")[0] for name in CASES})


@lru_cache(maxsize=2)
def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def recorded(handle: dnn.Handle) -> dict[str, Any]:
    """Return the recording of the device and its version of cuDNN."""
    path = file_of(handle)
    if not path.exists():
        pytest.xfail(f"no {path.name}: python -m tools.record.choices --device ... records it")
    return read(path)


def plain(value: Any) -> Any:
    """Return what JSON makes of a value."""
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("group", GROUPS)
def test_the_choice_is_that_of_the_recording(handle: dnn.Handle, group: str) -> None:
    rows = recorded(handle)["rows"]
    for name, case in CASES.items():
        if name.split(",")[0] == group:
            assert plain(record(handle, case)) == rows[name], name


@pytest.mark.parametrize("name", LISTED)
def test_the_tuner_lists_the_candidates_of_the_recording(name: str) -> None:
    """On a GPU it follows from the times which candidates are tried."""
    with dnn.Handle("emulated") as handle:
        assert plain(listing(handle, CASES[name])) == recorded(handle)["listings"][name]


def test_every_recording_has_every_case() -> None:
    files = [*FOLDER.glob("*.json")]
    assert files
    for path in files:
        assert [*read(path)["rows"]] == [*CASES], path.name
        listed = LISTED if path.name.startswith("emulated") else ()
        assert [*read(path)["listings"]] == [*listed], path.name


def test_a_device_without_a_recording_is_told(
    own_handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("device.test_choices.file_of", lambda handle: tmp_path / "none-1.json")
    with pytest.raises(pytest.xfail.Exception, match=r"no none-1\.json: python -m tools"):
        recorded(own_handle)


def test_the_recording_has_reasons_of_each_kind() -> None:
    """The loop over engines, the descriptor call's ranking, limits, promises, captures."""
    text = "".join(path.read_text() for path in FOLDER.glob("emulated*.json"))
    for reason in (
        "it multiplies in fewer bits",
        "which no CUDA graph can record",
        "needs 189 KiB, the limit is 0 B",
        "integers stay with the descriptor call",
        "an operand is not aligned to 16 bytes",
        "the workspace limit excluded",
        "the emulated device has no engine for such a graph",
        "there is no such engine",
        "runs on no recent GPU",
    ):
        assert reason in text, reason
