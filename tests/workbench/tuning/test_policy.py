"""TuningPolicy: what it takes, what it refuses, and what it says in JSON and under a limit."""

import dataclasses
import json
import pickle
import re

import numpy as np
import pytest

from cudnnlite import ArgumentError, MathType, TuningPolicy
from cudnnlite.specs.layout import layout_of_rank

GIB, MIB = 1 << 30, 1 << 20
# Of every field a value that is not the default, as a user may write it and as it is kept.
VALUES = {
    "objective": ("device", "device"),
    "workspace_limit": ("64 MiB", 64 * MIB),
    "deterministic": (True, True),
    "max_error": (1, 1.0),
    "math_type": ("tf32", MathType.DEFAULT),
    "allow_tf32": (False, False),
    "layouts": (["NHWC", "NCHW"], ("NHWC", "NCHW")),
    "interface": ("graph", "graph"),
    "flush_l2": (True, True),
    "search": ("engines", "engines"),
    "exclude": (["engine 7", "FFT"], ("FFT", "engine 7")),
}
ALLOWED_MATH = (
    "allowed: tf32, true_float32, float32, DEFAULT, TENSOR_OP, TENSOR_OP_ALLOW_CONVERSION, FMA, in "
    "any case"
)
FIELDS = [item.name for item in dataclasses.fields(TuningPolicy)]


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_kept_and_told(name):
    assert name in VALUES, f"give VALUES another {name}"
    argument, attribute = VALUES[name]
    policy = TuningPolicy(**{name: argument})
    assert getattr(policy, name) == attribute
    assert type(getattr(policy, name)) is type(attribute)
    assert policy != TuningPolicy()
    assert policy == TuningPolicy(**{name: attribute}) == TuningPolicy().replace(**{name: argument})
    assert hash(policy) == hash(TuningPolicy(**{name: attribute}))
    other_fields = [other for other in FIELDS if other != name]
    assert [getattr(policy, other) for other in other_fields] == [
        getattr(TuningPolicy(), other) for other in other_fields
    ]
    plain = policy.to_plain()
    assert json.loads(json.dumps(plain)) == plain
    assert plain[name] != TuningPolicy().to_plain()[name]
    assert TuningPolicy(**plain) == policy


def test_the_plain_form_has_every_field():
    assert list(TuningPolicy().to_plain()) == FIELDS
    assert TuningPolicy(**TuningPolicy().to_plain()) == TuningPolicy()


def test_it_is_a_value():
    policy = TuningPolicy(**{name: argument for name, (argument, _) in VALUES.items()})
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy
    assert len({again, policy, TuningPolicy()}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.objective = "device"


@pytest.mark.parametrize(
    ("name", "value", "attribute"),
    [
        ("workspace_limit", 0, 0),
        ("workspace_limit", np.int64(5), 5),
        ("workspace_limit", "10%", "10%"),
        ("workspace_limit", " 2.5 % ", " 2.5 % "),
        ("max_error", 0, 0.0),
        ("max_error", np.float32(0.5), 0.5),
        ("max_error", float("inf"), float("inf")),
        ("math_type", "true_float32", MathType.FMA),
        ("math_type", MathType.TENSOR_OP, MathType.TENSOR_OP),
        ("math_type", 3, MathType.FMA),
        ("layouts", "NHWC", ("NHWC",)),
        ("layouts", {"NCHW": 1}.keys(), ("NCHW",)),
    ],
    ids=str,
)
def test_other_ways_to_write_it(name, value, attribute):
    policy = TuningPolicy(**{name: value})
    assert getattr(policy, name) == attribute
    json.dumps(policy.to_plain())


WRONG = [
    ("objective", "speed", "'latency', 'device'"),
    ("objective", None, "'latency', 'device'"),
    ("objective", ["device"], "'latency', 'device'"),
    ("workspace_limit", -1, "allowed: 0 to"),
    ("workspace_limit", True, "is not a size"),
    ("workspace_limit", 1.5, "is not a size"),
    ("workspace_limit", "much", "is not a size"),
    ("workspace_limit", "200%", "is not a size"),
    ("workspace_limit", "%", "is not a size"),
    ("workspace_limit", "-5%", "is not a size"),
    ("workspace_limit", [], "is not a size"),
    ("deterministic", 1, "allowed: True, False"),
    ("deterministic", None, "allowed: True, False"),
    ("max_error", -1e-9, "a number, 0 or more"),
    ("max_error", float("nan"), "a number, 0 or more"),
    ("max_error", "1e-3", "a number, 0 or more"),
    ("max_error", True, "a number, 0 or more"),
    ("max_error", 1j, "a number, 0 or more"),
    ("math_type", "fast", ALLOWED_MATH),
    ("math_type", 17, ALLOWED_MATH),
    ("math_type", ["FMA"], ALLOWED_MATH),
    ("allow_tf32", "no", "allowed: True, False"),
    ("layouts", "NCWH", "'NCHW', 'NHWC'"),
    ("layouts", "nhwc", "'NCHW', 'NHWC'"),
    ("layouts", ["NHWC", "NWC"], "'NCHW', 'NHWC'"),
    ("layouts", ["NHWC", 4], "'NCHW', 'NHWC'"),
    ("layouts", [["NHWC"]], "'NCHW', 'NHWC'"),
    ("layouts", 4, "'NCHW', 'NHWC'"),
    ("interface", "engine", "'descriptor', 'graph', None"),
    ("flush_l2", 0, "allowed: True, False"),
    ("search", "all", "'heuristics', 'engines'"),
    ("exclude", [7], "algorithms, engines, and their names"),
    ("exclude", ["engine7"], "'FFT_TILING', 'engine 7'"),
    ("exclude", "Engine 4", "'FFT_TILING', 'engine 7'"),
    ("exclude", ["FFT", "GEMMM"], "'FFT_TILING', 'engine 7'"),
]


@pytest.mark.parametrize(
    ("name", "value", "allowed"), WRONG, ids=[f"{name}={value!r}" for name, value, _ in WRONG]
)
def test_what_is_refused_by_name(name, value, allowed):
    for make in (
        lambda: TuningPolicy(**{name: value}),
        lambda: TuningPolicy().replace(**{name: value}),
    ):
        with pytest.raises(ArgumentError, match=f"^{name}=") as caught:
            make()
        assert allowed in str(caught.value)


def test_every_field_has_something_that_is_refused():
    missing = set(FIELDS) - {name for name, _, _ in WRONG}
    assert not missing, f"give WRONG a value that is refused for {', '.join(missing)}"


def test_every_field_is_documented():
    parameters = (TuningPolicy.__doc__ or "").partition("Parameters")[2].partition("Raises")[0]
    assert re.findall(r"^    (\w+) : ", parameters, re.MULTILINE) == FIELDS


def test_there_is_no_field_of_another_name():
    with pytest.raises(TypeError, match="speed"):
        TuningPolicy(speed=1)
    with pytest.raises(TypeError, match="speed"):
        TuningPolicy().replace(speed=1)


@pytest.mark.parametrize(
    ("policy_limit", "limit", "effective_limit"),
    [
        (None, None, None),
        (None, 100, 100),
        (None, 0, 0),
        (64, None, 64),
        (64, 100, 64),
        (100, 64, 64),
        (0, 64, 0),
        (64, 0, 0),
        ("25%", None, GIB // 4),
        ("25%", GIB, GIB // 4),
        ("25%", 7, 7),
        ("100%", None, GIB),
        ("0%", 7, 0),
    ],
    ids=str,
)
def test_within_a_limit_the_lesser_counts(policy_limit, limit, effective_limit):
    policy = TuningPolicy("latency", policy_limit, max_error=0.5)
    within = policy.within(limit, GIB)
    assert within.workspace_limit == effective_limit
    assert within.replace(workspace_limit=policy_limit) == policy
    assert within.within(None, GIB) == within


@pytest.mark.parametrize(
    ("layout", "rank", "name"),
    [
        ("NHWC", 3, "NWC"),
        ("NHWC", 4, "NHWC"),
        ("NHWC", 5, "NDHWC"),
        ("NCHW", 3, "NCW"),
        ("NCHW", 4, "NCHW"),
        ("NCHW", 5, "NCDHW"),
        ("NHWC", 2, ""),
        ("NCHW", 6, ""),
    ],
)
def test_a_layout_at_each_rank(layout, rank, name):
    assert layout_of_rank(layout, rank) == name


def test_a_policy_is_narrow_if_it_excludes_candidates_that_were_not_measured():
    assert not TuningPolicy().is_narrow
    narrowing = {
        "workspace_limit",
        "deterministic",
        "math_type",
        "allow_tf32",
        "layouts",
        "interface",
        "exclude",
    }
    for name, (value, _) in VALUES.items():
        assert TuningPolicy(**{name: value}).is_narrow == (name in narrowing), name
