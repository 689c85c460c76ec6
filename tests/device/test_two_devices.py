"""Two devices of one kind side by side: each handle stays on its own, whichever was used last.

Always on two emulated devices; on two GPUs where there are two (there is no skip to see where there
is one).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite.devices.device_choice import get_device

from .problems import Problem

X, W = (8, 32, 28, 30), (40, 32, 3, 3)


def second_devices() -> list[Any]:
    """Return the second device of each kind that has one."""
    try:
        get_device("cuda:1")
    except dnn.NoDeviceError:
        return ["emulated:1"]
    return ["emulated:1", pytest.param("cuda:1", marks=pytest.mark.gpu)]


@pytest.fixture(params=second_devices())
def pair(request: pytest.FixtureRequest) -> Any:
    kind = request.param.partition(":")[0]
    with dnn.Handle(f"{kind}:0") as first, dnn.Handle(request.param) as second:
        yield first, second


def test_each_computes_on_its_own(pair: Any) -> None:
    problems = [
        Problem(handle, X, W, seed=seed, padding=1, math_type="fma")
        for seed, handle in enumerate(pair)
    ]
    for _ in range(5):
        results = [problem.run() for problem in problems]
        for problem, y in zip(problems, results, strict=True):
            assert y.device is problem.handle.device
            problem.assert_right(y, problem.choice())


def test_a_copy_to_the_host_waits_for_its_own_device(pair: Any) -> None:
    """The default streams of two GPUs have one name.

    Which stream it means depends on the current device.
    """
    first, second = pair
    big = np.random.default_rng(0).standard_normal((64, 64, 56, 56), dtype=np.float32)
    weights = np.random.default_rng(1).standard_normal((64, 64, 3, 3), dtype=np.float32)
    x, w = second.array(big), second.array(weights)
    conv = dnn.ConvolutionSpec(padding=1, math_type="fma")
    count = 40 if second.device.kind == "cuda" else 1
    for _ in range(count):
        y = dnn.convolution_forward(second, x, w, conv)
    first.array(np.zeros((1, 1, 2, 2), np.float32))  # the first device is current again
    early = y.numpy()
    second.synchronize()
    assert np.array_equal(early, y.numpy())


def test_the_others_arrays_are_refused(pair: Any) -> None:
    first, second = pair
    problem = Problem(first, X, W)
    stray = second.array(np.zeros(X, np.float32))
    with pytest.raises(dnn.ArrayTypeError, match=rf"x is on .*{second.device.kind}:1"):
        dnn.convolution_forward(first, stray, problem.w)


def test_the_others_random_states_are_refused(pair: Any) -> None:
    first, second = pair
    q = first.array(np.ones((3, 2, 4), np.float32))
    attention, network = (
        dnn.AttentionSpec(2, 4, dropout=0.5),
        dnn.RNNSpec("lstm", 4, 5, num_layers=2, dropout=0.5),
    )
    refusal = rf"^dropout_state=.* is on .*{second.device.kind}:1"
    options: dict[str, Any] = {"training": True, "dropout_state": dnn.DropoutState(second)}
    with pytest.raises(dnn.ArgumentError, match=refusal):
        dnn.multi_head_attention_forward(
            first, attention, dnn.AttentionWeights(first, attention), q, q, q, **options
        )
    with pytest.raises(dnn.ArgumentError, match=refusal):
        dnn.rnn_forward(first, network, dnn.RNNWeights(first, network), q, **options)
    with pytest.raises(dnn.ArgumentError, match=refusal):
        dnn.dropout_forward(first, q, 0.5, dropout_state=options["dropout_state"])


def test_closing_one_leaves_the_other(pair: Any) -> None:
    first, second = pair
    problem = Problem(second, X, W, padding=1, math_type="fma")
    problem.run()
    first.array(np.zeros((1, 1, 2, 2), np.float32))
    second.close()
    assert second.workspace.size == 0
    other = Problem(first, X, W, padding=1, math_type="fma")
    other.assert_right(other.run(), other.choice())


def test_an_array_of_others_is_where_its_owner_has_it(pair: Any) -> None:
    """On two GPUs also without DLPack: there CUDA reports device 0 for all memory of a pool."""
    first, second = pair
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    x, other = second.array(values), first.array(values)
    exports = [{"__dlpack__": x.__dlpack__, "__dlpack_device__": x.__dlpack_device__}]
    if second.device.kind == "cuda":
        exports.append({"__cuda_array_interface__": x.__cuda_array_interface__})
    for export in exports:
        theirs = type("Theirs", (), export)
        np.testing.assert_array_equal(second.view(theirs).numpy(), values)
        with pytest.raises(dnn.ArrayTypeError, match=r"array (is|cannot be viewed)"):
            first.view(theirs)
        local = type("Theirs", (), {name: getattr(other, name) for name in export})
        np.testing.assert_array_equal(first.view(local).numpy(), values)


def test_a_trace_that_asks_all_devices_leaves_the_current_one(pair: Any) -> None:
    """For an unknown address a trace asks every device; cuDNN then runs on the handle's device."""
    first, second = pair
    second.array(np.zeros((1, 1, 2, 2), np.float32))
    problem = Problem(first, X, W, padding=1, math_type="fma")
    with dnn.trace() as traced:
        table = dnn.convolution_forward.find(first, problem.x, problem.w, problem.conv)
        for handle in (first, second, first):
            other = Problem(handle, X, W, padding=1, math_type="fma")
            other.assert_right(other.run(), other.choice())
    problem.assert_right(problem.run(algorithm=table.best()), table.best().algorithm)
    assert traced.warnings == []
