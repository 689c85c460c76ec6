"""Every public name, called with some invalid arguments, returns or raises one of our exceptions.

`pytest tests/fuzz --fuzz 100000` draws so many.
"""

from __future__ import annotations

import inspect
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudnnlite as dnn
from cudnnlite.devices import device_choice as choice

from .invalid_values import invalid_values
from .subjects import (
    GRAPH_METHODS,
    KEYED,
    LEGAL,
    METHODS,
    PUBLIC,
    RESULTS,
    SUBJECTS,
    Things,
    is_known,
    public_names,
    subject,
    used,
)

SECONDS = 300  # a call that takes longer hangs


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What calls are made of."""
    things = Things(tmp_path_factory.mktemp("fuzz"))
    yield things
    things.close()


def no_gpu(kind: str, index: int) -> Any:
    """Return an emulated device.

    On a GPU a wrong address of a stream ends the process, as in C.
    """
    if kind != "emulated":
        raise dnn.NoDeviceError("there is no GPU for invalid addresses")
    return choice.make_device(kind, index)


def test_everything_public_is_fuzzed() -> None:
    missing = [name for name in public_names() if not is_known(name)]
    assert missing == [], (
        "add a legal call to LEGAL in tests/fuzz/subjects.py, or a result to RESULTS"
    )
    assert {*LEGAL} <= {*public_names()}
    assert [name for name in RESULTS if name not in PUBLIC] == []
    function_names = {
        name.partition(".")[2] for name in SUBJECTS if name.partition(".")[0] in PUBLIC
    }
    assert function_names >= {"plan", "graph", "problem", "find", "heuristic"}
    methods = {name for name in METHODS if name.startswith("Graph.")}
    assert methods == {f"Graph.{name}" for name in GRAPH_METHODS}


# Whose function refuses, and says where to go instead.
REFUSING = {"convolution_bias_activation_forward.find"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [name for name in SUBJECTS if name not in METHODS or name.startswith("Graph.")]
)
def test_what_is_taken_for_a_legal_call_is_one(name: str, things: Things) -> None:
    """Otherwise all that is drawn is refused for the same reason."""
    call, legal, _ = subject(things, name)
    parameters = inspect.signature(call).parameters
    by_place = [
        legal.pop(n, things.handle) for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY
    ]
    if inspect.signature(call).return_annotation == "NoReturn" or name in REFUSING:
        with pytest.raises(dnn.ArgumentError):
            call(*by_place, **legal)
        return
    with used(call(*by_place, **legal)):
        pass


def some_of(operands: tuple[Any, ...], invalid: Any) -> Any:
    """Return lists as long as the operands, with some items replaced, or None without operands."""
    if not operands:
        return None
    return st.tuples(*(st.just(operand) | invalid for operand in operands)).map(list)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(7200, method="thread")
@pytest.mark.parametrize("name", SUBJECTS)
def test_only_our_exceptions_come_out(
    name: str, things: Things, drawing: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)  # some texts are paths
    monkeypatch.setattr(choice, "devices", choice.Devices(no_gpu))
    invalid = invalid_values(*things.misplaced_values)
    call, legal, operands = subject(things, name)
    parameters = inspect.signature(call).parameters
    names = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    names += [n for n in legal if n not in parameters]
    if (
        operands and "reserve" in names
    ):  # a plan without a reserve space refuses one as Python does what it does not know
        names.remove("reserve")
    if not names and not any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        with used(call()):  # it takes no arguments
            return

    def hangs(*_: Any) -> None:
        raise AssertionError(f"{name} had not ended after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, hangs)

    @drawing(4, len(SUBJECTS))
    @given(st.data())
    def check(data: Any) -> None:
        invalid_names = (
            data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=2)) if names else set()
        )
        arguments = {n: legal[n] for n in names if n in legal}
        needed = {
            n
            for n, p in parameters.items()
            if n in names and p.default is p.empty and n not in arguments
        }
        arguments |= {n: data.draw(invalid, label=n) for n in sorted(invalid_names | needed)}
        by_place = [arguments.pop(n) for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY]
        if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
            by_place += data.draw(some_of(operands, invalid) or st.lists(invalid, max_size=3))
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            with used(subject(things, name).call(*by_place, **arguments)):
                pass
        except dnn.CudnnliteError as error:
            str(error)
        except KeyError:
            if name not in KEYED:
                raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    try:
        check()
    finally:
        signal.signal(signal.SIGALRM, before)
