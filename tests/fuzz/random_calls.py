"""Make random legal calls of every operation, by every verb, in processes that may die.

    PYTHONPATH=tests python tests/fuzz/random_calls.py --device cuda --calls 200000 --processes 14

More options: `--seconds 500`, after which no other call begins; `--seed N`; `--only SEED:INDEX`,
which repeats one call and prints it, without another process; `--operations NAME ...`, for which
an index is another call; `--json FILE`; `--refusals`, which lists the reasons of the calls that were refused.

Each call is drawn from its seed and index alone: an operation, shapes, data types, views with gaps
in any layout, values of any size, options, a verb.  In a tenth of the calls one operand has a wrong
data type.  Half of the random graphs are planned by the preferred engine, half by any that
serves.  What is written is compared with sums in float64.  The outcomes are:

- right: all results are what the oracle says, and nothing else was written;
- refused: an exception of ours, and the handle can be used further;
- wrong: other numbers, or an exception that is not ours;
- dead: the process ended, or the CUDA context was lost.

Wrong and dead calls are listed by their kind, with examples to repeat.  The exit code is 1 if there
are any, or if an operation had no call that was right.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from device.problems import fill_scratch
from device.processes import Process

import cudnnlite as dnn
from fuzz.random_arithmetic import ARITHMETIC
from fuzz.random_comparison import WrongError
from fuzz.random_convolutions import CONVOLUTIONS
from fuzz.random_draw import Draw
from fuzz.random_graphs import GRAPHS
from fuzz.random_layers import LAYERS
from fuzz.random_normalization import NORMALIZATIONS
from fuzz.random_products import PRODUCTS
from fuzz.random_sequences import SEQUENCES

GENERATORS: dict[str, Callable[[Draw], Any]] = {
    **CONVOLUTIONS,
    **LAYERS,
    **NORMALIZATIONS,
    **ARITHMETIC,
    **PRODUCTS,
    **SEQUENCES,
    **GRAPHS,
}
# How often an operation is drawn, 1 if it is not here.  What takes long, because it is compiled or
# has many steps, is drawn less often.  On an H200 23 plans of graphs took 11.3 of the 18 seconds of 219
# calls, and imports 3.8.  So of 200,000 calls some 4,000 are random graphs, each called with four sets
# of values, 400 are of each operation of `PRODUCTS`, and 900 of attention, where most was found.
SHARES = {
    **dict.fromkeys(PRODUCTS, 0.07),
    "scaled_dot_product_attention_forward": 0.15,
    "scaled_dot_product_attention_backward": 0.15,
    "graph": 0.7,
    "ctc_loss": 0.2,
    "rnn_forward": 0.5,
    "multi_head_attention_forward": 0.2,
}
# The operations that are called behind others, of what these left.
BEHIND_OTHERS = {
    "rnn_backward_data": "rnn_forward",
    "rnn_backward_weights": "rnn_forward",
    "multi_head_attention_backward_data": "multi_head_attention_forward",
    "multi_head_attention_backward_weights": "multi_head_attention_forward",
    "dropout_backward": "dropout_forward",
}
CALLS_OF_A_HANDLE = 300  # after which it is closed, with the plans that it keeps
TIMEOUT = 60.0  # seconds for one call
START_TIMEOUT = 240.0  # seconds for the first call of a process
EXAMPLES = 3
SCRATCH_FILLS = (0xFF, 0x3F, 0x00, 0x01)  # NaN, 0.75, 0 and nearly 0 in the workspace
FAILURES = (dnn.errors.InternalError, dnn.errors.ExecutionError)


class Caller:
    """Makes calls, each drawn from a seed and an index, on a handle that is renewed.

    Parameters
    ----------
    device : str or device
    operations : list of str
        Those that are drawn; all if empty.
    """

    def __init__(self, device: Any, operations: Any = ()) -> None:
        self._device = device
        names = list(operations) or list(GENERATORS)
        weights = np.array([SHARES.get(name, 1.0) for name in names])
        self._names = names
        self._shares = weights / weights.sum()
        self._handle: dnn.Handle | None = None
        self._calls = self._handles = 0

    def call(self, seed: int, index: int, *, show: bool = False) -> list[Any]:
        """Make one call.

        Return its operation, verb, outcome, reason, wrong data type, data types, and the other
        operations that were right with it.
        """
        if self._handle is None or self._calls == CALLS_OF_A_HANDLE:
            self.close()
            self._handle, self._calls = dnn.Handle(self._device), 0
            self._handles += 1
            if self._handles % 2:  # work that a kernel leaves to the default stream comes too early
                self._handle.stream = self._handle.device.create_stream()
        self._calls += 1
        name = self.operation(seed, index)
        draw = Draw(self._handle, seed, index)
        draw.shows = show
        # What nothing wrote must not be read.
        fill_scratch(self._handle, SCRATCH_FILLS[index % len(SCRATCH_FILLS)])
        if show:
            print(f"{seed}:{index} {name}")
        call: Any = None
        outcome, reason = "right", ""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                call = GENERATORS[name](draw)
                call.run()
        except WrongError as error:
            outcome, reason = "wrong", str(error)
        except FAILURES as error:
            # An engine that the call named may not compile, which a plan says.
            outcome = "refused" if "COMPILATION_FAILED" in str(error) else "wrong"
            reason = f"{type(error).__name__}: {error}"
        except dnn.errors.DeviceLostError:
            raise
        except dnn.errors.CudnnliteError as error:
            outcome, reason = "refused", f"{type(error).__name__}: {error}"
            if show:
                traceback.print_exc()
        except Exception as error:  # whatever it is, it is not ours
            outcome, reason = "wrong", f"{type(error).__name__}: {error}"
            if show:
                traceback.print_exc()
        if outcome != "right":
            self.check_device()
        verb = getattr(call, "verb", "call")
        if show:
            print(outcome, reason)
        also = list(getattr(call, "also", ()))
        return [name, verb, outcome, reason[:400], draw.wrong, _dtypes(draw), also]

    def operation(self, seed: int, index: int) -> str:
        """Return the operation of a call."""
        rng = np.random.default_rng((seed, index, 1))
        return self._names[int(rng.choice(len(self._names), p=self._shares))]

    def check_device(self) -> None:
        """Raise if the context was lost: then every further call fails."""
        assert self._handle is not None
        self._handle.synchronize()
        values = np.arange(4, dtype=np.float32)
        assert (self._handle.array(values).numpy() == values).all()

    def close(self) -> None:
        """Close the handle."""
        if self._handle is not None:
            self._handle.close()


def _dtypes(draw: Draw) -> str:
    return " ".join(dict.fromkeys(operand.host.dtype.name for operand in draw.operands.values()))


def worker(device: str, operations: list[str]) -> None:
    """Answer requests from stdin: [seed, index] on each line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    caller = Caller(device, operations)
    for line in sys.stdin:
        answer = caller.call(*json.loads(line))
        print(json.dumps(answer), file=answers, flush=True)


def kind_of(reason: str) -> str:
    """Return a reason without its numbers, so that one fault has one."""
    return re.sub(r"(?<![A-Za-z\d])-?\d[\d.]*(e[+-]?\d+)?", "N", " ".join(reason.split()))[:150]


class Report:
    """Counts outcomes, and keeps examples of what must not be."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.bad: dict[tuple[str, ...], list[str]] = defaultdict(list)
        self.refusals: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.wrong_dtypes: Counter[str] = Counter()
        self.calls = 0

    def add(self, seed: int, index: int, answer: list[Any], name: str) -> None:
        """Count an answer of a worker."""
        if answer[0] == "died":
            answer = [name, "", "dead", answer[1], "", "", []]
        name, verb, outcome, reason, wrong, dtypes, also = answer
        self.calls += 1
        self.counts[name, verb][outcome] += 1
        for other in also:
            self.counts[other, f"behind {name}"]["right"] += 1
        place = f"{seed}:{index}"
        if outcome in ("wrong", "dead"):
            key = (name, outcome, (wrong and f"wrong data type {wrong}") or dtypes, kind_of(reason))
            self.bad[key].append(f"{place} {verb} {reason}")
        elif outcome == "refused":
            self.refusals[name, kind_of(reason)].append(place)
        if wrong:
            self.wrong_dtypes[outcome] += 1

    def totals(self) -> dict[str, Counter[str]]:
        """Return the counts of each operation, over its verbs."""
        totals: dict[str, Counter[str]] = defaultdict(Counter)
        for (name, _), counts in self.counts.items():
            totals[name].update(counts)
        return totals

    def lines(self, refusals: bool = False) -> Iterator[str]:
        """Yield the table, and what must not be."""
        head = ("calls", "right", "refused", "wrong", "dead")
        yield f"{'operation':<42}" + "".join(f"{title:>9}" for title in head)

        def row(title: str, counts: Counter[str]) -> str:
            numbers = (counts.total(), *(counts[outcome] for outcome in head[1:]))
            return f"{title:<42}" + "".join(f"{number:>9}" for number in numbers)

        totals = self.totals()
        for name in sorted(totals):
            yield row(name, totals[name])
            verbs = sorted(verb for other, verb in self.counts if other == name)
            for verb in verbs if len(verbs) > 1 else []:
                yield row(f"    {verb or '(unknown)'}", self.counts[name, verb])
        yield row("all", sum(totals.values(), Counter()))
        yield f"one operand of a wrong data type: {dict(self.wrong_dtypes)}"
        never = [name for name in totals if not totals[name]["right"]]
        if never:
            yield f"never right: {', '.join(never)}"
        if refusals:
            for (name, reason), places in sorted(
                self.refusals.items(), key=lambda item: (item[0][0], -len(item[1]))
            ):
                yield f"refused {len(places):>6} {name}: {reason} ({places[0]})"
        for key, places in sorted(self.bad.items(), key=lambda item: (item[0][0], -len(item[1]))):
            yield f"{len(places):>6} {' | '.join(key)}"
            for place in places[:EXAMPLES]:
                yield f"           {place}"

    @property
    def failed(self) -> bool:
        """Whether anything is wrong or dead, or was never right."""
        return bool(self.bad) or any(not counts["right"] for counts in self.totals().values())

    def plain(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {
            "calls": self.calls,
            "counts": [[*key, dict(counts)] for key, counts in sorted(self.counts.items())],
            "wrong data types": dict(self.wrong_dtypes),
            "bad": [[*key, places] for key, places in self.bad.items()],
            "refusals": [[*key, len(places), places[:3]] for key, places in self.refusals.items()],
        }


def make_calls(options: argparse.Namespace) -> Report:
    """Share the calls among processes."""
    end = time.monotonic() + options.seconds
    command = [sys.executable, __file__, "--worker", "--device", options.device]
    if options.operations:
        command += ["--operations", *options.operations]
    names = Caller(options.device, options.operations)
    report, lock = Report(), threading.Lock()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # a core for each worker
    indices = iter(range(options.first, options.first + options.calls))

    def serve() -> None:
        process = Process(command, TIMEOUT, START_TIMEOUT)
        while time.monotonic() < end:
            with lock:
                index = next(indices, None)
            if index is None:
                break
            answer = process.ask([options.seed, index])
            with lock:
                name = names.operation(options.seed, index)
                report.add(options.seed, index, answer, name)
        process.close()

    threads = [threading.Thread(target=serve) for _ in range(options.processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return report


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the index of the first call")
    parser.add_argument("--only", metavar="SEED:INDEX")
    parser.add_argument(
        "--operations", nargs="*", default=[], choices=[*GENERATORS], metavar="NAME"
    )
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--refusals", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.device, options.operations)
        return 0
    if options.only:
        faulthandler.enable()
        seed, index = (int(number) for number in options.only.split(":"))
        answer = Caller(options.device, options.operations).call(seed, index, show=True)
        return int(answer[2] == "wrong")
    began = time.monotonic()
    report = make_calls(options)
    print(*report.lines(options.refusals), sep="\n")
    print(f"{report.calls} calls in {time.monotonic() - began:.0f} seconds, seed {options.seed}")
    if options.json:
        Path(options.json).write_text(json.dumps(report.plain(), indent=1))
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
