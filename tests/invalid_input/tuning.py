"""Invalid arguments of tuning, problems and models."""

from __future__ import annotations

import itertools

import cudnnlite as dnn

from .case import Case

CASES: dict[str, Case] = {
    "max_error": (lambda h: dnn.TuningPolicy(max_error=10**400), r"^max_error="),
    "bool as a limit": (
        lambda h: dnn.TuningPolicy(workspace_limit=True),
        r"^workspace_limit=True is not a size",
    ),
    "the home of nobody": (lambda h: dnn.TuningCache("~nouser/x"), r"^path='~nouser/x'"),
    "a model of nobody": (
        lambda h: dnn.problems_from_onnx("~nouser/x.onnx"),
        r"^model='~nouser/x.onnx'",
    ),
    "too long a name": (lambda h: dnn.TuningCache("x" * 5000).merge("y" * 5000), r"^path='x+"),
    "extend": (lambda h: dnn.ProblemList().extend(3), r"^others=3 is not a list of problems"),
    "problems without an end": (
        lambda h: dnn.tune_model(range(2**62), device=h),
        r"^problems=range\(.*too long",
    ),
    "endless layouts": (lambda h: dnn.TuningPolicy(layouts=itertools.count()), r"^layouts="),
    "endless problems of a list": (lambda h: dnn.ProblemList(itertools.count()), r"^problems="),
}
