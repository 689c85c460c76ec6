"""`data_frame`: rows or columns as a pandas.DataFrame; pandas is no dependency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from cudnnlite.errors import MissingPackageError


def data_frame(data: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]) -> Any:
    """Return columns by name, or rows of cells by column, as a `pandas.DataFrame`.

    MissingPackageError without pandas.
    """
    try:
        pandas: Any = import_module("pandas")
    except ImportError as error:
        raise MissingPackageError("to_pandas needs pandas: pip install pandas") from error
    return pandas.DataFrame(data)
