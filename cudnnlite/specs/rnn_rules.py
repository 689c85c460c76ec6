"""What each RNN algorithm can do: rules recorded on an H200, for messages and for the emulated device's refusals.

cuDNN refuses with NOT_SUPPORTED and without a word; on a GPU it alone decides, and these rules only say why.
"""

from __future__ import annotations

from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType, RNNAlgo, RNNBiasMode, RNNMode
from cudnnlite.specs.rnn import RNNSpec

# The largest hidden sizes, by whether the cell has gates.
_LARGEST_STATIC = {False: 2048, True: 1024}
_LARGEST_SMALL_H = {False: 384, True: 192}


def why_not(spec: RNNSpec, algorithm: RNNAlgo, *, full: bool = True) -> str:
    """Return why an algorithm does not do a network; empty where it does, or where no rule is known.

    Parameters
    ----------
    spec : RNNSpec
        The network.
    algorithm : RNNAlgo
        The algorithm.
    full : bool
        Whether all sequences have the full length.
    """
    if algorithm == RNNAlgo.STANDARD:
        return ""
    reasons = []
    if spec.dtype == DataType.DOUBLE:
        reasons.append("does not do float64")
    if spec.compute_type not in (DataType.FLOAT, DataType.DOUBLE):
        reasons.append(f"does not compute in {dtype_name(spec.compute_type)}")
    if spec.bias != RNNBiasMode.DOUBLE:
        reasons.append(f"wants bias='double', not {spec.bias.name}")
    if spec.projects:
        reasons.append(f"has no projection (projection_size={spec.projection_size})")
    if not full:
        reasons.append("wants sequences of equal, full length")
    gated = spec.cell in (RNNMode.LSTM, RNNMode.GRU)
    largest = {RNNAlgo.PERSIST_STATIC: _LARGEST_STATIC, RNNAlgo.PERSIST_STATIC_SMALL_H: _LARGEST_SMALL_H}.get(algorithm)
    if largest is not None and spec.hidden_size > largest[gated]:
        reasons.append(f"goes up to hidden_size={largest[gated]} for {spec.cell.name}, not {spec.hidden_size}")
    return f"{algorithm.name} {', '.join(reasons)}" if reasons else ""
