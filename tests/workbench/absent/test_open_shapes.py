"""Kernels that serve all sizes, compiled by the real libcudnn without a GPU."""

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack

import pytest

import cudnnlite as dnn
from cudnnlite._raw.api import CudnnApi, library_api
from cudnnlite._raw.library import load_library_without_driver
from cudnnlite.graph.compiled_plans import KernelCaches, configurations_to_try
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.selection import HEURISTICS_OF_PLANS
from cudnnlite.types import BackendDescriptor
from cudnnlite.workbench.absent.driver_stub import driver_stub

SIZES = ((48, 64, 80), (1024, 256, 72), (8, 8, 8), (200, 40, 3000), (2040, 1928, 1800))


class Store(dict):
    """A store of plans in memory."""

    find = dict.get
    keep = dict.__setitem__


class PlanningApi(CudnnApi):
    """A function table with what a handle has for plans, because cuDNN makes no handle without a GPU.

    What a user sees, the choice of each plan, is in tests/device/test_compiled_plans.py.  Here
    cuDNN's own heuristics and its compiler answer.
    """

    def __init__(self, library, store):
        super().__init__(library)
        self._plan_store = store
        self._kernel_caches = KernelCaches()


def product(m, k, n):
    graph = dnn.Graph(dynamic_shapes=True)
    a, b = graph.input("a", (1, m, k), "float16"), graph.input("b", (1, k, n), "float16")
    bias = graph.input("bias", (1, 1, n), "float16")
    graph.output("y", graph.relu(graph.matmul(a, b) + bias), "float16")
    return graph


def engines_of(api, last_first):
    """Return the engines that plans for all sizes have; the first is compiled, if none was yet."""
    engines = []
    text = dnn.types.DeviceProperties.named("h200").to_json()
    for size in SIZES:
        with ExitStack() as stack:
            device = stack.enter_context(
                BackendDescriptor(api, "DEVICEPROP", json_representation=text)
            ).finalize()
            graph = lower(product(*size), api, stack, device)
            found = [*configurations_to_try(graph, HEURISTICS_OF_PLANS, stack)]
            compiled = [each for each in found if each.compiled and each.engine.knobs]
            is_first = not api._kernel_caches.engines(graph, None)
            chosen = compiled[-1 if last_first and is_first else 0]
            stack.enter_context(api._kernel_caches.plan(graph, chosen, api._plan_store))
            engines.append(chosen.engine.to_plain())
    return engines


def main(driver):
    """Print what `test_all_sizes_have_the_engine_that_is_compiled` looks at."""
    store = Store()
    library = load_library_without_driver(driver)
    engines = engines_of(PlanningApi(library, store), True)
    restored = engines_of(PlanningApi(library, store), False)
    kernels = [len(json.loads(text)["kernel_cache"]) for text in store.values()]
    print(json.dumps({"engines": engines, "restored": restored, "kernels": kernels}))


@pytest.mark.processes
@pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)
@pytest.mark.skipif(
    library_api().library.version < 90800, reason="cuDNN 9.8 added properties of devices"
)
def test_all_sizes_have_the_engine_that_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = subprocess.run(
        [sys.executable, __file__, str(driver_stub())], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["kernels"] == [1]
    assert found["engines"] == found["engines"][:1] * len(SIZES)
    # A cache that is restored tells the engine that was compiled.
    assert found["restored"] == found["engines"]


if __name__ == "__main__":
    main(sys.argv[1])
