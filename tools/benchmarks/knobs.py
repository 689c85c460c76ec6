"""The gain of a search over engines' knobs, beyond the settings that cuDNN's heuristics name.

    python tools/benchmarks/knobs.py [--configs tf32,f16-nhwc] [--every 5] [--seconds 10] [--check]

The problems are those of `convolution.py`.  All candidates are timed in one contest, in shuffled
rounds on the device.  The ratio is the time of the best candidate over that of the best candidate
without a search over knobs.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import geometric_mean

from convolution import CONFIGS, problem_of, shapes

import cudnnlite as dnn

TARGET = 0.97  # the geometric mean of the ratios in TF32 and float16


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", default="tf32,f16-nhwc")
    parser.add_argument("--suite", choices=("training", "networks"))
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--check", action="store_true", help=f"exit 1 if a geometric mean is above {TARGET}"
    )
    parser.add_argument(
        "--stop-after",
        type=float,
        default=1e9,
        metavar="SECONDS",
        help="begin no problem after that",
    )
    options = parser.parse_args()
    failed, start = False, time.perf_counter()
    policy = dnn.TuningPolicy(objective="device", search="knobs", search_seconds=options.seconds)
    for config in options.configs.split(","):
        assert config in CONFIGS, config
        ratios = []
        for shape in list(shapes(options.suite))[:: options.every]:
            if time.perf_counter() - start > options.stop_after:
                print(f"{config}: stopped for want of time before {shape.name}")
                break
            with (
                dnn.Handle() as handle,
                dnn.Tuner(handle, cache=":memory:", policy=policy) as tuner,
            ):
                table = tuner.tune(problem_of(shape, config))
            rows = [row for row in table if row.ok and row.time_ms]
            best_ms = min(row.time_ms for row in rows)
            heuristic_ms = min(row.time_ms for row in rows if "knobs" not in row.remark)
            ratios.append(best_ms / heuristic_ms)
            print(
                f"{config:10} {shape.name:14} {heuristic_ms * 1e3:9.1f} us  {ratios[-1]:.3f}  "
                f"{table[0].algorithm}; {table.timing.split('; ')[-1]}",
                flush=True,
            )
        if ratios:
            mean = geometric_mean(ratios)
            print(
                f"{config}: {len(ratios)} problems, geometric mean {mean:.3f}, "
                f"least {min(ratios):.3f}"
            )
            failed |= mean > TARGET
    return int(failed and options.check)


if __name__ == "__main__":
    sys.exit(main())
