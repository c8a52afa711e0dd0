"""Run campaigns of random systems until the time is over, and print the number of what fails.

Trial i of seed S draws its systems from ``default_rng([S, i])``. A process of its own runs the trials; where one takes
longer than five minutes, it is killed, the trial has failed as a hang, and another process goes on behind it.

Usage::

    python -m benchmarks.adversary --minutes 10 --seed 20261127
    python -m benchmarks.adversary --seed 20261127 --trial 4711        # again, with the traceback
    python -m benchmarks.adversary --systems 100000 --campaigns truth,limits
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

PATIENCE = 300.0  # seconds for a trial, beyond which it hangs: on a busy machine compiling takes a minute
RARITY = 1000  # trials between those that take seconds


def campaign_of(i: int, names: Sequence[str]) -> str:
    """The campaign of a trial."""
    from benchmarks.adversary.campaigns import CAMPAIGNS, RARE

    if not names and i % RARITY == RARITY - 1:
        return list(RARE)[i // RARITY % len(RARE)]
    known = list(names) or list(CAMPAIGNS)
    return known[i % len(known)]


def trial(seed: int, i: int, names: Sequence[str]) -> int:
    """Run a trial, and return how many systems it has solved."""
    import numpy as np

    from benchmarks.adversary.campaigns import CAMPAIGNS, RARE

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (CAMPAIGNS | RARE)[campaign_of(i, names)](np.random.default_rng([seed, i]))


def work(seed: int, first: int, names: Sequence[str]) -> None:
    """Run all trials from `first` on, with a line before and after each, until the reader is gone."""
    i = first
    while True:
        print(json.dumps({"trial": i, "campaign": campaign_of(i, names)}), flush=True)
        try:
            found: dict[str, Any] = {"solved": trial(seed, i, names)}
        except BaseException as error:  # noqa: BLE001 - of any kind: it is what is sought
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
            found = {"solved": 1, "failure": f"{type(error).__name__} in {where}: {str(error)[:300]}"}
        print(json.dumps(found), flush=True)
        i += 1


class Workers:
    """The process that runs the trials, and its successors."""

    def __init__(self, seed: int, first: int, names: Sequence[str]) -> None:
        self.seed, self.next, self.names = seed, first, names

    def command(self) -> list[str]:
        """What starts the next process."""
        chosen = [] if not self.names else ["--campaigns", ",".join(self.names)]
        own = [sys.executable, "-m", "benchmarks.adversary"]
        return [*own, "--work", str(self.next), "--seed", str(self.seed), *chosen]

    def outcomes(self, until: float) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Yield number, campaign and outcome of each trial, until that time."""
        while time.monotonic() < until:
            with subprocess.Popen(self.command(), stdout=subprocess.PIPE) as process:
                try:
                    yield from self._outcomes_of(process, until)
                finally:
                    process.kill()

    def _outcomes_of(self, process: subprocess.Popen[bytes], until: float) -> Iterator[tuple[int, str, dict[str, Any]]]:
        pipe: Any = process.stdout
        pending, begun = b"", {"trial": self.next, "campaign": "start of a process"}
        while True:
            is_ready = select.select([pipe], [], [], PATIENCE)[0]
            chunk = os.read(pipe.fileno(), 65536) if is_ready else b""
            if not chunk:
                self.next = begun["trial"] + 1
                failure = "died" if is_ready else f"hangs for {PATIENCE:g} s"
                yield begun["trial"], begun["campaign"], {"solved": 1, "failure": failure}
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                is_ours = line.startswith(b'{"')
                record = json.loads(line) if is_ours else {"solved": 0, "failure": f"prints {line.decode()}"}
                if not is_ours:
                    yield begun["trial"], begun["campaign"], record
                elif "trial" in record:
                    begun = record
                else:
                    self.next = begun["trial"] + 1
                    yield begun["trial"], begun["campaign"], record
            if time.monotonic() >= until:
                return


def run(seed: int, minutes: float, systems: int | None, names: Sequence[str], first: int = 0) -> int:
    """Run trials, print what fails and a table, and return how many have failed."""
    begin, trials, solved, failures = time.monotonic(), Counter[str](), Counter[str](), Counter[str]()
    print(f"seed {seed}", flush=True)
    with suppress(KeyboardInterrupt):  # Ctrl-C ends a run, too
        for i, campaign, outcome in Workers(seed, first, names).outcomes(begin + 60 * minutes):
            trials[campaign] += 1
            solved[campaign] += outcome["solved"]
            if "failure" in outcome:
                failures[campaign] += 1
                again = f" --campaigns {','.join(names)}" if names else ""
                print(f"FAILED --seed {seed} --trial {i}{again} ({campaign}): {outcome['failure']}", flush=True)
            if systems is not None and solved.total() >= systems:
                break
    print("\n| campaign | trials | systems | failed |\n| --- | ---: | ---: | ---: |")
    for campaign in sorted(trials):
        print(f"| {campaign} | {trials[campaign]:,} | {solved[campaign]:,} | {failures[campaign]} |")
    print(f"| all | {trials.total():,} | {solved.total():,} | {failures.total()} |")
    print(f"\nseed {seed}, {time.monotonic() - begin:.0f} s")
    return failures.total()


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")), help="default: the date")
    parser.add_argument("--systems", type=int, help="end after so many systems")
    parser.add_argument("--campaigns", default="", help="names, with commas; default: all in turn")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--trial", type=int, help="run this trial alone, in this process")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    names = [name for name in options.campaigns.split(",") if name]
    if options.work is not None:
        work(options.seed, options.work, names)
    if options.trial is not None:
        print(f"{campaign_of(options.trial, names)}: {trial(options.seed, options.trial, names)} systems")
        return 0
    return 1 if run(options.seed, options.minutes, options.systems, names, options.first) else 0


if __name__ == "__main__":
    sys.exit(main())
