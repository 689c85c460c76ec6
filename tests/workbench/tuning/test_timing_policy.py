"""TimingPolicy: which values of its fields are allowed together."""

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite import ArgumentError
from cudnnlite.workbench.tuning.timing_policy import DEFAULT_TIMING, ONE_LOOK, parse_timing


@pytest.mark.parametrize("timing", [DEFAULT_TIMING, ONE_LOOK], ids=["default", "one look"])
def test_what_tuners_begin_with_is_allowed(timing):
    assert parse_timing(timing) is timing


def test_timing_is_a_policy_with_fields_in_range():
    with dnn.Handle("emulated") as handle, dnn.Tuner(handle, ":memory:") as tuner:
        before = tuner.timing
        tuner.timing = before._replace(may_win=1.5, further_rounds=0, give_up=float("inf"))
        assert tuner.timing.may_win == 1.5
        tuner.timing = before
        for changes, message in (
            ({"may_win": True}, r"timing\.may_win=True is not a number"),
            ({"may_win": np.True_}, r"timing\.may_win=True is not a number"),
            ({"may_win": float("nan")}, r"timing\.may_win=nan"),
            ({"may_win": "10%"}, r"timing\.may_win='10%'"),
            ({"rounds": 2.5}, r"timing\.rounds=2\.5 is not an integer"),
            ({"rounds": -1}, r"timing\.rounds=-1; allowed: 1 to"),
            ({"most_further": None}, r"timing\.most_further=None"),
            ({"rounds": 0}, r"timing\.rounds=0; allowed: 1 to"),
            ({"sample_ms": float("inf")}, r"timing\.sample_ms=inf; allowed: numbers from"),
            ({"sample_ms": -0.5}, r"timing\.sample_ms=-0\.5; allowed: numbers from 0"),
        ):
            with pytest.raises(ArgumentError, match=message):
                tuner.timing = before._replace(**changes)
        for value in ({"rounds": 24}, None):
            with pytest.raises(ArgumentError, match="is not a TimingPolicy"):
                tuner.timing = value
        assert tuner.timing == before


def test_searches_take_every_field_at_the_end_of_its_range():
    x, w = dnn.TensorSpec((1, 2, 4, 4)), dnn.FilterSpec((3, 2, 3, 3))
    problem = dnn.convolution_forward.problem(x, w)
    with dnn.Handle("emulated") as handle:
        for name, value in dnn.Tuner(handle, ":memory:").timing._asdict().items():
            least = 0 if isinstance(value, float) else None
            for end in (least, 0, 1, float("inf")):
                tuner = dnn.Tuner(handle, ":memory:")
                try:
                    tuner.timing = tuner.timing._replace(**{name: end})
                except ArgumentError:
                    continue
                assert tuner.tune(problem).best().ok
