"""An operation as data: its problems, gradients, docstrings and plans, and its error messages."""

import ctypes
import inspect
import json
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import SAMPLES

import cudnnlite as dnn
from cudnnlite import OperationPlan
from cudnnlite._raw.api import library_api
from cudnnlite.descriptors.declared import DeclaredDescriptor
from cudnnlite.descriptors.native import DESCRIPTORS
from cudnnlite.problems.catalogue import OPERATIONS, TUNABLE
from cudnnlite.problems.operation import Operation, check_alike, gradient_of
from cudnnlite.problems.problem import problem_from_plain
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.specs.layers import DropoutSpec
from cudnnlite.types import Problem

POOL, POOL_BACK, SOFT, SOFT_BACK = (
    OPERATIONS[name]
    for name in ("pooling_forward", "pooling_backward", "softmax_forward", "softmax_backward")
)
X, POOLING = (
    dnn.TensorSpec((2, 3, 9, 7), layout="NHWC"),
    dnn.PoolingSpec((3, 2), padding=1, stride=2),
)
Y = POOLING.output_spec(X)
PUBLIC = [name for name, operation in OPERATIONS.items() if operation.writes and hasattr(dnn, name)]


def pooled(**changes):
    return Problem(POOL, **{"x": X, "pooling": POOLING} | changes)


# ---------------------------------------------------------------- problems


def test_a_problem_is_equal_and_hashable_by_all_that_it_says():
    soft = {"x": X, "algorithm": "log", "mode": "channel"}
    different = [
        pooled(),
        pooled(alpha=2),
        pooled(beta=1),
        pooled(x=X.replace(dtype="float16")),
        pooled(pooling=dnn.PoolingSpec(3)),
        pooled(y=dnn.TensorSpec(Y.shape)),
        Problem(POOL_BACK, y=Y, dy=Y, x=X, pooling=POOLING),
        Problem(SOFT, **soft),
        Problem(SOFT, **soft | {"mode": "instance"}),
        Problem(SOFT_BACK, y=X, dy=X, algorithm=2, mode=1),
    ]
    assert len({*different}) == len(different)
    for problem in different:
        plain = json.loads(json.dumps(problem.to_plain()))
        assert plain["kind"] == problem.kind == problem.operation.name
        assert list(plain) == ["kind", *problem.operation.fields]
        for again in (
            problem_from_plain(plain),
            pickle.loads(pickle.dumps(problem)),
            problem.replace(),
        ):
            assert again == problem
            assert hash(again) == hash(problem)
            assert again.operation is problem.operation
        assert problem != problem.to_plain()
        assert problem.kind.replace("_", " ") in str(problem)
        assert all(f"{name}=" in repr(problem) for name in problem.operation.fields)
    assert pooled(alpha=1, beta=0, y=Y) == pooled()
    assert Problem(SOFT, **soft) == Problem(
        SOFT, **soft | {"algorithm": "LOG", "mode": dnn.enums.SoftmaxMode.CHANNEL}
    )


def test_a_problem_says_what_it_consists_of():
    problem = pooled(alpha=3)
    assert (problem.x, problem.pooling, problem.y, problem.alpha, problem.beta) == (
        X,
        POOLING,
        Y,
        3.0,
        0.0,
    )
    assert problem.specs == {"x": X, "y": Y}
    assert problem.options == {"pooling": POOLING}
    assert list(problem.values) == ["x", "pooling", "y", "alpha", "beta"]
    assert (problem.flops, problem.math_type) == (0, dnn.MathType.DEFAULT)
    assert problem.terms == f"{X} to {Y}, {POOLING}"
    assert Problem(POOL, **problem.values) == problem
    assert dnn.pooling_forward.problem(X, POOLING, alpha=3) == problem
    assert type(dnn.convolution_forward.problem(X, dnn.FilterSpec((4, 3, 3, 3)))) is Problem


def test_a_problem_does_not_change():
    problem = pooled()
    for name in ("x", "alpha", "kind", "other"):
        with pytest.raises(AttributeError, match=name):
            setattr(problem, name, 1)
    with pytest.raises(AttributeError, match="'w'"):
        problem.w


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"x": (2, 3, 9, 7)}, r"\bx="),
        ({"x": dnn.FilterSpec((4, 3, 3, 3))}, r"\bx="),
        ({"x": None}, r"\bx="),
        ({"x": dnn.TensorSpec((2, 3)), "pooling": dnn.PoolingSpec(2)}, r"\bx="),
        ({"pooling": None}, r"\bpooling="),
        ({"pooling": 2}, r"\bpooling="),
        ({"pooling": dnn.ConvolutionSpec()}, r"\bpooling="),
        ({"y": X}, r"\bout has shape"),
        ({"y": Y.shape}, r"\by="),
        ({"y": dnn.TensorSpec(Y.shape, strides=(1, 1, 1, 1))}, r"\bout=.*overlap"),
        ({"alpha": "1"}, r"\balpha="),
        ({"beta": None}, r"\bbeta="),
        ({"beta": 1j}, r"\bbeta="),
    ],
)
def test_a_problem_that_is_none_names_the_argument(changes, match):
    with pytest.raises(dnn.ArgumentError, match=match):
        pooled(**changes)


def test_a_descriptor_is_no_option_and_its_spec_is():
    with dnn.descriptors.PoolingDescriptor(POOLING) as descriptor:
        with pytest.raises(dnn.ArgumentError, match=r"\bpooling=.*pass its \.spec"):
            pooled(pooling=descriptor)
        assert pooled(pooling=descriptor.spec) == pooled()


def test_fields_that_are_missing_or_unknown():
    for given_fields in ({"x": X}, {"pooling": POOLING}, {"x": X, "pooling": POOLING, "w": X}):
        with pytest.raises(TypeError, match="x, pooling, y, alpha, beta"):
            Problem(POOL, **given_fields)
    plain = pooled().to_plain()
    wrong = [
        {**plain, "w": 1},
        {**plain, "x": None},
        {**plain, "x": {"spec": "TensorSpec"}},
        {**plain, "kind": "pooling"},
    ]
    wrong += [
        {**plain, "y": plain["x"]},
        {**plain, "alpha": "x"},
        {name: plain[name] for name in ("kind", "x")},
        None,
    ]
    for document in wrong:
        with pytest.raises(dnn.ArgumentError):
            problem_from_plain(document)


# ---------------------------------------------------------------- operations


def test_the_table_of_operations():
    for name, operation in OPERATIONS.items():
        assert operation.name == name
        assert repr(operation) == f"<Operation {name}>"
        header = {operation.names.get(argument, argument) for argument in operation.record.argnames}
        if operation.writes:
            assert header >= {*operation.reads, *operation.writes, "handle", *operation.scalars}


def test_what_follows_from_a_declaration():
    operations = {name: operation for name, operation in OPERATIONS.items() if operation.writes}
    assert {name for name, operation in operations.items() if operation.needs_reserve} == {
        "dropout_gradient",
        "batch_normalization_backward_relu",
        "batch_normalization_backward_add_relu",
    }
    assert {name for name, operation in operations.items() if operation.state_option} == {
        "dropout",
        "dropout_gradient",
    }
    blended = {
        name: [output for output in operation.writes[1:] if operation.scalars_of(output)]
        for name, operation in operations.items()
    }
    assert {name: outputs for name, outputs in blended.items() if outputs} == {
        "batch_normalization_backward": ["dscale", "dbias"],
        "divisive_normalization_backward_around": ["dmeans"],
        "spatial_transformer_sample_backward": ["dgrid"],
    }
    assert {*OPERATIONS["spatial_transformer_sample_backward"].scalars} == {
        "alpha",
        "beta",
        "alpha_dgrid",
        "beta_dgrid",
    }
    filters = {name: {*operation.filters} for name, operation in operations.items()}
    assert {name for name in filters if filters[name] == {"w"}} == {
        name for name in TUNABLE if name not in ("convolution_backward_filter", "rnn_forward")
    }
    assert [name for name in filters if filters[name] - {"w"}] == ["convolution_backward_filter"]


def test_a_gradient_is_derived_from_the_forward_operation():
    assert (POOL_BACK.reads, POOL_BACK.writes, POOL_BACK.function) == (
        ("y", "dy", "x"),
        ("dx",),
        "cudnnPoolingBackward",
    )
    assert (SOFT_BACK.reads, SOFT_BACK.writes, SOFT_BACK.function) == (
        ("y", "dy"),
        ("dx",),
        "cudnnSoftmaxBackward",
    )
    for forward, backward in ((POOL, POOL_BACK), (SOFT, SOFT_BACK)):
        assert (backward.options, backward.names) == (forward.options, forward.names)
    assert POOL_BACK.check == POOL.check
    assert POOL_BACK.infer(y=Y, dy=Y, x=X, pooling=POOLING) == X
    assert SOFT_BACK.infer(y=Y, dy=Y, algorithm=None, mode=None) == Y
    for wrong in ("y", "dy"):
        with pytest.raises(
            dnn.ArgumentError, match=rf"^{wrong} has shape .*; needed: {re.escape(str(Y.shape))}"
        ):
            POOL_BACK.infer(**{"y": Y, "dy": Y, "x": X, "pooling": POOLING, wrong: X})
    with pytest.raises(dnn.ArgumentError, match=r"^dy has shape"):
        SOFT_BACK.infer(y=Y, dy=X)


def test_a_gradient_of_an_operation_of_ones_own():
    """It is derived without entering a table: the catalogue holds what is declared there."""
    forward = Operation(
        "half_forward", "cudnnPoolingForward", ("x",), ("y",), lambda x: x.packed((1, 2, 3))
    )
    backward = gradient_of(forward, "cudnnPoolingBackward", ("dy", "x"))
    assert (backward.name, backward.writes) == ("half_backward", ("dx",))
    assert not {"half_forward", "half_backward"} & {*OPERATIONS}
    x = dnn.TensorSpec((2, 4, 6))
    assert Problem(backward, dy=dnn.TensorSpec((1, 2, 3)), x=x).dx == x
    with pytest.raises(dnn.ArgumentError, match=r"dy has shape .*; needed: \(1, 2, 3\)"):
        Problem(backward, dy=x, x=x)


def test_operands_that_must_lie_alike():
    first, other = dnn.TensorSpec((2, 3, 4, 5)), dnn.TensorSpec((2, 3, 4, 5), layout="NHWC")
    check_alike({"y": first, "dy": first, "dx": first})
    thin = dnn.TensorSpec((2, 3, 1, 1))
    check_alike({"x": thin, "y": dnn.TensorSpec(thin.shape, layout="NHWC")})  # the same memory
    for specs, name in (
        ({"y": first, "dy": other, "dx": first}, "dy"),
        ({"y": first, "dy": first, "dx": other}, "out"),
    ):
        with pytest.raises(dnn.ArgumentError, match=f"^{name} is .*the layout of y"):
            check_alike(specs)


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings_have_all_sections(name):
    function, operation = getattr(dnn, name), OPERATIONS[name]
    text = inspect.cleandoc(function.__doc__)
    sections = re.findall(r"^(\w+)\n-+$", text, re.MULTILINE)
    assert sections == ["Parameters", "Returns", "Raises", "Notes", "Examples"]
    parameters = text.split("Returns\n---")[0].split("Parameters\n---")[1]
    documented = [
        name
        for line in re.findall(r"^(\w[\w, ]*?)(?: :.*)?$", parameters, re.MULTILINE)
        for name in line.split(", ")
    ]
    assert documented == [*inspect.signature(function).parameters]
    assert f"`{operation.function}`" in text
    is_deprecated = "deprecated since cuDNN" in " ".join(text.split())
    assert is_deprecated == bool(operation.record.deprecated)
    assert not re.search(r"[{}]", text.split("Examples\n---")[0])
    assert text.count(f"dnn.{name}(") >= 1


OPTIONS = [
    options
    for sample in SAMPLES.values()
    for options in (
        sample.options,
        *(sample.make(plain) for plain in sample.sets if not sample.combinations),
    )
]
SPECS = {spec for options in OPTIONS for spec in options.values() if isinstance(spec, FrozenSpec)}
APART = (
    dnn.ConvolutionSpec
)  # whose descriptor fills in a compute type; tests/descriptors/test_descriptors.py has it
DECLARED = [
    s
    for s in SPECS
    if issubclass(DESCRIPTORS[type(s)], DeclaredDescriptor) and not isinstance(s, APART)
]


@pytest.mark.parametrize("spec", sorted(DECLARED, key=repr), ids=repr)
def test_descriptors_of_options_are_read_back(spec):
    with DESCRIPTORS[type(spec)](spec) as descriptor:
        result = descriptor.read_back()
        steps = getattr(spec, "_stepped", ())  # which cuDNN has for each axis
        assert result.replace(**{name: getattr(spec, name) for name in steps}) == spec
        assert descriptor.spec is spec
    assert descriptor.closed
    with pytest.raises(dnn.errors.ClosedError):
        descriptor.ptr


OTHERS = [
    dnn.RNNSpec("lstm", 6, 8, clip=(-1.5, 2.25)),
    dnn.specs.RNNDataSpec((5, 3, 6), [5, 2, 4]),
    dnn.AttentionSpec(
        2, 6, bias=True, q_proj_size=3, max_q_length=5, max_kv_length=5, max_batch=3, max_beam=1
    ),
    dnn.specs.SeqDataSpec((2, 1, 5, 8), [5, 3]),
    dnn.TensorSpec((2, 64, 3, 3), "int8x32"),
    dnn.TensorSpec((2, 3, 4, 5), layout="NHWC"),
    dnn.FilterSpec((4, 3, 2, 5)),
    dnn.CTCLossSpec(compute_type="float32"),
    dnn.specs.TensorTransformSpec((0, 0, (1, 2), 0), fold=(2, 3)),
]


@pytest.mark.parametrize("spec", sorted([*SPECS, *OTHERS], key=repr), ids=repr)
def test_a_descriptor_calls_what_it_says_that_it_calls(own_handle, spec):
    """From which its docstring is made, and the page of the coverage."""
    kind = DESCRIPTORS[type(spec)]
    with dnn.trace() as trace, kind._describing(spec, 2, own_handle) as descriptor:
        if type(spec) is not dnn.SpatialTransformerSpec:  # which cuDNN does not tell
            descriptor.read_back()
    called = {call.function for call in trace.calls}
    assert len(called) > 2
    assert called <= {*kind._functions()}
    assert all(f"`{name}`" in kind.__doc__ for name in called)


@pytest.mark.parametrize(
    "spec", [s for s in OTHERS if isinstance(s, (dnn.RNNSpec, dnn.AttentionSpec))], ids=repr
)
def test_what_another_made_is_read_whole(spec):
    """With what no field of the getter's holds: clips, biases."""
    with DESCRIPTORS[type(spec)](spec) as descriptor:
        assert type(descriptor).read(descriptor.api, descriptor.ptr) == descriptor.read_back()
        assert descriptor.read_back() == spec


def test_a_dropout_descriptor_too(own_handle):
    state = dnn.DropoutState(own_handle)
    with dnn.trace() as trace:
        for initialize in (True, False):
            with dnn.descriptors.DropoutDescriptor(
                own_handle, 0.5, state.array, initialize=initialize
            ) as descriptor:
                descriptor.read_back()
    assert {call.function for call in trace.calls} == {
        *dnn.descriptors.DropoutDescriptor._functions()
    }


def test_every_kind_of_descriptor_is_looked_at():
    assert {type(spec) for spec in [*SPECS, *OTHERS]} | {DropoutSpec} == {*DESCRIPTORS}


def test_docstrings_of_gradients_and_clips_say_what_they_are_of():
    assert "activation : ActivationSpec, ActivationMode or str\n" in dnn.activation_backward.__doc__
    assert "norm : LRNSpec\n" in dnn.lrn_backward.__doc__
    assert "pooling : PoolingSpec\n" in dnn.pooling_backward.__doc__
    assert "where the library has no `_v9`" in " ".join(dnn.RNNDescriptor.__doc__.split())
    assert not hasattr(dnn.Handle, "functions")


@pytest.mark.parametrize(
    "name", [n for n in PUBLIC if OPERATIONS[n].dtypes and not OPERATIONS[n].mixed]
)
def test_data_types_are_refused_by_name(name):
    """Of what is read and written; what may differ is the operation's own business."""
    operation = OPERATIONS[name]
    names = (*operation.reads, *operation.writes)
    wrong = dnn.TensorSpec((1, 2, 3, 4), "int64")
    specs = dict.fromkeys(names, dnn.TensorSpec((1, 2, 3, 4)))
    for operand in names:
        with pytest.raises(
            dnn.ArgumentError,
            match=rf"^{re.escape(operation.argument(operand))} is int64; allowed: float32, float64",
        ):
            operation.check_dtypes(specs | {operand: wrong})
    for operand in names[1:]:
        with pytest.raises(
            dnn.ArgumentError,
            match=rf"^{re.escape(operation.argument(operand))} is float16; needed: float32$",
        ):
            operation.check_dtypes(specs | {operand: dnn.TensorSpec((1, 2, 3, 4), "float16")})


# ---------------------------------------------------------------- plans


def planned(handle, **options):
    return dnn.pooling_forward.plan(handle, X, POOLING, **options)


def test_a_plan_has_what_it_was_made_for(own_handle):
    with planned(own_handle, alpha=2.0) as plan:
        assert plan.problem == pooled(alpha=2)
        assert (plan.x, plan.pooling, plan.y, plan.alpha, plan.beta) == (X, POOLING, Y, 2.0, 0.0)
        assert (plan.choice, plan.workspace, plan.closed) == (None, 0, False)
        assert {name: descriptor.spec for name, descriptor in plan.descriptors.items()} == {
            "x": X,
            "pooling": POOLING,
            "y": Y,
        }
        assert plan.descriptors["pooling"].read_back() == POOLING.replace(
            padding=(1, 1), stride=(2, 2)
        )
        assert type(plan) is OperationPlan
        assert repr(plan) == f"<plan of pooling forward of {plan.problem.terms}>"
        assert [*inspect.signature(plan).parameters] == [
            "operands",
            "out",
            "workspace",
            "reserve",
            "named_operands",
        ]
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            pickle.dumps(plan)
    assert repr(plan).startswith("<closed")


def test_descriptors_may_be_closed_by_nobody_else(own_handle):
    """Two plans have descriptors of their own: closing one leaves the other alone."""
    x = own_handle.array(np.ones(X.shape, np.float32), layout="NHWC")
    with planned(own_handle) as plan:
        planned(own_handle).close()
        assert (plan(x).numpy() == 1).all()


def test_operands_by_place_and_by_name(own_handle):
    """In the order of the public function, whatever the C function's is."""
    rng = np.random.default_rng(0)
    image = rng.standard_normal(X.shape, np.float32)
    x = own_handle.array(image, layout="NHWC")
    y = dnn.pooling_forward(own_handle, x, POOLING)
    dy = own_handle.array(rng.standard_normal(Y.shape, np.float32), layout="NHWC")
    gradient = dnn.pooling_backward(own_handle, y, dy, x, POOLING).numpy()
    with dnn.pooling_backward.plan(own_handle, Y, Y, X, POOLING) as plan:
        for returned in (
            plan(y, dy, x),
            plan(y, dy, x=x),
            plan(y, x=x, dy=dy),
            plan(x=x, y=y, dy=dy),
        ):
            np.testing.assert_array_equal(returned.numpy(), gradient)


@pytest.mark.parametrize(
    ("arrays", "keywords", "message"),
    [
        ((), {}, "takes x; 0 arrays were given"),
        ("xx", {}, "takes x; 2 arrays were given"),
        ("x", {"x": "x"}, "got multiple values for argument 'x'"),
        ("x", {"w": "x"}, "got an unexpected keyword argument 'w'"),
        ((), {"y": "x"}, "got an unexpected keyword argument 'y'"),
        ("x", {"reserve": "x"}, "has no reserve space"),
    ],
)
def test_a_call_that_fits_no_plan_is_a_type_error_that_names_the_plan(
    own_handle, arrays, keywords, message
):
    x = own_handle.array(np.ones(X.shape, np.float32), layout="NHWC")
    with planned(own_handle) as plan, pytest.raises(TypeError) as caught:
        plan(*[x for _ in arrays], **dict.fromkeys(keywords, x))
    assert str(caught.value) == f"a {plan!r} {message}".replace("<closed ", "").replace(">", "")


def test_an_operand_that_is_missing_is_named(own_handle):
    dy = own_handle.array(np.ones(Y.shape, np.float32), layout="NHWC")
    with dnn.pooling_backward.plan(own_handle, Y, Y, X, POOLING) as plan:
        with pytest.raises(TypeError, match=r"is missing y, x$"):
            plan(dy=dy)
        with pytest.raises(TypeError, match=r"takes y, dy, x; 1 arrays were given$"):
            plan(dy)


# ---------------------------------------------------------------- cuDNN's own arithmetic


@st.composite
def poolings(draw):
    """Draw a pooling and the shape of images that it fits."""
    axes = draw(st.integers(2, 3))
    window = tuple(draw(st.integers(1, 9)) for _ in range(axes))
    padding = tuple(draw(st.integers(0, size - 1)) for size in window)
    stride = tuple(draw(st.integers(1, 5)) for _ in range(axes))
    image = tuple(
        max(1, size - 2 * margin) + draw(st.integers(0, 40))
        for size, margin in zip(window, padding, strict=True)
    )
    spec = dnn.PoolingSpec(
        window,
        padding=padding,
        stride=stride,
        mode=draw(st.sampled_from(list(dnn.enums.PoolingMode))),
        nan=draw(st.sampled_from(list(dnn.enums.NanPropagation))),
    )
    return spec, (draw(st.integers(1, 300)), draw(st.integers(1, 300)), *image)


@settings(max_examples=150, derandomize=True, database=None)
@given(poolings(), st.sampled_from(["float32", "float64", "float16", "bfloat16"]), st.booleans())
def test_output_shapes_are_those_of_cudnn(drawn, dtype, last):
    """And a descriptor says what it was told."""
    pooling, shape = drawn
    x = dnn.TensorSpec(shape, dtype, {4: "NHWC", 5: "NDHWC"}[len(shape)] if last else None)
    with (
        dnn.descriptors.PoolingDescriptor(pooling) as pooling_descriptor,
        dnn.TensorDescriptor(x) as descriptor,
    ):
        out = (ctypes.c_int * len(shape))()
        library_api().cudnnGetPoolingNdForwardOutputDim(
            pooling_descriptor.ptr, descriptor.ptr, len(shape), out
        )
        assert pooling_descriptor.read_back() == pooling
    y = pooling.output_spec(x)
    assert y.shape == tuple(out)
    assert (y.dtype, y.layout) == (x.dtype, dnn.TensorSpec(y.shape, dtype, x.layout).layout)
