"""Emulated multi-head attention.

The weights are laid out unlike a GPU's on purpose: code that does not ask `cudnnGetMultiHeadAttnWeights` fails.  Backward
passes want the reserve space and the operands of their training forward pass; hardware computes garbage instead.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cudnnlite._raw.enums import MultiHeadAttnWeightKind, WgradMode
from cudnnlite.descriptors.attention import SeqDataDescriptor, read_attention
from cudnnlite.descriptors.c_ints import c_ints
from cudnnlite.devices.storage import memory_view
from cudnnlite.dtypes import itemsize, numpy_dtype
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.dropout import find_dropout
from cudnnlite.emulated.memory import POISON_FREED
from cudnnlite.emulated.precision import round_tf32, to_output
from cudnnlite.emulated.registry import RefusalError, emulates
from cudnnlite.emulated.spaces import Places, Reserve, Spaces, bad, checksum
from cudnnlite.emulated.support import tf32_is_forbidden
from cudnnlite.enums import DataType, MathType, Status
from cudnnlite.specs.attention import AttentionSpec

Array = NDArray[Any]
_ALIGNMENT = 16


def _places(spec: AttentionSpec) -> tuple[dict[str, int], int]:
    """Lay out the weights in the opposite of cuDNN's order, with gaps; return the offsets, and the bytes of the whole."""
    places, offset = {}, 0
    for name, shape in reversed(spec.weight_shapes().items()):
        places[name] = offset
        end = offset + math.prod(shape) * itemsize(spec.dtype)
        offset = (-(-end // _ALIGNMENT) + 1) * _ALIGNMENT
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
def buffers(api: EmulatedApi, handle: Any, attention: Any, weights: Any, workspace: Any, reserve: Any) -> None:
    """Tell how large the buffers are: in training everything is in the reserve space."""
    spec = read_attention(api.real, attention).spec
    weights[0] = _places(spec)[1]
    workspace[0] = 0 if reserve else _workspace_bytes(spec)
    if reserve:
        reserve[0] = _kept(_room(spec)).nbytes


@emulates("cudnnGetMultiHeadAttnWeights")
def weight(
    api: EmulatedApi, handle: Any, attention: Any, kind: int, nbytes: int, weights: int | None, described: Any, address: Any
) -> None:  # fmt: skip
    """Tell where a matrix or a bias lies; a null address, and no description, of what is not there."""
    if kind not in list(MultiHeadAttnWeightKind):
        raise bad(f"wKind={kind}; allowed: {', '.join(MultiHeadAttnWeightKind.__members__)}")
    spec = read_attention(api.real, attention).spec
    places, needed = _places(spec)
    if nbytes < needed:
        raise bad(f"weights of {nbytes} bytes; {needed} are needed")
    name = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")[kind]
    address[0] = (weights or 0) + places[name] if name in places else None
    if name in places:
        shape = spec.weight_shapes()[name]
        dims = shape if len(shape) == 3 else (*shape, 1) if len(shape) == 2 else (1, *shape, 1)
        strides = [math.prod(dims[axis + 1 :]) for axis in range(3)]
        api.real.cudnnSetTensorNdDescriptor(described, spec.dtype, 3, c_ints(dims), c_ints(strides))


class _Operands(NamedTuple):
    q: Array
    k: Array
    v: Array


class _Taped(NamedTuple):
    """What a forward pass computed, and a backward pass needs."""

    projected: dict[str, Array]
    softmax: Array
    heads: Array  # what comes out of each


class _Call(Spaces):
    """What a call is given, read back and checked.  Nothing is written before all is read."""

    def __init__(self, api: EmulatedApi, attention: Any, q: Any, k: Any, v: Any, y: Any) -> None:
        self.api = api
        self.spec, one_to_one, *dropouts = read_attention(api.real, attention)
        self.dropouts = [find_dropout(api, pointer.value) for pointer in dropouts]
        spec = self.spec
        self.compute = np.dtype(np.float64 if spec.dtype == DataType.DOUBLE else np.float32)
        self.data = {
            name: SeqDataDescriptor.read(api.real, of) for name, of in {"q": q, "k": k, "v": v, "y": y}.items()
        }
        batch, beam, steps, _ = self.data["q"].shape
        reach = self.data["k"].shape[2]
        shapes = {
            "q": (batch, beam, steps, spec.q_size), "k": (batch, 1, reach, spec.k_size),
            "v": (batch, 1, reach, spec.v_size), "y": (batch, beam, steps, spec.output_size),
        }  # fmt: skip
        for name, data in self.data.items():
            if data.shape != shapes[name] or data.dtype != spec.dtype or data.axes != self.data["q"].axes:
                raise bad(f"{name} is {data}; needed: {shapes[name]} in {spec.dtype.name}, as the others")
        self.sizes, room = (batch, beam, steps, reach), _room(spec)
        if any(there > most for there, most in zip(self.sizes, room, strict=True)):
            raise bad(f"batch, beam and lengths of {self.sizes}; attnDesc has room for {room}")
        if one_to_one and beam > 1:
            raise RefusalError(Status.NOT_SUPPORTED, "QUERYMAP_ONE_TO_ONE with several beams")
        self.live: Array
        self.seen: Array

    def limit(self, low: Any, high: Any, q_lengths: Any, kv_lengths: Any) -> None:
        """Read what is attended to: `live` steps (B, M, T), and of each the keys that are `seen` (B, M, T, T')."""
        batch, beam, steps, reach = self.sizes

        def read(pointer: Any, count: int, most: int) -> Array:
            memory = self.api.memory.view(ctypes.addressof(pointer.contents), 4 * count).view(np.int32)
            if memory.min() < 0 or memory.max() > most:
                raise bad(f"lengths of {memory.tolist()}; allowed: 0 to {most}")
            return np.array(memory)

        self.live = np.arange(steps) < read(q_lengths, batch * beam, steps).reshape(batch, beam, 1)
        there = np.arange(reach) < read(kv_lengths, batch, reach).reshape(batch, 1, 1, 1)
        keys, first, end = np.arange(reach), np.array(low[:steps])[:, None], np.array(high[:steps])[:, None]
        self.seen = self.live[..., None] & there & (keys >= first) & (keys < end)

    def view(self, name: str, address: int | None) -> Array:
        """View an operand that is laid out as q, k, v or y are."""
        spec = self.data[name].tensor()
        return memory_view(self.memory(address, spec.nbytes, name), spec)

    def read(self, q: int, k: int, v: int) -> _Operands:
        """Copy the operands in the type that is computed in."""
        return _Operands(*(self.view(name, at).astype(self.compute) for name, at in zip("qkv", (q, k, v), strict=True)))

    def weights(self, address: int | None, nbytes: int) -> dict[str, Array]:
        """View the weights by name."""
        places, needed = _places(self.spec)
        if not needed:
            return {}
        space, shapes = self.space(address, nbytes, needed, "weights"), self.spec.weight_shapes()
        return {n: np.ndarray(shapes[n], numpy_dtype(self.spec.dtype), space, offset) for n, offset in places.items()}

    def wide(self, weights: dict[str, Array]) -> dict[str, Array]:
        """Copy weights in the type that is computed in."""
        return {name: values.astype(self.compute) for name, values in weights.items()}

    def reserve(self, address: int | None, nbytes: int) -> Reserve:
        """View a reserve space, which is as large as there is room for."""
        memory = self.space(address, nbytes, _kept(_room(self.spec)).nbytes, "reserveSpace")
        return Reserve(memory, _kept(self.sizes), (self.spec, [data.shape for data in self.data.values()]))

    def product(self, subscripts: str, a: Array, b: Array) -> Array:
        """Multiply as an H200 does: float32 in TF32, unless that is forbidden."""
        if self.spec.dtype == DataType.FLOAT and self.spec.math_type != MathType.FMA and not tf32_is_forbidden():
            a, b = round_tf32(a), round_tf32(b)
        return np.asarray(np.einsum(subscripts, a, b, optimize=True))

    def forward(self, given: _Operands, weights: dict[str, Array], mask: Array | None) -> tuple[Array, _Taped]:
        """Return the output before its dropout and residual."""
        projected = {}
        for name, values in zip("qkv", given, strict=True):
            each = np.broadcast_to(values[:, :, None], (*values.shape[:2], self.spec.heads, *values.shape[2:]))
            if f"w{name}" in weights:
                each = self.product("bmti,hpi->bmhtp", values, weights[f"w{name}"])
            if f"b{name}" in weights:
                each = each + weights[f"b{name}"][:, None]
            projected[name] = each
        scores = self.product("bmhtp,bhsp->bmhts", projected["q"], projected["k"][:, 0]) * self.compute.type(
            self.spec.scale
        )
        seen = self.seen[:, :, None]
        highest = np.max(scores, -1, keepdims=True, where=seen, initial=np.finfo(self.compute).min)
        powers = np.exp(np.where(seen, scores - highest, -np.inf))
        softmax = powers / np.maximum(powers.sum(-1, keepdims=True), np.finfo(self.compute).tiny)
        heads = self.product("bmhts,bhsv->bmhtv", softmax if mask is None else softmax * mask, projected["v"][:, 0])
        if "wo" in weights:
            y = self.product("bmhtv,hov->bmto", heads, weights["wo"]) + weights.get("bo", self.compute.type(0))
        else:
            y = np.moveaxis(heads, 2, 3).reshape(self.data["y"].shape)
        return y, _Taped(projected, softmax, heads)

    def backward(self, dy: Array, weights: dict[str, Array], given: _Operands) -> tuple[_Operands, dict[str, Array]]:
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
        dscores = softmax * (dsoftmax - (softmax * dsoftmax).sum(-1, keepdims=True)) * self.compute.type(spec.scale)
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
        return _Operands(*gradients), dweights

    def recall(self, stage: str, given: _Operands, stored: dict[str, Array], reserve: tuple[int, int]) -> Reserve:
        """Return a reserve space at that stage, of the same problem and operands, and read what is in it."""
        kept = self.reserve(*reserve)
        kept.expect(stage, weightSpace=checksum(*given, *stored.values()))
        if any(dropout is not None and dropout.probability for dropout in self.dropouts):
            raise RefusalError(Status.NOT_SUPPORTED, "gradients with dropout, which a GPU computes wrongly")
        live, seen = kept.tape["live"], kept.tape["seen"]
        if stage == Reserve.FORWARD and not (np.array_equal(self.live, live) and np.array_equal(self.seen, seen)):
            raise bad("lengths or window are not what they were in the forward pass")
        self.live, self.seen = live, seen
        return kept


@emulates("cudnnMultiHeadAttnForward")
def forward(
    api: EmulatedApi, handle: Any, attention: Any, step: int, low: Any, high: Any, q_lengths: Any, kv_lengths: Any,
    q_desc: Any, q: int, residual: int, k_desc: Any, k: int, v_desc: Any, v: int, y_desc: Any, y: int, weight_bytes: int,
    weights: int, workspace_bytes: int, workspace: int, reserve_bytes: int, reserve: int,
) -> Any:  # fmt: skip
    """Compute the output; for training also what the backward passes need."""
    call = _Call(api, attention, q_desc, k_desc, v_desc, y_desc)
    if residual and call.spec.output_size != call.spec.q_size:
        raise bad(f"residuals with outputs of {call.spec.output_size} for queries of {call.spec.q_size}")
    if step >= call.sizes[2] or (step >= 0 and reserve):
        raise bad(f"currIdx={step} of {call.sizes[2]}, {'training' if reserve else 'inference'}")

    def work() -> None:
        call.limit(low, high, q_lengths, kv_lengths)
        given, stored = call.read(q, k, v), call.weights(weights, weight_bytes)
        target, added = call.view("y", y), None
        if residual:
            added = call.view("y", residual).astype(call.compute)
        masks: list[Array | None] = [None, None]
        if reserve:
            kept = call.reserve(reserve, reserve_bytes)
            kept.begin()
            kept.tape["live"][...], kept.tape["seen"][...] = call.live, call.seen
            shapes = ((*call.live.shape[:2], call.spec.heads, *call.seen.shape[2:]), target.shape)
            for number, (dropout, shape) in enumerate(zip(call.dropouts, shapes, strict=True)):
                if dropout is not None:
                    masks[number] = mask = np.empty(shape, call.compute)
                    dropout.draw(api, [mask])
        else:
            call.space(workspace, workspace_bytes, _workspace_bytes(call.spec), "workSpace")[:] = POISON_FREED
        with np.errstate(all="ignore"):
            result, _ = call.forward(given, call.wide(stored), masks[0])
            result = result if masks[1] is None else result * masks[1]
            result = to_output(result if added is None else result + added, target.dtype)
        steps = slice(None) if step < 0 else slice(step, step + 1)
        target[:, :, steps] = result[:, :, steps]
        if reserve:
            kept.finish(Reserve.FORWARD, weightSpace=checksum(*given, *stored.values()))

    return work


@emulates("cudnnMultiHeadAttnBackwardData")
def backward_data(
    api: EmulatedApi, handle: Any, attention: Any, low: Any, high: Any, q_lengths: Any, kv_lengths: Any, y_desc: Any, dy: int,
    q_desc: Any, dq: int, q: int, k_desc: Any, dk: int, k: int, v_desc: Any, dv: int, v: int, weight_bytes: int, weights: int,
    workspace_bytes: int, workspace: int, reserve_bytes: int, reserve: int,
) -> Any:  # fmt: skip
    """Compute dq, dk and dv, and what the gradients of the weights need."""
    call = _Call(api, attention, q_desc, k_desc, v_desc, y_desc)

    def work() -> None:
        call.limit(low, high, q_lengths, kv_lengths)
        given, stored = call.read(q, k, v), call.weights(weights, weight_bytes)
        kept = call.recall(Reserve.FORWARD, given, stored, (reserve, reserve_bytes))
        targets = [call.view(name, at) for name, at in zip("qkv", (dq, dk, dv), strict=True)]
        with np.errstate(all="ignore"):
            gradients, _ = call.backward(call.view("y", dy).astype(call.compute), call.wide(stored), given)
        for target, gradient in zip(targets, gradients, strict=True):
            target[...] = to_output(gradient, target.dtype)
        kept.finish(Reserve.BACKWARD_DATA)

    return work


@emulates("cudnnMultiHeadAttnBackwardWeights")
def backward_weights(
    api: EmulatedApi, handle: Any, attention: Any, mode: int, q_desc: Any, q: int, k_desc: Any, k: int, v_desc: Any, v: int,
    y_desc: Any, dy: int, weight_bytes: int, weights: int, dweights: int, workspace_bytes: int, workspace: int,
    reserve_bytes: int, reserve: int,
) -> Any:  # fmt: skip
    """Write the gradients of the weights, or add them to what is there."""
    call = _Call(api, attention, q_desc, k_desc, v_desc, y_desc)
    if mode not in list(WgradMode):
        raise bad(f"addGrad={mode}; allowed: {', '.join(WgradMode.__members__)}")

    def work() -> None:
        given, stored = call.read(q, k, v), call.weights(weights, weight_bytes)
        call.recall(Reserve.BACKWARD_DATA, given, stored, (reserve, reserve_bytes))
        with np.errstate(all="ignore"):
            _, gradients = call.backward(call.view("y", dy).astype(call.compute), call.wide(stored), given)
        for name, target in call.weights(dweights, weight_bytes).items():
            old = target.astype(call.compute) if mode == WgradMode.ADD else 0
            target[...] = to_output(old + gradients[name], target.dtype)

    return work
