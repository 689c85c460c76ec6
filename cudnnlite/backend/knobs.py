"""The knobs of an engine: which it has, what each may be, and the engines that differ in one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from cudnnlite._raw.enums import BackendKnobType
from cudnnlite.backend.engines import Engine, engine_descriptor
from cudnnlite.backend.graph import Graph

_FEW = 16  # so many values of a knob are all tried; of more, those nearby


class Knob(NamedTuple):
    """A knob of an engine: every `step` from `least` to `most`."""

    kind: BackendKnobType
    least: int
    most: int
    step: int

    def near(self, value: int | None) -> list[int]:
        """Return the other values to try from one; None where the engine chooses by itself."""
        every = range(self.least, self.most + 1, max(self.step, 1))
        if len(every) <= _FEW:
            return [other for other in every if other != value]
        here = self.least if value is None else value
        steps = (here - self.step, here + self.step, here // 2, here * 2, self.least, self.most)
        return [other for other in dict.fromkeys(steps) if other in every and other != value]


def knobs_of(graph: Graph, index: int) -> tuple[Knob, ...]:
    """Return the knobs that an engine has for a graph."""
    with ExitStack() as stack:
        told = engine_descriptor(graph, index).get_descriptors("knob_info", stack)
        names = ("type", "minimum_value", "maximum_value", "stride")
        return tuple(Knob(*(each.get(name) for name in names)) for each in told)


def neighbours(engine: Engine, knobs: tuple[Knob, ...]) -> Iterator[Engine]:
    """Yield the engines that differ in one knob."""
    chosen = dict(engine.choices)
    for knob in knobs:
        for value in knob.near(chosen.get(knob.kind)):
            yield Engine(engine.index, chosen | {knob.kind: value})
