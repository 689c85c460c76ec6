"""`Call`: a call of an operation that takes arrays and options, and returns arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from device.problems import gap_mask, memory_of

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype
from fuzz.random_comparison import Expected, WrongError, compare
from fuzz.random_draw import Array, Draw, Operand, wide


@dataclass
class Call:
    """A call of an operation that takes arrays and options and returns arrays.

    Attributes
    ----------
    draw : Draw
        With the operands.
    results : list of Expected
        In the order in which they are returned.
    options : mapping
        By name.
    blends : bool
        Whether alpha and beta may be given.
    ways : tuple of str
        Methods that are called before, now and then.
    out : bool
        Whether there is an argument `out`.
    in_place : set of str
        Operands that are written.
    updated : mapping
        What is written to operands, by name, beside the results.
    """

    draw: Draw
    name: str
    results: list[Expected]
    options: Mapping[str, Any] = field(default_factory=dict)
    blends: bool = False
    ways: tuple[str, ...] = ()
    out: bool = True
    in_place: frozenset[str] = frozenset()
    updated: Mapping[str, Expected] = field(default_factory=dict)
    verbs: tuple[str, ...] = ()
    verb: str = "call"

    def run(self) -> None:
        """Make the call, by one of its verbs, and compare all that it wrote."""
        draw, function = self.draw, getattr(dnn, self.name)
        is_graph = "graph" in vars(function)
        verbs = self.verbs or ("call", "call", "call", "plan", *(("graph",) if is_graph else ()))
        self.verb = draw.pick(verbs)
        options, results = dict(self.options), self.results
        outs = self._outs(is_graph)
        olds = [None] * len(results)
        if self.blends and draw.chance(0.25):
            options["alpha"] = draw.pick((2.0, 0.5, -1.0, 1.0))
            if outs is not None and draw.chance(0.7):
                options["beta"] = draw.pick((1.0, 0.5, -2.0))
                old = draw.rng.standard_normal(results[0].values.shape)
                old = old.astype(numpy_dtype(outs[0].spec.dtype))
                spec = outs[0].spec
                outs = [draw.place(Operand("old", old, spec))]
                olds = [wide(old)]
            results = [blended(results[0], options["alpha"], options.get("beta", 0.0), olds[0])]
        operands = {name: draw.place(operand) for name, operand in draw.operands.items()}
        draw.tell(self._described(options, outs))
        arrays = self._arrays(function, operands, options, outs, is_graph)
        draw.handle.synchronize()
        if len(arrays) < len(results):
            raise WrongError(f"{len(arrays)} results instead of {len(results)}")
        for array, expected in zip(arrays, results, strict=False):
            compare(array.numpy(), expected, draw.hosts)
        for name, expected in self.updated.items():
            compare(operands[name].numpy(), expected, draw.hosts)
        self._check_gaps(outs or [])
        self._check_operands(operands)

    def _outs(self, is_graph: bool) -> Any:
        draw = self.draw
        if not self.out or draw.chance(0.5):
            return None
        outs = []
        for expected in self.results:
            spec = expected.spec
            for operand in draw.operands.values():
                if operand.host.shape == expected.values.shape and spec is None:
                    spec = draw.like(operand.name, expected.dtype, 0.7)
            if spec is None:
                spec = draw.spec(expected.values.shape, expected.dtype)
            outs.append(draw.poisoned(spec))
        return outs

    def _arrays(
        self, function: Any, operands: Any, options: Any, outs: Any, is_graph: bool
    ) -> Sequence[Any]:
        handle, given = self.draw.handle, {}
        if self.verb == "call":
            if outs is not None:
                given["out"] = outs[0] if len(outs) == 1 else tuple(outs)
            for way in self.ways:
                if self.draw.chance(0.01):
                    asked = {n: v for n, v in options.items() if n not in ("alpha", "beta")}
                    getattr(function, way)(handle, **operands, **asked)
            returned = function(handle, **operands, **options, **given)
            return returned if isinstance(returned, tuple) else (returned,)
        if outs is not None:
            specs = tuple(out.spec for out in outs)
            given["out"] = specs[0] if len(specs) == 1 else specs
        names = [expected.name for expected in self.results]
        if is_graph:
            if self.verb == "plan":
                plan = function.plan(handle, **operands, **options, **given)
            else:
                of_engines = ("workspace_limit", "math_type")
                asked = {n: value for n, value in options.items() if n not in of_engines}
                plan = function.graph(**_specs(operands), **asked, **given).plan(handle)
            out = None if outs is None else dict(zip(names, outs, strict=True))
            with plan:
                for _ in range(self._times(options)):
                    by_name = plan(**operands, out=out)
            return [by_name[name] for name in names]
        with function.plan(handle, **operands, **options, **given) as plan:
            ordered = [
                operands[name] for name in function.__signature__.parameters if name in operands
            ]
            out = None if outs is None else (outs[0] if len(outs) == 1 else tuple(outs))
            for _ in range(self._times(options)):
                returned = plan(*ordered, **({"out": out} if self.out and out is not None else {}))
        return returned if isinstance(returned, tuple) else (returned,)

    def _times(self, options: Mapping[str, Any]) -> int:
        """Return how often a plan is called, if each call does the same."""
        is_repeatable = not self.in_place and "beta" not in options
        return 2 if is_repeatable and self.draw.chance(0.3) else 1

    def _check_gaps(self, outs: Sequence[Any]) -> None:
        """Look for writes outside of an output's elements."""
        for out in outs:
            if out.spec.size * out.spec.nbytes and self.draw.chance(0.5):
                gaps = gap_mask(out.spec)
                if not gaps.any():
                    continue
                memory = memory_of(out)[gaps]
                if not np.isin(memory, (0xFF, 0x7F, 0x5A)).all():
                    raise WrongError("a gap of an output was written")

    def _check_operands(self, operands: Mapping[str, Any]) -> None:
        """Look for writes to what is only read."""
        if not self.draw.chance(0.25):
            return
        for name, array in operands.items():
            if name in self.in_place or isinstance(array, np.ndarray):
                continue
            now, before = array.numpy(), self.draw.operands[name].host
            if now.tobytes() != np.ascontiguousarray(before).tobytes():
                raise WrongError(f"the operand {name} was written")

    def _described(self, options: Any, outs: Any) -> list[str]:
        lines = [f"{self.name}, verb {self.verb}, values {self.draw.kind}, {self.draw.wrong}"]
        for name, operand in self.draw.operands.items():
            where = f", {operand.offset} bytes off" if operand.offset else ""
            lines.append(f"  {name}: {operand.spec or operand.host.dtype}{where}")
        lines += [f"  {name}={value!r}" for name, value in options.items()]
        lines += [f"  out: {out.spec}" for out in outs or []]
        return lines


def blended(expected: Expected, alpha: float, beta: float, old: Array | None) -> Expected:
    """Return alpha times a result, and beta times what was there."""
    magnitude = np.abs(expected.values) if expected.magnitude is None else expected.magnitude
    values, magnitude = alpha * expected.values, abs(alpha) * magnitude
    floor = abs(alpha) * expected.floor
    if old is not None and beta:
        values, magnitude = values + beta * old, magnitude + abs(beta * old)
    return replace(expected, values=values, magnitude=magnitude, floor=floor)


def _specs(operands: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(array, "spec", array) for name, array in operands.items()}
