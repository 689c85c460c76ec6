"""Where the emulated device keeps a recurrent network's weights, its sequences, and what its backward passes read.

The weights are laid out unlike a GPU's on purpose: code that does not ask `cudnnGetRNNWeightParams` fails.
"""

from __future__ import annotations

import math
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnnlite.descriptors.native import c_ints
from cudnnlite.descriptors.rnn import read_rnn
from cudnnlite.dtypes import itemsize, numpy_dtype
from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.precision import wide_dtype
from cudnnlite.emulated.registry import bad, check_size, emulates
from cudnnlite.emulated.spaces import Places, aligned
from cudnnlite.enums import RNNMode
from cudnnlite.problems.rnn_equations import active_steps, sequence_major, tape_shapes
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.rnn_weights import PROJECTION, WeightPart, weight_parts

Array = NDArray[Any]
WeightLayout = tuple[dict[tuple[int, int, bool], tuple[WeightPart, int]], int]


@lru_cache(maxsize=64)
def weight_layout(spec: RNNSpec) -> WeightLayout:
    """Lay out the weights: biases, then matrices, each in the opposite of cuDNN's order and with gaps between them.

    Returns the parts and their offsets, by (pseudo layer, linear layer, is a bias), and the bytes of the whole.
    """
    parts = sorted(
        weight_parts(spec), key=lambda part: (not part.bias, -part.pseudo_layer, -part.linear_layer)
    )
    places, offset = {}, 0
    for number, part in enumerate(parts):
        places[part.pseudo_layer, part.linear_layer, part.bias] = part, offset
        offset = aligned(offset + math.prod(part.shape) * itemsize(spec.dtype)) + 16 * (
            1 + number % 3
        )
    return places, offset


def weight_views(spec: RNNSpec, space: Bytes) -> dict[str, Array]:
    """View every part of the weights, by name."""
    dtype = numpy_dtype(spec.dtype)
    return {
        part.name: np.ndarray(part.shape, dtype, space, at)
        for part, at in weight_layout(spec)[0].values()
    }


@emulates("cudnnGetRNNWeightSpaceSize")
def weight_space_size(given: SimpleNamespace) -> None:
    """Tell how large the weight space is."""
    given.weightSpaceSize[0] = weight_layout(read_rnn(given.api.real, given.rnnDesc).spec)[1]


@emulates("cudnnGetRNNWeightParams")
def weight_params(given: SimpleNamespace) -> None:
    """Tell where a matrix and its bias lie; a null address, and no description, of what is not there."""
    spec = read_rnn(given.api.real, given.rnnDesc).spec
    (places, needed), layers = weight_layout(spec), spec.num_layers * spec.directions
    if not 0 <= given.pseudoLayer < layers:
        raise bad(f"pseudoLayer={given.pseudoLayer}; allowed: below {layers}")
    numbers = [*range(2 * len(spec.gates)), *([PROJECTION] if spec.cell == RNNMode.LSTM else [])]
    if given.linLayerID not in numbers:
        raise bad(f"linLayerID={given.linLayerID}; allowed for {spec.cell.name}: {numbers}")
    check_size("weightSpace", given.weightSpaceSize, needed)
    for descriptor, address, is_bias in (
        (given.mDesc, given.mAddr, False),
        (given.bDesc, given.bAddr, True),
    ):
        part, offset = places.get((given.pseudoLayer, given.linLayerID, is_bias), (None, 0))
        address[0] = None if part is None else (given.weightSpace or 0) + offset
        if part is not None:
            rows, columns = (*part.shape, 1)[:2]
            sizes, strides = c_ints([1, rows, columns]), c_ints([rows * columns, columns, 1])
            given.api.real.cudnnSetTensorNdDescriptor(descriptor, spec.dtype, 3, sizes, strides)


def write_steps(target: Array, data: RNNDataSpec, steps: Array, fill: float) -> None:
    """Write (T, N, vector) in the layout of `data`, `fill` beyond the sequences' ends."""
    target, active = sequence_major(target, data), active_steps(data)
    target[...] = (
        steps[active]
        if data.is_packed
        else np.where(active[:, :, None], steps, steps.dtype.type(fill))
    )


def reserve_places(spec: RNNSpec, data: RNNDataSpec, *, masked: bool) -> Places:
    """Return what a reserve space holds: the equations' tape, and the masks of dropout."""
    steps, batch = data.max_length, data.batch
    sizes = dict(tape_shapes(spec, steps, batch))
    if masked:  # by any dropout descriptor: its probability may be another when the space is used
        sizes |= {
            (k, 0, "mask"): (steps, batch, spec.layer_input_size(k))
            for k in range(1, spec.num_layers)
        }
    return Places(sizes, wide_dtype(spec.dtype))
