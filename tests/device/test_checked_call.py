"""What a warm call still checks: each test fails if its check is left out.

A plan is called with the same arrays and with others until it repeats its last call.  Then one
circumstance changes.  A call that is refused has written nothing, and the plan works afterwards; any
other call is right, and wrote to no memory that it does not own.
"""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from tolerances import assert_close

import cudnnlite as dnn
from cudnnlite.devices.arrays import part_of
from cudnnlite.emulated.device import EmulatedDevice, EmulatedStream
from cudnnlite.workbench.tuning.recording import record_problems

from .calls import CALLS, Call, Operand
from .problems import fill, memory_of

CONV, PRECOMP = CALLS["convolution_forward"], dnn.enums.ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM
ONE_SIDED = dnn.PoolingSpec(2, padding=((1, 0), (0, 1)))
# By how the call is made: a call that has a plan of this kind.
KINDS: dict[str, Call] = {
    "descriptor call": CALLS["pooling_forward"],
    "several outputs": CALLS["batch_normalization_training"],
    "packed copies": CALLS["divisive_normalization_forward"],
    "algorithm": CONV.changed(algorithm="GEMM"),
    "engine": CONV.changed(interface="graph"),
    "engine or descriptor call": CONV,
    "conversions": CONV.changed(
        algorithm=dnn.AlgorithmResult(PRECOMP, dnn.MathType.FMA, layout="NHWC")
    ),
    "replay": CONV.changed(replay=True),
    "transposed": CALLS["convolution_transpose"],
    "epilogue": replace(
        CONV,
        operands={
            "x": Operand((2, 8, 6, 5), "float16", "last"),
            "w": Operand((8, 8, 3, 3), "float16", "last"),
        },
        options={"conv": dnn.ConvolutionSpec(1), "activation": "relu"},
    ),
    "graph": CALLS["matmul"],
    "graph with outputs in scratch": CALLS["scaled_dot_product_attention_forward"],
    "pooling by a graph": CALLS["pooling_forward"].changed(pooling=ONE_SIDED),
    "activation by a graph": CALLS["activation_forward"].changed(activation="gelu"),
    "network": CALLS["rnn_forward"],
}
LINES = ("descriptor call", "engine or descriptor call", "graph", "network")
BOTH_WAYS = [*((kind, False) for kind in KINDS), *((kind, True) for kind in LINES)]
# An operand that is not aligned is copied, or has another plan; here it is refused.
NEED_ALIGNMENT = {"engine"}


@lru_cache(maxsize=64)
def results_of(device: Any, kind: str) -> tuple[list[dnn.TensorSpec], list[Any]]:
    """Return the specs of what a call of a kind writes, and the values, by a new handle."""
    call = KINDS[kind]
    with dnn.Handle(device) as fresh:
        results = call.run(fresh, call.place(fresh))
        return [result.spec for result in results], [result.numpy() for result in results]


class Scene:
    """A warm plan, or one-line calls that have one, with two sets of arrays.

    Attributes
    ----------
    arrays : dict
        The operands by name, which every call shares.
    out : DeviceArray or tuple of them
        What the calls write to.
    """

    def __init__(self, handle: dnn.Handle, kind: str, *, line: bool = False) -> None:
        self.handle, self.kind, self.call = handle, kind, KINDS[kind]
        call = self.call
        self.specs, self.expected = results_of(handle.device, kind)
        self.arrays = call.place(handle)
        self.first = next(name for name in call.arrays)
        self.out = self.new_out()
        self.plan: Any = None
        if not line:
            self.plan = call.function.plan(handle, **self.arrays, **call.options)
        self.warm_up()

    def new_out(self) -> Any:
        """Return new outputs, poisoned."""
        return self.call.outputs(self.handle, self.specs)

    @property
    def outs(self) -> list[dnn.DeviceArray]:
        """The outputs."""
        return [*self.out] if isinstance(self.out, tuple) else [self.out]

    def with_first_out(self, out: dnn.DeviceArray) -> Any:
        """Return the outputs with another one as the first."""
        return (out, *self.outs[1:]) if len(self.outs) > 1 else out

    def warm_up(self) -> None:
        """Call with the same arrays, and with others that differ by their addresses alone."""
        others = self.call.place(self.handle)
        for arrays, out in ((self.arrays, self.out), (others, self.new_out())):
            self.run(out=out, **arrays)
        for _ in range(3):
            self.run()

    def run(self, out: Any = None, *, workspace: Any = None, **arrays: Any) -> Any:
        """Make a call with some arrays replaced."""
        arrays = self.arrays | arrays
        given = {"out": self.out if out is None else out}
        if workspace is not None:
            given["workspace"] = workspace
        if self.plan is None:
            return self.call.function(self.handle, **arrays, **self.call.options, **given)
        if isinstance(self.plan, dnn.OperationPlan) and self.plan.problem.kind == "graph":
            given["out"] = dict(zip(self.call.results, [given["out"]], strict=True))
        ordered = [arrays[name] for name in self.call.parameters if name in arrays]
        return self.plan(*ordered, **given)

    @property
    def needed(self) -> int:
        """The bytes of workspace that a call needs."""
        if self.plan is None:
            return self.handle.workspace.size
        return int(self.plan.workspace)

    def poison(self) -> None:
        """Fill the outputs with NaN."""
        for array in self.outs:
            fill(array, 0xFF)

    def check(self, out: Any = None) -> None:
        """Compare all outputs with those of a new handle, bit for bit."""
        outs = self.outs if out is None else [*out] if isinstance(out, tuple) else [out]
        for array, expected in zip(outs, self.expected, strict=True):
            assert array.numpy().tobytes() == expected.tobytes()

    def works(self) -> None:
        """Make the call of before into poisoned outputs, twice, and compare."""
        for _ in range(2):
            self.poison()
            self.run()
            self.check()

    def check_near(self, out: Any = None) -> None:
        """Compare the outputs with those of a new handle, which may be another algorithm's."""
        outs = self.outs if out is None else [*out] if isinstance(out, tuple) else [out]
        for array, expected in zip(outs, self.expected, strict=True):
            assert_close(array.numpy(), expected.astype(np.float64), 2e-3)

    def refuses(self, name: str, error: type[Exception], words: str, **arguments: Any) -> None:
        """Make a call that is refused, which writes nothing, and then the one of before."""
        self.refuses_now(name, error, words, **arguments)
        self.works()

    def refuses_now(self, name: str, error: type[Exception], words: str, **arguments: Any) -> None:
        """Make a call that is refused, which writes nothing."""
        self.poison()
        before = [memory_of(array).tobytes() for array in self.outs]
        with pytest.raises(error) as raised:
            self.run(**arguments)
        assert re.search(words, str(raised.value)), (name, raised.value)
        assert [memory_of(array).tobytes() for array in self.outs] == before, name


@pytest.fixture
def scene_of(handle: dnn.Handle) -> Iterator[Callable[..., Scene]]:
    """Make scenes on the handle; their plans are closed after the test."""
    with ExitStack() as stack:

        def make(kind: str, *, line: bool = False) -> Scene:
            scene = Scene(handle, kind, line=line)
            if scene.plan is not None:
                stack.callback(scene.plan.close)
            return scene

        yield make


# Whether a copy is warned of is tested elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore::cudnnlite.errors.AlignmentWarning")


# ---------------------------------------------------------------- what is refused


def close_operand(scene: Scene) -> dict[str, Any]:
    array = scene.call.operands[scene.first].place(scene.handle)
    scene.run(**{scene.first: array})
    array.close()
    return {scene.first: array}


def close_output(scene: Scene) -> dict[str, Any]:
    out = scene.new_out()
    first = out[0] if isinstance(out, tuple) else out
    scene.run(out=out)
    first.close()
    return {"out": out}


def overlap(scene: Scene) -> dict[str, Any]:
    """Let the output begin inside of the first operand, at an address that is aligned."""
    operand, out = scene.arrays[scene.first], scene.outs[0]
    size = operand.nbytes + out.nbytes + 512
    memory = scene.handle.empty((size,), "uint8")
    moved = part_of(memory, operand.spec, 0)
    moved.copy_from(operand)
    inside = part_of(memory, out.spec, 128)
    assert inside.ptr < moved.ptr + moved.nbytes
    return {scene.first: moved, "out": scene.with_first_out(inside)}


def foreign_device(scene: Scene) -> dict[str, Any]:
    device = EmulatedDevice(7, capacity="16 MiB")
    with dnn.Handle(device) as other:
        return {scene.first: scene.call.operands[scene.first].place(other)}


def host_array(scene: Scene) -> dict[str, Any]:
    return {scene.first: scene.call.operands[scene.first].host()}


def read_only_output(scene: Scene) -> dict[str, Any]:
    out = scene.outs[0]
    view = dnn.DeviceArray(out.spec, out.device, out.ptr, out, out.stream, readonly=True)
    return {"out": scene.with_first_out(view)}


def other_shape(scene: Scene) -> dict[str, Any]:
    out = scene.outs[0]
    shape = (*out.shape[:-1], out.shape[-1] + 1)
    return {"out": scene.with_first_out(scene.handle.empty(shape, out.spec.dtype))}


def other_strides(scene: Scene) -> dict[str, Any]:
    """Describe the same memory in another way."""
    out = scene.outs[0]
    reversed_strides = dnn.TensorSpec(out.shape[::-1], out.spec.dtype).strides[::-1]
    spec = dnn.TensorSpec(out.shape, out.spec.dtype, strides=reversed_strides)
    return {"out": scene.with_first_out(part_of(out, spec, 0))}


def other_dtype(scene: Scene) -> dict[str, Any]:
    out = scene.outs[0]
    dtype = "bfloat16" if out.dtype.itemsize == 2 else "int32"
    return {"out": scene.with_first_out(part_of(out, dnn.TensorSpec(out.shape, dtype), 0))}


class Refusal(NamedTuple):
    """What changes, and what the next call raises."""

    change: Callable[[Scene], dict[str, Any]]
    error: type[Exception]
    words: str


REFUSALS = {
    "operand closed": Refusal(close_operand, dnn.errors.ClosedError, "closed"),
    "output closed": Refusal(close_output, dnn.errors.ClosedError, "closed"),
    "overlap": Refusal(overlap, dnn.ArgumentError, "overlaps"),
    "other device": Refusal(foreign_device, dnn.ArrayTypeError, "device|is on"),
    "host array": Refusal(host_array, dnn.ArrayTypeError, "host array"),
    "read-only output": Refusal(read_only_output, dnn.ArrayTypeError, "read-only"),
    "other shape": Refusal(other_shape, dnn.ArgumentError, "out"),
    "other strides": Refusal(other_strides, dnn.ArgumentError, "out"),
    "other data type": Refusal(other_dtype, dnn.ArgumentError, "out"),
}


# A call of one line has another plan for another output.
OF_A_LINE = {
    name: refusal
    for name, refusal in REFUSALS.items()
    if name not in ("other shape", "other strides", "other data type")
}


@pytest.mark.parametrize("kind", KINDS)
def test_refused(scene_of: Any, kind: str) -> None:
    scene = scene_of(kind)
    for name, (change, error, words) in REFUSALS.items():
        scene.refuses(name, error, words, **change(scene))


@pytest.mark.parametrize("kind", LINES)
def test_a_line_is_refused(scene_of: Any, kind: str) -> None:
    scene = scene_of(kind, line=True)
    for name, (change, error, words) in OF_A_LINE.items():
        scene.refuses(name, error, words, **change(scene))


def test_outputs_of_one_call_that_overlap(scene_of: Any, handle: dnn.Handle) -> None:
    scene = scene_of("several outputs")
    first, second, *others = scene.outs
    memory = handle.empty((first.nbytes + second.nbytes,), "uint8")
    inside = part_of(memory, second.spec, 128)
    out = (part_of(memory, first.spec, 0), inside, *others)
    scene.refuses("outputs", dnn.ArgumentError, "overlaps", out=out)


def test_a_network_whose_input_grew_into_its_output(scene_of: Any, handle: dnn.Handle) -> None:
    """Both begin where they began in the call before."""
    scene = scene_of("network")
    x, (y, *states) = scene.arrays["x"], scene.outs
    memory = handle.empty((4096,), "uint8")
    moved, y = part_of(memory, x.spec, 0), part_of(memory, y.spec, 256)
    moved.copy_from(x)
    scene.run(x=moved, out=(y, *states))
    steps = 256 // (x.nbytes // x.shape[0]) + 1
    longer = part_of(memory, dnn.TensorSpec((steps, *x.shape[1:])), 0)
    longer_y = part_of(memory, dnn.TensorSpec((steps, *y.shape[1:])), 256)
    assert (longer.ptr, longer_y.ptr) == (moved.ptr, y.ptr)
    scene.refuses("longer", dnn.ArgumentError, "overlaps", x=longer, out=(longer_y, *states))


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_plan_and_a_closed_handle(scene_of: Any, handle: dnn.Handle, kind: str) -> None:
    scene = scene_of(kind)
    scene.plan.close()
    with pytest.raises(dnn.errors.ClosedError, match="closed"):
        scene.run()
    with dnn.Handle(handle.device) as other:
        scene = Scene(other, kind)
        other.close()
        with pytest.raises(dnn.errors.ClosedError, match="closed"):
            scene.run()
    with dnn.Handle(handle.device) as other:
        line = Scene(other, kind, line=True)
        other.close()
        with pytest.raises(dnn.errors.ClosedError, match="closed"):
            line.run()


@pytest.mark.parametrize(("kind", "line"), BOTH_WAYS)
def test_another_thread(scene_of: Any, kind: str, line: bool) -> None:
    scene = scene_of(kind, line=line)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            scene.run()
        except dnn.CudnnliteError as error:
            raised.append(error)

    scene.poison()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [type(error) for error in raised] == [dnn.errors.ThreadError]
    scene.works()


# ---------------------------------------------------------------- what is done in another way


def shifted(scene: Scene, operand: dnn.DeviceArray, elements: int = 1) -> dnn.DeviceArray:
    """Return an array with the same values that begins behind an aligned address."""
    shift = elements * operand.dtype.itemsize
    memory = scene.handle.empty((operand.nbytes + shift,), "uint8")
    moved = part_of(memory, operand.spec, shift)
    moved.copy_from(operand)
    return moved


@pytest.mark.parametrize("kind", KINDS)
def test_an_operand_and_an_output_that_are_not_aligned(scene_of: Any, kind: str) -> None:
    """They are copied, or read as they are; an engine that the caller named refuses them."""
    scene = scene_of(kind)
    moved = shifted(scene, scene.arrays[scene.first])
    out = scene.with_first_out(shifted(scene, scene.outs[0]))
    for arguments in ({scene.first: moved}, {"out": out}):
        if kind in NEED_ALIGNMENT:
            scene.refuses(kind, dnn.ArgumentError, "aligned", **arguments)
            continue
        for _ in range(2):
            scene.poison()
            fill(out[0] if isinstance(out, tuple) else out, 0xFF)
            scene.run(**arguments)
            scene.check_near(arguments.get("out"))
        scene.works()


WITH_WORKSPACE = (
    "several outputs",
    "packed copies",
    "algorithm",
    "engine",
    "conversions",
    "replay",
    "transposed",
    "network",
)
NO_WORKSPACE_ON_A_GPU = {"algorithm", "engine", "replay", "transposed", "several outputs"}


def blockers(handle: dnn.Handle, sizes: Any) -> list[dnn.DeviceArray]:
    """Take up the memory that was freed, and fill it."""
    arrays = [handle.empty((size,), "uint8") for size in sizes for _ in range(4)]
    for array in arrays:
        fill(array, 0x5A)
    return arrays


def untouched(arrays: list[dnn.DeviceArray]) -> bool:
    """Whether nothing was written to memory of others."""
    return all((memory_of(array) == 0x5A).all() for array in arrays)


def workspace_of(scene: Scene) -> int:
    """Return the bytes that a plan needs; an engine that a GPU prefers may need none."""
    size = int(scene.plan.workspace)
    assert size or (scene.handle.device.kind == "cuda" and scene.kind in NO_WORKSPACE_ON_A_GPU)
    return size


@pytest.mark.parametrize("kind", WITH_WORKSPACE)
def test_the_workspace_was_released_or_grew(scene_of: Any, handle: dnn.Handle, kind: str) -> None:
    scene = scene_of(kind)
    size = workspace_of(scene)
    assert size <= handle.workspace.size
    handle.workspace.release()
    others = blockers(handle, [max(size, 1)])
    scene.works()
    assert untouched(others)
    assert handle.workspace.size >= size
    handle.workspace.reserve(handle.workspace.size + 4096, handle.stream)  # by another plan
    others += blockers(handle, [max(size, 1)])
    scene.works()
    assert untouched(others)


@pytest.mark.parametrize("kind", WITH_WORKSPACE)
def test_a_workspace_of_the_callers_own_counts_for_one_call(
    scene_of: Any, handle: dnn.Handle, kind: str
) -> None:
    scene = scene_of(kind)
    size = workspace_of(scene)
    own = handle.empty((max(size, 1),), "uint8")
    scene.poison()
    scene.run(workspace=own)
    scene.check()
    own.close()
    del own
    gc.collect()
    others = blockers(handle, [max(size, 1)])
    scene.works()
    assert untouched(others)


@pytest.mark.parametrize("kind", WITH_WORKSPACE)
def test_a_workspace_of_the_callers_own_that_is_refused(
    scene_of: Any, handle: dnn.Handle, kind: str
) -> None:
    scene = scene_of(kind)
    size = workspace_of(scene)
    if not size:
        return
    small = handle.empty((size - 1,), "uint8")
    scene.refuses("small", dnn.ArgumentError, "workspace has", workspace=small)
    memory = handle.empty((scene.outs[0].nbytes + size + 512,), "uint8")
    out = part_of(memory, scene.outs[0].spec, 0)
    over = part_of(memory, dnn.TensorSpec((size,), "uint8"), 128)
    scene.refuses(
        "over out",
        dnn.ArgumentError,
        "overlaps",
        workspace=over,
        out=scene.with_first_out(out),
    )


@pytest.mark.parametrize("kind", WITH_WORKSPACE)
def test_a_workspace_that_is_leased(scene_of: Any, handle: dnn.Handle, kind: str) -> None:
    scene = scene_of(kind)
    if not workspace_of(scene):
        return
    with handle.workspace.lease(1, handle.stream):
        scene.refuses_now("leased", dnn.WorkspaceLimitError, "leased")
    scene.works()


@pytest.mark.parametrize("kind", KINDS)
def test_another_stream(
    scene_of: Any, handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The handle goes to another stream and back; the arrays stay with the first one.

    Each stream has a workspace, and each waits for the other.
    """
    scene = scene_of(kind)
    size = scene.plan.workspace
    first, other = handle.stream, handle.device.create_stream()
    waits: list[tuple[Any, Any]] = []
    if handle.device.kind == "emulated":
        monkeypatch.setattr(EmulatedStream, "wait", lambda self, one: waits.append((self, one)))
    for stream in (other, first, other):
        handle.stream = stream
        waits.clear()
        scene.works()
        if handle.device.kind == "emulated":
            both = {(stream, first), (first, stream)} if stream is not first else set()
            assert {*waits} == both
        assert handle.workspace.size >= size * (2 if stream is other else 1)
    handle.stream = first
    other.sync()


@pytest.mark.parametrize("kind", KINDS)
def test_an_operand_of_another_stream(
    own_device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It is waited for each time; an emulated stream tells that."""
    with dnn.Handle(own_device) as handle:
        scene = Scene(handle, kind)
        first, other = handle.stream, own_device.create_stream()
        operand = scene.arrays[scene.first]
        array = dnn.DeviceArray(operand.spec, own_device, operand.ptr, operand, other)
        waits: list[tuple[Any, Any]] = []
        monkeypatch.setattr(EmulatedStream, "wait", lambda self, one: waits.append((self, one)))
        for _ in range(2):
            scene.poison()
            waits.clear()
            scene.run(**{scene.first: array})
            assert waits == [(first, other), (other, first)]
            scene.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_call_is_recorded(scene_of: Any, handle: dnn.Handle, kind: str) -> None:
    """The graph counts it, and keeps the plan and the memory of its operands."""
    scene = scene_of(kind)
    out = scene.new_out()
    scene.run(out=out)
    copies = scene.call.place(handle)
    arrays = {n: array for n, array in copies.items() if isinstance(array, dnn.DeviceArray)}
    scene.run(out=out, **arrays)
    with dnn.capture(handle) as graph:
        scene.run(out=out, **arrays)
    with graph:
        assert graph.calls == 1
        sizes = [array.nbytes for array in arrays.values()]
        for array in arrays.values():
            array.close()
        scene.plan.close()
        gc.collect()
        others = blockers(handle, sizes)
        for array in out if isinstance(out, tuple) else (out,):
            fill(array, 0xFF)
        graph.launch()
        scene.check(out)
        assert untouched(others)


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_that_another_handle_records(scene_of: Any, handle: dnn.Handle, kind: str) -> None:
    scene = scene_of(kind)
    with dnn.Handle(handle.device) as other:
        with (
            dnn.capture(other) as graph,
            pytest.raises(dnn.errors.CaptureError, match="another handle"),
        ):
            scene.run()
        graph.close()
    scene.works()


# Neither graphs nor what runs one are listed.
LISTED = [kind for kind in KINDS if "graph" not in kind and kind != "epilogue"]


@pytest.mark.parametrize("kind", LISTED)
def test_a_warm_call_is_listed(scene_of: Any, kind: str) -> None:
    scene = scene_of(kind)
    with record_problems() as problems:
        scene.run()
        scene.run()
    assert [listed.count for listed in problems] == [2]
    scene.works()
