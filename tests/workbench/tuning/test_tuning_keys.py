"""Keys of tunings, and entries of the cache.

A key has every field that a choice depends on.  Rows and entries are read as they were written.
"""

import json
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
from helpers.tuning_entries import ALIGNMENTS, H200, entry
from helpers.tunings import specs_of

from cudnnlite import (
    ActivationSpec,
    AlgorithmResult,
    ArgumentError,
    ConvolutionSpec,
    FilterSpec,
    RNNSpec,
    TensorSpec,
    convolution_backward_data,
    convolution_backward_filter,
    convolution_bias_activation_forward,
    convolution_forward,
    rnn_forward,
)
from cudnnlite.enums import ConvolutionFwdAlgo, Determinism, MathType, RNNAlgo, Status
from cudnnlite.problems import fused_convolution
from cudnnlite.problems.catalogue import TUNABLE
from cudnnlite.problems.problem import problem_from_plain
from cudnnlite.specs import RNNDataSpec
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.entries import (
    LEFT_OUT,
    SCHEMA,
    DeviceIdentity,
    TuningEntry,
    canonical,
    make_key,
    row_from_plain,
    row_to_plain,
)
from cudnnlite.workbench.tuning.policy import TuningPolicy, with_defaults

from .test_policy import VALUES as POLICY_VALUES

X, W = TensorSpec((2, 8, 16, 16), "float16"), FilterSpec((8, 8, 3, 3), "float16")

CONV = ConvolutionSpec(padding=1)
NETWORK, DATA = RNNSpec("lstm", 8, 8), RNNDataSpec((5, 2, 8))


def convolution(y=None, **scalars):
    return convolution_forward.problem(X, W, CONV, out=y, **scalars)


def rnn(training=False):
    return rnn_forward.problem(NETWORK, None, DATA, training=training)


def conv(**changes):
    return convolution_forward.problem(X, W, CONV.replace(**changes))


def network(**changes):
    return rnn_forward.problem(NETWORK.replace(**changes), None, DATA)


def data(*shape, **options):
    return rnn_forward.problem(NETWORK, None, RNNDataSpec(shape, **options))


VECTORS = convolution_forward.problem(
    TensorSpec((2, 8, 16, 16), "int8x4"),
    FilterSpec((8, 8, 3, 3), "int8x4"),
    ConvolutionSpec(padding=1),
)

# A problem of each kind; and for each field of the problem and of its specs, a problem that differs
# in that field alone.
BASE = {"convolution_forward": convolution(), "rnn_forward": rnn()}
CHANGED = {
    "convolution_forward": {
        "x.shape": convolution_forward.problem(TensorSpec((3, 8, 16, 16), "float16"), W, CONV),
        "x.dtype": VECTORS,
        "x.strides": convolution_forward.problem(
            TensorSpec((2, 8, 16, 16), "float16", "NHWC"), W, CONV
        ),
        "x.vector": VECTORS,
        "w.shape": convolution_forward.problem(X, FilterSpec((4, 8, 3, 3), "float16"), CONV),
        "w.dtype": VECTORS,
        "w.format": convolution_forward.problem(
            X, FilterSpec((8, 8, 3, 3), "float16", "NHWC"), CONV
        ),
        "conv.padding": conv(padding=(1, 2)),
        "conv.stride": conv(stride=2),
        "conv.dilation": conv(dilation=(2, 1)),
        "conv.groups": convolution_forward.problem(
            X, FilterSpec((8, 4, 3, 3), "float16"), CONV.replace(groups=2)
        ),
        "conv.mode": conv(mode="convolution"),
        "conv.compute_type": conv(compute_type="float16"),
        "conv.math_type": conv(math_type="fma"),
        "conv.reorder_type": conv(reorder_type="no"),
        "y.shape": conv(stride=3),
        "y.dtype": convolution(TensorSpec((2, 8, 16, 16), "float32")),
        "y.strides": convolution(TensorSpec((2, 8, 16, 16), "float16", "NHWC")),
        "y.vector": VECTORS,
        "alpha": convolution(alpha=0.5),
        "beta": convolution(beta=1.0),
    },
    "rnn_forward": {
        "spec.cell": network(cell="gru"),
        "spec.input_size": rnn_forward.problem(
            NETWORK.replace(input_size=4), None, RNNDataSpec((5, 2, 4))
        ),
        "spec.hidden_size": network(hidden_size=16),
        "spec.num_layers": network(num_layers=2),
        "spec.bidirectional": network(bidirectional=True),
        "spec.projection_size": network(projection_size=4),
        "spec.bias": network(bias="none"),
        "spec.input_mode": network(input_mode="skip"),
        "spec.dropout": network(dropout=0.25),
        "spec.clip": network(clip=(-1.0, float("inf"))),
        "spec.dtype": rnn_forward.problem(
            RNNSpec("lstm", 8, 8, dtype="float16"), None, RNNDataSpec((5, 2, 8), None, "float16")
        ),
        "spec.compute_type": network(compute_type="float16"),
        "spec.math_type": network(math_type="fma"),
        "data.max_length": data(6, 2, 8),
        "data.batch": data(5, 3, 8),
        "data.vector_size": rnn_forward.problem(
            NETWORK.replace(input_size=4), None, RNNDataSpec((5, 2, 4))
        ),
        "data.lengths": data(5, 2, 8, lengths=[5, 3]),
        "data.dtype": rnn_forward.problem(
            RNNSpec("lstm", 8, 8, dtype="float64"), None, RNNDataSpec((5, 2, 8), None, "float64")
        ),
        "data.layout": data(2, 5, 8, layout="batch_major"),
        "data.padding_fill": data(5, 2, 8, padding_fill=-1.0),
        "training": rnn(True),
    },
}
# The gradients of all of these.
GRADIENTS = {
    "convolution_backward_data": (
        {"x": "dx", "w": "w", "y": "dy"},
        lambda p: convolution_backward_data.problem(
            p.w, p.y, p.conv, out=p.x, alpha=p.alpha, beta=p.beta
        ),
    ),
    "convolution_backward_filter": (
        {"x": "x", "w": "dw", "y": "dy"},
        lambda p: convolution_backward_filter.problem(
            p.x, p.y, p.conv, out=p.w, alpha=p.alpha, beta=p.beta
        ),
    ),
}
FLOATS = convolution_forward.problem(TensorSpec((2, 8, 16, 16)), FilterSpec((8, 8, 3, 3)), CONV)
for _kind, (_names, _gradient) in GRADIENTS.items():
    BASE[_kind], CHANGED[_kind] = _gradient(BASE["convolution_forward"]), {}
    for _path, _problem in CHANGED["convolution_forward"].items():
        _name, _dot, _field = _path.partition(".")
        if _field != "vector":  # vectors have no gradients
            _of = FLOATS if _field == "dtype" else _problem
            CHANGED[_kind][f"{_names.get(_name, _name)}{_dot}{_field}"] = _gradient(_of)


def fused(p, added, activation="relu", alpha2=0.5, layout=None):
    """The same with a bias and an activation, and an addition."""
    dtype = "float32" if p.x.vector > 1 else p.x.dtype
    return convolution_bias_activation_forward.problem(
        p.x,
        p.w,
        TensorSpec((1, p.w.shape[0], 1, 1), dtype, layout),
        p.conv,
        activation,
        z=p.y if added else None,
        out=p.y,
        alpha=p.alpha,
        alpha2=alpha2 if added else 0.0,
    )


for _kind, _added in (
    ("convolution_bias_activation_forward", False),
    ("convolution_bias_addition_activation_forward", True),
):
    _base, _plain = BASE["convolution_forward"], CHANGED["convolution_forward"]
    BASE[_kind] = fused(_base, _added)
    CHANGED[_kind] = {
        _path: fused(VECTORS if _path == "y.dtype" else _problem, _added)
        for _path, _problem in _plain.items()
        if _path != "beta"
    } | {
        "bias.shape": fused(_plain["w.shape"], _added),
        "bias.dtype": fused(VECTORS, _added),
        "bias.strides": fused(_base, _added, layout="NHWC"),
        "activation.mode": fused(_base, _added, "identity"),
        "activation.coef": fused(_base, _added, ActivationSpec("elu", 2)),
        "activation.nan": fused(_base, _added, ActivationSpec("relu", nan="not_propagate")),
    }
    if _added:
        of_z = {
            f"z.{_field}": CHANGED[_kind][f"y.{_field}"]
            for _field in ("shape", "dtype", "strides", "vector")
        }
        CHANGED[_kind] |= of_z | {"alpha2": fused(_base, _added, alpha2=0.25)}


def biased(p, activation="identity", layout=None):
    """The same with a bias, which `convolution_forward` adds."""
    dtype = "float32" if p.x.vector > 1 else p.x.dtype
    return Problem(
        fused_convolution.BIAS,
        x=p.x,
        w=p.w,
        bias=TensorSpec((1, p.w.shape[0], 1, 1), dtype, layout),
        conv=p.conv,
        activation=ActivationSpec(activation) if isinstance(activation, str) else activation,
        y=p.y,
        alpha=p.alpha,
        beta=p.beta,
    )


_base, _plain = BASE["convolution_forward"], CHANGED["convolution_forward"]
BASE["convolution_bias_forward"] = biased(_base)
CHANGED["convolution_bias_forward"] = {
    _path: biased(VECTORS if _path == "y.dtype" else _problem) for _path, _problem in _plain.items()
} | {
    "bias.shape": biased(_plain["w.shape"]),
    "bias.dtype": biased(VECTORS),
    "bias.strides": biased(_base, layout="NHWC"),
    "activation.mode": biased(_base, "relu"),
    "activation.coef": biased(_base, ActivationSpec("elu", 2)),
    "activation.nan": biased(_base, ActivationSpec("identity", nan="not_propagate")),
}
CHANGED_DEVICE = {
    "gpu": "NVIDIA H100",
    "compute_capability": "9.1",
    "driver": "570.86.11",
    "cudnn": 92801,
    "kind": "emulated",
}


# The policy whose fields are all as keys leave them out.
OLD_POLICY = TuningPolicy(layouts=())


def key(problem=BASE["convolution_forward"], alignments=ALIGNMENTS, policy=None, device=H200):
    return make_key(problem, alignments, policy or OLD_POLICY, device)


def leaves(problem):
    """The names of a problem's fields and of its specs' fields."""
    specs = specs_of(problem)
    for name in problem.values:
        if name in specs:
            no_vectors = problem.kind in GRADIENTS or name == "bias"
            inner = [
                item.name for item in fields(specs[name]) if item.name != "vector" or not no_vectors
            ]
            yield from (f"{name}.{item}" for item in inner)
        else:
            yield name


def leaf(problem, path):
    for name in path.split("."):
        problem = getattr(problem, name)
    return problem


def forged(problem, path, value):
    """A problem with one field exchanged, even if such a problem is not valid."""
    outer, _, inner = path.partition(".")
    if inner:
        before = getattr(problem, outer)
        value, values = object.__new__(type(before)), before.values() | {inner: value}
        value._freeze(**values)
    copy = object.__new__(type(problem))
    copy._set_fields(problem.operation, problem.values | {outer: value})
    return copy


PATHS = [
    (kind, path)
    for kind in TUNABLE
    for path in (leaves(BASE[kind]) if kind in BASE else ["(no problem of it)"])
]


@pytest.mark.parametrize(("kind", "path"), PATHS)
def test_every_field_changes_the_key(kind, path):
    assert path in CHANGED.get(kind, {}), f"give CHANGED[{kind!r}] a problem with another {path}"
    base, value = BASE[kind], leaf(CHANGED[kind][path], path)
    assert value != leaf(base, path), f"CHANGED[{kind!r}][{path!r}] has the same {path}"
    assert key(forged(base, path, value)).digest != key(base).digest
    assert key(CHANGED[kind][path]).digest != key(base).digest


def test_no_two_fields_change_it_alike():
    digests = [
        key(forged(BASE[kind], path, leaf(CHANGED[kind][path], path))).digest
        for kind, path in PATHS
    ]
    digests += [key(base).digest for base in BASE.values()]
    assert len(set(digests)) == len(digests) == len(PATHS) + len(TUNABLE)


def test_every_kind_of_spec_was_walked():
    walked = {type(spec) for problem in BASE.values() for spec in specs_of(problem).values()}
    assert walked == {TensorSpec, FilterSpec, ConvolutionSpec, ActivationSpec, RNNSpec, RNNDataSpec}
    assert {problem.kind for problem in BASE.values()} == set(TUNABLE)


@pytest.mark.parametrize("name", [item.name for item in fields(DeviceIdentity)])
def test_every_field_of_the_device_changes_the_key(name):
    assert name in CHANGED_DEVICE, f"give CHANGED_DEVICE another {name}"
    changed = replace(H200, **{name: CHANGED_DEVICE[name]})
    assert changed != H200
    assert key(device=changed).digest != key().digest


@pytest.mark.parametrize("name", POLICY_VALUES)
def test_every_field_of_the_policy_changes_the_key(name):
    base = TuningPolicy()
    changed = base.replace(**{name: POLICY_VALUES[name][0]})
    assert getattr(changed, name) != getattr(base, name)
    assert key(policy=changed).digest != key(policy=base).digest
    assert key(policy=changed).policy == changed.to_plain()


def test_what_says_nothing_does_not_change_the_key():
    """A key has no default alignment."""
    assert key(alignments={"x": 256, "y": 4096}) == key(alignments={})


# Of known keys the digests, which name the files of their entries.
PINNED = {
    "the usual policy": (
        key(alignments={}),
        "e52caaeab1ca500027996f92244319523bc9851295a241b9d953cdc9f4fbaca0",
    ),
    "a search over engines": (
        key(rnn(), {}, OLD_POLICY.replace(search="engines")),
        "307b699e95cb2bbafd84bdb8f401fec669935c5e131b9fedf6b1e2bcd97064c8",
    ),
}
LOST = (
    "the key of a known tuning has another digest: what everybody has tuned is not found any more."
    "  If a field of a policy, of a problem or of a spec is new, leave it out of the key where it"
    " is at its default.  If what is kept cannot be used any more, raise SCHEMA and pin the new"
    " digests."
)


@pytest.mark.parametrize("name", PINNED)
def test_the_digest_of_a_known_key(name):
    pinned_key, digest = PINNED[name]
    assert pinned_key.digest == digest, LOST


# Of every field of the policy, as JSON has them.
DEFAULTS = {
    "objective": "latency",
    "workspace_limit": None,
    "deterministic": False,
    "max_error": None,
    "math_type": None,
    "allow_tf32": True,
    "layouts": [],
    "interface": None,
    "flush_l2": False,
    "search": "heuristics",
    "exclude": [],
}


def test_the_defaults_of_the_policy_are_part_of_every_key():
    """Defaults are not in the key, so another default would change what an old entry means."""
    plain = with_defaults({})
    assert plain.keys() == DEFAULTS.keys(), (
        f"add to DEFAULTS: {', '.join(plain.keys() - DEFAULTS.keys())}"
    )
    changed = [name for name, value in DEFAULTS.items() if plain[name] != value]
    assert not changed, f"raise SCHEMA: another default of {', '.join(changed)}"


def test_a_default_that_changed_is_in_new_keys():
    """What was tuned without conversions of layouts is not taken for a tuning with them."""
    new_key = key(policy=TuningPolicy())
    assert new_key.plain["policy"] == {"layouts": None}
    assert new_key.policy == TuningPolicy().to_plain()
    assert new_key != key()


def test_the_layouts_are_in_no_key_that_they_do_not_matter_to():
    assert key(rnn(), {}, TuningPolicy()) == key(rnn(), {})


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_every_alignment_changes_the_key(name):
    assert key(alignments=ALIGNMENTS | {name: 16}).digest != key().digest
    assert (
        key(alignments={other: ALIGNMENTS[other] for other in ALIGNMENTS if other != name}).digest
        != key().digest
    )


def test_the_schema_changes_the_key(monkeypatch):
    before = key()
    assert before.plain["schema"] == SCHEMA
    monkeypatch.setattr("cudnnlite.workbench.tuning.entries.SCHEMA", SCHEMA + 1)
    assert key().digest != before.digest


@pytest.mark.parametrize(("kind", "path"), PATHS)
def test_a_problem_comes_back_from_json(kind, path):
    problem = CHANGED[kind][path]
    again = problem_from_plain(json.loads(json.dumps(problem.to_plain())))
    assert again == problem
    assert hash(again) == hash(problem)
    assert key(problem).problem == problem
    assert key(again) == key(problem)


@pytest.mark.parametrize("problem", BASE.values(), ids=BASE)
def test_the_parts_of_a_key(problem):
    tuning_key = key(problem)
    assert tuning_key.plain["problem"]["kind"] == problem.kind
    assert tuning_key.device == H200
    assert tuning_key.plain["alignments"] == ALIGNMENTS
    assert tuning_key.plain["policy"] == {}
    assert tuning_key.policy == OLD_POLICY.to_plain()
    assert set(tuning_key.plain) == {"schema", "problem", "alignments", "policy", "device"}
    assert tuning_key.text == json.dumps(
        json.loads(tuning_key.text), sort_keys=True, separators=(",", ":")
    )
    assert " " not in tuning_key.text.replace("NVIDIA H200", "")
    assert pickle.loads(pickle.dumps(tuning_key)) == tuning_key
    assert len({tuning_key, key(problem)}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (convolution(alpha=1.0), convolution(alpha=1)),
        (convolution(alpha=np.float64(2)), convolution(alpha=2)),
        (conv(padding=1), conv(padding=(1, 1))),
        (conv(compute_type=None), conv(compute_type="float32")),
        (convolution(), convolution(X)),
        (network(dropout=0), network(dropout=0.0)),
    ],
)
def test_equal_problems_have_one_key(one, other):
    assert one == other
    assert key(one) == key(other)
    assert key(one).problem == one


def test_of_zeros_there_are_two():
    keys = [key(convolution(beta=0.0)), key(convolution(beta=-0.0))]
    assert keys[0] != keys[1]
    assert [str(key.problem.beta) for key in keys] == ["0.0", "-0.0"]


def test_of_nans_there_is_one():
    tuning_key = key(data(5, 2, 8, padding_fill=np.nan))
    assert tuning_key == key(data(5, 2, 8, padding_fill=-float("nan"))) == key(tuning_key.problem)


def test_the_order_of_the_alignments_does_not_matter():
    assert key(alignments=dict(reversed(ALIGNMENTS.items()))) == key()


def test_true_is_not_one():
    values = [True, 1, "1", None, "None", False, 0, [], [0], [[0]], 0.5, "0.5"]
    assert len({canonical({"value": value}) for value in values}) == len(values)


@pytest.mark.parametrize("value", [0, 3, -16, 24, True, 16.0, "16", None])
def test_an_alignment_that_is_none(value):
    with pytest.raises(ArgumentError, match=r"alignments\['w'\]=.*power of two"):
        key(alignments={"x": 16, "w": value})
    with pytest.raises(
        ArgumentError, match=r"alignments\[1\]="
    ):  # JSON would write 1 and "1" alike
        key(alignments={1: 16})


@pytest.mark.parametrize("name", [item.name for item in fields(DeviceIdentity)])
def test_a_device_with_a_field_of_a_wrong_type(name):
    wrong = "92800" if name == "cudnn" else 9
    with pytest.raises(ArgumentError, match=f"{name}={wrong!r} is not of type"):
        replace(H200, **{name: wrong})


def test_which_device_is_emulated():
    assert not H200.is_emulated
    assert replace(H200, kind="emulated").is_emulated


# ---------------------------------------------------------------- rows

ROW = AlgorithmResult(ConvolutionFwdAlgo.WINOGRAD, MathType.FMA)
# for every field of a row, values that must come back
ROW_VALUES = {
    "algorithm": [
        *ConvolutionFwdAlgo,
        *RNNAlgo,
        ConvolutionFwdAlgo(17),
        RNNAlgo(-3),
        Determinism(99),
    ],
    "math_type": [*MathType, MathType(17)],
    "status": [*Status, Status(3999)],
    "deterministic": [True, False, None],
    "transient": [True, False],
    "within_noise": [True, False],
    "compiled": [True, False],
    "replay": [True, False],
    "workspace": [0, 1, 2**40],
    **{name: [None, 0, 2**40] for name in ("reserve", "heuristic")},
    **{
        name: ["", "NHWC", 'a "quoted"\nline, café, 卷积, \U0001f600']
        for name in ("why_not", "remark", "layout", "same_kernel")
    },
    **{
        name: [None, 0.0, 1e-300, 0.1 + 0.2, float("nan"), float("inf"), -float("inf")]
        for name in (
            "time_ms",
            "error",
            "spread_ms",
            "call_us",
            "host_us",
            "call_spread_us",
            "find_ms",
            "max_error",
        )
    },
}


@pytest.mark.parametrize(
    "name",
    sorted(item.name for item in fields(AlgorithmResult)),
)
def test_every_field_of_a_row_comes_back(name):
    if name in LEFT_OUT:
        assert name not in row_to_plain(ROW)
        return
    assert name in ROW_VALUES, f"give ROW_VALUES values of {name}"
    texts = []
    for value in ROW_VALUES[name]:
        row = replace(ROW, **{name: value})
        texts.append(json.dumps(row_to_plain(row), allow_nan=False))
        again = row_from_plain(json.loads(texts[-1]))
        assert repr(again) == repr(row)  # a NaN equals nothing
        assert type(getattr(again, name)) is type(value)
    assert len(set(texts)) == len(texts)


def test_an_unknown_member_is_the_same_object():
    unknown = ConvolutionFwdAlgo(17)
    plain = row_to_plain(replace(ROW, algorithm=unknown))
    assert plain["algorithm"] == "ConvolutionFwdAlgo.UNKNOWN_17"
    assert row_from_plain(plain).algorithm is unknown


def test_a_member_that_was_unknown_when_the_row_was_written():
    plain = row_to_plain(ROW) | {
        "algorithm": "ConvolutionFwdAlgo.UNKNOWN_6",
        "math_type": "UNKNOWN_3",
    }
    assert row_from_plain(plain).algorithm is ConvolutionFwdAlgo.WINOGRAD
    assert row_from_plain(plain).math_type is MathType.FMA


def test_numbers_of_numpy_are_written_too():
    row = replace(
        ROW,
        time_ms=np.float32(0.5),
        error=np.float64("nan"),
        workspace=np.int64(7),
        deterministic=np.bool_(True),
    )
    again = row_from_plain(json.loads(json.dumps(row_to_plain(row), allow_nan=False)))
    assert (again.time_ms, again.workspace, again.deterministic) == (0.5, 7, True)
    assert again.error != again.error


def test_empty_fields_need_not_be_written():
    plain = row_to_plain(replace(ROW, layout="NHWC"))
    del plain["layout"], plain["find_ms"]
    assert row_from_plain(plain) == ROW


@pytest.mark.parametrize("name", ["algorithm", "math_type"])
def test_a_row_that_lacks_what_it_must_have(name):
    plain = row_to_plain(ROW)
    del plain[name]
    with pytest.raises(
        ArgumentError, match=f"is not a row; .*missing 1 required positional argument: '{name}'"
    ):
        row_from_plain(plain)


@pytest.mark.parametrize("plain", [None, 1, "row", [], [1]])
def test_what_is_no_row(plain):
    with pytest.raises(ArgumentError, match="is not a row"):
        row_from_plain(plain)


def test_a_field_from_a_newer_version_is_refused():
    """It may change what the row says: in which layout the algorithm works, for instance."""
    with pytest.raises(
        ArgumentError, match=r"is not a row; tiling=3 was read last: KeyError\('tiling'\)"
    ):
        row_from_plain(row_to_plain(ROW) | {"tiling": 3})


WRONG = {
    "algorithm": [
        None,
        1,
        "",
        "WINOGRAD",
        "ConvolutionFwdAlgo.",
        "ConvolutionFwdAlgo.NO_SUCH",
        "CEnum.X",
        "annotations.X",
        [],
        {"engine": 1, "knobs": {"TILE": []}},
    ],
    "math_type": [None, 0, "", "SLOW", "UNKNOWN_", "UNKNOWN_x", {}],
    "status": [None, 0, "FINE"],
    "time_ms": ["0.5", "", True, [], "NaN", "infinity", {"engine": 1, "knobs": {}}],
    "workspace": [None, 1.0, "1", True],
    "deterministic": [0, 1, "yes"],
    "reserve": [0.5, False],
    "why_not": [None, 1],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]]
)
def test_a_value_that_a_row_cannot_have(name, value):
    with pytest.raises(ArgumentError, match=rf"is not a row; {name}=.* was read last") as caught:
        row_from_plain(row_to_plain(ROW) | {name: value})
    assert "unhashable" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("algorithm", 6),
        ("algorithm", None),
        ("time_ms", "soon"),
        ("workspace", 0.5),
        ("layout", None),
        ("status", "odd"),
    ],
)
def test_a_row_that_cannot_be_written(name, value):
    with pytest.raises(ArgumentError, match=f"{name}={value!r} of a row cannot be written"):
        row_to_plain(replace(ROW, **{name: value}))


def test_an_enum_that_is_not_cudnns_is_not_written():
    class ConvolutionFwdAlgo(type(MathType.FMA).__mro__[1]):
        WINOGRAD = 6

    with pytest.raises(ArgumentError, match="not a member of cuDNN's enums"):
        row_to_plain(replace(ROW, algorithm=ConvolutionFwdAlgo.WINOGRAD))


# ---------------------------------------------------------------- entries


def test_an_entry_survives_a_pickle():
    """As it must, to come back from another process."""
    assert pickle.loads(pickle.dumps(entry())) == entry()


@pytest.mark.parametrize(
    ("argument", "timestamp"),
    [
        ("2026-01-31T12:00:00+00:00", "2026-01-31T12:00:00.000000+00:00"),
        ("2026-01-31T12:00:00.000001+00:00", "2026-01-31T12:00:00.000001+00:00"),
        ("2026-01-31T01:30:00+02:00", "2026-01-30T23:30:00.000000+00:00"),
    ],
)
def test_times_are_kept_in_utc_so_that_later_is_greater(argument, timestamp):
    assert entry(tuned_at=argument).tuned_at == timestamp


WRONG_ENTRY = [
    ({"key": "text"}, "key='text' is not of type TuningKey"),
    ({"title": None}, "title=None is not of type str"),
    ({"timing": b"x"}, "timing=b'x' is not of type str"),
    ({"rows": ()}, "chosen=0 of 0 rows"),
    ({"rows": []}, r"rows=\[\] is not of type tuple"),
    ({"chosen": 3}, "chosen=3 of 3 rows"),
    ({"chosen": -1}, "chosen=-1 of 3 rows"),
    ({"chosen": True}, "chosen=True is not of type int"),
    ({"tuned_at": "yesterday"}, "isoformat string: 'yesterday'"),
    ({"seconds": float("nan")}, "seconds=nan; allowed: .* a finite time"),
    ({"seconds": -1.0}, r"seconds=-1\.0; allowed"),
    ({"seconds": "1"}, "seconds='1' is not of type float"),
    ({"cudnnlite": 1}, "cudnnlite=1 is not of type str"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG_ENTRY)
def test_what_an_entry_cannot_have(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(entry(), **changes)


def test_every_field_of_an_entry_is_checked():
    assert {name for changes, _ in WRONG_ENTRY for name in changes} == {
        item.name for item in fields(TuningEntry)
    }
