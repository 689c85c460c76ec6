"""Emulated multi-head attention.

The weights are laid out unlike a GPU's on purpose: code that does not ask `cudnnGetMultiHeadAttnWeights` fails.  Backward
passes want the reserve space and the operands of their training forward pass; hardware computes garbage instead.
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
from cudnnlite.emulated.registry import bad, check_size, emulates, unsupported
from cudnnlite.emulated.spaces import Places, Reserve, Spaces, aligned, checksum
from cudnnlite.emulated.support import multiplies_in_tf32
from cudnnlite.specs.attention import AttentionSpec

Array = NDArray[Any]
_OPERANDS = ("queries", "keys", "values")


def _places(spec: AttentionSpec) -> tuple[dict[str, int], int]:
    """Lay out the weights in the opposite of cuDNN's order, with gaps; return the offsets, and the bytes of the whole."""
    places, offset = {}, 0
    for name, shape in reversed(spec.weight_shapes().items()):
        places[name] = offset
        offset = aligned(offset + math.prod(shape) * itemsize(spec.dtype)) + 16
    return places, offset


def _room(spec: AttentionSpec) -> tuple[int, ...]:
    """Return what there is room for: batch, beam, steps of queries and of keys."""
    return spec.max_batch or 0, spec.max_beam or 0, spec.max_q_length or 0, spec.max_kv_length or 0


def _workspace_bytes(spec: AttentionSpec) -> int:
    return 512 + 4 * math.prod(_room(spec))


def _kept(sizes: tuple[int, ...]) -> Places:
    """Return what a reserve space holds: which steps there are, and which keys each sees."""
    return Places({"live": sizes[:3], "seen": sizes}, np.dtype(bool))


@emulates("cudnnGetMultiHeadAttnBuffers")
def buffers(given: SimpleNamespace) -> None:
    """Tell how large the buffers are: in training everything is in the reserve space."""
    spec, reserve = (
        read_attention(given.api.real, given.attnDesc).spec,
        given.reserveSpaceSizeInBytes,
    )
    given.weightSizeInBytes[0] = _places(spec)[1]
    given.workSpaceSizeInBytes[0] = 0 if reserve else _workspace_bytes(spec)
    if reserve:
        reserve[0] = _kept(_room(spec)).nbytes


@emulates("cudnnGetMultiHeadAttnWeights")
def weight(given: SimpleNamespace) -> None:
    """Tell where a matrix or a bias lies; a null address, and no description, of what is not there."""
    if given.wKind not in list(MultiHeadAttnWeightKind):
        raise bad(f"wKind={given.wKind}; allowed: {', '.join(MultiHeadAttnWeightKind.__members__)}")
    spec = read_attention(given.api.real, given.attnDesc).spec
    places, needed = _places(spec)
    check_size("weights", given.weightSizeInBytes, needed)
    name = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")[given.wKind]
    given.wAddr[0] = (given.weights or 0) + places[name] if name in places else None
    if name in places:
        shape = spec.weight_shapes()[name]
        dims = shape if len(shape) == 3 else (*shape, 1) if len(shape) == 2 else (1, *shape, 1)
        strides = [math.prod(dims[axis + 1 :]) for axis in range(3)]
        given.api.real.cudnnSetTensorNdDescriptor(
            given.wDesc, spec.dtype, 3, c_ints(dims), c_ints(strides)
        )


class _Taped(NamedTuple):
    """What a forward pass computed, and a backward pass needs."""

    projected: dict[str, Array]
    softmax: Array
    heads: Array  # what comes out of each


class _Call(Spaces):
    """What a call is given, read back and checked.  Nothing is written before all is read.

    `described` are the arguments that describe q, k, v and y.
    """

    def __init__(self, given: SimpleNamespace, *described: str) -> None:
        super().__init__(given)
        self.spec, one_to_one, *dropouts = read_attention(self.api.real, given.attnDesc)
        self.dropouts = [find_dropout(self.api, pointer.value) for pointer in dropouts]
        spec = self.spec
        self.compute = wide_dtype(spec.dtype)
        self.data = {
            name: SeqDataDescriptor.read(self.api.real, getattr(given, argument))
            for name, argument in zip("qkvy", described, strict=True)
        }
        batch, beam, steps, _ = self.data["q"].shape
        reach = self.data["k"].shape[2]
        shapes = {
            "q": (batch, beam, steps, spec.q_size),
            "k": (batch, 1, reach, spec.k_size),
            "v": (batch, 1, reach, spec.v_size),
            "y": (batch, beam, steps, spec.output_size),
        }
        for name, data in self.data.items():
            if (
                data.shape != shapes[name]
                or data.dtype != spec.dtype
                or data.axes != self.data["q"].axes
            ):
                raise bad(
                    f"{name} is {data}; needed: {shapes[name]} in {spec.dtype.name}, as the others"
                )
        self.sizes, room = (batch, beam, steps, reach), _room(spec)
        if any(there > most for there, most in zip(self.sizes, room, strict=True)):
            raise bad(f"batch, beam and lengths of {self.sizes}; attnDesc has room for {room}")
        if one_to_one and beam > 1:
            raise unsupported("QUERYMAP_ONE_TO_ONE with several beams")
        self.live: Array
        self.seen: Array

    def limit(self, q_lengths: Any, kv_lengths: Any) -> None:
        """Read what is attended to: `live` steps (B, M, T), and of each the keys that are `seen` (B, M, T, T')."""
        batch, beam, steps, reach = self.sizes

        def read(pointer: Any, count: int, most: int) -> Array:
            lengths: Array = self.api.memory.ints(pointer, count)
            if lengths.min() < 0 or lengths.max() > most:
                raise bad(f"lengths of {lengths.tolist()}; allowed: 0 to {most}")
            return lengths

        self.live = np.arange(steps) < read(q_lengths, batch * beam, steps).reshape(batch, beam, 1)
        keys, there = np.arange(reach), read(kv_lengths, batch, reach).reshape(batch, 1, 1, 1)
        first, end = (
            np.array(window[:steps])[:, None]
            for window in (self.given.loWinIdx, self.given.hiWinIdx)
        )
        self.seen = self.live[..., None] & (keys < there) & (keys >= first) & (keys < end)

    def view(self, name: str, argument: str) -> Array:
        """View an operand that is laid out as q, k, v or y are."""
        spec = self.data[name].tensor()
        return memory_view(self.memory(argument, spec.nbytes), spec)

    def wide(self, name: str, argument: str) -> Array:
        """Copy it in the type that is computed in."""
        return self.view(name, argument).astype(self.compute)

    def operands(self) -> tuple[list[Array], dict[str, Array], int]:
        """Copy q, k and v, and the weights, and return a checksum of all besides."""
        given = [self.wide(name, argument) for name, argument in zip("qkv", _OPERANDS, strict=True)]
        stored = self.weights("weights")
        sums = checksum(*given, *stored.values())
        return given, {name: values.astype(self.compute) for name, values in stored.items()}, sums

    def weights(self, argument: str) -> dict[str, Array]:
        """View weights by name."""
        places, needed = _places(self.spec)
        if not needed:
            return {}
        space, shapes = self.space(argument, "weightSizeInBytes", needed), self.spec.weight_shapes()
        return {
            n: np.ndarray(shapes[n], numpy_dtype(self.spec.dtype), space, offset)
            for n, offset in places.items()
        }

    def reserve(self) -> Reserve:
        """View the reserve space, which is as large as there is room for."""
        memory = self.space(
            "reserveSpace", "reserveSpaceSizeInBytes", _kept(_room(self.spec)).nbytes
        )
        return Reserve(
            memory, _kept(self.sizes), (self.spec, [data.shape for data in self.data.values()])
        )

    def product(self, subscripts: str, a: Array, b: Array) -> Array:
        """Multiply as an H200 does: float32 in TF32, unless that is forbidden."""
        if multiplies_in_tf32(self.spec.dtype, self.spec.math_type):
            a, b = round_tf32(a), round_tf32(b)
        return np.asarray(np.einsum(subscripts, a, b, optimize=True))

    def forward(
        self, given: list[Array], weights: dict[str, Array], mask: Array | None
    ) -> tuple[Array, _Taped]:
        """Return the output before its dropout and residual."""
        projected = {}
        for name, values in zip("qkv", given, strict=True):
            each = np.broadcast_to(
                values[:, :, None], (*values.shape[:2], self.spec.heads, *values.shape[2:])
            )
            if f"w{name}" in weights:
                each = self.product("bmti,hpi->bmhtp", values, weights[f"w{name}"])
            if f"b{name}" in weights:
                each = each + weights[f"b{name}"][:, None]
            projected[name] = each
        scores = self.product(
            "bmhtp,bhsp->bmhts", projected["q"], projected["k"][:, 0]
        ) * self.compute.type(self.spec.scale)
        seen = self.seen[:, :, None]
        highest = np.max(scores, -1, keepdims=True, where=seen, initial=np.finfo(self.compute).min)
        powers = np.exp(np.where(seen, scores - highest, -np.inf))
        softmax = powers / np.maximum(powers.sum(-1, keepdims=True), np.finfo(self.compute).tiny)
        heads = self.product(
            "bmhts,bhsv->bmhtv", softmax if mask is None else softmax * mask, projected["v"][:, 0]
        )
        if "wo" in weights:
            y = self.product("bmhtv,hov->bmto", heads, weights["wo"]) + weights.get(
                "bo", self.compute.type(0)
            )
        else:
            y = np.moveaxis(heads, 2, 3).reshape(self.data["y"].shape)
        return y, _Taped(projected, softmax, heads)

    def backward(
        self, dy: Array, weights: dict[str, Array], given: list[Array]
    ) -> tuple[list[Array], dict[str, Array]]:
        """Return the gradients of the operands, and of the weights."""
        spec, (_, (projected, softmax, heads)) = self.spec, self.forward(given, weights, None)
        # an H200 does so in some cases, and in others leaves out what lies beyond a query's end
        dweights = {"bo": dy.sum((0, 1, 2))}
        dy = np.where(self.live[..., None], dy, 0)
        if "wo" in weights:
            dheads = self.product("bmto,hov->bmhtv", dy, weights["wo"])
            dweights["wo"] = self.product("bmto,bmhtv->hov", dy, heads)
        else:
            dheads = np.moveaxis(dy.reshape(*dy.shape[:3], spec.heads, -1), 3, 2)
        dsoftmax = self.product("bmhtv,bhsv->bmhts", dheads, projected["v"][:, 0])
        dscores = (
            softmax
            * (dsoftmax - (softmax * dsoftmax).sum(-1, keepdims=True))
            * self.compute.type(spec.scale)
        )
        slopes = {
            "q": self.product("bmhts,bhsp->bmhtp", dscores, projected["k"][:, 0]),
            "k": self.product("bmhts,bmhtp->bhsp", dscores, projected["q"])[:, None],
            "v": self.product("bmhts,bmhtv->bhsv", softmax, dheads)[:, None],
        }
        gradients = []
        for name, values in zip("qkv", given, strict=True):
            slope, matrix = slopes[name], weights.get(f"w{name}")
            dweights[f"b{name}"] = slope.sum((0, 1, 3))
            if matrix is None:
                gradients.append(slope.sum(2))
            else:
                dweights[f"w{name}"] = self.product("bmhtp,bmti->hpi", slope, values)
                gradients.append(self.product("bmhtp,hpi->bmti", slope, matrix))
        return gradients, dweights

    def recall(self, stage: str, sums: int) -> Reserve:
        """Return the reserve space at that stage, of the same problem and operands, and read what is in it."""
        kept = self.reserve()
        kept.expect(stage, weightSpace=sums)
        if any(dropout is not None and dropout.probability for dropout in self.dropouts):
            raise unsupported("gradients with dropout, which a GPU computes wrongly")
        live, seen = kept.tape["live"], kept.tape["seen"]
        if stage == Reserve.FORWARD and not (
            np.array_equal(self.live, live) and np.array_equal(self.seen, seen)
        ):
            raise bad("lengths or window are not what they were in the forward pass")
        self.live, self.seen = live, seen
        return kept


@emulates("cudnnMultiHeadAttnForward")
def forward(given: SimpleNamespace) -> Any:
    """Compute the output; for training also what the backward passes need."""
    call, step, training = (
        _Call(given, "qDesc", "kDesc", "vDesc", "oDesc"),
        given.currIdx,
        bool(given.reserveSpace),
    )
    if given.residuals and call.spec.output_size != call.spec.q_size:
        raise bad(
            f"residuals with outputs of {call.spec.output_size} for queries of {call.spec.q_size}"
        )
    if step >= call.sizes[2] or (step >= 0 and training):
        raise bad(f"currIdx={step} of {call.sizes[2]}, {'training' if training else 'inference'}")

    def work() -> None:
        call.limit(given.devSeqLengthsQO, given.devSeqLengthsKV)
        (operands, weights, sums), target = call.operands(), call.view("y", "out")
        added = call.wide("y", "residuals") if given.residuals else call.compute.type(0)
        masks: list[Array | None] = [None, None]
        if training:
            kept = call.reserve()
            kept.begin()
            kept.tape["live"][...], kept.tape["seen"][...] = call.live, call.seen
            shapes = ((*call.live.shape[:2], call.spec.heads, *call.seen.shape[2:]), target.shape)
            for number, (dropout, shape) in enumerate(zip(call.dropouts, shapes, strict=True)):
                if dropout is not None:
                    masks[number] = mask = np.empty(shape, call.compute)
                    dropout.draw(call.api, [mask])
        else:
            call.space("workSpace", "workSpaceSizeInBytes", _workspace_bytes(call.spec))[:] = (
                POISON_FREED
            )
        with np.errstate(all="ignore"):
            result, _ = call.forward(operands, weights, masks[0])
            result = to_output(
                (result if masks[1] is None else result * masks[1]) + added, target.dtype
            )
        steps = slice(None) if step < 0 else slice(step, step + 1)
        target[:, :, steps] = result[:, :, steps]
        if training:
            kept.finish(Reserve.FORWARD, weightSpace=sums)

    return work


@emulates("cudnnMultiHeadAttnBackwardData")
def backward_data(given: SimpleNamespace) -> Any:
    """Compute dq, dk and dv, and what the gradients of the weights need."""
    call = _Call(given, "dqDesc", "dkDesc", "dvDesc", "doDesc")

    def work() -> None:
        call.limit(given.devSeqLengthsDQDO, given.devSeqLengthsDKDV)
        operands, weights, sums = call.operands()
        kept = call.recall(Reserve.FORWARD, sums)
        targets = [
            call.view(name, f"d{argument}") for name, argument in zip("qkv", _OPERANDS, strict=True)
        ]
        with np.errstate(all="ignore"):
            gradients, _ = call.backward(call.wide("y", "dout"), weights, operands)
        dq, dk, dv = (
            to_output(gradient, target.dtype)
            for gradient, target in zip(gradients, targets, strict=True)
        )
        # An H200 leaves dq beyond the longest query as it was, unless a projection of the queries writes all of it.
        written_steps = (
            call.sizes[2] if "wq" in weights else np.count_nonzero(call.live.any((0, 1)))
        )
        targets[0][:, :, :written_steps] = dq[:, :, :written_steps]
        targets[1][...] = dk
        targets[2][...] = dv
        kept.finish(Reserve.BACKWARD_DATA)

    return work


@emulates("cudnnMultiHeadAttnBackwardWeights")
def backward_weights(given: SimpleNamespace) -> Any:
    """Write the gradients of the weights, or add them to what is there."""
    call = _Call(given, "qDesc", "kDesc", "vDesc", "doDesc")
    if given.addGrad not in list(WgradMode):
        raise bad(f"addGrad={given.addGrad}; allowed: {', '.join(WgradMode.__members__)}")

    def work() -> None:
        operands, weights, sums = call.operands()
        call.recall(Reserve.BACKWARD_DATA, sums)
        with np.errstate(all="ignore"):
            _, gradients = call.backward(call.wide("y", "dout"), weights, operands)
        for name, target in call.weights("dweights").items():
            old = target.astype(call.compute) if given.addGrad == WgradMode.ADD else 0
            target[...] = to_output(old + gradients[name], target.dtype)

    return work
