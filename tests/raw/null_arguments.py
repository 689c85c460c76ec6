"""Calls every C function with one null pointer or descriptor, in processes that may die.

    python tests/raw/null_arguments.py cuda 14

prints what died, by the C function and the argument, and how many calls ended otherwise.  The other
arguments are those of a legal call where an operation makes one, and zeros of a kind for other
functions.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import cudnnlite as dnn
from cudnnlite._raw import calls
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.opaque import Opaque
from cudnnlite._raw.types import cudnnHandle_t
from cudnnlite.descriptors import native
from cudnnlite.devices.device_choice import get_device

LOST = 17  # the exit code where the device can be used no more
CASES = [
    (name, position)
    for name, record in FUNCTIONS.items()
    for position, kind in enumerate(record.argtypes)
    if record.returns_status and not name.startswith("cudnnDestroy")
    if hasattr(kind, "contents") or issubclass(kind, (ctypes.c_void_p, ctypes.c_char_p))
]
# last what the device alone may follow, which costs a process each
CASES.sort(key=lambda case: FUNCTIONS[case[0]].argtypes[case[1]] is ctypes.c_void_p)


class Row(NamedTuple):
    """What came of a null: 'refused', 'success', a status, or 'died'.

    `other_arguments` says if the rest is a legal call's.
    """

    function: str
    argument: str
    other_arguments: str
    outcome: str


def legal_calls(device: Any) -> tuple[Any, dict[str, list[Any]]]:
    """Make calls of all operations.

    Return what they were made of, and the arguments of each C function in order.
    """
    from fuzz.subjects import SAMPLES, Case, Things

    calls_by_name: dict[str, list[Any]] = {}
    convert, replace = calls.convert, calls.PreparedCall.replace

    def noted(record: Any, arguments: tuple[Any, ...]) -> list[Any]:
        calls_by_name[record.name] = list(arguments)
        return convert(record, arguments)

    def replaced(self: Any, **values: Any) -> None:
        for name, value in values.items():
            calls_by_name[self._record.name][self._record.argnames.index(name)] = value
        replace(self, **values)

    calls.convert, calls.PreparedCall.replace = noted, replaced  # type: ignore[method-assign]
    native.release = lambda *_: None  # their descriptors are used again
    things: Any = Things(Path(tempfile.mkdtemp()), device)
    dnn.convolution_forward.plan(
        things.handle, things.x, things.w, things.conv, interface="descriptor"
    )(things.x, things.w)
    dnn.rnn_backward_data(things.handle, things.reserve, things.sequences)
    dnn.rnn_backward_weights(things.handle, things.reserve)
    dnn.multi_head_attention_backward_weights(things.handle, things.reserves[1])
    dnn.dropout_backward(
        things.handle, things.x, 0.5, reserve=things.dropout_reserve, dropout_state=things.dropout
    )
    things.costs = dnn.ctc_loss(things.handle, things.sequence, [1, 1], [1, 1], [4, 3])
    things.cases = [Case(things.handle, name) for name in SAMPLES]
    for case in things.cases:
        try:
            case.call()
        except dnn.NotSupportedError as error:
            print(error, file=sys.stderr)
    things.handle.synchronize()
    calls.convert, calls.PreparedCall.replace = convert, replace  # type: ignore[method-assign]
    return things, calls_by_name


def any_value(things: Any, kind: Any, name: str, values: dict[type, Any]) -> Any:
    """Return a value of a type: a descriptor that is not set, zeros, or the address of an array."""
    if kind is cudnnHandle_t:
        return things.handle.ptr
    if hasattr(kind, "contents"):
        return ctypes.cast((ctypes.c_char * 4096)(), kind)
    if not issubclass(kind, Opaque):
        is_scalar = name.startswith(("alpha", "beta"))
        return (
            (ctypes.c_double * 2)() if is_scalar else {ctypes.c_void_p: things.x.ptr}.get(kind, 1)
        )
    if kind not in values:
        values[kind] = kind()
        create = getattr(things.handle.api, f"cudnnCreate{kind.__name__[5:-2]}", None)
        if create is not None and len(create.record.argtypes) == 1:
            create(ctypes.byref(values[kind]))
    return values[kind]


def child(device: Any, shard: int, shards: int, start: int) -> None:
    """Make the calls of a shard, from one on; say before and after each what it is."""
    signal.alarm(120)  # whose signal ends the process, as a call that hangs
    things, legal = legal_calls(device)
    values: dict[type, Any] = {}
    for name, position in CASES[shard::shards][start:]:
        record, api = FUNCTIONS[name], things.handle.api
        print(name, record.argnames[position], "legal" if name in legal else "zeros", flush=True)
        kinds = zip(record.argtypes, record.argnames, strict=True)
        arguments = legal.get(name) or [
            any_value(things, *kind_and_name, values) for kind_and_name in kinds
        ]
        outcome = "success"
        signal.alarm(20)
        try:
            getattr(api, name)(
                *(None if at == position else argument for at, argument in enumerate(arguments))
            )
            things.handle.synchronize()
        except calls.CallArgumentError:
            outcome = "refused"
        except dnn.CudnnError as error:
            outcome = dnn.enums.Status(error.status).name
        except dnn.errors.SymbolNotFoundError:
            outcome = "not there"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        print(outcome.partition("\n")[0], flush=True)
        try:
            things.device.synchronize()
        except Exception:
            os._exit(LOST)
    os._exit(0)


def run(device: str, shards: int) -> list[Row]:
    """Make all calls, and start again behind each that ended its process."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [*map(str, Path(__file__).resolve().parents[1:3]), *filter(None, sys.path)]
        ),
    }

    def of(shard: int) -> list[Row]:
        rows: list[Row] = []
        while True:
            line = [sys.executable, __file__, device, str(shards), str(shard), str(len(rows))]
            ended = subprocess.run(
                line, capture_output=True, text=True, check=False, env=environment
            )
            lines = ended.stdout.splitlines()
            for case, outcome in zip(
                lines[::2], [*lines[1::2], f"died: {ended.returncode}"], strict=False
            ):
                rows.append(Row(*case.split(), outcome))
            if ended.returncode == LOST:
                rows[-1] = rows[-1]._replace(outcome=f"lost the device: {rows[-1].outcome}")
            if ended.returncode and lines:
                print(*rows[-1], flush=True)
            elif not ended.returncode:
                return rows
            elif not lines:
                raise RuntimeError(ended.stderr[-3000:])

    with ThreadPoolExecutor(shards) as pool:
        return [row for rows in pool.map(of, range(shards)) for row in rows]


if __name__ == "__main__":
    device, shards, *rest = sys.argv[1:]
    if rest:
        child(get_device(device), int(rest[0]), int(shards), int(rest[1]))
    else:
        rows = run(device, int(shards))
        print(len(rows), "calls:", dict(Counter(row.outcome for row in rows).most_common()))
