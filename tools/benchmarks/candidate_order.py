"""How many candidates real calls have to try, by recorded times: orders, and limits of trials.

    python tools/benchmarks/candidate_order.py TIMES.jsonl ...

The files are those of `python -m tools.record.candidates`.  Each half of the problems is tuned with
the winners of the other half, by the race of real calls over the recorded times of the device.
Nothing is measured, and no GPU is needed.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from cudnnlite.autotune.incremental import MOST_WINNERS, interleaved
from cudnnlite.search.database import most_frequent
from cudnnlite.search.race import Race, identity_of
from cudnnlite.search.timing_policy import TimingPolicy
from tools.record.candidates import read

NUM_TRIED = (1, 3, 5, 8, 11)
NUM_LOSERS = (2, 3, 4, 5, 0)


def geometric_mean(values):
    """Return the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def by_rank(rows):
    """Return the rows that the heuristics name, in their order."""
    return sorted((row for row in rows if row.heuristic is not None), key=lambda row: row.heuristic)


def with_winners(rows, winners):
    """Return the named rows and the winners in the order of real calls, each once."""
    own = {identity_of(row): row for row in rows}
    known = (own[identity_of(winner)] for winner in winners if identity_of(winner) in own)
    ordered = interleaved(known, iter(by_rank(rows)))
    return list({identity_of(row): row for row in ordered}.values())


def halves(problems):
    """Yield (training problems, problems to tune): each half of every family, by the other."""
    families = defaultdict(list)
    for measured in problems:
        if by_rank(measured.rows):
            families[measured.family].append(measured)
    for family in families.values():
        middle = len(family) // 2
        yield family[:middle], family[middle:]
        yield family[middle:], family[:middle]


def orders(problems):
    """Yield (rows by rank, rows with winners, least milliseconds) of each problem."""
    for training, tuned in halves(problems):
        fastest = [min(measured.rows, key=lambda row: row.time_ms) for measured in training]
        winners = most_frequent(fastest)[:MOST_WINNERS]
        for measured in tuned:
            least_ms = min(row.time_ms for row in measured.rows)
            yield by_rank(measured.rows), with_winners(measured.rows, winners), least_ms


def run_race(rows, timing):
    """Return the time of the winner, the number of candidates, and the milliseconds of trials."""
    race = Race(rows[:1], timing)
    candidates = iter(rows[1:])
    spent_ms = 0.0
    while race.winner is None:
        turn = race.next_turn((), candidates)
        if turn is not None:
            ms = race.runners[turn.candidate].row.time_ms
            spent_ms += (1 + turn.repeats) * ms
            race.record(turn.candidate, ms, is_first=False)
    return race.runners[race.winner].row.time_ms, len(race.runners), spent_ms


def report(problems):
    """Print the tables."""
    rows = list(orders(problems))
    print(f"{len(rows)} problems: geometric mean (worst) of the time over that of the best")
    print("best of the first", *(f"{count:>15}" for count in NUM_TRIED))
    for title, index in (("by rank", 0), ("with winners", 1)):
        texts = []
        for count in NUM_TRIED:
            ratios = [min(r.time_ms for r in row[index][:count]) / row[2] for row in rows]
            texts.append(f"{geometric_mean(ratios):7.3f} {max(ratios):7.2f}")
        print(f"{title:17}", *texts)
    print("a race with winners: losers, ratio, worst, candidates, ms of trials over ms of the best")
    for losers in NUM_LOSERS:
        timing = TimingPolicy(real_losers=losers, real_sample_ms=0.0)
        results = [run_race(row[1], timing) for row in rows]
        ratios = [result[0] / row[2] for result, row in zip(results, rows, strict=True)]
        spent = [result[2] / row[2] for result, row in zip(results, rows, strict=True)]
        count = statistics.fmean(result[1] for result in results)
        print(
            f"{losers or 'any':>6} {geometric_mean(ratios):7.3f} {max(ratios):7.2f} {count:6.1f} "
            f"  median {statistics.median(spent):.0f}, mean {statistics.fmean(spent):.0f}"
        )


def main():
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    problems = list(itertools.chain(read(parser.parse_args().files)))
    report([measured for measured in problems if measured.family.startswith("convolution")])


if __name__ == "__main__":
    main()
