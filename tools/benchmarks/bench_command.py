"""Everything of `cudnnlite bench` and `compare` that a GPU alone can show, as short tables.

    python -m tools.benchmarks.bench_command OUT [--libcudnn OLD --libcudnn NEW] [--small]

Writes the runs and pages of the lists to the folder OUT, and prints: the peaks from the device's
properties beside NVIDIA's figures, the kernels of five rows, the clocks, the rows that are furthest
below the roofline, and what two libraries differ in.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import cudnnlite as dnn
from cudnnlite.cli.bench import problems_of_words, words_for
from cudnnlite.devices.peaks import CARDS, peaks_from
from cudnnlite.texts import aligned
from cudnnlite.workbench.bench.lists import problems_of_list
from cudnnlite.workbench.bench.measuring import BenchOptions, bench_problem
from cudnnlite.workbench.bench.rows import load_run
from cudnnlite.workbench.tuning.problem_list import ListedProblem

FIVE = (
    "--input 32x64x56x56 --filter 64x64x3x3 --padding 1 --dtype float16 --layout NHWC",
    "--input 32x64x56x56 --filter 64x64x3x3 --padding 1 --dtype float32 --math-type fma",
    "--matmul m=4096,n=4096,k=1024,bias,activation=gelu --dtype float16",
    "--attention batch=4,heads=16,steps=1024,size=128,causal --dtype bfloat16",
    "--rnn lstm:steps=100,batch=64,input=512,hidden=512 --dtype float16",
)


def problem_of(options: str) -> ListedProblem:
    (item,) = problems_of_words(options.split())
    return item


def print_peaks(handle: dnn.Handle) -> None:
    figures = handle.device.figures()
    if figures is None:
        print("the emulated device")
        return
    peaks = peaks_from(figures)
    print(figures)
    if peaks is None:
        print("the architecture has no peaks in cudnnlite")
        return
    stated = next((card for card in CARDS.values() if card.card == figures.name), None)
    rows = [("peak", "from properties", "as NVIDIA states", "ratio")]
    for unit, value in (*peaks.flops.items(), ("memory", peaks.bandwidth)):
        other = None
        if stated is not None:
            other = {**stated.flops, "memory": stated.bandwidth}.get(unit)
        figures = ("-", "-") if other is None else (f"{other:.4g}", f"{value / other:.4f}")
        rows.append((unit, f"{value:.4g}", *figures))
    print("\n".join(aligned(rows)))


def print_kernels(handle: dnn.Handle) -> None:
    for options in FIVE:
        (row,) = bench_problem(handle, problem_of(options), BenchOptions("check"))
        print(f"{row.candidate}: {options}")
        print(f"  error {row.error}, ulp {row.ulp}, same bits {row.same_bits}")
        print(f"  findings: {'; '.join(row.findings) or 'none'}; {row.status}")
        for kernel in row.kernels:
            print(f"  {kernel}")


def bench(*words: str) -> None:
    """Run the command; a code of 3 is a finding, which the run has."""
    command = [sys.executable, "-m", "cudnnlite", "bench", *words, "--csv", "-"]
    process = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if process.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")


def print_lists(out: Path, *, small: bool) -> None:
    lists = {
        "resnet50": ("--list", "resnet50", "--dtype", "float16", "--layout", "NHWC"),
        "transformer": ("--list", "transformer", "--dtype", "float16"),
    }
    if not small:
        lists["lstm"] = ("--list", "lstm", "--dtype", "float16")
    for name, words in lists.items():
        bench(*words, "--save", str(out / f"{name}.json"))
        run = load_run(out / f"{name}.json")
        rows = sorted(run.chosen, key=lambda row: row.roofline or 0.0)
        table = [("roofline", "bound by", "device us", "TFLOP/s", "GB/s", "same bits", "problem")]
        for row in rows:
            if row.device_us is None:
                print(f"{row.name}: {row.status}")
                continue
            table.append(
                (
                    f"{row.roofline or 0:.2f}",
                    row.bound,
                    f"{row.device_us:.2f}",
                    f"{row.tflops or 0:.4g}",
                    f"{row.gbps or 0:.4g}",
                    str(row.same_bits),
                    row.name,
                )
            )
        print("\n".join(aligned(table)))
        for row in run.faulty:
            print(f"wrong: {row.line}: {'; '.join(row.findings)}")


def compare(out: Path, libraries: list[str]) -> None:
    """Compare two libraries over 60 problems."""
    lines = []
    for dtype, names in (
        ("float16", ("resnet50", "transformer", "lstm")),
        ("float32", ("resnet50",)),
    ):
        for name in names:
            layout = "NHWC" if dtype == "float16" else None
            for item in problems_of_list(name, None, dtype, layout):
                lines.append(words_for(item.problem))
    (out / "problems.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} problems")
    command = [sys.executable, "-m", "cudnnlite", "compare"]
    for library in libraries:
        command += ["--libcudnn", library]
    command += ["--markdown", str(out / "compare.md")]
    command += ["--", "--lines", str(out / "problems.txt")]
    subprocess.run(command, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--libcudnn", action="append", default=[])
    parser.add_argument("--small", action="store_true", help="without the LSTMs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with dnn.Handle() as handle:
        print_peaks(handle)
        print_kernels(handle)
        print(handle.device.clocks())
    print_lists(options.out, small=options.small)
    if len(options.libcudnn) == 2:
        compare(options.out, options.libcudnn)


if __name__ == "__main__":
    main()
