"""A copy or pickle of a public object is equal, or refused where it would own the same memory."""

from __future__ import annotations

import ast
import copy
import importlib
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.workbench.absent.answers import Answer

from .subjects import INSTANCES, PUBLIC, SUBJECTS, Things, subject

PACKAGE = Path(dnn.__file__).parent
DUPLICATES: dict[str, Callable[[Any], Any]] = {
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "pickle, protocol 0": lambda thing: pickle.loads(pickle.dumps(thing, 0)),
}


# What cuDNN answers about a GPU that is absent.
CANDIDATE = dnn.workbench.Candidate(
    dnn.types.Engine(3), ("TENSOR_CORE",), compiled=False, deterministic=True
)


def attention_output(things: Things) -> Any:
    """Return what a training call of attention returns."""
    operands = [things.queries] * 3
    return dnn.multi_head_attention_forward(
        things.handle, things.attention, things.projections, *operands, training=True
    )


def rnn_gradients(things: Things) -> Any:
    """Return what the backward pass over the data of an RNN returns."""
    return dnn.rnn_backward_data(things.handle, things.reserve, things.sequences)


def captured(things: Things) -> Any:
    """Return a graph that was recorded."""
    out = dnn.activation_forward(things.handle, things.x, "relu")
    with dnn.capture(things.handle) as graph:
        dnn.activation_forward(things.handle, things.x, "relu", out=out)
    return graph


def replayed(things: Things) -> Any:
    """Return the prepared call of a plan that replays."""
    things.replaying = dnn.convolution_forward.plan(
        things.handle, things.x, things.w, things.conv, replay=True
    )
    return things.replaying._prepared


# What calls return, by the name of its class. `INSTANCES` and `SUBJECTS` have the other public
# classes.
RETURNED: dict[str, Callable[[Things], Any]] = {
    "AlgorithmResult": lambda t: t.table[0],
    "AttentionGradients": lambda t: dnn.multi_head_attention_backward_data(
        t.handle, t.attend(None), t.queries
    ),
    "AttentionReserve": lambda t: t.reserves[0],
    "AttentionTrainingOutput": attention_output,
    "Candidate": lambda t: CANDIDATE,
    "Candidates": lambda t: dnn.workbench.Candidates(
        "a graph", dnn.types.DeviceProperties.named("t4"), "9.28.0", Answer((CANDIDATE,))
    ),
    "CapturedGraph": captured,
    "ListedProblem": lambda t: dnn.ProblemList([t.problem])[0],
    "RNNGradients": rnn_gradients,
    "RNNOutput": lambda t: dnn.rnn_forward(t.handle, t.lstm, t.weights, t.sequence),
    "RNNReserve": lambda t: t.reserve,
    "RNNTrainingOutput": lambda t: t.rnn_out,
    "Replay": lambda t: dnn.types.Replay(1, 2, 3, 4),
    "ReplayCosts": lambda t: dnn.types.ReplayCosts(1.0, 2.0, 3.0, 4.0),
    "SkippedNode": lambda t: dnn.workbench.SkippedNode("node", "Conv", "why"),
    "TracedCall": lambda t: t.trace.calls[0],
    "TunedProblem": lambda t: dnn.workbench.TunedProblem(t.problem, t.table, t.table[0]),
    "WeightLayout": lambda t: t.weights.layout(),
    "WeightPlace": lambda t: t.weights.layout()[0],
}
# what a handle has beside its public class
OTHERS: dict[str, Callable[[Things], Any]] = {
    "handle.api": lambda t: t.handle.api,
    "handle.device": lambda t: t.handle.device,
    "handle.plans": lambda t: t.handle.plans,
    "handle.stream": lambda t: t.handle.stream,
    "a plan of scale_tensor": lambda t: dnn.scale_tensor.plan(t.handle, t.y, 1.0),
    "a plan's replayed call": replayed,
    "a plan's execution plan": lambda t: t.plan._prepared,
    "the memory of an array": lambda t: t.x._owner,
}


def public_classes() -> Iterator[str]:
    """Yield the names of the public classes, but of enums and errors."""
    for name, thing in PUBLIC.items():
        if (
            isinstance(thing, type)
            and not issubclass(thing, BaseException)
            and not hasattr(thing, "__members__")
        ):
            yield name


def made(name: str, things: Things) -> Any:
    """Return an object of a public class, or another of those that are tried."""
    maker = RETURNED.get(name) or OTHERS.get(name) or INSTANCES.get(PUBLIC.get(name, object))
    if maker is not None:
        return maker(things)
    call, legal, _ = subject(things, name)
    return call(**legal)


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What objects are made of."""
    things = Things(tmp_path_factory.mktemp("copies"))
    yield things
    things.close()


def test_every_public_class_is_tried() -> None:
    instances = {kind.__name__ for kind in INSTANCES}
    assert {*public_classes()} <= {*RETURNED, *instances, *SUBJECTS}


def copied(duplicate: Callable[[Any], Any], thing: Any) -> Any:
    """Return a copy, or the text with which it is refused."""
    try:
        return duplicate(thing)
    except TypeError as refusal:
        return str(refusal)


def equal(one: Any, other: Any) -> bool:
    """Tell whether a copy has all that the original has."""
    if isinstance(one, tuple):
        return type(one) is type(other) and all(map(equal, one, other))
    return one is other or np.array_equal(one, other) or repr(one) == repr(other)


@pytest.mark.filterwarnings("ignore::cudnnlite.errors.TuningCacheWarning")
@pytest.mark.parametrize("name", [*public_classes(), *OTHERS])
def test_a_copy_is_refused_or_right(name: str, things: Things) -> None:
    thing = made(name, things)
    for duplicate, function in DUPLICATES.items():
        outcome = copied(function, thing)
        if isinstance(thing, NonCopyable):
            assert re.search(
                rf"^an? {type(thing).__name__} cannot be copied or pickled; \w+", outcome
            ), duplicate
        elif isinstance(outcome, str):  # it is refused because of what is in it
            assert re.search(r"^an? \w+ cannot be copied or pickled; \w+", outcome), duplicate
        else:
            assert type(outcome) is type(thing)
            assert equal(thing, outcome), duplicate
    is_shared = any(thing is attribute for attribute in vars(things).values())
    if hasattr(thing, "__exit__") and not is_shared:
        thing.close()


def classes_with_close() -> Iterator[tuple[str, str]]:
    """Yield the modules and names of the package's classes that have a method `close`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "def close(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.ClassDef) or any(
                "Protocol" in ast.unparse(base) for base in node.bases
            ):
                continue
            # One that has a docstring alone gives nothing back: its object is a value.
            if any(
                isinstance(part, ast.FunctionDef) and part.name == "close" and len(part.body) > 1
                for part in node.body
            ):
                yield ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts), node.name


@pytest.mark.parametrize(("module", "name"), [*classes_with_close()])
def test_what_has_to_be_closed_has_one_owner(module: str, name: str) -> None:
    assert issubclass(getattr(importlib.import_module(module), name), NonCopyable)
