"""Where the emulated device keeps a recurrent network's weights, its sequences, and what its backward passes read.

The weights are laid out unlike a GPU's on purpose: code that does not ask `cudnnGetRNNWeightParams` fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cudnnlite.descriptors.c_ints import c_ints
from cudnnlite.descriptors.rnn import read_rnn
from cudnnlite.dtypes import itemsize, numpy_dtype
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.registry import emulates
from cudnnlite.emulated.spaces import Places, bad
from cudnnlite.enums import DataType, RNNDataLayout, RNNMode
from cudnnlite.operations.rnn.equations import CellWeights, TapeKey, network_shape, tape_shapes
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.rnn_weights import PROJECTION, WeightPart, weight_parts

Array = NDArray[Any]
Cells = list[list[CellWeights]]  # by layer and direction
_ALIGNMENT = 16


def compute_dtype(spec: RNNSpec) -> np.dtype[Any]:
    """Return the type that is computed in: also where cuDNN would in float16."""
    return np.dtype("float64" if spec.dtype == DataType.DOUBLE else "float32")


class WeightLayout(NamedTuple):
    """The parts and their offsets, by (pseudo layer, linear layer, is a bias), and the bytes of the whole."""

    places: dict[tuple[int, int, bool], tuple[WeightPart, int]]
    nbytes: int


@lru_cache(maxsize=64)
def weight_layout(spec: RNNSpec) -> WeightLayout:
    """Lay out the weights: biases, then matrices, each in the opposite of cuDNN's order and with gaps between them."""
    parts = sorted(weight_parts(spec), key=lambda part: (not part.bias, -part.pseudo_layer, -part.linear_layer))
    places, offset = {}, 0
    for number, part in enumerate(parts):
        places[part.pseudo_layer, part.linear_layer, part.bias] = part, offset
        offset = _aligned(offset + math.prod(part.shape) * itemsize(spec.dtype)) + _ALIGNMENT * (1 + number % 3)
    return WeightLayout(places, offset)


def empty_cells(spec: RNNSpec, dtype: np.dtype[Any]) -> tuple[Cells, Array]:
    """Return weights for the equations, to be filled in, and the one array that all the matrices are views of."""
    shapes = [_cell_shapes(spec, layer) for layer in range(spec.num_layers) for _ in range(spec.directions)]
    matrices = np.empty(sum(math.prod(s) for row in shapes for s in row if s is not None and len(s) == 2), dtype)
    start = 0

    def make(shape: tuple[int, ...] | None) -> Any:
        nonlocal start
        if shape is None:
            return None
        if len(shape) == 1:
            return np.empty(shape, dtype)
        start += math.prod(shape)
        return matrices[start - math.prod(shape) : start].reshape(shape)

    cells = [CellWeights(*map(make, row)) for row in shapes]
    return [cells[i : i + spec.directions] for i in range(0, len(cells), spec.directions)], matrices


def flattened(cells: Cells) -> list[Array | None]:
    """Return all arrays of the weights."""
    return [part for layer in cells for cell in layer for part in cell]


def _cell_shapes(spec: RNNSpec, layer: int) -> tuple[tuple[int, ...] | None, ...]:
    rows = len(spec.gates) * spec.hidden_size
    there = {(part.recurrent, part.bias) for part in weight_parts(spec) if part.layer == layer and part.gate}
    return (
        (rows, spec.layer_input_size(layer)) if (False, False) in there else None,
        (rows, spec.state_size),
        (rows,) if (False, True) in there else None,
        (rows,) if (True, True) in there else None,
        (spec.state_size, spec.hidden_size) if spec.projects else None,
    )


def weight_views(spec: RNNSpec, space: Bytes, cells: Cells) -> Iterator[tuple[Array, Array]]:
    """Yield every part twice: as it lies in the weight space, and as it lies in `cells`, where gates are stacked."""
    for part, offset in weight_layout(spec).places.values():
        cell = cells[part.layer][part.direction]
        if part.gate:
            stack = cell[part.recurrent + 2 * part.bias]  # the order of CellWeights' fields
            start = spec.gates.index(part.gate) * spec.hidden_size
        else:
            stack, start = cell.projection, 0
        assert stack is not None
        yield np.ndarray(part.shape, numpy_dtype(spec.dtype), space, offset), stack[start : start + part.shape[0]]


@emulates("cudnnGetRNNWeightSpaceSize")
def weight_space_size(api: EmulatedApi, handle: Any, rnn: Any, size: Any) -> None:
    """Tell how large the weight space is."""
    size[0] = weight_layout(read_rnn(api.real, rnn).spec).nbytes


@emulates("cudnnGetRNNWeightParams")
def weight_params(
    api: EmulatedApi, handle: Any, rnn: Any, pseudo_layer: int, nbytes: int, space: int | None, linear_layer: int,
    matrix: Any, matrix_address: Any, bias: Any, bias_address: Any,
) -> None:  # fmt: skip
    """Tell where a matrix and its bias lie; a null address, and no description, of what is not there."""
    spec = read_rnn(api.real, rnn).spec
    layout = weight_layout(spec)
    if not 0 <= pseudo_layer < spec.num_layers * spec.directions:
        raise bad(f"pseudoLayer={pseudo_layer}; allowed: below {spec.num_layers * spec.directions}")
    numbers = [*range(2 * len(spec.gates)), *([PROJECTION] if spec.cell == RNNMode.LSTM else [])]
    if linear_layer not in numbers:
        raise bad(f"linLayerID={linear_layer}; allowed for {spec.cell.name}: {numbers}")
    if nbytes < layout.nbytes:
        raise bad(f"weightSpace of {nbytes} bytes; {layout.nbytes} are needed")
    for is_bias, descriptor, address in ((False, matrix, matrix_address), (True, bias, bias_address)):
        part, offset = layout.places.get((pseudo_layer, linear_layer, is_bias), (None, 0))
        if part is None:
            address[0] = None
            continue
        rows, columns = (*part.shape, 1)[:2]
        api.real.cudnnSetTensorNdDescriptor(
            descriptor, spec.dtype, 3, c_ints([1, rows, columns]), c_ints([rows * columns, columns, 1])
        )
        address[0] = (space or 0) + offset


def active_steps(data: RNNDataSpec) -> NDArray[np.bool_]:
    """Return (T, N): whether a sequence has a step."""
    return np.asarray(np.arange(data.max_length)[:, None] < data.lengths)


def read_steps(memory: Bytes, data: RNNDataSpec) -> Array:
    """Return sequences of any layout as a new array (T, N, vector), zeros beyond their ends."""
    values, active = memory.view(numpy_dtype(data.dtype)).reshape(data.shape), active_steps(data)
    steps = np.zeros((data.max_length, data.batch, data.vector_size), values.dtype)
    if data.is_packed:
        steps[active] = values  # both go through the steps, and within a step through the sequences
    else:
        np.copyto(steps, _sequence_major(values, data), where=active[:, :, None])
    return steps


def write_steps(memory: Bytes, data: RNNDataSpec, steps: Array, fill: float) -> None:
    """Write (T, N, vector) in the layout of `data`, `fill` beyond the sequences' ends."""
    values, active = memory.view(numpy_dtype(data.dtype)).reshape(data.shape), active_steps(data)
    if data.is_packed:
        values[...] = steps[active]
    else:
        target = _sequence_major(values, data)
        target[...] = fill
        np.copyto(target, steps, where=active[:, :, None])


def _sequence_major(values: Array, data: RNNDataSpec) -> Array:
    return values.swapaxes(0, 1) if data.layout == RNNDataLayout.BATCH_MAJOR_UNPACKED else values


def reserve_places(spec: RNNSpec, data: RNNDataSpec, *, masked: bool) -> Places:
    """Return what a reserve space holds: the equations' tape, and the masks of dropout."""
    shape, steps, batch = network_shape(spec), data.max_length, data.batch
    sizes: dict[TapeKey, tuple[int, ...]] = dict(tape_shapes(shape, steps, batch))
    if masked:  # by any dropout descriptor: its probability may be another when the space is used
        sizes |= {(k, 0, "mask"): (steps, batch, shape.layer_input_size(k)) for k in range(1, shape.num_layers)}
    return Places(sizes, compute_dtype(spec))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
