"""What each RNN algorithm can do: rules recorded on an H200, for messages and for the emulated device's refusals.

cuDNN refuses with NOT_SUPPORTED and without a word; on a GPU it alone decides, and these rules only
say why.
"""

from __future__ import annotations

from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType, RNNAlgo, RNNBiasMode, RNNMode
from cudnnlite.specs.rnn import RNNSpec

# The largest hidden sizes, by (algorithm, whether the cell has gates): of the forward pass and of
# the backward passes. PERSIST_STATIC keeps the recurrent weights in the GPU's registers: others may
# have another limit than an H200.
_LARGEST = {
    (RNNAlgo.PERSIST_STATIC, False): (2560, 2560),
    (RNNAlgo.PERSIST_STATIC, True): (1536, 1536),
    (RNNAlgo.PERSIST_STATIC_SMALL_H, False): (384, 256),
    (RNNAlgo.PERSIST_STATIC_SMALL_H, True): (192, 128),
}


def why_not(spec: RNNSpec, algorithm: RNNAlgo, *, full: bool = True, backward: bool = False) -> str:
    """Return why an algorithm does not do a network; empty where it does, or where no rule is known.

    `full`: all sequences have the full length.  `backward`: the backward passes are asked for.
    """
    if algorithm == RNNAlgo.STANDARD:
        return ""
    reasons = []
    if spec.dtype == DataType.DOUBLE and algorithm != RNNAlgo.PERSIST_DYNAMIC:
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
    largest = _LARGEST.get((algorithm, gated))
    if largest is not None and spec.hidden_size > largest[backward]:
        passes = "backward" if backward else "forward"
        reasons.append(
            f"goes up to hidden_size={largest[backward]} {passes} for {spec.cell.name}, not {spec.hidden_size}"
        )
    return f"{algorithm.name} {', '.join(reasons)}" if reasons else ""
