"""The networks that each RNN algorithm supports, as recorded on an H200.

cuDNN refuses the others with NOT_SUPPORTED and without a message.  On a GPU cuDNN decides, and
these rules only say why; the emulated device refuses by them.
"""

from __future__ import annotations

from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType, RNNAlgo, RNNBiasMode, RNNMode
from cudnnlite.specs.rnn import RNNSpec

# The largest hidden sizes of the forward pass and of the backward passes, by (algorithm, whether
# the cell has gates).  PERSIST_STATIC keeps the recurrent weights in the GPU's registers, so that
# other GPUs may have other limits than an H200.
_LARGEST = {
    (RNNAlgo.PERSIST_STATIC, False): (2560, 2560),
    (RNNAlgo.PERSIST_STATIC, True): (1536, 1536),
    (RNNAlgo.PERSIST_STATIC_SMALL_H, False): (384, 256),
    (RNNAlgo.PERSIST_STATIC_SMALL_H, True): (192, 128),
}


def why_not(spec: RNNSpec, algorithm: RNNAlgo, *, full: bool = True, backward: bool = False) -> str:
    """Return why an algorithm does not support a network; empty if no rule forbids it.

    `full`: all sequences have the full length.  `backward`: the backward passes are needed too.
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
            f"goes up to hidden_size={largest[backward]} {passes} for {spec.cell.name}, not "
            f"{spec.hidden_size}"
        )
    return f"{algorithm.name} {', '.join(reasons)}" if reasons else ""
