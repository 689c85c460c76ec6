"""Emulated conversion of tensors from one layout to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cudnnlite.emulated.operation import computes
from cudnnlite.enums import DataType, Status
from cudnnlite.operations.operation import FLOATS
from cudnnlite.specs.layout import CHANNELS_FIRST


def _refused(specs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Refuse to convert data types but of packed tensors with channels first: of others no H200 was asked."""
    kinds = {spec.dtype for spec in specs.values()}
    packed = all(spec.fits(CHANNELS_FIRST[spec.rank]) for spec in specs.values())
    if len(kinds) == 1 or (packed and kinds <= {*FLOATS} and kinds != {DataType.HALF, DataType.BFLOAT16}):
        return ""
    return f"from {specs['x']} to {specs['y']}"


@computes(
    "transform_tensor", "cudnnTransformTensor", dtypes=(*FLOATS, DataType.INT8), alike=("y",), refuse=_refused,
    refused=Status.NOT_SUPPORTED,
)  # fmt: skip
def transform_tensor(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the values, to be laid out in another way, or stored in another type."""
    return x
