"""ONNX's own tests of nodes, run by `examples/onnx_network.py`.

    PYTHONPATH=tests python -m outside.onnx_backend DEVICE

prints the table: of each operation how many tests are right, refused, or wrong, and how many have
operations that the program lacks.  All inputs but the first are constants of the model, as weights
are where a network is deployed.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np
import onnx
from helpers.examples import example_module

import cudnnlite as dnn

OUTCOMES = ("right", "refused", "wrong")
_TOLERANCE = 2e-3  # for TF32


def cases() -> list[Any]:
    """Return ONNX's tests of nodes."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it computes when it is imported
        return list(load_model_tests(kind="node"))


def missing_operation(case: Any, program: Any) -> str:
    """Return an operation of a test that the program lacks; empty if it has all."""
    kinds = {node.op_type for node in case.model.graph.node}
    return min(kinds - program.OPERATIONS.keys(), default="")


def judge(handle: dnn.Handle, case: Any, program: Any) -> tuple[str, str]:
    """Return the outcome of a test, of `OUTCOMES`, and what is to be said of it."""
    inputs, outputs = case.data_sets[0]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    names = [info.name for info in model.graph.input]
    try:
        for name, value in list(zip(names, inputs, strict=True))[1:]:
            tensor = onnx.numpy_helper.from_array(np.asarray(value), name)
            model.graph.initializer.append(tensor)
        del model.graph.input[1:]
        with program.Network(handle, model) as network:
            given = dict(zip(names, inputs, strict=True))
            results = network(**{name: given[name] for name in network.inputs}).values()
    except (program.UnsupportedNodeError, ValueError) as error:
        return "refused", str(error).splitlines()[0]
    for result, expected in zip(results, outputs, strict=True):
        bounds = {"rtol": max(case.rtol, _TOLERANCE), "atol": max(case.atol, _TOLERANCE)}
        if result.shape != expected.shape or not np.allclose(result, expected, **bounds):
            return "wrong", case.name
    return "right", ""


def main(device: str) -> None:
    """Print the table."""
    lacking: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    with dnn.Handle(device) as handle, example_module("onnx_network") as program:
        for case in cases():
            if operation := missing_operation(case, program):
                lacking[operation] += 1
                continue
            outcome, reason = judge(handle, case, program)
            kind = min(node.op_type for node in case.model.graph.node)
            counts.setdefault(kind, Counter())[outcome] += 1
            reasons[reason] += 1
    print(f"{'operation':24}", *(f"{outcome:>8}" for outcome in OUTCOMES))
    for kind, outcomes in sorted(counts.items()):
        print(f"{kind:24}", *(f"{outcomes[outcome]:8}" for outcome in OUTCOMES))
    total = sum(counts.values(), Counter[str]())
    print(f"{'all':24}", *(f"{total[outcome]:8}" for outcome in OUTCOMES))
    print(f"operations that the program lacks: {len(lacking)}, in {lacking.total()} tests")
    print(", ".join(f"{kind} {count}" for kind, count in lacking.most_common()))
    for reason, count in reasons.most_common():
        if reason:
            print(f"    {count} {reason[:150]}")


if __name__ == "__main__":
    main(sys.argv[1])
