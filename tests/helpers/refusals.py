"""Check how a call with invalid input is refused."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import cudnnlite as dnn

ARGUMENT, ARRAY = dnn.ArgumentError, dnn.ArrayTypeError


def refuses(error: Any, match: str, call: Callable[[], Any]) -> None:
    """Check the exception and its message, and that no half-made object is left."""
    with nothing_half_made():
        assert_refused(error, match, call)


def assert_refused(error: Any, match: str, call: Callable[[], Any]) -> None:
    """Check the exception and its message."""
    try:
        call()
    except error as refusal:
        is_ours, message = isinstance(refusal, dnn.CudnnliteError), str(refusal)
    else:
        pytest.fail(f"no {error.__name__} was raised")
    assert is_ours
    assert re.search(match, message), message


@contextmanager
def nothing_half_made() -> Iterator[None]:
    """Fail if a block leaves half-made objects, of which Python would warn."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
