"""Emulated multi-head attention.

The layout of the weights differs from a GPU's on purpose: code that does not ask
`cudnnGetMultiHeadAttnWeights` fails.  Backward passes need the reserve space and the operands of
their training forward pass; hardware computes garbage instead.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cudnnlite._raw.enums import MultiHeadAttnWeightKind, WgradMode
from cudnnlite.descriptors.attention import SeqDataDescriptor, read_attention
from cudnnlite.descriptors.native import c_ints
from cudnnlite.devices.storage import memory_view
from cudnnlite.dtypes import itemsize, numpy_dtype
from cudnnlite.emulated.dropout import find_dropout
from cudnnlite.emulated.memory import POISON_FREED
from cudnnlite.emulated.precision import round_tf32, to_output, wide_dtype
from cudnnlite.emulated.registry import Work, bad_parameter, check_size, emulates, unsupported
from cudnnlite.emulated.spaces import Reserve, ReserveLayout, Spaces, align, checksum
from cudnnlite.emulated.support import multiplies_in_tf32
from cudnnlite.specs.attention import AttentionSpec

Array = NDArray[Any]
_ARGUMENTS = {"q": "queries", "k": "keys", "v": "values"}
_WEIGHT_NAMES = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")  # by MultiHeadAttnWeightKind
# The axes (head, row, column) of a matrix in their order in memory.  Other matrices are packed in C
# order.  On a GPU wq and wv have the order of wk, and wo is packed as (head, column, row).
MEMORY_ORDERS = {"wk": (2, 0, 1), "wo": (1, 0, 2)}


class WeightOffsets(NamedTuple):
    """The offsets of weights by name, and the size of all weights, in bytes."""

    offsets: dict[str, int]
    nbytes: int


def weight_offsets(spec: AttentionSpec) -> WeightOffsets:
    """Return the offsets of the weights, and their size.

    The weights have the opposite of cuDNN's order, with gaps between them.
    """
    offsets: dict[str, int] = {}
    offset = 0
    for name, shape in reversed(spec.weight_shapes().items()):
        offsets[name] = offset
        offset = align(offset + math.prod(shape) * itemsize(spec.dtype)) + 16
    return WeightOffsets(offsets, offset)


def _max_sizes(spec: AttentionSpec) -> tuple[int, ...]:
    """Return the largest batch, beam, and steps of queries and of keys."""
    return spec.max_batch or 0, spec.max_beam or 0, spec.max_q_length or 0, spec.max_kv_length or 0


def _workspace_bytes(spec: AttentionSpec) -> int:
    return 512 + 4 * math.prod(_max_sizes(spec))


def _reserve_layout(sizes: tuple[int, ...]) -> ReserveLayout:
    """Return the layout of a reserve space: which steps exist, and which keys each step sees."""
    return ReserveLayout({"live_steps": sizes[:3], "visible_keys": sizes}, np.dtype(bool))


@emulates("cudnnGetMultiHeadAttnBuffers")
def buffers(c_call: SimpleNamespace) -> None:
    """`cudnnGetMultiHeadAttnBuffers`: write the sizes; training needs no workspace."""
    spec = read_attention(c_call.api.real, c_call.attnDesc).spec
    c_call.weightSizeInBytes[0] = weight_offsets(spec).nbytes
    if c_call.reserveSpaceSizeInBytes:
        c_call.workSpaceSizeInBytes[0] = 0
        c_call.reserveSpaceSizeInBytes[0] = _reserve_layout(_max_sizes(spec)).nbytes
    else:
        c_call.workSpaceSizeInBytes[0] = _workspace_bytes(spec)


@emulates("cudnnGetMultiHeadAttnWeights")
def weight(c_call: SimpleNamespace) -> None:
    """`cudnnGetMultiHeadAttnWeights`: write where a matrix or a bias is.

    What does not exist has a null address, and its descriptor is not set.
    """
    if c_call.wKind not in list(MultiHeadAttnWeightKind):
        allowed = ", ".join(MultiHeadAttnWeightKind.__members__)
        raise bad_parameter(f"wKind={c_call.wKind}; allowed: {allowed}")
    spec = read_attention(c_call.api.real, c_call.attnDesc).spec
    offsets, nbytes = weight_offsets(spec)
    check_size("weights", c_call.weightSizeInBytes, nbytes)
    name = _WEIGHT_NAMES[c_call.wKind]
    if name not in offsets:
        c_call.wAddr[0] = None
        return
    c_call.wAddr[0] = (c_call.weights or 0) + offsets[name]
    dims = _described_dims(spec.weight_shapes()[name])
    strides = _weight_strides(name, dims)
    c_call.api.real.cudnnSetTensorNdDescriptor(
        c_call.wDesc, spec.dtype, 3, c_ints(dims), c_ints(strides)
    )


def _described_dims(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the three sizes that cuDNN describes weights with."""
    if len(shape) == 3:
        return shape
    if len(shape) == 2:
        return (*shape, 1)
    return (1, *shape, 1)


def _weight_strides(name: str, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a matrix or a bias, in elements."""
    strides = [0] * len(dims)
    stride = 1
    for axis in reversed(MEMORY_ORDERS.get(name, range(len(dims)))):
        strides[axis] = stride
        stride *= dims[axis]
    return tuple(strides)


class _ForwardPass(NamedTuple):
    """The results of a forward pass, some of which a backward pass needs."""

    y: Array  # before dropout and residual
    projections: dict[str, Array]
    softmax: Array
    heads: Array  # the output of each head


class _Operands(NamedTuple):
    """The operands of a call, by name, and a checksum of all of them."""

    values: dict[str, Array]  # q, k and v
    weights: dict[str, Array]
    checksum: int


class _Training(NamedTuple):
    """The reserve space of a training forward pass, and the masks of both dropouts."""

    reserve: Reserve
    softmax_mask: Array | None
    y_mask: Array | None


class _AttentionCall(Spaces):
    """The arguments of a call, read back and checked.  Nothing is written before all is read.

    `descriptor_names` are the arguments that describe q, k, v and y.
    """

    def __init__(self, c_call: SimpleNamespace, *descriptor_names: str) -> None:
        super().__init__(c_call)
        reading = read_attention(self.api.real, c_call.attnDesc)
        self.spec = reading.spec
        dropout_pointers = (reading.dropout, reading.post_dropout)
        self.dropouts = [find_dropout(self.api, pointer.value) for pointer in dropout_pointers]
        self.dtype = wide_dtype(self.spec.dtype)
        self.data = {
            name: SeqDataDescriptor.read(self.api.real, getattr(c_call, argument))
            for name, argument in zip("qkvy", descriptor_names, strict=True)
        }
        batch, beam, steps, _ = self.data["q"].shape
        self.sizes = (batch, beam, steps, self.data["k"].shape[2])
        self._check_data()
        max_sizes = _max_sizes(self.spec)
        if any(size > most for size, most in zip(self.sizes, max_sizes, strict=True)):
            raise bad_parameter(
                f"batch, beam and lengths of {self.sizes}; attnDesc has room for {max_sizes}"
            )
        if reading.one_to_one and beam > 1:
            raise unsupported("QUERYMAP_ONE_TO_ONE with several beams")
        self.live_steps: Array
        self.visible_keys: Array

    def _check_data(self) -> None:
        """Refuse sequences that do not fit together."""
        spec = self.spec
        batch, beam, steps, key_steps = self.sizes
        shapes = {
            "q": (batch, beam, steps, spec.q_size),
            "k": (batch, 1, key_steps, spec.k_size),
            "v": (batch, 1, key_steps, spec.v_size),
            "y": (batch, beam, steps, spec.output_size),
        }
        for name, data in self.data.items():
            has_axes_of_queries = data.axes == self.data["q"].axes
            if data.shape != shapes[name] or data.dtype != spec.dtype or not has_axes_of_queries:
                raise bad_parameter(
                    f"{name} is {data}; needed: {shapes[name]} in {spec.dtype.name}, as the others"
                )

    def read_lengths(self, q_lengths: Any, kv_lengths: Any) -> None:
        """Work out `live_steps` (B, M, T), and `visible_keys` of each of them (B, M, T, T')."""
        batch, beam, steps, key_steps = self.sizes
        q_ends = self._lengths(q_lengths, batch * beam, steps).reshape(batch, beam, 1)
        key_ends = self._lengths(kv_lengths, batch, key_steps).reshape(batch, 1, 1, 1)
        window_starts = np.array(self.c_call.loWinIdx[:steps])[:, None]
        window_ends = np.array(self.c_call.hiWinIdx[:steps])[:, None]
        keys = np.arange(key_steps)
        is_in_window = (keys >= window_starts) & (keys < window_ends)
        self.live_steps = np.arange(steps) < q_ends
        self.visible_keys = self.live_steps[..., None] & (keys < key_ends) & is_in_window

    def _lengths(self, pointer: Any, count: int, max_length: int) -> Array:
        lengths: Array = self.api.memory.ints(pointer, count)
        if lengths.min() < 0 or lengths.max() > max_length:
            raise bad_parameter(f"lengths of {lengths.tolist()}; allowed: 0 to {max_length}")
        return lengths

    def view(self, name: str, argument: str) -> Array:
        """Return a view of an operand that has the layout of q, k, v or y."""
        spec = self.data[name].tensor()
        return memory_view(self.memory(argument, spec.nbytes), spec)

    def read(self, name: str, argument: str) -> Array:
        """Return a copy of an operand that has the layout of q, k, v or y, in the compute type."""
        return self.view(name, argument).astype(self.dtype)

    def operands(self) -> _Operands:
        """Return copies of the operands in the compute type."""
        values = {name: self.read(name, argument) for name, argument in _ARGUMENTS.items()}
        stored = self.weights("weights")
        weights = {name: part.astype(self.dtype) for name, part in stored.items()}
        return _Operands(values, weights, checksum(*values.values(), *stored.values()))

    def weights(self, argument: str) -> dict[str, Array]:
        """Return views of weights by name."""
        offsets, nbytes = weight_offsets(self.spec)
        if not nbytes:
            return {}
        space = self.space(argument, "weightSizeInBytes", nbytes)
        shapes = self.spec.weight_shapes()
        dtype = numpy_dtype(self.spec.dtype)
        views = {}
        for name, offset in offsets.items():
            strides = [stride * dtype.itemsize for stride in _weight_strides(name, shapes[name])]
            views[name] = np.ndarray(shapes[name], dtype, space, offset, strides)
        return views

    def reserve(self) -> Reserve:
        """Return the reserve space, which is large enough for the largest call."""
        reserve_bytes = _reserve_layout(_max_sizes(self.spec)).nbytes
        memory = self.space("reserveSpace", "reserveSpaceSizeInBytes", reserve_bytes)
        problem = (self.spec, [data.shape for data in self.data.values()])
        return Reserve(memory, _reserve_layout(self.sizes), problem)

    def workspace(self) -> Array:
        """Return a view of the workspace."""
        return self.space("workSpace", "workSpaceSizeInBytes", _workspace_bytes(self.spec))

    def product(self, subscripts: str, a: Array, b: Array) -> Array:
        """Multiply as an H200 does: float32 in TF32, unless that is forbidden."""
        if multiplies_in_tf32(self.spec.dtype, self.spec.math_type):
            a, b = round_tf32(a), round_tf32(b)
        return np.asarray(np.einsum(subscripts, a, b, optimize=True))

    def _projection(self, name: str, values: Array, weights: dict[str, Array]) -> Array:
        """Return the vectors of each head, (B, M, heads, T, size)."""
        if f"w{name}" in weights:
            projection = self.product("bmti,hpi->bmhtp", values, weights[f"w{name}"])
        else:
            shape = (*values.shape[:2], self.spec.heads, *values.shape[2:])
            projection = np.broadcast_to(values[:, :, None], shape)
        if f"b{name}" in weights:
            projection = projection + weights[f"b{name}"][:, None]
        return projection

    def _softmax(self, projections: dict[str, Array]) -> Array:
        limits = np.finfo(self.dtype)
        products = self.product("bmhtp,bhsp->bmhts", projections["q"], projections["k"][:, 0])
        scores = products * self.dtype.type(self.spec.scale)
        visible = self.visible_keys[:, :, None]
        highest = np.max(scores, -1, keepdims=True, where=visible, initial=limits.min)
        powers = np.exp(np.where(visible, scores - highest, -np.inf))
        # The sum is 0 where no key is visible.
        return np.asarray(powers / np.maximum(powers.sum(-1, keepdims=True), limits.tiny))

    def forward(
        self, values: dict[str, Array], weights: dict[str, Array], mask: Array | None
    ) -> _ForwardPass:
        """Compute the output before its dropout and residual."""
        projections = {
            name: self._projection(name, operand, weights) for name, operand in values.items()
        }
        softmax = self._softmax(projections)
        factors = softmax if mask is None else softmax * mask
        heads = self.product("bmhts,bhsv->bmhtv", factors, projections["v"][:, 0])
        if "wo" in weights:
            bias = weights.get("bo", self.dtype.type(0))
            y = self.product("bmhtv,hov->bmto", heads, weights["wo"]) + bias
        else:
            y = np.moveaxis(heads, 2, 3).reshape(self.data["y"].shape)
        return _ForwardPass(y, projections, softmax, heads)

    def backward(
        self, dy: Array, weights: dict[str, Array], values: dict[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the gradients of the operands, and of the weights."""
        forward_pass = self.forward(values, weights, None)
        projections, softmax = forward_pass.projections, forward_pass.softmax
        # The sum includes the steps beyond a query's end; on an H200 it does so in some cases only.
        weight_gradients = {"bo": dy.sum((0, 1, 2))}
        dy = np.where(self.live_steps[..., None], dy, 0)
        if "wo" in weights:
            dheads = self.product("bmto,hov->bmhtv", dy, weights["wo"])
            weight_gradients["wo"] = self.product("bmto,bmhtv->hov", dy, forward_pass.heads)
        else:
            dheads = np.moveaxis(dy.reshape(*dy.shape[:3], self.spec.heads, -1), 3, 2)
        dsoftmax = self.product("bmhtv,bhsv->bmhts", dheads, projections["v"][:, 0])
        centred = dsoftmax - (softmax * dsoftmax).sum(-1, keepdims=True)
        dscores = softmax * centred * self.dtype.type(self.spec.scale)
        slopes = {
            "q": self.product("bmhts,bhsp->bmhtp", dscores, projections["k"][:, 0]),
            "k": self.product("bmhts,bmhtp->bhsp", dscores, projections["q"])[:, None],
            "v": self.product("bmhts,bmhtv->bhsv", softmax, dheads)[:, None],
        }
        gradients = {}
        for name, slope in slopes.items():
            weight_gradients[f"b{name}"] = slope.sum((0, 1, 3))
            if f"w{name}" in weights:
                weight_gradients[f"w{name}"] = self.product("bmhtp,bmti->hpi", slope, values[name])
                gradients[name] = self.product("bmhtp,hpi->bmti", slope, weights[f"w{name}"])
            else:
                gradients[name] = slope.sum(2)
        return gradients, weight_gradients

    def restore(self, stage: str, operands_checksum: int) -> Reserve:
        """Restore the steps from the reserve space, and return the space.

        Refuse a space that is not at `stage`, or that belongs to another problem or other operands.
        """
        reserve = self.reserve()
        reserve.expect(stage, weightSpace=operands_checksum)
        if any(dropout is not None and dropout.probability for dropout in self.dropouts):
            raise unsupported("gradients with dropout, which a GPU computes wrongly")
        live_steps, visible_keys = reserve.tape["live_steps"], reserve.tape["visible_keys"]
        if stage == Reserve.FORWARD:
            is_same = np.array_equal(self.live_steps, live_steps)
            if not is_same or not np.array_equal(self.visible_keys, visible_keys):
                raise bad_parameter("lengths or window are not what they were in the forward pass")
        self.live_steps, self.visible_keys = live_steps, visible_keys
        return reserve

    def begin_training(self) -> _Training:
        """Write the steps into the reserve space, and draw the masks of both dropouts."""
        reserve = self.reserve()
        reserve.begin()
        reserve.tape["live_steps"][...] = self.live_steps
        reserve.tape["visible_keys"][...] = self.visible_keys
        batch, beam, steps, key_steps = self.sizes
        shapes = ((batch, beam, self.spec.heads, steps, key_steps), self.data["y"].shape)
        masks: list[Array | None] = []
        for dropout, shape in zip(self.dropouts, shapes, strict=True):
            mask = None
            if dropout is not None:
                mask = np.empty(shape, self.dtype)
                dropout.draw(self.api, [mask])
            masks.append(mask)
        return _Training(reserve, *masks)


@emulates("cudnnMultiHeadAttnForward")
def forward(c_call: SimpleNamespace) -> Work:
    """`cudnnMultiHeadAttnForward`: compute the output.

    In training the reserve space receives what the backward passes need.
    """
    call = _AttentionCall(c_call, "qDesc", "kDesc", "vDesc", "oDesc")
    step = c_call.currIdx
    is_training = bool(c_call.reserveSpace)
    spec = call.spec
    if c_call.residuals and spec.output_size != spec.q_size:
        raise bad_parameter(
            f"residuals with outputs of {spec.output_size} for queries of {spec.q_size}"
        )
    _, _, steps, _ = call.sizes
    # A negative `currIdx` stands for all steps, which training needs.
    is_step_of_training = is_training and step >= 0
    if step >= steps or is_step_of_training:
        mode = "training" if is_training else "inference"
        raise bad_parameter(f"currIdx={step} of {steps}, {mode}")

    def work() -> None:
        call.read_lengths(c_call.devSeqLengthsQO, c_call.devSeqLengthsKV)
        operands = call.operands()
        target = call.view("y", "out")
        residuals: Any = call.dtype.type(0)
        if c_call.residuals:
            residuals = call.read("y", "residuals")
        reserve = None
        softmax_mask = y_mask = None
        if is_training:
            reserve, softmax_mask, y_mask = call.begin_training()
        else:
            call.workspace()[:] = POISON_FREED
        with np.errstate(all="ignore"):
            y = call.forward(operands.values, operands.weights, softmax_mask).y
            if y_mask is not None:
                y = y * y_mask
            y = to_output(y + residuals, target.dtype)
        written_steps = slice(None) if step < 0 else slice(step, step + 1)
        target[:, :, written_steps] = y[:, :, written_steps]
        if reserve is not None:
            reserve.finish(Reserve.FORWARD, weightSpace=operands.checksum)

    return work


@emulates("cudnnMultiHeadAttnBackwardData")
def backward_data(c_call: SimpleNamespace) -> Work:
    """`cudnnMultiHeadAttnBackwardData`: compute dq, dk and dv.

    The call for the gradients of the weights comes after it.
    """
    call = _AttentionCall(c_call, "dqDesc", "dkDesc", "dvDesc", "doDesc")

    def work() -> None:
        call.read_lengths(c_call.devSeqLengthsDQDO, c_call.devSeqLengthsDKDV)
        operands = call.operands()
        reserve = call.restore(Reserve.FORWARD, operands.checksum)
        targets = {name: call.view(name, f"d{argument}") for name, argument in _ARGUMENTS.items()}
        with np.errstate(all="ignore"):
            gradients, _ = call.backward(call.read("y", "dout"), operands.weights, operands.values)
        outputs = {
            name: to_output(gradient, targets[name].dtype) for name, gradient in gradients.items()
        }
        # An H200 leaves dq beyond the longest query as it was, unless a projection of the queries
        # writes all of it.
        written_steps = call.sizes[2]
        if "wq" not in operands.weights:
            written_steps = int(np.count_nonzero(call.live_steps.any((0, 1))))
        targets["q"][:, :, :written_steps] = outputs["q"][:, :, :written_steps]
        targets["k"][...] = outputs["k"]
        targets["v"][...] = outputs["v"]
        reserve.finish(Reserve.BACKWARD_DATA)

    return work


@emulates("cudnnMultiHeadAttnBackwardWeights")
def backward_weights(c_call: SimpleNamespace) -> Work:
    """`cudnnMultiHeadAttnBackwardWeights`: write the gradients of the weights, or add them."""
    call = _AttentionCall(c_call, "qDesc", "kDesc", "vDesc", "doDesc")
    if c_call.addGrad not in list(WgradMode):
        raise bad_parameter(
            f"addGrad={c_call.addGrad}; allowed: {', '.join(WgradMode.__members__)}"
        )

    def work() -> None:
        operands = call.operands()
        call.restore(Reserve.BACKWARD_DATA, operands.checksum)
        with np.errstate(all="ignore"):
            _, gradients = call.backward(call.read("y", "dout"), operands.weights, operands.values)
        for name, target in call.weights("dweights").items():
            old_values: Any = 0
            if c_call.addGrad == WgradMode.ADD:
                old_values = target.astype(call.dtype)
            target[...] = to_output(old_values + gradients[name], target.dtype)

    return work
