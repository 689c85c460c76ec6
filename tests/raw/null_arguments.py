"""Calls every C function with a null in place of each pointer and descriptor, one at a time, in processes that may die of it.

    python tests/raw/null_arguments.py cuda 14

prints what died, by the C function and the argument, and how many calls ended otherwise.  The other arguments are those of a
legal call where an operation makes one, and zeros of a kind for other functions.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import cudnnlite as dnn
from cudnnlite._raw import calls
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.opaque import Opaque
from cudnnlite._raw.types import cudnnHandle_t
from cudnnlite.descriptors import native

ENDS = ("cudnnDestroy", "cudnnSubquadraticOpsVersionCheck")  # give back what others need
LOST = 17  # the exit code where the device can be used no more


def is_pointer(kind: Any) -> bool:
    """Tell whether an argument of that type can be null."""
    return hasattr(kind, "contents") or (
        isinstance(kind, type) and issubclass(kind, (ctypes.c_void_p, ctypes.c_char_p))
    )


CASES = [
    (name, position)
    for name, record in FUNCTIONS.items()
    for position, kind in enumerate(record.argtypes)
    if is_pointer(kind) and record.returns_status and not name.startswith(ENDS)
]


def legal_calls(handle: dnn.Handle) -> dict[str, list[Any]]:
    """Make calls of all operations; return the arguments of each C function that they called, in order."""
    from device.operation_samples import SAMPLES, Case

    seen: dict[str, list[Any]] = {}
    convert, replace = calls.convert, calls.PreparedCall.replace

    def noted(record: Any, arguments: tuple[Any, ...]) -> list[Any]:
        seen[record.name] = list(arguments)
        return convert(record, arguments)

    def replaced(self: Any, **values: Any) -> None:
        for name, value in values.items():
            seen[self._record.name][self._indices[name]] = value
        replace(self, **values)

    calls.convert, calls.PreparedCall.replace = noted, replaced  # type: ignore[method-assign]
    native.release = lambda *_: None  # their descriptors are used again
    rng = np.random.default_rng(0)

    def array(*shape: int) -> dnn.DeviceArray:
        return handle.array(rng.standard_normal(shape, np.float32))

    kept = [Case(handle, name) for name in SAMPLES]
    for case in kept:
        try:
            case.call()
        except dnn.NotSupportedError:
            print(f"not supported: {case.name}", file=sys.stderr)
    case = Case(handle, "convolution_forward")
    x, w = case.arrays["x"], case.arrays["w"]
    dnn.find_convolution_forward(handle, x, w, case.options["conv"])
    dnn.plan_convolution_forward(handle, x, w, case.options["conv"], interface="descriptor")(x, w)
    spec, sequence = dnn.RNNSpec("lstm", 2, 3, dropout=0.5, num_layers=2), array(4, 2, 2)
    state, weights = dnn.DropoutState(handle), dnn.RNNWeights(handle, spec)
    out = dnn.rnn_forward(handle, spec, weights, sequence, training=True, dropout_state=state)
    kept += [x, w, state, weights, out, dnn.rnn_backward_data(handle, out.reserve, out.y), case]
    kept += [dnn.rnn_backward_weights(handle, out.reserve)]
    attention, q = dnn.AttentionSpec(1, 2, q_proj_size=2, o_proj_size=2, bias=True), array(2, 3, 2)
    projections = dnn.AttentionWeights(handle, attention)
    out = dnn.multi_head_attention_forward(handle, attention, projections, q, q, q, training=True)
    kept += [projections, out, dnn.multi_head_attention_backward_data(handle, out.reserve, q)]
    kept += [dnn.multi_head_attention_backward_weights(handle, out.reserve)]
    y, reserve = dnn.dropout_forward(handle, q, 0.5, dropout_state=state)
    kept += [y, reserve, dnn.dropout_backward(handle, y, 0.5, reserve=reserve, dropout_state=state)]
    kept += [dnn.ctc_loss(handle, sequence, [1, 1], [1, 1], [4, 3], gradients=True)]
    kept += [dnn.transform_filter(handle, w, layout="NHWC")]
    handle.synchronize()
    calls.convert, calls.PreparedCall.replace = convert, replace  # type: ignore[method-assign]
    handle.kept_by_test = kept  # type: ignore[attr-defined]
    return seen


class Values:
    """Arguments for functions that no operation calls: fresh descriptors, zeros, memory of the device."""

    def __init__(self, handle: dnn.Handle) -> None:
        self.handle, self.memory, self._made = handle, handle.empty((1 << 20,)), dict[type, Any]()
        shape = (2, 3, 4, 5)
        self._kept = [
            dnn.TensorDescriptor(shape), dnn.FilterDescriptor(shape), dnn.ConvolutionDescriptor(1),
            dnn.PoolingDescriptor(dnn.PoolingSpec(2)), dnn.ActivationDescriptor(dnn.ActivationSpec("relu")),
            dnn.LRNDescriptor(dnn.LRNSpec()), dnn.OpTensorDescriptor(dnn.OpTensorSpec("add")), dnn.DropoutState(handle),
            dnn.ReduceTensorDescriptor(dnn.ReduceTensorSpec("add")), dnn.CTCLossDescriptor(dnn.CTCLossSpec()),
            dnn.SeqDataDescriptor(dnn.SeqDataSpec((2, 1, 5, 8), [5, 3])), dnn.RNNDescriptor(dnn.RNNSpec("gru", 2, 3)),
            dnn.RNNDataDescriptor((2, 3, 4)),
        ]  # fmt: skip
        self._made |= {type(each.ptr): each.ptr for each in self._kept if hasattr(each, "ptr")}

    def of(self, kind: Any, name: str) -> Any:
        """Return a value of a type."""
        if kind is cudnnHandle_t:
            return self.handle.ptr
        if hasattr(kind, "contents"):
            return ctypes.cast((ctypes.c_char * 4096)(), kind)
        if not issubclass(kind, Opaque):
            zeros = {ctypes.c_void_p: self.memory.ptr, ctypes.c_char_p: b" " * 4096}
            scalars = name in ("alpha", "beta", "alpha1", "alpha2")
            return (ctypes.c_double * 2)() if scalars else zeros.get(kind, 1)
        if kind not in self._made:
            self._made[kind] = made = kind()
            create = getattr(
                self.handle.api, f"cudnnCreate{kind.__name__.removeprefix('cudnn').removesuffix('_t')}", None
            )
            if create is not None and len(create.record.argtypes) == 1:
                create(ctypes.byref(made))
        return self._made[kind]


def child(device: str, shard: int, shards: int, start: int) -> None:
    """Make the calls of a shard, from one on; say before and after each what it is."""
    if device == "emulated":
        from cudnnlite.emulated.device import EmulatedDevice

        handle = dnn.Handle(EmulatedDevice(7, capacity="256 MiB"))
    else:
        handle = dnn.Handle(device)
    legal, values = legal_calls(handle), Values(handle)
    for index in range(shard + start * shards, len(CASES), shards):
        name, position = CASES[index]
        record = FUNCTIONS[name]
        print(json.dumps([name, record.argnames[position], name in legal]), flush=True)
        if not handle.api.has(name):
            print("missing", flush=True)
            continue
        arguments = legal.get(name) or [values.of(*each) for each in zip(record.argtypes, record.argnames, strict=True)]
        try:
            getattr(handle.api, name)(*(None if at == position else each for at, each in enumerate(arguments)))
            handle.synchronize()
            outcome = "success"
        except calls.CallArgumentError:
            outcome = "refused"
        except dnn.CudnnError as error:
            outcome = str(error.status)
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        print(outcome, flush=True)
        try:
            handle.device.synchronize()
        except Exception:
            sys.exit(LOST)


def run(device: str, shards: int) -> list[tuple[str, str, bool, str]]:
    """Make all calls; return of each the C function, the argument, whether others were legal, and what came of it."""

    def of(shard: int) -> list[tuple[str, str, bool, str]]:
        found: list[tuple[str, str, bool, str]] = []
        while True:
            line = [sys.executable, __file__, device, str(shards), str(shard), str(len(found))]
            ended = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
            told = ended.stdout.splitlines()
            lost = ended.returncode == LOST
            for case, outcome in zip(told[::2], [*told[1::2], f"died: {ended.returncode}"], strict=False):
                found.append((*json.loads(case), outcome))
            if lost:
                found[-1] = (*found[-1][:3], f"lost the device: {found[-1][3]}")
            elif not ended.returncode:
                return found
            elif not told:
                raise RuntimeError(ended.stderr[-3000:])

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).resolve().parents[1:3]))}
    with ThreadPoolExecutor(shards) as pool:
        return [row for rows in pool.map(of, range(shards)) for row in rows]


if __name__ == "__main__":
    device, shards, *rest = sys.argv[1:]
    if rest:
        child(device, int(rest[0]), int(shards), int(rest[1]))
    else:
        rows = run(device, int(shards))
        for function, argument, legal, outcome in sorted(rows):
            if "died" in outcome or "lost" in outcome:
                print(f"{outcome:12} {function}({argument}){'' if legal else ', the others zeros'}")
        print(len(rows), "calls:", dict(Counter("died" if "died" in row[3] else row[3] for row in rows).most_common()))
