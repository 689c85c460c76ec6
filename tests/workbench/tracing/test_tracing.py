"""Traces: what they record, what the program in C has of it, and that nothing is left of them."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from helpers.commands import Commands

import cudnnlite as dnn
from cudnnlite._raw.api import library_api
from cudnnlite._raw.calls import PREPARED, CFunction
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite.devices import observer, plan_cache
from cudnnlite.devices.cuda import CudaDevice
from cudnnlite.emulated.memory import ALIGNMENT
from cudnnlite.plans import capture as capture_module
from cudnnlite.plans.replay import ReplayedCall
from cudnnlite.raw import types
from cudnnlite.types import CapturedGraph
from cudnnlite.workbench.tracing.memory import checksum
from cudnnlite.workbench.tracing.recorder import TracedCall

X = np.random.default_rng(0).standard_normal((2, 3, 6, 5), dtype=np.float32)


@pytest.fixture
def handle() -> Any:
    with dnn.Handle("emulated") as handle:
        yield handle


def main_of(trace: dnn.workbench.Trace) -> str:
    return trace.as_c().partition("int main(void)")[2]


def functions(handle: dnn.Handle) -> list[Any]:
    """Return what is called for each C function that was called so far."""
    tables = (vars(handle.api), vars(library_api()))
    calls = [
        bound.call for table in tables for bound in table.values() if hasattr(bound, "unobserved")
    ]
    return calls + [call.function for call in PREPARED]


def methods(*objects: Any) -> list[Any]:
    return [dict(vars(one)) for one in objects]


def test_outside_of_a_trace_every_function_is_its_own(handle: dnn.Handle) -> None:
    with dnn.convolution_forward.plan(
        handle, x := handle.array(X), handle.array(X[:, :, :2, :2])
    ) as plan:
        plan(x, handle.array(X[:, :, :2, :2]))
        before = functions(handle)
        with pytest.raises(ZeroDivisionError), dnn.trace() as trace:  # noqa: PT012
            assert functions(handle) != before
            assert observer.current is trace._recorder
            1 / 0
        assert functions(handle) == before
        assert type(observer.current) is observer.Observer
        assert all(call.bound.call is call.bound.unobserved is call.function for call in PREPARED)


def test_no_method_is_replaced_in_a_trace(handle: dnn.Handle) -> None:
    classes = (CudaDevice, type(handle.device), CapturedGraph, ReplayedCall, dnn.DeviceArray)
    before = methods(*classes, capture_module)
    with dnn.trace():
        dnn.activation_forward(handle, handle.array(X), "relu")
        assert methods(*classes, capture_module) == before


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("interface", ["graph", "descriptor"])
def test_plans_that_are_evicted_during_the_trace(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, interface: str
) -> None:
    monkeypatch.setattr(plan_cache, "MAX_CACHED", 2)
    w = handle.array(X[:, :, :2, :2])

    def convolve(rows: int) -> dnn.DeviceArray:
        x = handle.array(np.ascontiguousarray(X[:, :, :rows]))
        return dnn.convolution_forward(handle, x, w, interface=interface)

    for rows in (
        3,
        4,
    ):  # a plan that the trace uses, and one that is evicted without having been used in it
        convolve(rows)
    with dnn.trace() as trace:
        results = [convolve(rows) for rows in (3, 5, 6, 3)]
        sums = [f"{checksum(y.numpy().tobytes()):016x}" for y in results]
    called = "cudnnBackendExecute" if interface == "graph" else "cudnnConvolutionForward"
    text = main_of(trace)
    assert [call.function for call in trace.calls].count(called) == 4
    assert text.count(f"{called}(") == 4
    assert [total for _, total in trace.checksums] == sums
    assert "NULL" not in re.sub("^.*cudaMalloc.*$", "", text, flags=re.MULTILINE)
    for verb in ("cudnnCreate", "cudnnBackendCreate"):
        assert text.count(verb) == text.count(verb.replace("Create", "Destroy"))


def test_a_call_of_a_plan_made_before_is_recorded(handle: dnn.Handle) -> None:
    x, w = handle.array(X), handle.array(X[:, :, :2, :2])
    with dnn.convolution_forward.plan(handle, x, w) as plan:
        y = plan(x, w)
        with dnn.trace() as trace:
            plan(x, w, out=y)
    assert [call.function for call in trace.calls] == ["cudnnBackendExecute"]
    assert [name for name, _ in trace.checksums] == ["y"]
    text = main_of(trace)
    for needed in (
        "ENGINE_GLOBAL_INDEX",
        "(void *[]){x, w, y}",
        "load(x, 720,",
        "load(w, 96,",
        "ENGINECFG_KNOB_CHOICES",
    ):
        assert needed in text
    assert "HEUR" not in text


def test_what_a_plan_writes_is_no_affair_of_others(handle: dnn.Handle) -> None:
    x, w = handle.array(X), handle.array(X[:, :, :2, :2])
    with dnn.convolution_forward.plan(handle, x, w, interface="graph") as plan:
        y = plan(x, w)
        y.fill(0)
        with dnn.trace() as trace:
            plan(x, w, out=y)
            plan(x, w, out=y)
    assert trace.warnings == []
    assert main_of(trace).count("load(y") == 1


def test_a_workspace_from_before_is_not_as_large_as_a_later_answer() -> None:
    programs = []
    for reserved in (False, True):
        with dnn.Handle("emulated") as handle:
            x, w = handle.array(X), handle.array(X[:, :, :2, :2])
            if reserved:
                size = int(re.findall(r"&workspace_size\)\); /\* (\d+) \*/", programs[0])[0])
                handle.workspace.reserve(size, handle.stream)
            with dnn.trace() as trace:
                dnn.convolution_forward(handle, x, w, algorithm="gemm")
            programs.append(main_of(trace))
    assert ["cudaMalloc(&workspace, workspace_size)" in program for program in programs] == [
        True,
        False,
    ]
    assert f"cudaMalloc(&workspace, {size})" in programs[1]


def test_copies_and_fills_of_parts_are_written_down(handle: dnn.Handle) -> None:
    with dnn.trace() as trace:
        x = handle.empty(X.shape)
        x.fill(1.5)
        x[:, 1].fill(0)
        x[:, 1:, ::2, 2:4].copy_from(X[:, 1:, ::2, 2:4])
        x[0].copy_from(X[0])
        part = np.empty((2, 6, 2), np.float32)
        x[:, 2, :, 1:3].copy_to(part)
    text, files = main_of(trace), trace._written().files
    assert X[0].tobytes() in files.values()
    assert np.full(X.shape, 1.5, np.float32).tobytes() in files.values()
    assert "load_rows((char *)memory + " in text
    assert "cudaMemset2DAsync((char *)memory + 120, 360, 0, 120, 2, " in text
    assert "report_rows(" in text or text.count("report(") > 1


def test_memory_from_before_is_loaded_before_a_part_of_it_is_written(handle: dnn.Handle) -> None:
    x, y = handle.array(X), handle.array(X)
    with dnn.trace() as trace:
        x[0].copy_from(X[1])
        y[0].fill(0)
        dnn.add_tensor(handle, x, y)
    text, files = main_of(trace), trace._written().files
    assert sorted(map(len, files.values())) == [360, 720]
    order = re.findall(r"(load\(\w, \d+|Memset\w+\(\w, 0, \d+|AddTensor)", text)
    assert order == [
        "load(a, 720",
        "load(c, 720",
        "load(a, 360",
        "MemsetAsync(c, 0, 360",
        "AddTensor",
    ]


def test_memory_from_before_that_a_graph_uses_first_is_loaded(handle: dnn.Handle) -> None:
    x, out = handle.array(X), handle.empty(X.shape)
    dnn.activation_forward(handle, x, "relu", out=out)
    with dnn.trace() as trace:
        with dnn.capture(handle) as graph:
            dnn.activation_forward(handle, x, "relu", out=out)
        with graph:
            graph.launch()
        out.numpy()
    text = main_of(trace)
    assert (
        text.index("load(x, 720, ")
        < text.index("cudaStreamBeginCapture(")
        < text.index("cudaGraphLaunch(")
    )


def test_memory_that_was_handed_out_in_a_capture_is_loaded_where_it_is_used(
    handle: dnn.Handle,
) -> None:
    with dnn.trace() as trace:
        x = handle.array(X)
        with dnn.capture(handle) as graph:
            x.__dlpack__()
        graph.close()
        dnn.activation_forward(handle, x, "relu").numpy()
    order = re.findall(r"cudaMalloc\(&x|load\(x|cudnnActivationForward", main_of(trace))
    assert order == ["cudaMalloc(&x", "load(x", "load(x", "cudnnActivationForward"]


class Foreign:
    """An array of another library's on the device."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


USES_OF_A_WHOLE: dict[str, Callable[[dnn.Handle, Any, Any], Any]] = {
    "an operation": lambda handle, whole, _: dnn.activation_forward(handle, whole, "relu"),
    "with the part": lambda handle, whole, part: dnn.convolution_forward(
        handle, part, whole, algorithm="gemm"
    ),
    "a graph": lambda handle, whole, _: dnn.convolution_forward(handle, whole, whole),
    "all filled": lambda _, whole, __: whole.fill(0),
    "a fill of a part": lambda _, whole, __: whole[:, 1].fill(0),
    "all copied in": lambda _, whole, __: whole.copy_from(np.ones((4, 3, 4, 4), np.float32)),
    "a copy out": lambda _, whole, __: whole.numpy(),
    "a copy within": lambda _, whole, __: whole.copy().numpy(),
}


@pytest.mark.parametrize("use", USES_OF_A_WHOLE)
def test_a_part_of_anothers_array_is_not_all_there_is(handle: dnn.Handle, use: str) -> None:
    content = np.arange(192, dtype=np.float32).reshape(4, 3, 4, 4)
    theirs = np.from_dlpack(handle.array(content))
    whole = handle.view(Foreign(theirs))
    with dnn.trace() as trace:
        part = handle.view(Foreign(theirs[:1]))
        dnn.activation_forward(handle, part, "tanh")
        USES_OF_A_WHOLE[use](handle, whole, part)
        whole.numpy()
    before, files = main_of(trace).split("/* ")[1], trace._written().files
    assert trace.warnings == []
    assert before.startswith("made before the trace")
    assert re.findall(r"cudaMalloc\(&\w+, (\d+)\)", before)[-1] == "768"
    assert (content.tobytes() in files.values()) is not use.startswith("all")


def test_calls_are_data(handle: dnn.Handle) -> None:
    with dnn.trace() as trace, dnn.TensorDescriptor(X.shape, "float16", "NHWC"):
        pass
    creation, setting, destruction = trace.calls
    assert [creation.function, destruction.function] == [
        "cudnnCreateTensorDescriptor",
        "cudnnDestroyTensorDescriptor",
    ]
    expected = {
        "dataType": dnn.DataType.HALF,
        "nbDims": 4,
        "dimA": X.shape,
        "strideA": (90, 1, 15, 3),
    }
    assert setting.arguments == {"tensorDesc": creation.arguments["tensorDesc"], **expected}
    assert (setting.status, Path(setting.file).name) == (
        dnn.enums.Status.SUCCESS,
        Path(__file__).name,
    )
    assert setting.microseconds > 0
    assert (
        "with dnn.trace() as trace, dnn.TensorDescriptor"
        in Path(__file__).read_text().splitlines()[setting.line - 1]
    )
    assert str(trace).count("\n") == 2
    assert (
        f"cudnnSetTensorNdDescriptor(tensorDesc={creation.arguments['tensorDesc']:#x}, "
        "dataType=HALF, nbDims=4"
    ) in str(trace)
    assert (len(trace), repr(trace)) == (3, "<Trace of 3 calls>")
    assert "<pre>" in trace._repr_html_()
    assert "&lt;cudnn.h&gt;" in trace._repr_html_()


def test_attributes_of_descriptors_are_shown_by_their_values(handle: dnn.Handle) -> None:
    """So a printed trace shows which engine ran."""
    x, w = handle.full((1, 8, 5, 4), 1.0), handle.full((4, 8, 3, 3), 1.0)
    with dnn.trace() as trace:
        dnn.convolution_forward(handle, x, w, algorithm="engine 2")
    values = {
        call.arguments["attributeName"].name: call.arguments["arrayOfElements"]
        for call in trace.calls
        if call.function == "cudnnBackendSetAttribute"
    }
    assert values["ENGINE_GLOBAL_INDEX"] == (2,)
    assert repr(values["CONVOLUTION_COMP_TYPE"]) == "(<DataType.FLOAT: 0>,)"
    assert values["TENSOR_DIMENSIONS"] == (1, 4, 3, 2)
    assert "attributeType=INT64, elementCount=1, arrayOfElements=(2,))" in str(trace)
    for name in ("ENGINE_OPERATION_GRAPH", "VARIANT_PACK_DATA_POINTERS"):
        assert isinstance(values[name], int), "addresses stay where they are"


def test_addresses_are_shown_as_such_however_low_they_are() -> None:
    call = TracedCall(
        "cudnnSetStream", {"handle": 4096, "streamId": 1}, dnn.enums.Status.SUCCESS, 1.0, "", 0
    )
    assert str(call).endswith("cudnnSetStream(handle=0x1000, streamId=0x1)")
    creation = call._replace(function="cudnnCreate", arguments={"handle": 4096})
    assert str(creation).endswith("cudnnCreate(handle=0x1000)")


def test_many_calls_are_a_loop(handle: dnn.Handle) -> None:
    x, out = handle.array(X), handle.empty((2, 3, 3, 2))
    with dnn.trace() as trace:
        for _ in range(1000):
            dnn.pooling_forward(handle, x, dnn.PoolingSpec(2), out=out)
    assert len(trace) > 1000
    assert main_of(trace).count("cudnnPoolingForward") == 1
    assert "for (int i = 0; i < 1000; i++) {" in main_of(trace)


@pytest.mark.parametrize("interface", ["graph", "descriptor"])
def test_results_in_memory_that_was_freed_are_a_loop_too(
    interface: str, handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan's variant pack of an address is used again.

    The program has other memory there, so it sets the pack again.
    """
    blocks, empty = (
        itertools.cycle([np.empty(320 + ALIGNMENT, np.uint8) for _ in range(3)]),
        np.empty,
    )

    def in_turn(size: Any, *more: Any, **options: Any) -> Any:
        """Make results lie in three places in turn.

        The host would otherwise put them where earlier tests left room.
        """
        result = empty(size, *more, **options)
        if size != 320 + ALIGNMENT:
            return result
        block = next(blocks)
        block[...] = result
        return block

    monkeypatch.setattr("cudnnlite.emulated.memory.QUARANTINE", 0)
    x, w = handle.array(X), handle.array(X[:, :, :2, :2])
    with (
        dnn.convolution_forward.plan(handle, x, w, interface=interface) as plan,
        dnn.trace() as trace,
    ):
        monkeypatch.setattr(np, "empty", in_turn)
        for _ in range(200):
            y = plan(x, w)
        y.numpy()
    text = main_of(trace)
    assert len(text.splitlines()) < 400
    # two variables in turn, and a pack for each of three places
    assert re.findall(r"i < (\d+); i\+\+", text) == ["32" if interface == "graph" else "99"]
    assert re.search(r'report\("(y\w*)", \1, 320\)', text)


def test_many_unneeded_calls_share_a_line(handle: dnn.Handle) -> None:
    with dnn.trace() as trace:
        for _ in range(10):
            handle.version
        dnn.softmax_forward(handle, handle.array(X))
    assert "10 calls that the program does without: cudnnGetVersion" in str(trace)
    assert len(str(trace).splitlines()) == len(trace) - 9


def test_loops_of_loops(handle: dnn.Handle) -> None:
    x, w = handle.array(X), handle.empty(X.shape)
    dnn.scale_tensor(handle, dnn.activation_forward(handle, x, "relu", out=w), 0.5)
    with dnn.trace() as trace:
        for _ in range(7):
            for _ in range(5):
                dnn.activation_forward(handle, x, "relu", out=w)
            dnn.scale_tensor(handle, w, 0.5)
    assert re.search(
        r"i < 7; i\+\+\) \{\s+for \(int j = 0; j < 5; j\+\+\) \{\s+CUDNN\(cudnnActivationForward",
        main_of(trace),
    )


def test_memory_is_freed_as_often_as_it_is_allocated(handle: dnn.Handle) -> None:
    with dnn.trace() as trace:
        x = handle.array(X)
        for _ in range(3):
            x = dnn.activation_forward(handle, x, "relu")
        x.numpy()
    text = main_of(trace)
    assert text.count("cudaMalloc") == text.count("cudaFree") == 4
    assert text.count("cudnnCreate") == text.count("cudnnDestroy") > 2


def test_what_was_freed_is_forgotten_at_the_next_call(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "cudnnlite.emulated.memory.QUARANTINE", 0
    )  # addresses are handed out again at once
    with dnn.trace() as trace:
        array = handle.array(X)
        for _ in range(3):
            handle.array(X)
        handle.version
        dnn.scale_tensor(handle, array, 2.0)
    functions = [step.function for step in trace._recorder.statements]
    order = [name for name in functions if name in {"cudaMalloc", "cudaFree", "cudnnScaleTensor"}]
    assert order == ["cudaMalloc", *3 * ["cudaMalloc", "cudaFree"], "cudnnScaleTensor"]


def test_a_late_death_leaves_who_lives_there_now(handle: dnn.Handle) -> None:
    with dnn.trace() as trace:
        first, second = (type("Owner", (), {})() for _ in range(2))
        for owner in (first, second):
            trace._recorder._add_buffer(handle.device, 1 << 50, 64, owner)
        del first, owner
        handle.version
        assert 1 << 50 in trace._recorder._buffers
        del second
        handle.version
        assert 1 << 50 not in trace._recorder._buffers


def test_queries_that_nobody_needs_are_left_out_and_sizes_asked_again(handle: dnn.Handle) -> None:
    x, w = handle.array(X), handle.array(X[:, :, :2, :2])
    with dnn.trace() as trace:
        dnn.convolution_forward(handle, x, w, algorithm="gemm").numpy()
        handle.version
    assert "cudnnGetVersion" in {call.function for call in trace.calls}
    text = main_of(trace)
    assert "cudnnGetVersion" not in text
    assert re.search(r"CUDNN_CONVOLUTION_FWD_ALGO_GEMM, &workspace_size\)\); /\* \d+ \*/", text)
    assert "cudaMalloc(&workspace, workspace_size)" in text


def test_what_describes_the_result_of_a_transform_is_needed(handle: dnn.Handle) -> None:
    raw, size, one = types.cudnnTensorTransformDescriptor_t(), ctypes.c_size_t(), ctypes.c_float(1)
    x = handle.array(X)
    with (
        dnn.trace() as trace,
        dnn.TensorDescriptor(X.shape) as source,
        dnn.TensorDescriptor(X.shape) as target,
    ):
        library_api().cudnnCreateTensorTransformDescriptor(ctypes.byref(raw))
        describe = CFunction(lambda *_: 0, FUNCTIONS["cudnnInitTransformDest"])  # which needs a GPU
        describe(raw, source, target, ctypes.byref(size))
        library_api().cudnnDestroyTensorTransformDescriptor(raw)
        handle.api.cudnnSetTensor(handle.ptr, target, x.ptr, ctypes.byref(one))
    text = main_of(trace)
    assert (
        "cudnnInitTransformDest(transform_desc, tensor_desc, y_desc, &dest_size_in_bytes)" in text
    )
    assert "cudnnCreateTensorTransformDescriptor" in text


def test_scalars_are_of_the_type_that_cudnn_reads(handle: dnn.Handle) -> None:
    for dtype, literal in (
        ("float64", "(double){0.1}"),
        ("float32", "(float){0.10000000149011612f}"),
    ):
        with dnn.trace() as trace:
            dnn.scale_tensor(handle, handle.array(X, dtype=dtype), 0.1)
        assert f"&{literal}" in main_of(trace)


def test_numbers_by_value_are_those_of_each_call(handle: dnn.Handle) -> None:
    """The plan is made before the trace; calls change its number in place."""
    a, b = handle.array(X[0], dtype="float16"), handle.array(X[0].swapaxes(1, 2), dtype="float16")
    y = dnn.matmul(handle, a, b, alpha=3.0)
    with dnn.trace() as trace:
        for alpha in (0.5, 0.5, -2.25):
            dnn.matmul(handle, a, b, alpha=alpha, out=y)
            y.numpy()
    text = main_of(trace)
    assert re.findall(r"by_value\(&\(float\)\{(.*?)\}, 4\)", text)[-2:] == ["0.5f", "-2.25f"]
    assert "NULL" not in re.sub("^.*cudaMalloc.*$", "", text, flags=re.MULTILINE)


def test_numbers_of_two_graphs_have_their_types(handle: dnn.Handle) -> None:
    """Tensors of all graphs have the same ids: one is by value, another with its id is not."""
    x = handle.array(X, dtype="float16", layout="NHWC")
    graphs = []
    for has_number in (True, False):
        graph = dnn.Graph()
        image = graph.input("x", x.shape, "float16", x.strides)
        other = graph.scalar("half", 0.5, "float16") if has_number else image
        graph.output("y", image * other, "float16", x.strides)
        graphs.append(graph)
    with ExitStack() as stack, dnn.trace() as trace:
        plans = [stack.enter_context(graph.plan(handle)) for graph in graphs]
        for plan in plans:
            plan(x)["y"].numpy()
    (number,) = re.findall(r"by_value\((.*?), 2\)", main_of(trace))
    assert number.replace("\xa0", " ") == "(unsigned char[]){0x0, 0x38}"


def test_what_fails_is_made_in_the_program_too(handle: dnn.Handle) -> None:
    one = ctypes.c_float(1)
    with (
        dnn.trace() as trace,
        dnn.TensorDescriptor(X.shape) as described,
        pytest.raises(dnn.CudnnError),
    ):
        handle.api.cudnnSetTensor(handle.ptr, described, None, ctypes.byref(one))
    (status,) = [call.status for call in trace.calls if call.function == "cudnnSetTensor"]
    assert (
        f"FAILED(cudnnSetTensor(handle, y_desc, NULL, &(float){{1.0f}})); "
        f"/* CUDNN_STATUS_{status} */"
    ) in main_of(trace)


def test_what_a_block_ended_with_belongs_to_the_program() -> None:
    wrong = (ctypes.c_int * 4)(1, 1, -1, 1)

    def fail_twice(described: dnn.TensorDescriptor) -> None:
        with pytest.raises(dnn.CudnnError):
            library_api().cudnnSetTensorNdDescriptor(described, 5, 4, wrong, wrong)
        library_api().cudnnSetTensorNdDescriptor(described, 0, 4, wrong, wrong)

    with (
        pytest.raises(dnn.CudnnError),
        dnn.trace() as trace,
        dnn.TensorDescriptor(X.shape) as described,
    ):
        fail_twice(described)
    assert main_of(trace).count("FAILED(") == 1
    assert (
        "FAILED(cudnnSetTensorNdDescriptor(tensor_desc, CUDNN_DATA_FLOAT, 4, "
        "(const int[]){1, 1, -1, 1}"
    ) in main_of(trace)


def test_a_graph_from_before_is_told(handle: dnn.Handle) -> None:
    x, out = handle.array(X), handle.empty(X.shape)
    dnn.activation_forward(handle, x, "relu", out=out)
    with dnn.capture(handle) as graph:
        dnn.activation_forward(handle, x, "relu", out=out)
    with (
        graph,
        dnn.trace() as trace,
        pytest.warns(RuntimeWarning, match="recorded before the trace was launched"),
    ):
        graph.launch()
    assert "Not written out: a CUDA graph" in trace.as_c()


def test_a_capture_that_began_before_is_told(handle: dnn.Handle) -> None:
    x, out = handle.array(X), handle.empty(X.shape)
    dnn.activation_forward(handle, x, "relu", out=out)
    dnn.scale_tensor(handle, out, 2.0)
    later, message = ExitStack(), "saw no begin of|recorded before the trace|somebody else"
    with ExitStack() as recording:
        graph = recording.enter_context(dnn.capture(handle))
        trace = later.enter_context(dnn.trace())
        with pytest.warns(RuntimeWarning, match=message):
            dnn.activation_forward(handle, x, "relu", out=out)
    with graph, later, pytest.warns(RuntimeWarning, match=message):  # noqa: PT031
        graph.launch()
        dnn.scale_tensor(handle, out, 2.0).numpy()
    called = {
        call.function for call in trace.calls
    }  # the handle goes back to its stream behind the capture
    assert called == {"cudnnActivationForward", "cudnnScaleTensor", "cudnnSetStream"}
    assert "cudnnActivationForward" not in main_of(trace)
    assert main_of(trace).index("load(y, 720") < main_of(trace).index("cudnnScaleTensor(")
    assert len(trace.warnings) == 3


def test_a_replaying_plan_is_its_calls(handle: dnn.Handle) -> None:
    x, w = handle.array(X), handle.array(X[:, :, :2, :2])
    with dnn.convolution_forward.plan(handle, x, w, replay=True) as plan:
        y = plan(x, w)
        assert plan.replay.graphs == 1
        with dnn.trace() as trace:
            for _ in range(4):
                plan(x, w, out=y)
        plan(x, w, out=y)
        assert plan.replay.launched == 1
    assert [call.function for call in trace.calls].count("cudnnBackendExecute") == 4
    assert "cudaGraph" not in main_of(trace)


def test_what_nobody_knows_is_told_and_never_guessed(handle: dnn.Handle) -> None:
    raw = types.cudnnTensorDescriptor_t()
    library_api().cudnnCreateTensorDescriptor(ctypes.byref(raw))
    library_api().cudnnSetTensorNdDescriptor(
        raw, 0, 4, (ctypes.c_int * 4)(2, 3, 6, 5), (ctypes.c_int * 4)(90, 30, 5, 1)
    )
    one, x = ctypes.c_float(1), handle.array(X)
    with (
        dnn.trace() as trace,
        pytest.warns(RuntimeWarning, match="made before the trace, and not by cudnnlite"),
    ):
        handle.api.cudnnSetTensor(handle.ptr, raw, x.ptr, ctypes.byref(one))
    library_api().cudnnDestroyTensorDescriptor(raw)
    assert "cudnnSetTensor(handle, NULL, y, &(float){1.0f})" in main_of(trace)
    assert len(trace.warnings) == 1


def test_a_callback_is_told(handle: dnn.Handle) -> None:
    def set_and_reset() -> None:
        handle.api.cudnnSetCallback(7, None, types.cudnnCallback_t(lambda *_: None))
        handle.api.cudnnSetCallback(0, None, types.cudnnCallback_t())

    with (
        dnn.trace() as trace,
        pytest.warns(RuntimeWarning, match="fptr is a CFunctionType; the program has NULL"),
    ):
        set_and_reset()
    assert "Not written out: cudnnSetCallback" in trace.as_c()


def test_other_threads_are_recorded_and_streams_ordered() -> None:
    with dnn.trace() as trace:
        for _ in range(2):
            thread = Thread(target=_pool)
            thread.start()
            thread.join()
    assert [call.function for call in trace.calls].count("cudnnPoolingForward") == 2
    assert main_of(trace).count("cudaDeviceSynchronize()") == 1


def _pool() -> None:
    with dnn.Handle("emulated") as handle:
        handle.stream = handle.device.create_stream()
        dnn.pooling_forward(handle, handle.array(X), dnn.PoolingSpec(2)).numpy()


def devices_of(text: str) -> tuple[dict[str, int], list[str]]:
    """Return the device on which each variable was made last, and statements that mix devices."""
    current, device_of, strange = 0, dict[str, int](), list[str]()
    for statement in re.sub(r'/\*.*?\*/|"[^"]*"', "", text).split(";"):
        if match := re.search(r"cudaSetDevice\((\d)\)", statement):
            current = int(match[1])
        if match := re.search(
            r"(?:cudaMalloc|cudnnCreate|cudaStreamCreate|cudaGraphInstantiate)\(&(\w+)", statement
        ):
            device_of[match[1]] = current
        strange += [
            statement
            for name in re.findall(r"\w+", statement)
            if device_of.get(name, current) != current
        ]
    return device_of, strange


def test_each_is_made_and_used_on_its_own_device() -> None:
    first, second = dnn.Handle("emulated:0"), dnn.Handle("emulated:1")
    with first, second:
        second.stream = second.device.create_stream()
        before = second.array(X)
        with dnn.trace() as trace:
            for handle in (second, first):
                x = before if handle is second else handle.array(X)
                y, conv = handle.empty((2, 3, 3, 2)), handle.array(X[:, :, :2, :2])
                dnn.convolution_forward(handle, x, conv).numpy()
                if handle is second:
                    dnn.pooling_forward(handle, x, dnn.PoolingSpec(2), out=y)
                    with dnn.capture(handle) as graph:
                        dnn.pooling_forward(handle, x, dnn.PoolingSpec(2), out=y)
                else:
                    handle.zeros((1, 2))
            graph.launch()
            third = dnn.softmax_forward(first, x)
    device_of, strange = devices_of(main_of(trace))
    assert strange == []
    assert third.spec == x.spec
    assert {
        name: device_of[name]
        for name in ("handle", "handle_2", "stream_id", "graph_exec", "x", "x_2")
    } == {
        "handle": 1,
        "handle_2": 0,
        "stream_id": 1,
        "graph_exec": 1,
        "x": 1,
        "x_2": 0,
    }
    assert trace.warnings == []
    assert "cudaDeviceSynchronize" not in main_of(trace)  # on each device there is one stream


def test_of_one_device_nothing_is_said() -> None:
    with dnn.trace() as trace, dnn.Handle("emulated:1") as handle:
        dnn.softmax_forward(handle, handle.array(X)).numpy()
    assert "cudaSetDevice" not in trace.as_c()


def test_a_handle_that_is_not_ours_is_where_its_arrays_are(handle: dnn.Handle) -> None:
    raw, one = types.cudnnHandle_t(), ctypes.c_float(1)
    with (
        dnn.trace() as trace,
        dnn.Handle("emulated:1") as other,
        dnn.TensorDescriptor(X.shape) as described,
    ):
        x = other.array(X)
        other.api.cudnnCreate(ctypes.byref(raw))
        other.api.cudnnSetTensor(raw, described.ptr, x.ptr, ctypes.byref(one))
        handle.array(X).numpy()
        with (
            pytest.raises(dnn.CudnnError),
            pytest.warns(RuntimeWarning, match="the program guesses its own"),
        ):
            other.api.cudnnSetTensor(raw, described.ptr, None, ctypes.byref(one))
        other.api.cudnnDestroy(raw)
    device_of, strange = devices_of(main_of(trace))
    assert (device_of["handle"], strange) == (1, [])
    assert f"Not written out: {trace.warnings[0]}" in trace.as_c()


def test_traces_are_not_nested() -> None:
    with dnn.trace(), pytest.raises(dnn.ArgumentError, match="not nested"), dnn.trace():
        pass
    with dnn.trace() as trace:
        pass
    assert trace.calls == ()
    assert "return EXIT_SUCCESS;" in main_of(trace)


def test_the_checksum_knows_every_bit_and_its_place() -> None:
    content = np.random.default_rng(1).bytes(3 << 20)
    expected = sum((2 * i + 1) * byte for i, byte in enumerate(content[: 1 << 12]))
    assert checksum(content[: 1 << 12]) == expected
    assert (
        checksum(content) == (checksum(content[:-1]) + (2 * len(content) - 1) * content[-1]) % 2**64
    )
    assert checksum(content[1:] + content[:1]) != checksum(content)


def test_a_folder_has_all_that_the_program_reads(handle: dnn.Handle, tmp_path: Path) -> None:
    with dnn.trace() as trace:
        for scale in (1, 1, 2):
            dnn.activation_forward(handle, handle.array(scale * X), "relu").numpy()
    folder = trace.save(tmp_path / "new" / "folder")
    assert {path.name for path in folder.iterdir()} == {"program.c", "Makefile", "inputs"}
    text = (folder / "program.c").read_text()
    assert text == trace.as_c()
    sizes = {
        name: int(size) for size, name in re.findall(r'load\(\w+, (\d+), "([^"]+)", 0\)', text)
    }
    assert {name: (folder / name).stat().st_size for name in sizes} == sizes
    assert len(sizes) == 2  # what is equal is one file
    assert (folder / "inputs/x.bin").read_bytes() == X.tobytes()


def traced_activation(handle: dnn.Handle, scale: int = 1) -> dnn.workbench.Trace:
    """Return a trace that reads one file."""
    with dnn.trace() as trace:
        dnn.activation_forward(handle, handle.array(scale * X), "relu").numpy()
    return trace


def contents(folder: Path) -> dict[str, bytes | str]:
    """Return what is in a folder: the bytes of files, and where links lead."""
    paths = [path for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
    return {
        str(path): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in paths
    }


@pytest.mark.parametrize("name", ["program.c", "Makefile", "inputs/x.bin"])
@pytest.mark.parametrize(
    "kind", ["file", "empty", "link", "dangling", "folder", "pipe", "hidden marker"]
)
def test_files_of_others_are_never_replaced(
    handle: dnn.Handle, tmp_path: Path, name: str, kind: str
) -> None:
    trace, folder, target = traced_activation(handle), tmp_path / "out", tmp_path / "precious"
    path = folder / name
    path.parent.mkdir(parents=True)
    target.write_bytes(b"# Written by cudnnlite /* Written by cudnnlite ")
    makers: dict[str, Callable[[], object]] = {
        "file": lambda: path.write_bytes(b"mine"),
        "empty": path.touch,
        "link": lambda: path.symlink_to(target),
        "dangling": lambda: path.symlink_to(tmp_path / "nothing"),
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "hidden marker": lambda: path.write_bytes(
            b"mine\n/* Written by cudnnlite \n# Written by cudnnlite "
        ),
    }
    makers[kind]()
    before = contents(tmp_path)
    with pytest.raises(
        dnn.ArgumentError,
        match=rf"^folder='{folder}': {path} .*; remove it, or name another folder$",
    ):
        trace.save(folder)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("leads_to", ["elsewhere", "nothing"])
def test_a_link_in_the_place_of_the_inputs_is_refused(
    handle: dnn.Handle, tmp_path: Path, leads_to: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "inputs").symlink_to(tmp_path / leads_to)
    with pytest.raises(
        dnn.ArgumentError, match=r"out/inputs is no folder \(symbolic links are not followed\)"
    ):
        traced_activation(handle).save(tmp_path / "out")
    assert {path.name for path in tmp_path.rglob("*")} == {"elsewhere", "out", "inputs"}


def test_what_a_trace_wrote_the_next_one_replaces(handle: dnn.Handle, tmp_path: Path) -> None:
    first, second = traced_activation(handle), traced_activation(handle, 2)
    for trace, seed in ((first, None), (second, None), (second, 7), (second, None), (first, 7)):
        trace.save(tmp_path, seed)
        assert (tmp_path / "program.c").read_text() == trace.as_c(seed)
    assert (tmp_path / "inputs/x.bin").read_bytes() == (2 * X).tobytes()
    with pytest.raises(
        dnn.ArgumentError, match=r"inputs/x.bin is there already, is not read by a program.c"
    ):
        first.save(tmp_path)  # of a program with a seed nobody knows whose they are


def test_a_hard_link_to_what_a_trace_wrote_keeps_its_content(
    handle: dnn.Handle, tmp_path: Path
) -> None:
    traced_activation(handle).save(tmp_path)
    (tmp_path / "mine").hardlink_to(tmp_path / "inputs/x.bin")
    traced_activation(handle, 2).save(tmp_path)
    assert (tmp_path / "mine").read_bytes() == X.tobytes()


def test_what_a_seed_makes_is_of_the_type_that_was_copied(handle: dnn.Handle) -> None:
    with dnn.trace() as trace:
        for dtype, size in (("float32", 4), ("float16", 8), ("float32", 4)):
            handle.array(np.zeros((1, 1, 1, size), dtype), dtype=dtype).numpy()
    widths_and_seeds = re.findall(r"generate\(\w+, 16, (\d), (\d+)u", trace.as_c(7))
    assert {width for width, _ in widths_and_seeds} == {"4", "2"}
    assert len({*widths_and_seeds}) == 2
    assert len(trace._written().files) == 1  # a file has no type


@pytest.fixture
def traced_script(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs `cudnnlite trace` on a script.

    It returns the process, and the C `main`.  The first argument is the command's option, the
    others are the script's.
    """
    monkeypatch.setenv("CUDNNLITE_DEVICE", "emulated")

    def run(text: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], str]:
        script, folder = tmp_path / "script.py", tmp_path / "c"
        script.write_text(text)
        process = commands.run("trace", script, *arguments[:1], "--c", folder, *arguments[1:])
        assert folder.is_dir(), process.stderr
        return process, (folder / "program.c").read_text().partition("int main(void)")[2]

    return run


@pytest.mark.processes
def test_a_script_is_traced_and_written(traced_script: Any) -> None:
    text = (
        "import sys, numpy as np, cudnnlite as dnn\nprint(sys.argv[1:])\n"
        "with dnn.Handle() as handle:\n"
        "    dnn.softmax_forward(handle, handle.array(np.ones((1, 4)))).numpy()\nsys.exit(5)\n"
    )
    process, main = traced_script(text, "a", "--", "-b")
    assert process.returncode == 5, process.stderr
    lines = process.stdout.splitlines()
    assert lines[0] == "['a', '-b']"
    assert sum("cudnnSoftmaxForward(" in line for line in lines) == 1
    assert "script.py:4: dnn.softmax_forward" in main


@pytest.mark.processes
def test_what_a_script_left_is_read_also_after_sys_exit(traced_script: Any) -> None:
    text = (
        "import sys, numpy as np, cudnnlite as dnn\nhandle = dnn.Handle()\n"
        "y = dnn.softmax_forward(handle, handle.array(np.ones((1, 4))))\nsys.exit()\n"
    )
    process, main = traced_script(text)
    assert process.returncode == 0, process.stderr
    assert "report(" in main


@pytest.mark.processes
def test_of_a_script_nothing_but_its_own_lines_is_named(traced_script: Any) -> None:
    """What lies there at its end is read then, and is nobody's when it is given back."""
    text = (
        "import numpy as np, cudnnlite as dnn\nhandle = dnn.Handle()\n"
        "x = handle.array(np.ones((1, 2, 3, 4)))\n"
        "y = dnn.pooling_forward(handle, x, dnn.PoolingSpec(2))\ndef main():\n"
        "    with dnn.Handle() as other:\n"
        "        z = other.array(np.ones((1, 4)))\n        dnn.softmax_forward(other, z).numpy()\n"
        "main()\n"
    )
    process, main = traced_script(text)
    comments = re.findall(r"^ +/\* (.*) \*/$", main, re.MULTILINE)
    assert {comment.split(":")[0] for comment in comments} == {
        "script.py",
        "read at the end",
        "given back",
    }, process.stderr
    assert re.search(r'read at the end \*/\s+report\("y", y, 32\);', main)
