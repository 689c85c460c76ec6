"""The layout of a recurrent network's weights, sequences and reserve space on the emulated device.

The layout of the weights differs from a GPU's on purpose: code that does not ask
`cudnnGetRNNWeightParams` fails.
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
from cudnnlite.emulated.registry import bad_parameter, check_size, emulates
from cudnnlite.emulated.spaces import ReserveLayout, align
from cudnnlite.enums import RNNMode
from cudnnlite.problems.rnn_equations import active_steps, sequence_major, tape_shapes
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.rnn_weights import PROJECTION, WeightPart, weight_parts

Array = NDArray[Any]
WeightLayout = tuple[dict[tuple[int, int, bool], tuple[WeightPart, int]], int]


@lru_cache(maxsize=64)
def weight_layout(spec: RNNSpec) -> WeightLayout:
    """Return the parts and their offsets by (pseudo layer, linear layer, is a bias), and all bytes.

    Biases come first, then matrices, each in the opposite of cuDNN's order, with gaps between them.
    """
    parts = sorted(
        weight_parts(spec), key=lambda part: (not part.bias, -part.pseudo_layer, -part.linear_layer)
    )
    places: dict[tuple[int, int, bool], tuple[WeightPart, int]] = {}
    offset = 0
    for number, part in enumerate(parts):
        places[part.pseudo_layer, part.linear_layer, part.bias] = part, offset
        gap = 16 * (1 + number % 3)
        offset = align(offset + math.prod(part.shape) * itemsize(spec.dtype)) + gap
    return places, offset


def weight_views(spec: RNNSpec, space: Bytes) -> dict[str, Array]:
    """Return a view of every part of the weights, by name."""
    dtype = numpy_dtype(spec.dtype)
    places, _ = weight_layout(spec)
    return {
        part.name: np.ndarray(part.shape, dtype, space, offset) for part, offset in places.values()
    }


@emulates("cudnnGetRNNWeightSpaceSize")
def weight_space_size(c_call: SimpleNamespace) -> None:
    """`cudnnGetRNNWeightSpaceSize`: write the size of the weight space."""
    _, nbytes = weight_layout(read_rnn(c_call.api.real, c_call.rnnDesc).spec)
    c_call.weightSpaceSize[0] = nbytes


@emulates("cudnnGetRNNWeightParams")
def weight_params(c_call: SimpleNamespace) -> None:
    """`cudnnGetRNNWeightParams`: write where a matrix and its bias are.

    A part that does not exist has a null address, and its descriptor is not set.
    """
    spec = read_rnn(c_call.api.real, c_call.rnnDesc).spec
    places, nbytes = weight_layout(spec)
    layers = spec.num_layers * spec.directions
    if not 0 <= c_call.pseudoLayer < layers:
        raise bad_parameter(f"pseudoLayer={c_call.pseudoLayer}; allowed: below {layers}")
    linear_layers = list(range(2 * len(spec.gates)))
    if spec.cell == RNNMode.LSTM:
        linear_layers.append(PROJECTION)
    if c_call.linLayerID not in linear_layers:
        raise bad_parameter(
            f"linLayerID={c_call.linLayerID}; allowed for {spec.cell.name}: {linear_layers}"
        )
    check_size("weightSpace", c_call.weightSpaceSize, nbytes)
    for descriptor, address, is_bias in (
        (c_call.mDesc, c_call.mAddr, False),
        (c_call.bDesc, c_call.bAddr, True),
    ):
        key = (c_call.pseudoLayer, c_call.linLayerID, is_bias)
        if key not in places:
            address[0] = None
            continue
        part, offset = places[key]
        address[0] = (c_call.weightSpace or 0) + offset
        rows, columns = (*part.shape, 1)[:2]
        sizes = c_ints([1, rows, columns])
        strides = c_ints([rows * columns, columns, 1])
        c_call.api.real.cudnnSetTensorNdDescriptor(descriptor, spec.dtype, 3, sizes, strides)


def write_steps(target: Array, data: RNNDataSpec, steps: Array, fill: float) -> None:
    """Write (T, N, vector) in the layout of `data`, with `fill` beyond the sequences' ends."""
    target = sequence_major(target, data)
    active = active_steps(data)
    if data.is_packed:
        target[...] = steps[active]
    else:
        target[...] = np.where(active[:, :, None], steps, steps.dtype.type(fill))


def reserve_layout(spec: RNNSpec, data: RNNDataSpec, *, has_dropout: bool) -> ReserveLayout:
    """Return the layout of a reserve space: the equations' tape, and the masks of dropout.

    There are masks wherever there is a dropout descriptor, whose probability may be another one
    when the space is used.
    """
    steps, batch = data.max_length, data.batch
    shapes = dict(tape_shapes(spec, steps, batch))
    if has_dropout:
        for layer in range(1, spec.num_layers):
            shapes[layer, 0, "mask"] = (steps, batch, spec.layer_input_size(layer))
    return ReserveLayout(shapes, wide_dtype(spec.dtype))
