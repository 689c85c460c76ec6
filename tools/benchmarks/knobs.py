"""What a search over engines' knobs finds beyond the configurations that cuDNN's heuristics name.

    python tools/benchmarks/knobs.py [--configs tf32,f16-nhwc] [--every 5] [--seconds 10] [--least N] [--check]

The problems are those of `convolution.py`.  Both choices come out of one contest, timed in shuffled rounds on the device: the
best of what was found by knobs over the best of everything else.
"""

from __future__ import annotations

import argparse
import sys
import time

from convolution import CONFIGS, geometric_mean, problem_of, shapes

import cudnnlite as dnn

TARGET = 0.97  # of the best without them, in TF32 and float16


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", default="tf32,f16-nhwc")
    parser.add_argument("--suite", choices=("training", "networks"))
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--check", action="store_true", help=f"exit 1 where a geometric mean is above {TARGET}"
    )
    parser.add_argument(
        "--stop-after",
        type=float,
        default=1e9,
        metavar="SECONDS",
        help="begin no problem after that",
    )
    chosen = parser.parse_args()
    failed, start = False, time.perf_counter()
    policy = dnn.TuningPolicy(objective="device", search="knobs", search_seconds=chosen.seconds)
    for config in chosen.configs.split(","):
        assert config in CONFIGS, config
        ratios = []
        for shape in list(shapes(chosen.suite))[:: chosen.every]:
            if time.perf_counter() - start > chosen.stop_after:
                print(f"{config}: stopped for want of time before {shape.name}")
                break
            with (
                dnn.Handle() as handle,
                dnn.Tuner(handle, cache=":memory:", policy=policy) as tuner,
            ):
                table = tuner.tune(problem_of(shape, config))
            known = min(
                row.time_ms for row in table if row.ok and row.time_ms and "knobs" not in row.remark
            )
            best = min(row.time_ms for row in table if row.ok and row.time_ms)
            ratios.append(best / known)
            print(
                f"{config:10} {shape.name:14} {known * 1e3:9.1f} us  {ratios[-1]:.3f}  {table[0].algorithm}; "
                f"{table.timing.split('; ')[-1]}",
                flush=True,
            )
        if ratios:
            print(
                f"{config}: {len(ratios)} problems, geometric mean {geometric_mean(ratios):.3f}, least {min(ratios):.3f}"
            )
            failed |= geometric_mean(ratios) > TARGET
    return int(failed and chosen.check)


if __name__ == "__main__":
    sys.exit(main())
