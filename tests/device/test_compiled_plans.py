"""Plans that are restored, and kernels that serve all sizes: the same bits, and one compilation."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from tolerances import GRAPH_BOUNDS, assert_close

import cudnnlite as dnn
from cudnnlite.graph.compiled_plans import KernelCaches
from cudnnlite.graph.engines import configurations
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.selection import HEURISTICS_OF_PLANS
from cudnnlite.plans.choice import set_chooser
from cudnnlite.types import BackendDescriptor
from cudnnlite.workbench.tuning.entries import DeviceIdentity
from cudnnlite.workbench.tuning.plan_files import PlanFiles, plan_files


def graphs() -> dict[str, Any]:
    q = dnn.TensorSpec((2, 3, 64, 32), "float16")
    stats = dnn.TensorSpec((2, 3, 64, 1))
    rows, scale = dnn.TensorSpec((24, 96, 1, 1), "float16"), dnn.TensorSpec((1, 96, 1, 1))
    forward = dnn.scaled_dot_product_attention_forward.graph
    backward = dnn.scaled_dot_product_attention_backward.graph
    return {
        "attention": forward(q, q, q, causal=True),
        "gradients of attention": backward(q, q, q, q, q, stats),
        "layer normalization": dnn.layer_normalization_forward.graph(rows, scale, scale),
        "product": product(48, 64, 80),
    }


def product(m: int, k: int, n: int, *, dynamic_shapes: bool = False) -> dnn.Graph:
    graph = dnn.Graph(dynamic_shapes=dynamic_shapes)
    a, b = graph.input("a", (1, m, k), "float16"), graph.input("b", (1, k, n), "float16")
    bias = graph.input("bias", (1, 1, n), "float16")
    graph.output("y", graph.relu(graph.matmul(a, b) + bias), "float16")
    return graph


@pytest.fixture
def store(handle: dnn.Handle, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the folder in which the handle keeps compiled plans."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "account"))
    identity = DeviceIdentity.of(handle.device)
    files = PlanFiles(tmp_path, identity, read_only=False, trust_code=False)
    set_chooser(handle, None, files)
    yield tmp_path
    set_chooser(handle, None)


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the kinds of descriptors that are restored from JSON."""
    kinds: list[str] = []
    real_set = BackendDescriptor.set

    def recording_set(
        self: BackendDescriptor, name: str, value: Any, type_name: str | None = None
    ) -> None:
        if name == "json_representation":
            kinds.append(self.kind.name)
        real_set(self, name, value, type_name)

    monkeypatch.setattr(BackendDescriptor, "set", recording_set)
    return kinds


def outputs(handle: dnn.Handle, graph: Any) -> dict[str, bytes]:
    """Return the bytes of all that a plan, made now, writes; none if two calls may differ."""
    rng = np.random.default_rng(11)
    arrays = {
        name: handle.array(rng.standard_normal(record.spec.shape), dtype=record.spec.dtype)
        for name, record in graph.inputs.items()
    }
    with graph.plan(handle) as plan:
        results = {name: array.numpy().tobytes() for name, array in plan(**arrays).items()}
        return results if plan.choice.deterministic else {}


@pytest.mark.parametrize("name", graphs())
def test_a_restored_plan_computes_the_same_bits(
    handle: dnn.Handle, store: Any, restored: list[str], name: str
) -> None:
    first = outputs(handle, graphs()[name])
    assert len(plan_files(store)) == 1
    assert restored == []
    assert outputs(handle, graphs()[name]) == first
    assert restored == ["EXECUTION_PLAN"]


SIZES = ((48, 64, 80), (56, 64, 80), (1024, 256, 72), (8, 8, 8), (200, 40, 3000), (64, 64, 64))


def check_product(handle: dnn.Handle, graph: dnn.Graph) -> None:
    rng = np.random.default_rng(3)
    a, b, bias = (rng.standard_normal(t.shape).astype(np.float16) for t in graph.inputs.values())
    with graph.plan(handle) as plan:
        y = plan(handle.array(a), handle.array(b), handle.array(bias))["y"].numpy()
    wide = [array.astype(np.float64) for array in (a, b, bias)]
    expected = np.maximum(wide[0] @ wide[1] + wide[2], 0)
    assert_close(y, expected, GRAPH_BOUNDS["product"]["float16"])


def test_all_sizes_share_what_was_compiled(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    real_init = BackendDescriptor.__init__

    def recording_init(self: BackendDescriptor, owner: Any, kind: Any, /, **values: Any) -> None:
        real_init(self, owner, kind, **values)
        made.append(self.kind.name)

    monkeypatch.setattr(BackendDescriptor, "__init__", recording_init)
    for m, k, n in SIZES:
        check_product(handle, product(m, k, n, dynamic_shapes=True))
    assert made.count("KERNEL_CACHE") == 1
    # A row alone repeats along an axis: that is another kernel.
    check_product(handle, product(1, 64, 80, dynamic_shapes=True))
    assert made.count("KERNEL_CACHE") == 2


def test_kernels_for_all_sizes_are_restored(
    handle: dnn.Handle, store: Any, restored: list[str]
) -> None:
    for m, k, n in SIZES:
        check_product(handle, product(m, k, n, dynamic_shapes=True))
    files = plan_files(store)
    assert len(files) == 1
    assert restored == []
    handle._kernel_caches.close()  # as if in another process
    for m, k, n in SIZES:
        check_product(handle, product(m, k, n, dynamic_shapes=True))
    assert restored == ["KERNEL_CACHE"]
    assert plan_files(store) == files


def compiled_engine(handle: dnn.Handle, graph: dnn.Graph) -> dnn.types.Engine:
    """Return the last engine that the heuristics name, with knobs, and that cuDNN compiles."""
    with ExitStack() as stack:
        native = lower(graph, handle, stack)
        found = configurations(native, HEURISTICS_OF_PLANS, stack)
        return [each.engine for each in found if each.compiled and each.engine.knobs][-1]


def choice(handle: dnn.Handle, graph: dnn.Graph, **options: Any) -> Any:
    with graph.plan(handle, **options) as plan:
        return plan.choice.algorithm


def test_the_engine_of_the_first_size_serves_the_others(handle: dnn.Handle) -> None:
    fixed = product(*SIZES[1])
    without = choice(handle, fixed)
    first, *others = [product(m, k, n, dynamic_shapes=True) for m, k, n in SIZES]
    engine = compiled_engine(handle, first)
    assert choice(handle, first, engine=engine) == engine
    assert [choice(handle, graph) for graph in others] == [engine] * len(others)
    # Graphs whose shapes are not dynamic have the engine that the heuristics prefer.
    assert choice(handle, fixed) == without


def test_an_engine_that_does_not_serve_a_size_is_passed_over(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = product(*SIZES[0], dynamic_shapes=True)
    expected = choice(handle, graph)
    no_engine = dnn.types.Engine(10**6)
    monkeypatch.setattr(KernelCaches, "engines", lambda *_: (no_engine,))
    assert choice(handle, graph) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_restored_kernels_tell_their_engine(handle: dnn.Handle, store: Any) -> None:
    first, second = (product(m, k, n, dynamic_shapes=True) for m, k, n in SIZES[:2])
    engine = compiled_engine(handle, first)
    assert choice(handle, first, engine=engine) == engine
    handle._kernel_caches.close()  # as if in another process
    assert choice(handle, second) == engine


def test_dynamic_shapes_are_part_of_a_graph() -> None:
    graph, fixed = product(8, 8, 8, dynamic_shapes=True), product(8, 8, 8)
    assert graph != fixed
    assert dnn.Graph.from_json(graph.to_json()) == graph
    assert dnn.Graph.from_json(graph.to_json()).dynamic_shapes
    assert "dynamic_shapes" not in fixed.to_json()
    with pytest.raises(dnn.ArgumentError, match="dynamic_shapes=1"):
        dnn.Graph(dynamic_shapes=1)  # type: ignore[arg-type]
