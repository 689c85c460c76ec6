"""Forward passes of recurrent networks beside PyTorch's: what the search finds, what the heuristic picks, and torch.nn.

    python tools/benchmarks/rnn.py [--markdown] [--json OUT.json] [--rows lstm] [--networks] [--check]

The problems are DeepBench's RNN training set, five LSTMs and eight networks of usual sizes, in float32 and float16, with the
same weights; PyTorch uses cuDNN.  Each is timed three times.  'eager': calls as a program makes them, one after the other, wall
time per call.  'graph': CUDA graphs of such calls, replayed, time between two events.  'new input': eager calls with another
input, and new results, at each call: PyTorch's, the search's best, and a plan with replay=True by what took the device least.
All in shuffled rounds with the peer among them; medians.  Where the best and the peer lie within a few percent, these two are
timed in more rounds, and all of them count.

With `--quick` the mode 'graph' is left out, and 'eager' times the best and the heuristic's choice alone.  `--shard` and
`--merge` are those of convolution.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import time
from pathlib import Path

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
# layers, directions and batches as programs have them: (cell, T, N, I, H, layers, directions)
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
INPUTS = 24  # of the mode 'new input': more than a plan keeps graphs for
ROUNDS = 7
MORE_ROUNDS = 28  # of the best and the peer, where they lie within NEAR of each other
NEAR = 0.05
AGREE = {
    "float32": 5e-3,
    "float16": 2e-2,
}  # relative L2; two algorithms, TF32 or float16, up to 1500 steps
TARGETS = {"eager": 0.78, "graph": 0.93}
# of the mode 'new input', over PyTorch's time: geometric means of the networks of usual sizes, and of the others; the worst row
WITH_REPLAY = {True: 0.45, False: 0.66}
WITHOUT_REPLAY, WORST = 0.72, 1.02
OVER_HEURISTIC = 1.03  # eagerly, the search's best


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
        """Return what replays a graph of `repeats` calls."""
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
        self._measure, self._shuffle, self._taken = measure, random.Random(seed), {}

    def take(self, names, rounds):
        """Take more samples of these."""
        order = list(names)
        for _ in range(rounds):
            self._shuffle.shuffle(order)
            for name in order:
                self._taken.setdefault(name, []).append(self._measure(name))

    def medians(self):
        """Return {name: median}."""
        return {name: statistics.median(times) for name, times in self._taken.items()}


def shuffled(measure, names):
    """Return {name: median of measure(name)} over shuffled rounds, more of them for the best where torch is near it."""
    rounds = Rounds(measure)
    rounds.take(names, ROUNDS)
    medians = rounds.medians()
    best = min((name for name in names if name != "torch"), key=medians.get)
    if abs(medians[best] / medians["torch"] - 1) < NEAR:
        rounds.take([best, "torch"], MORE_ROUNDS)
    return rounds.medians()


def run(handle, problem, dtype, algorithms, quick=False):
    """Measure one row."""
    cell, _, _, inputs, hidden, layers, directions = problem
    device, stream = handle.device, handle.stream
    peer = Peer(problem, dtype, stream)
    spec = dnn.RNNSpec(cell, inputs, hidden, layers, directions == 2, dtype=dtype)
    weights = dnn.RNNWeights.from_torch(handle, spec, peer.module.state_dict())
    x = handle.view(peer.x)
    start = time.perf_counter()
    found = dnn.rnn_forward.find(handle, spec, weights, x, algorithms=algorithms)
    search_s = time.perf_counter() - start
    guess = heuristic(spec, dnn.RNNDataSpec(x.shape, dtype=dtype))
    as_they_are = [row for row in found if row.ok and not row.replay]
    first = as_they_are[0]
    best_ms = first.time_ms
    near = 0 if quick else 2 * best_ms
    wanted = [row for row in as_they_are if row.time_ms <= near or same(row, guess) or row is first]
    peer()
    stream.sync()
    works, plans = {"torch": peer}, []
    for row in wanted:
        plan = dnn.rnn_forward.plan(handle, spec, None, x, algorithm=row)
        plans.append(plan)
        out = plan(weights, x)
        works[name_of(row)] = lambda plan=plan, out=out: plan(
            weights, x, out=out[:2] if out.cy is None else out
        )
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
    new_us, how = new_inputs(handle, spec, weights, peer, found, calls)
    repeats = max(1, min(16, round(0.5 / best_ms)))
    graphs, graph_us = {}, None
    if not quick:
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
    table = [
        [str(r.algorithm), str(r.math_type), r.time_ms, r.error, str(r.status), r.why_not, r.remark]
        for r in found
    ]
    return {
        "problem": problem,
        "dtype": dtype,
        "error": error,
        "search_s": search_s,
        "heuristic": name_of(guess),
        "eager": eager_us,
        "graph": graph_us,
        "table": table,
        "new": new_us,
        "replay": how,
        "best": name_of(first),
        "usual": tuple(problem) in NETWORKS,
    }


def new_inputs(handle, spec, weights, peer, found, calls):
    """Return {name: median us of a call with a new input}, and what the replaying plan did; see the module."""
    device = min((row for row in found if row.ok and row.time_ms), key=lambda row: row.time_ms)
    best = next(row for row in found if row.ok and not row.replay)
    theirs = [peer.x.clone() for _ in range(INPUTS)]
    handle.device.synchronize()
    ours = [handle.view(x) for x in theirs]
    with (
        dnn.rnn_forward.plan(handle, spec, None, ours[0], algorithm=best) as plan,
        dnn.rnn_forward.plan(
            handle, spec, None, ours[0], algorithm=device, replay=True
        ) as replaying,
    ):
        of_torch, of_best, of_replay = (
            itertools.cycle(theirs),
            itertools.cycle(ours),
            itertools.cycle(ours),
        )
        works = {
            "torch": lambda: peer(next(of_torch)),
            "best": lambda: plan(weights, next(of_best)),
            "replay": lambda: replaying(weights, next(of_replay)),
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
        return (
            rounds.medians(),
            f"the search's: {found.best()}; {name_of(device)}: {replaying.replay}",
        )


def same(row, other):
    """Tell whether two results are of one candidate."""
    return (row.algorithm, row.math_type) == (other.algorithm, other.math_type)


def name_of(row):
    """Return 'PERSIST_STATIC/TENSOR_OP'."""
    return f"{row.algorithm}/{row.math_type}"


def summary(row, mode):
    """Return best name, best, heuristic, torch in microseconds."""
    times = dict(row[mode])
    torch_us = times.pop("torch")
    best = min(times, key=times.get)
    return best, times[best], times.get(row["heuristic"], float("nan")), torch_us


def geometric_mean(values):
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def title(row):
    """Return 'f16 lstm T100 N64 I256 H256 L2'."""
    cell, steps, batch, inputs, hidden, layers, directions = row["problem"]
    short = {"float32": "f32", "float16": "f16"}[row["dtype"]]
    return (
        f"{short} {cell} T{steps} N{batch} I{inputs} H{hidden} L{layers}{' bi' * (directions - 1)}"
    )


def report(rows, markdown):
    """Print a line for each row: of each mode the best candidate, its us, the heuristic's, torch's, and ratios."""
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
            best, us, guess, torch_us = (
                summary(row, mode) if row[mode] else ("-", *[float("nan")] * 3)
            )
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
            mine = [
                summary(row, mode) for row in rows if dtype in (row["dtype"], "all") and row[mode]
            ]
            if not mine:
                continue
            ratios = [us / torch_us for _, us, _, torch_us in mine]
            near = sum(guess <= 1.1 * us for _, us, guess, _ in mine) / len(mine)
            mean = geometric_mean(ratios)
            print(
                f"{dtype}, {mode}, {len(mine)} rows: best/torch geometric mean {mean:.3f} (target {target}),",
                end=" ",
            )
            print(
                f"worst {max(ratios):.3f} (target 1.0), above 1.0 in {sum(ratio > 1 for ratio in ratios)};",
                end=" ",
            )
            print(f"heuristic within 1.1 times the best in {near:.0%} (target 80%)")
            if dtype == "all":
                good &= mean <= target and max(ratios) <= 1 and near >= 0.8
    good &= judge_new_inputs(rows)
    times = [row["search_s"] for row in rows]
    print(
        f"searches: {sum(times):.1f} s in all, median {statistics.median(times):.2f} s, the longest {max(times):.1f} s"
    )
    return good


def judge_new_inputs(rows):
    """Print what calls with a new input take of PyTorch's, and the best's of the heuristic's; return whether all is well."""
    good = True
    for usual, target in WITH_REPLAY.items():
        mine = [row for row in rows if row["usual"] == usual]
        for way, most in (("replay", target), ("best", WITHOUT_REPLAY)) if mine else ():
            ratios = {title(row): row["new"][way] / row["new"]["torch"] for row in mine}
            mean, worst = geometric_mean(list(ratios.values())), max(ratios, key=ratios.get)
            of = "networks of usual sizes" if usual else "the other rows"
            print(
                f"new input, {of}, {way}/torch: geometric mean {mean:.3f} (target {most}),", end=" "
            )
            print(f"worst {ratios[worst]:.3f} ({worst}; target {WORST})")
            good &= mean <= most and ratios[worst] <= WORST
    over = {
        title(row): row["eager"][row["best"]] / row["eager"][row["heuristic"]]
        for row in rows
        if row["heuristic"] in row["eager"] and row["best"] in row["eager"]
    }
    worst = max(over, key=over.get)
    print(
        f"eager, the search's best over the heuristic's choice: worst {over[worst]:.3f} ({worst}; target {OVER_HEURISTIC})"
    )
    return good and over[worst] <= OVER_HEURISTIC


def main():
    """Run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", default="", help="only problems whose cell has this name")
    parser.add_argument("--networks", action="store_true", help="only the networks of usual sizes")
    parser.add_argument(
        "--first", type=int, default=0, help="the number of problems to leave out at the beginning"
    )
    parser.add_argument("--dtypes", default="float32,float16")
    parser.add_argument("--algorithms", help="only these, such as STANDARD,PERSIST_STATIC")
    parser.add_argument(
        "--quick", action="store_true", help="no graphs; the best and the heuristic's choice alone"
    )
    parser.add_argument("--shard", default="0/1", help="only every n-th row from the i-th on: i/n")
    parser.add_argument(
        "--merge", help="measure nothing: judge what these files hold, the JSON of shards"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 where a target is missed")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="leave out what would begin later"
    )
    arguments = parser.parse_args()
    if arguments.merge:
        rows = [
            row for path in arguments.merge.split(",") for row in json.loads(Path(path).read_text())
        ]
        rows.sort(key=lambda row: row["dtype"])
        report(rows, arguments.markdown)
        return 0 if judge(rows) or not arguments.check else 1
    import torch

    rows, start, counted = [], time.perf_counter(), 0
    shard, shards = map(int, arguments.shard.split("/"))
    with dnn.Handle("cuda", stream=dnn.devices.choice.get_device("cuda").create_stream()) as handle:
        versions = f"cuDNN {handle.api.library.version_text}, Python {sys.version.split()[0]}, PyTorch {torch.__version__}"
        print(f"{handle.device.name}, {versions}")
        for dtype in arguments.dtypes.split(","):
            for problem in list(problems())[arguments.first :]:
                if arguments.rows and problem[0] != arguments.rows:
                    continue
                if arguments.networks and problem not in NETWORKS:
                    continue
                counted += 1
                if counted % shards != shard:
                    continue
                if time.perf_counter() - start > arguments.seconds:
                    print("left out for want of time:", dtype, problem)
                    continue
                algorithms = arguments.algorithms and arguments.algorithms.split(",")
                rows.append(run(handle, problem, dtype, algorithms, arguments.quick))
                if rows[-1]["error"] > AGREE[dtype]:
                    print("DISAGREES with torch:", dtype, problem, f"{rows[-1]['error']:.1e}")
                torch.cuda.empty_cache()
                if arguments.json:
                    arguments.json.write_text(
                        json.dumps(rows)
                    )  # after each row: a run may be cut short
    report(rows, arguments.markdown)
    good = judge(rows)
    return 0 if good or not arguments.check else 1


if __name__ == "__main__":
    sys.exit(main())
