"""One call that cudnnlite makes of several is, bit for bit, the calls one by one.

Conversions to another layout, copies to aligned memory, a bias or an activation behind a
convolution, packed copies, recorded calls: nothing is stored here, each result is compared with what
the plain calls write.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.extents import each_pair

import cudnnlite as dnn
from cudnnlite.devices.arrays import part_of
from cudnnlite.dtypes import numpy_dtype

from .calls import CALLS, RAGGED, Call, Operand
from .problems import gap_mask, memory_of, poisoned, upload, with_gaps

# Whether a copy is warned of is tested elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore::cudnnlite.errors.AlignmentWarning")

IMAGES, FILTERS, RESULT = (2, 8, 9, 11), (16, 8, 3, 3), (2, 16, 9, 11)
NAMES = {"first": "NCHW", "last": "NHWC"}
OTHER = {"first": "last", "last": "first"}
ALGORITHMS = {
    "convolution_forward": dnn.enums.ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM,
    "convolution_backward_data": dnn.enums.ConvolutionBwdDataAlgo.ALGO_1,
    "convolution_backward_filter": dnn.enums.ConvolutionBwdFilterAlgo.ALGO_1,
}
WRITTEN = dict(zip(ALGORITHMS, (RESULT, IMAGES, FILTERS), strict=True))


def convolution(direction: str, dtype: str, layout: str) -> Call:
    """Return a convolution, or a gradient of one, with all operands in a layout."""
    conv = dnn.ConvolutionSpec(1, math_type="fma" if dtype == "float32" else "tensor_op")
    x, w = Operand(IMAGES, dtype, layout), Operand(FILTERS, dtype, layout, seed=1)
    dy = Operand(RESULT, dtype, layout, seed=2)
    if direction == "convolution_forward":
        return Call(direction, {"x": x, "w": w}, {"conv": conv})
    if direction == "convolution_backward_data":
        return Call(direction, {"w": w, "dy": dy}, {"conv": conv})
    return Call(direction, {"x": x, "dy": dy}, {"conv": conv})


def output(handle: dnn.Handle, spec: dnn.TensorSpec, beta: float) -> dnn.DeviceArray:
    """Return an output: with old values if they are read, and full of NaN otherwise."""
    if not beta:
        return poisoned(handle, spec)
    values = np.random.default_rng(9).standard_normal(spec.shape)
    return upload(handle, spec, values.astype(numpy_dtype(spec.dtype)))


def bits(array: dnn.DeviceArray) -> bytes:
    """Return the bits of all values."""
    return array.numpy().tobytes()


# ---------------------------------------------------------------- another layout


@each_pair(
    direction=[*ALGORITHMS],
    dtype=["float32", "float16"],
    layout=["first", "last"],
    beta=[0.0, 0.5],
    alpha=[1.0, -2.0],
    gaps=[False, True],
)
def test_conversions(
    handle: dnn.Handle,
    direction: str,
    dtype: str,
    layout: str,
    beta: float,
    alpha: float,
    gaps: bool,
) -> None:
    """The operands are converted, the result is converted back, and beta counts there."""
    call = convolution(direction, dtype, layout)
    math_type = call.options["conv"].math_type
    inner = NAMES[OTHER[layout]]
    algorithm = ALGORITHMS[direction]
    spec = Operand(WRITTEN[direction], dtype, layout).spec
    if gaps and direction != "convolution_backward_filter":
        spec = with_gaps(spec.shape, dtype, last=layout == "last")
    operands = call.place(handle)
    converted = {
        name: dnn.transform_tensor(handle, array, layout=inner) for name, array in operands.items()
    }
    inner_out = poisoned(handle, dnn.TensorSpec(spec.shape, dtype, inner))
    options = {**call.options, "alpha": alpha}
    call.function(handle, **converted, **options, algorithm=algorithm, out=inner_out)
    expected = output(handle, spec, beta)
    dnn.transform_tensor(handle, inner_out, beta=beta, out=expected)
    row = dnn.AlgorithmResult(algorithm, math_type, layout=inner)
    out = output(handle, spec, beta)
    for _ in range(1 if beta else 3):
        call.function(handle, **operands, **options, algorithm=row, beta=beta, out=out)
        assert bits(out) == bits(expected)
    assert memory_of(out)[gap_mask(spec)].tobytes() == memory_of(expected)[gap_mask(spec)].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_filter_in_another_layout_than_the_images(handle: dnn.Handle, dtype: str) -> None:
    """The images are converted to the filter's layout, in which the heuristic chooses."""
    x, w = Operand(IMAGES, dtype), Operand(FILTERS, dtype, "last", seed=1)
    conv = dnn.ConvolutionSpec(1, math_type="fma" if dtype == "float32" else "default")
    arrays = [x.place(handle), w.place(handle)]
    with dnn.convolution_forward.plan(handle, *arrays, conv) as plan:
        assert plan.choice.conversions == ("x", "y")
        algorithm = plan.choice.algorithm
        images = dnn.transform_tensor(handle, arrays[0], layout="NHWC")
        inner = dnn.convolution_forward(handle, images, arrays[1], conv, algorithm=algorithm)
        expected = dnn.transform_tensor(handle, inner, layout="NCHW")
        for _ in range(2):
            out = poisoned(handle, dnn.TensorSpec(RESULT, dtype))
            plan(*arrays, out=out)
            assert bits(out) == bits(expected)


def test_operands_that_cudnn_needs_packed(handle: dnn.Handle) -> None:
    operand = Operand((2, 4, 6, 5), layout="last")
    norm = CALLS["divisive_normalization_forward"].options["norm"]
    x = operand.place(handle)
    packed = dnn.transform_tensor(handle, x, layout="NCHW")
    inner = dnn.divisive_normalization_forward(handle, packed, norm)
    expected = dnn.transform_tensor(handle, inner, layout="NHWC")
    out = poisoned(handle, operand.spec)
    dnn.divisive_normalization_forward(handle, x, norm, out=out)
    assert bits(out) == bits(expected)


def test_a_transposed_convolution_is_a_gradient(handle: dnn.Handle) -> None:
    call = CALLS["convolution_transpose"]
    arrays = call.place(handle)
    (y,) = call.run(handle, arrays)
    gradient = dnn.convolution_backward_data(
        handle, arrays["w"], arrays["x"], **call.options, x=y.spec
    )
    assert bits(y) == bits(gradient)


# ---------------------------------------------------------------- misaligned operands


def misaligned(handle: dnn.Handle, array: dnn.DeviceArray) -> dnn.DeviceArray:
    """Return an array with the same memory, its gaps too, one element behind an aligned address."""
    shift = array.dtype.itemsize
    memory = handle.empty((array.nbytes + shift,), "uint8")
    moved = part_of(memory, array.spec, shift)
    handle.device.copy_within(moved.ptr, array.ptr, array.nbytes, handle.stream)
    return moved


HALF = {
    "x": Operand((2, 8, 6, 5), "float16", "last"),
    "w": Operand((8, 8, 3, 3), "float16", "last"),
}
# Calls whose operands are copied if they are not aligned.
COPIED: dict[str, Call] = {
    "gradient of a bias": CALLS["convolution_backward_bias"],
    "batch normalisation": replace(
        CALLS["batch_normalization_training"],
        operands={
            "x": Operand((2, 8, 6, 5), "float16"),
            "scale": Operand((1, 8, 1, 1), seed=1),
            "bias": Operand((1, 8, 1, 1), seed=2),
        },
    ),
    "product": CALLS["matmul"],
    "layer normalisation": CALLS["layer_normalization_forward"],
    "attention": CALLS["scaled_dot_product_attention_forward"],
    "epilogue": Call(
        "convolution_forward", HALF, {"conv": dnn.ConvolutionSpec(1), "activation": "relu"}
    ),
    "activation by a graph": CALLS["activation_forward"].changed(activation="gelu"),
}


@pytest.mark.parametrize("name", COPIED)
def test_copies_of_operands_that_are_not_aligned(handle: dnn.Handle, name: str) -> None:
    """Each operand alone, each output alone, and all of them."""
    call = COPIED[name]
    operands = call.place(handle)
    results = call.run(handle, operands)
    specs, expected = [result.spec for result in results], [*map(bits, results)]
    moved = {n: misaligned(handle, array) for n, array in operands.items()}
    choices = [*({n: array} for n, array in moved.items()), moved, {}]
    for changes in choices:
        for moves_out in (False, True):
            out = call.outputs(handle, specs)
            outs = [*out] if isinstance(out, tuple) else [out]
            if moves_out:
                outs = [misaligned(handle, array) for array in outs]
            call.run(handle, operands | changes, tuple(outs) if len(outs) > 1 else outs[0])
            assert [*map(bits, outs)] == expected, (sorted(changes), moves_out)


@pytest.mark.parametrize("operand", ["x", "w", "out"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_an_engine_gives_way_to_the_descriptor_call(
    handle: dnn.Handle, operand: str, beta: float
) -> None:
    """The plan of a convolution whose operand is not aligned runs what the heuristic ranks first."""
    call = convolution("convolution_forward", "float32", "first")
    arrays = call.place(handle)
    spec = dnn.TensorSpec(RESULT)
    expected = output(handle, spec, beta)
    call.function(handle, **arrays, **call.options, interface="descriptor", beta=beta, out=expected)
    out = output(handle, spec, beta)
    if operand == "out":
        out = misaligned(handle, out)
    else:
        arrays[operand] = misaligned(handle, arrays[operand])
    call.function(handle, **arrays, **call.options, beta=beta, out=out)
    assert bits(out) == bits(expected)


# ---------------------------------------------------------------- behind a convolution


ONE_SIDED = dnn.ConvolutionSpec(((1, 1), (2, 0)), math_type="fma")  # which needs an engine


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.0), (1.0, 0.5)])
def test_a_bias_behind_an_engine(
    handle: dnn.Handle, alpha: float, beta: float, layout: str
) -> None:
    """No engine adds a bias to a convolution that is scaled, or added to old values."""
    x, w = Operand(IMAGES, layout=layout), Operand(FILTERS, layout=layout, seed=1)
    arrays = [x.place(handle), w.place(handle)]
    bias = Operand((1, FILTERS[0], 1, 1), seed=2).place(handle)
    spec, scalars = Operand(RESULT, layout=layout).spec, {"alpha": alpha, "beta": beta}
    expected = output(handle, spec, beta)
    with dnn.convolution_forward.plan(
        handle, *arrays, ONE_SIDED, bias=bias, **scalars, out=spec
    ) as plan:
        assert "cudnnAddTensor" in plan.choice.remark
        algorithm = plan.choice.algorithm
        dnn.convolution_forward(
            handle, *arrays, ONE_SIDED, **scalars, algorithm=algorithm, out=expected
        )
        dnn.add_tensor(handle, bias, expected)
        for _ in range(2):
            out = output(handle, spec, beta)
            plan(*arrays, bias, out=out)
            assert bits(out) == bits(expected)


def test_an_activation_behind_an_engine(handle: dnn.Handle) -> None:
    """A tanh is a call of its own, in place."""
    arrays = [Operand(IMAGES).place(handle), Operand(FILTERS, seed=1).place(handle)]
    bias = Operand((1, FILTERS[0], 1, 1), seed=2).place(handle)
    tanh, identity = dnn.ActivationSpec("tanh"), dnn.ActivationSpec("identity")
    out = poisoned(handle, dnn.TensorSpec(RESULT))
    function = dnn.convolution_bias_activation_forward
    with function.plan(handle, *arrays, bias, ONE_SIDED, tanh) as plan:
        assert "cudnnActivationForward" in plan.choice.remark
        algorithm = plan.choice.algorithm
        plan(*arrays, bias, out=out)
    expected = function(handle, *arrays, bias, ONE_SIDED, identity, algorithm=algorithm)
    dnn.activation_forward(handle, expected, tanh, out=expected)
    assert bits(out) == bits(expected)


@pytest.mark.parametrize("algorithm", ["GEMM", "IMPLICIT_GEMM", "FFT", "WINOGRAD_NONFUSED"])
def test_a_bias_behind_an_algorithm_that_has_none(handle: dnn.Handle, algorithm: str) -> None:
    """cuDNN's fused call has IMPLICIT_PRECOMP_GEMM alone without an activation."""
    arrays = [Operand(IMAGES).place(handle), Operand(FILTERS, seed=1).place(handle)]
    bias = Operand((1, FILTERS[0], 1, 1), seed=2).place(handle)
    conv = dnn.ConvolutionSpec(1, math_type="fma")
    options = {"algorithm": algorithm, "out": poisoned(handle, dnn.TensorSpec(RESULT))}
    with dnn.convolution_forward.plan(
        handle, *arrays, conv, bias=bias, algorithm=algorithm
    ) as plan:
        assert "cudnnAddTensor" in plan.choice.remark
    y = dnn.convolution_forward(handle, *arrays, conv, bias=bias, **options)
    options["out"] = poisoned(handle, dnn.TensorSpec(RESULT))
    expected = dnn.convolution_forward(handle, *arrays, conv, **options)
    dnn.add_tensor(handle, bias, expected)
    assert bits(y) == bits(expected)


# ---------------------------------------------------------------- recorded calls

RECORDED: dict[str, Call] = {
    **{name: CALLS[name] for name in ALGORITHMS},
    "descriptor call": CALLS["convolution_forward"].changed(interface="descriptor"),
    "fused": CALLS["convolution_bias_activation_forward"],
    "bias behind": CALLS["convolution_forward"].changed(
        bias=Operand((1, 3, 1, 1), seed=3), algorithm="GEMM"
    ),
    "transposed": CALLS["convolution_transpose"],
    "conversions": CALLS["convolution_forward"].changed(
        algorithm=dnn.AlgorithmResult(
            ALGORITHMS["convolution_forward"], dnn.MathType.FMA, layout="NHWC"
        )
    ),
    "epilogue": COPIED["epilogue"],
    "network": CALLS["rnn_forward"],
    "network with lengths": CALLS["rnn_forward"].changed(lengths=RAGGED),
}
# Kernels on a GPU may add in another order each time.
SUMS_IN_ANY_ORDER = ("convolution_backward_data", "convolution_backward_filter", "transposed")


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_call_is_the_call(handle: dnn.Handle, name: str) -> None:
    """With new addresses each time, with the same, with old ones again, and with other values."""
    call = RECORDED[name]
    operands = call.place(handle)
    results = call.run(handle, operands)
    specs = [result.spec for result in results]
    expected = [result.numpy() for result in results]
    others = call.changed(
        **{n: replace(operand, seed=operand.seed + 20) for n, operand in call.arrays.items()}
    )
    other_operands = others.place(handle)
    other_expected = [result.numpy() for result in others.run(handle, other_operands)]
    recorded = call.changed(replay=True)
    outs = [call.outputs(handle, specs) for _ in range(3)]
    for out in (outs[0], outs[0], outs[1], outs[2], outs[0], outs[1], outs[1]):
        for arrays, values in ((operands, expected), (other_operands, other_expected)):
            for array in out if isinstance(out, tuple) else (out,):
                array.fill(float("nan"))
            written = recorded.run(handle, arrays, out)
            for array, own in zip(written, values, strict=True):
                if handle.device.kind == "cuda" and name in SUMS_IN_ANY_ORDER:
                    np.testing.assert_allclose(array.numpy(), own, rtol=1e-3, atol=1e-3)
                else:
                    assert bits(array) == own.tobytes()


def test_a_recorded_graph_is_the_graph(handle: dnn.Handle) -> None:
    call = CALLS["matmul"]
    operands = call.place(handle)
    graph = dnn.matmul.graph(**{name: operand.spec for name, operand in call.arrays.items()})
    with graph.plan(handle) as plan, graph.plan(handle, replay=True) as recorded:
        (name,) = plan(**operands)
        expected = bits(plan(**operands)[name])
        outs = [poisoned(handle, graph.outputs[name].spec) for _ in range(2)]
        for out in (outs[0], outs[0], outs[1], outs[0], outs[1]):
            out.fill(float("nan"))
            recorded(**operands, out=out)
            assert bits(out) == expected
