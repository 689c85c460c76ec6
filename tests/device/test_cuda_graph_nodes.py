"""cuDNN writes CUDA graphs itself, and other addresses into them: the raw calls."""

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.enums import BackendBehaviorNote
from cudnnlite._raw.types import cudaGraph_t
from cudnnlite.graph.engines import configurations, configure
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.selection import HEURISTICS_OF_PLANS
from cudnnlite.operations.convolution.graphs import data_of


def checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    assert int(status) == 0, status
    return values[0] if len(values) == 1 else values


@pytest.mark.gpu
def test_a_graph_gets_other_addresses_without_a_capture() -> None:
    with dnn.Handle(device="cuda") as handle:
        check_update(handle)


def check_update(handle: dnn.Handle) -> None:
    """Populate a graph for one set of operands, and update it for another."""
    from cuda.bindings import driver

    x = dnn.TensorSpec((4, 64, 14, 12), "float16", "NHWC")
    w = dnn.FilterSpec((32, 64, 3, 3), "float16", "NHWC")
    problem = dnn.convolution_forward.problem(x, w, dnn.ConvolutionSpec(padding=1))
    rng = np.random.default_rng(0)
    images = [
        handle.array(rng.standard_normal(x.shape).astype(np.float16), layout="NHWC") for _ in "ab"
    ]
    weights = handle.array(rng.standard_normal(w.shape).astype(np.float16), layout="NHWC")
    results = [handle.empty(problem.y) for _ in "ab"]
    with ExitStack() as stack:
        graph = lower(data_of(problem), handle, stack)
        native = BackendBehaviorNote.SUPPORTS_CUDA_GRAPH_NATIVE_API
        engines = [
            found.engine
            for found in configurations(graph, HEURISTICS_OF_PLANS, stack)
            if native in found.behavior
        ]
        if not engines:
            pytest.skip("no engine has the note SUPPORTS_CUDA_GRAPH_NATIVE_API")
        call = ExecutionPlan(graph, configure(graph, engines[0], stack), stack)
        workspace = handle.zeros((max(call.workspace, 1),), "uint8")

        def write(function: str) -> None:
            """Let cuDNN write the graph of the plan with the addresses of the last variant pack."""
            bound = handle.api.bound(function)
            if status := bound.call(*call.arguments, pointer):
                assert bound.check is not None
                bound.check(status)

        def use(number: int) -> None:
            call.replace(
                workSpace=workspace.ptr if call.workspace else 0,
                x=images[number].ptr,
                w=weights.ptr,
                y=results[number].ptr,
            )

        expected = []
        for number in (0, 1):
            use(number)
            call()
            expected.append(results[number].numpy())
            results[number].copy_from(np.zeros(results[number].shape, np.float16))
        cuda_graph = checked(driver.cuGraphCreate(0))
        stack.callback(driver.cuGraphDestroy, cuda_graph)
        pointer = cudaGraph_t(int(cuda_graph))
        use(0)
        write("cudnnBackendPopulateCudaGraph")
        executable = checked(driver.cuGraphInstantiate(cuda_graph, 0))
        stack.callback(driver.cuGraphExecDestroy, executable)
        stream = int(handle.stream.handle)
        checked(driver.cuGraphLaunch(executable, stream))
        np.testing.assert_array_equal(results[0].numpy(), expected[0])
        assert not results[1].numpy().any()
        use(1)
        write("cudnnBackendUpdateCudaGraph")
        checked(driver.cuGraphExecUpdate(executable, cuda_graph))
        checked(driver.cuGraphLaunch(executable, stream))
        np.testing.assert_array_equal(results[1].numpy(), expected[1])
