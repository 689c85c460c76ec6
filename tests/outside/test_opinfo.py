"""PyTorch judges our operations by its own samples of them."""

from __future__ import annotations

from typing import Any

import pytest

import cudnnlite as dnn

from .opinfo import ADAPTERS, judge, operations, samples_of

pytest.importorskip("torch", reason="PyTorch judges; it is not installed")
pytest.importorskip("expecttest", reason="PyTorch's samples need expecttest")
quiet = pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")  # PyTorch's own
MOST = 24  # samples of an operation; all in the exhaustive tests


@pytest.fixture(scope="module")
def opinfos() -> dict[str, Any]:
    return dict(operations())


def check(handle: dnn.Handle, operation: Any, most: int | None) -> None:
    """Check that no sample is wrong, that some are right, and that few are refused by us."""
    samples = samples_of(operation, most)
    outcomes = [judge(handle, operation, sample) for sample in samples]
    assert [outcome for outcome in outcomes if outcome[0] == "wrong"] == []
    assert "right" in {outcome for outcome, _ in outcomes}
    refused = [outcome for outcome in outcomes if outcome[0] == "refused by us"]
    assert len(refused) <= max(len(outcomes) // 50, 1), refused


@quiet
@pytest.mark.parametrize("name", ADAPTERS)
def test_samples_of_pytorch(handle: dnn.Handle, opinfos: dict[str, Any], name: str) -> None:
    check(handle, opinfos[name], MOST)


@quiet
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ADAPTERS)
def test_all_samples_of_pytorch(handle: dnn.Handle, opinfos: dict[str, Any], name: str) -> None:
    check(handle, opinfos[name], None)
