"""Forward passes of recurrent networks: the search, the heuristic, and PyTorch's torch.nn.

    python tools/benchmarks/rnn.py [--markdown] [--json OUT.json] [--rows lstm] [--networks]
                                   [--check]

The problems are DeepBench's RNN training set, five LSTMs and eight networks of usual sizes, in
float32 and float16.  PyTorch uses cuDNN, with the same weights.  Each problem is timed in three
modes:

- 'eager': the wall time of a call, where calls follow one another as in a program.
- 'graph': the device's time of such a call in a CUDA graph that is replayed.
- 'new input': the wall time of a call with another input and new results at each call.  It is
  measured for PyTorch, for the search's best, and for a plan with replay=True of the candidate with
  the least device time.

All contenders are timed in the same shuffled rounds, and the median counts.  If the best and the
peer are within a few percent, these two are timed in more rounds, and all rounds count.

With `--quick` the mode 'graph' is left out, and 'eager' times only the best and the heuristic's
choice.  `--shard` and `--merge` are those of convolution.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import sys
import time
from pathlib import Path
from statistics import geometric_mean

import numpy as np

import cudnnlite as dnn
from cudnnlite.operations.rnn.choice import heuristic

DEEPBENCH = Path(__file__).parents[2] / "tests" / "data" / "deepbench_rnn.json"
CELLS = {"vanilla": "relu", "lstm": "lstm", "gru": "gru"}
# (T, N, I, H, layers, directions)
LSTMS = (
    (100, 64, 256, 256, 2, 1),
    (50, 64, 512, 512, 1, 1),
    (25, 16, 1024, 1024, 1, 1),
    (50, 4, 64, 64, 1, 1),
    (20, 8, 32, 64, 2, 2),
)
# Networks with usual sizes: (cell, T, N, I, H, layers, directions)
NETWORKS = (
    ("lstm", 50, 1, 256, 512, 2, 1),
    ("lstm", 200, 32, 128, 320, 3, 2),
    ("lstm", 35, 20, 650, 650, 2, 1),
    ("lstm", 30, 128, 300, 512, 1, 2),
    ("gru", 100, 64, 80, 256, 3, 2),
    ("gru", 24, 256, 32, 64, 2, 1),
    ("gru", 60, 8, 256, 512, 4, 1),
    ("tanh", 100, 16, 64, 128, 2, 2),
)
INPUTS = 24  # of the mode 'new input': a plan has graphs for fewer of them
ROUNDS = 7
MORE_ROUNDS = 28  # of the best and the peer, if they are within NEAR of each other
NEAR = 0.05
# The largest relative L2 difference of two algorithms, in TF32 or float16, over up to 1500 steps.
AGREE = {"float32": 5e-3, "float16": 2e-2}
TARGETS = {"eager": 0.78, "graph": 0.93}
# Targets of the mode 'new input', over PyTorch's time. With replay, they are the geometric means of
# the networks of usual sizes (True) and of the other rows.
WITH_REPLAY = {True: 0.45, False: 0.66}
WITHOUT_REPLAY = 0.72
WORST = 1.02  # the worst row
OVER_HEURISTIC = 1.03  # eager calls of the search's best over those of the heuristic's choice


def problems():
    """Yield (cell, T, N, I, H, layers, directions)."""
    for cell, steps, batch, hidden in json.loads(DEEPBENCH.read_text())["rnn"]:
        yield CELLS[cell], steps, batch, hidden, hidden, 1, 1
    for row in LSTMS:
        yield ("lstm", *row)
    yield from NETWORKS


class Peer:
    """torch.nn's module with random weights, on our stream."""

    def __init__(self, problem, dtype, stream):
        import torch

        cell, steps, batch, inputs, hidden, layers, directions = problem
        torch.manual_seed(0)
        kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(cell, torch.nn.RNN)
        options = {"nonlinearity": cell} if kind is torch.nn.RNN else {}
        self.torch = torch
        self.module = kind(inputs, hidden, layers, bidirectional=directions == 2, **options).eval()
        self.module = self.module.to("cuda", getattr(torch, dtype))
        self.x = torch.randn(steps, batch, inputs, device="cuda", dtype=getattr(torch, dtype))
        self.stream = torch.cuda.ExternalStream(int(stream.handle))
        torch.cuda.synchronize()

    def __call__(self, x=None):
        with self.torch.no_grad(), self.torch.cuda.stream(self.stream):
            self.y = self.module(self.x if x is None else x)[0]

    def graph(self, repeats):
        """Return a function that replays a graph of `repeats` calls."""
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.graph(graph, stream=side):
            for _ in range(repeats):
                self.captured = self.module(self.x)[0]
        torch.cuda.synchronize()

        def replay():
            with torch.cuda.stream(self.stream):
                graph.replay()

        return replay


class Rounds:
    """Times of several works, taken in shuffled rounds."""

    def __init__(self, measure, seed=0):
        self._measure = measure
        self._generator = random.Random(seed)
        self._samples = {}

    def take(self, names, rounds):
        """Take more samples of these works."""
        order = list(names)
        for _ in range(rounds):
            self._generator.shuffle(order)
            for name in order:
                self._samples.setdefault(name, []).append(self._measure(name))

    def medians(self):
        """Return {name: median}."""
        return {name: statistics.median(times) for name, times in self._samples.items()}


def shuffled(measure, names):
    """Return {name: median of measure(name)} over shuffled rounds.

    There are more rounds of the best and of torch if they are near each other.
    """
    rounds = Rounds(measure)
    rounds.take(names, ROUNDS)
    medians = rounds.medians()
    best = min((name for name in names if name != "torch"), key=medians.get)
    if abs(medians[best] / medians["torch"] - 1) < NEAR:
        rounds.take([best, "torch"], MORE_ROUNDS)
    return rounds.medians()


def searched(handle, weights, x, *, no_dynamic):
    """Return the tuner's table."""
    with dnn.Tuner(handle, cache=":memory:") as tuner:
        if no_dynamic:
            tuner.timing = tuner.timing._replace(on_chip=0)
        asked = dnn.rnn_forward.problem(weights.spec, weights, x)
        return tuner.tune(asked, {"weights": weights, "x": x})


def run(handle, problem, dtype, arguments):
    """Measure one row."""
    cell, _, _, inputs, hidden, layers, directions = problem
    device, stream = handle.device, handle.stream
    peer = Peer(problem, dtype, stream)
    spec = dnn.RNNSpec(cell, inputs, hidden, layers, directions == 2, dtype=dtype)
    weights = dnn.RNNWeights.from_torch(handle, spec, peer.module.state_dict())
    x = handle.view(peer.x)
    start = time.perf_counter()
    table = searched(handle, weights, x, no_dynamic=arguments.no_dynamic)
    search_s = time.perf_counter() - start
    guess = heuristic(spec, dnn.specs.RNNDataSpec(x.shape, dtype=dtype))
    rows = [row for row in table if row.ok and not row.replay]
    first = rows[0]
    best_ms = first.time_ms
    limit_ms = 0 if arguments.quick else 2 * best_ms
    peer()
    stream.sync()
    works, plans = {"torch": peer}, []
    for row in rows:
        if row.time_ms > limit_ms and not same(row, guess) and row is not first:
            continue
        plan = dnn.rnn_forward.plan(handle, spec, None, x, algorithm=row)
        plans.append(plan)
        out = plan(weights, x)
        if out.cy is None:
            out = out[:2]
        works[name_of(row)] = lambda plan=plan, out=out: plan(weights, x, out=out)
    y = plans[0](weights, x).y.numpy().astype(np.float64)
    expected = peer.y.double().cpu().numpy()
    error = float(np.linalg.norm(y - expected) / np.linalg.norm(expected))

    calls = max(1, min(20, round(4 / best_ms)))

    def eager(name):
        stream.sync()
        start = time.perf_counter()
        for _ in range(calls):
            works[name]()
        stream.sync()
        return (time.perf_counter() - start) / calls * 1e6

    eager_us = shuffled(eager, works)
    new_us, replay_note = new_inputs(handle, spec, weights, peer, table, calls)
    repeats = max(1, min(16, round(0.5 / best_ms)))
    graphs, graph_us = {}, None
    if not arguments.quick:
        for name, work in works.items():
            if name != "torch":
                graphs[name] = device.capture(
                    lambda work=work: [work() for _ in range(repeats)], stream
                )
        graphs["torch"] = peer.graph(repeats)
        for replay in graphs.values():
            replay()
        graph_us = shuffled(
            lambda name: device.elapsed_ms(graphs[name], stream) / repeats * 1e3, graphs
        )
    for plan in plans:
        plan.close()
    handle.workspace.release()
    cells = [
        [
            str(row.algorithm),
            str(row.math_type),
            row.time_ms,
            row.error,
            str(row.status),
            row.why_not,
            row.remark,
        ]
        for row in table
    ]
    return {
        "problem": problem,
        "dtype": dtype,
        "error": error,
        "search_s": search_s,
        "heuristic": name_of(guess),
        "eager": eager_us,
        "graph": graph_us,
        "table": cells,
        "new": new_us,
        "replay": replay_note,
        "best": name_of(first),
        "usual": tuple(problem) in NETWORKS,
    }


def new_inputs(handle, spec, weights, peer, table, calls):
    """Return {name: median us of a call with a new input}, and a note on the replaying plan."""
    timed_rows = [row for row in table if row.ok and row.time_ms]
    fastest = min(timed_rows, key=lambda row: row.time_ms)
    best = next(row for row in table if row.ok and not row.replay)
    tensors = [peer.x.clone() for _ in range(INPUTS)]
    handle.device.synchronize()
    arrays = [handle.view(x) for x in tensors]
    plan_of = dnn.rnn_forward.plan
    with (
        plan_of(handle, spec, None, arrays[0], algorithm=best) as plan,
        plan_of(handle, spec, None, arrays[0], algorithm=fastest, replay=True) as replaying,
    ):
        torch_inputs = itertools.cycle(tensors)
        plan_inputs = itertools.cycle(arrays)
        replay_inputs = itertools.cycle(arrays)
        works = {
            "torch": lambda: peer(next(torch_inputs)),
            "best": lambda: plan(weights, next(plan_inputs)),
            "replay": lambda: replaying(weights, next(replay_inputs)),
        }

        def measure(name):
            handle.stream.sync()
            start = time.perf_counter()
            for _ in range(calls):
                works[name]()
            handle.stream.sync()
            return (time.perf_counter() - start) / calls * 1e6

        for name in works:
            measure(name)
            measure(name)
        rounds = Rounds(measure)
        rounds.take(works, 3 * ROUNDS)
        note = f"the search's: {table.best()}; {name_of(fastest)}: {replaying.replay}"
        return rounds.medians(), note


def same(row, other):
    """Return whether two results are of one candidate."""
    return (row.algorithm, row.math_type) == (other.algorithm, other.math_type)


def name_of(row):
    """Return 'PERSIST_STATIC/TENSOR_OP'."""
    return f"{row.algorithm}/{row.math_type}"


def summary(row, mode):
    """Return the best's name, and the microseconds of the best, the heuristic and torch."""
    times = dict(row[mode])
    torch_us = times.pop("torch")
    best = min(times, key=times.get)
    return best, times[best], times.get(row["heuristic"], float("nan")), torch_us


def title(row):
    """Return 'f16 lstm T100 N64 I256 H256 L2'."""
    cell, steps, batch, inputs, hidden, layers, directions = row["problem"]
    short = {"float32": "f32", "float16": "f16"}[row["dtype"]]
    text = f"{short} {cell} T{steps} N{batch} I{inputs} H{hidden} L{layers}"
    return f"{text} bi" if directions == 2 else text


def report(rows, markdown):
    """Print a line for each row.

    For each mode it has the best candidate, the us of the best, the heuristic and torch, and their
    ratios.
    """
    columns = ("best", "us", "heuristic", "torch", "best/torch", "heur./best")
    new = ("torch", "best", "replay", "best/torch", "replay/torch")
    lines = [
        (
            "problem",
            *(f"{mode}: {c}" for mode in TARGETS for c in columns),
            *(f"new input: {c}" for c in new),
        )
    ]
    for row in rows:
        cells = [title(row)]
        for mode in TARGETS:
            best, us, guess, torch_us = "-", math.nan, math.nan, math.nan
            if row[mode]:
                best, us, guess, torch_us = summary(row, mode)
            cells += [
                best,
                f"{us:.1f}",
                f"{guess:.1f}",
                f"{torch_us:.1f}",
                f"{us / torch_us:.3f}",
                f"{guess / us:.2f}",
            ]
        torch_us, best, replay = (row["new"][name] for name in new[:3])
        cells += [
            f"{torch_us:.1f}",
            f"{best:.1f}",
            f"{replay:.1f}",
            f"{best / torch_us:.3f}",
            f"{replay / torch_us:.3f}",
        ]
        lines.append(tuple(cells))
    if markdown:
        lines.insert(1, ("---",) * len(lines[0]))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print(f"| {' | '.join(cells)} |" if markdown else "  ".join(cells))


def judge(rows):
    """Print the means beside the targets; return whether all are met over all rows."""
    good = True
    for dtype in [*sorted({row["dtype"] for row in rows}), "all"]:
        for mode, target in TARGETS.items():
            summaries = [
                summary(row, mode) for row in rows if dtype in (row["dtype"], "all") and row[mode]
            ]
            if not summaries:
                continue
            ratios = [us / torch_us for _, us, _, torch_us in summaries]
            near = sum(guess <= 1.1 * us for _, us, guess, _ in summaries) / len(summaries)
            mean = geometric_mean(ratios)
            losses = sum(ratio > 1 for ratio in ratios)
            print(
                f"{dtype}, {mode}, {len(summaries)} rows: best/torch geometric mean {mean:.3f}",
                f"(target {target}),",
                f"worst {max(ratios):.3f} (target 1.0), above 1.0 in {losses};",
                f"heuristic within 1.1 times the best in {near:.0%} (target 80%)",
            )
            if dtype == "all":
                good &= mean <= target and max(ratios) <= 1 and near >= 0.8
    good &= judge_new_inputs(rows)
    times = [row["search_s"] for row in rows]
    print(
        f"searches: {sum(times):.1f} s in all, median {statistics.median(times):.2f} s,",
        f"the longest {max(times):.1f} s",
    )
    return good


def judge_new_inputs(rows):
    """Print the ratios of calls with a new input; return whether all targets are met.

    The last line has the ratios of the best to the heuristic's choice.
    """
    good = True
    for is_usual, replay_target in WITH_REPLAY.items():
        group = [row for row in rows if row["usual"] == is_usual]
        if not group:
            continue
        group_name = "networks of usual sizes" if is_usual else "the other rows"
        for name, target in (("replay", replay_target), ("best", WITHOUT_REPLAY)):
            ratios = {title(row): row["new"][name] / row["new"]["torch"] for row in group}
            mean, worst = geometric_mean(ratios.values()), max(ratios, key=ratios.get)
            print(
                f"new input, {group_name}, {name}/torch: geometric mean {mean:.3f}",
                f"(target {target}),",
                f"worst {ratios[worst]:.3f} ({worst}; target {WORST})",
            )
            good &= mean <= target and ratios[worst] <= WORST
    ratios = {
        title(row): row["eager"][row["best"]] / row["eager"][row["heuristic"]]
        for row in rows
        if row["heuristic"] in row["eager"] and row["best"] in row["eager"]
    }
    worst = max(ratios, key=ratios.get)
    print(
        f"eager, the search's best over the heuristic's choice: worst {ratios[worst]:.3f}",
        f"({worst}; target {OVER_HEURISTIC})",
    )
    return good and ratios[worst] <= OVER_HEURISTIC


def parse_arguments():
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", default="", help="only problems whose cell has this name")
    parser.add_argument("--networks", action="store_true", help="only the networks of usual sizes")
    parser.add_argument(
        "--first", type=int, default=0, help="the number of problems to leave out at the beginning"
    )
    parser.add_argument("--dtypes", default="float32,float16")
    parser.add_argument(
        "--no-dynamic",
        action="store_true",
        help="without PERSIST_DYNAMIC, which is compiled for up to a minute",
    )
    parser.add_argument(
        "--quick", action="store_true", help="no graphs; the best and the heuristic's choice alone"
    )
    parser.add_argument("--shard", default="0/1", help="only every n-th row from the i-th on: i/n")
    parser.add_argument(
        "--merge", help="measure nothing: judge the rows of these files, the JSON of shards"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="leave out the rows that would begin later"
    )
    return parser.parse_args()


def selected_problems(arguments):
    """Yield (dtype, problem) for the rows that the arguments select."""
    shard, shards = map(int, arguments.shard.split("/"))
    count = 0
    for dtype in arguments.dtypes.split(","):
        for problem in list(problems())[arguments.first :]:
            if arguments.rows and problem[0] != arguments.rows:
                continue
            if arguments.networks and problem not in NETWORKS:
                continue
            count += 1
            if count % shards == shard:
                yield dtype, problem


def measured(arguments):
    """Measure the problems that the arguments select, and return the rows."""
    import torch

    rows, start = [], time.perf_counter()
    with dnn.Handle(
        "cuda", stream=dnn.devices.device_choice.get_device("cuda").create_stream()
    ) as handle:
        print(
            f"{handle.device.name}, cuDNN {handle.api.library.version_text},",
            f"Python {sys.version.split()[0]}, PyTorch {torch.__version__}",
        )
        for dtype, problem in selected_problems(arguments):
            if time.perf_counter() - start > arguments.seconds:
                print("left out for want of time:", dtype, problem)
                continue
            rows.append(run(handle, problem, dtype, arguments))
            if rows[-1]["error"] > AGREE[dtype]:
                print("DISAGREES with torch:", dtype, problem, f"{rows[-1]['error']:.1e}")
            torch.cuda.empty_cache()
            if arguments.json:  # It is written after each row: a run may be interrupted.
                arguments.json.write_text(json.dumps(rows))
    return rows


def main():
    """Run."""
    arguments = parse_arguments()
    if arguments.merge:
        rows = []
        for path in arguments.merge.split(","):
            rows += json.loads(Path(path).read_text())
        rows.sort(key=lambda row: row["dtype"])
    else:
        rows = measured(arguments)
    report(rows, arguments.markdown)
    good = judge(rows)
    return 0 if good or not arguments.check else 1


if __name__ == "__main__":
    sys.exit(main())
