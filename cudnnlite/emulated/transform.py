"""Emulated conversion of tensors from one layout to another."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnnlite.emulated.operation import computes
from cudnnlite.enums import DataType, Status
from cudnnlite.operations.operation import FLOATS


# cuDNN converts between some data types too; nothing here asks for that, so it is refused
@computes(
    "transform_tensor", "cudnnTransformTensor", dtypes=(*FLOATS, DataType.INT8), mixed=Status.NOT_SUPPORTED,
    refuse=lambda specs, options: "",
)  # fmt: skip
def transform_tensor(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the values, to be laid out in another way."""
    return x
