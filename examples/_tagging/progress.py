"""Progress of an epoch: tqdm's bar on a terminal where it is installed, else a line of text now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["track"]

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 15.0


def track(items: Sequence[Item], label: str) -> Iterator[Item]:
    """Yield `items` while showing on stderr how many are done."""
    if sys.stderr.isatty():
        try:
            from tqdm import tqdm
        except ImportError:
            pass
        else:
            yield from tqdm(items, desc=label, unit="batch", leave=False)
            return
    last = time.perf_counter()
    for done, item in enumerate(items):
        now = time.perf_counter()
        if now - last >= SECONDS_BETWEEN_LINES:
            print(f"{label}: {done} of {len(items)} batches", file=sys.stderr, flush=True)
            last = now
        yield item
