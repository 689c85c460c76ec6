"""How many candidates real calls have to try, by recorded times: orders, and limits of trials.

    python -m tools.benchmarks.candidate_order TIMES.jsonl ...

The files are those of `python -m tools.record.candidates`.  Each half of the problems is tuned with
the database's choices for the other half, by the race of real calls over the recorded times of the
device.  The best candidate may be a conversion or an algorithm that this race does not have.
Nothing is measured, and no GPU is needed.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from statistics import geometric_mean
from typing import NamedTuple

import cudnnlite as dnn
from cudnnlite.autotune.database import best_on_a_typical_host
from cudnnlite.autotune.incremental import MOST_WINNERS, interleaved
from cudnnlite.search.database import most_frequent
from cudnnlite.search.race import Race, identity_of
from cudnnlite.search.timing_policy import TimingPolicy
from tools.record.candidates import read

NUM_TRIED = (1, 3, 5, 8, 11)
NUM_LOSERS = (2, 3, 4, 5, 0)


class Orders(NamedTuple):
    """The candidates of a problem in two orders, and the time of the best one."""

    by_rank: list[dnn.AlgorithmResult]
    with_winners: list[dnn.AlgorithmResult]
    least_ms: float


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
    """Yield the orders of each problem."""
    for training, tuned in halves(problems):
        choices = [best_on_a_typical_host(measured.rows) for measured in training]
        winners = most_frequent(filter(None, choices))[:MOST_WINNERS]
        for measured in tuned:
            least_ms = min(row.time_ms for row in measured.rows)
            ranked = by_rank(measured.rows)
            yield Orders(ranked, with_winners(measured.rows, winners), least_ms)


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
    tuned = list(orders(problems))
    print(f"{len(tuned)} problems: geometric mean (worst) of the time over that of the best")
    print("best of the first", *(f"{count:>15}" for count in NUM_TRIED))
    for name in ("by_rank", "with_winners"):
        texts = []
        for count in NUM_TRIED:
            ratios = [
                min(row.time_ms for row in getattr(item, name)[:count]) / item.least_ms
                for item in tuned
            ]
            texts.append(f"{geometric_mean(ratios):7.3f} {max(ratios):7.2f}")
        print(f"{name.replace('_', ' '):17}", *texts)
    print("a race with winners: losers, ratio, worst, candidates, ms of trials over ms of the best")
    for losers in NUM_LOSERS:
        timing = TimingPolicy(real_losers=losers, real_sample_ms=0.0)
        ratios, counts, spent = [], [], []
        for item in tuned:
            winner_ms, count, spent_ms = run_race(item.with_winners, timing)
            ratios.append(winner_ms / item.least_ms)
            counts.append(count)
            spent.append(spent_ms / item.least_ms)
        print(
            f"{losers or 'any':>6} {geometric_mean(ratios):7.3f} {max(ratios):7.2f} "
            f"{statistics.fmean(counts):6.1f}   median {statistics.median(spent):.0f}, "
            f"mean {statistics.fmean(spent):.0f}"
        )


def main():
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    problems = read(parser.parse_args().files)
    report([measured for measured in problems if measured.family.startswith("convolution")])


if __name__ == "__main__":
    main()
