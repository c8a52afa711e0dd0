"""Drivers of many solves: races between starts, streams, batches on several workers, checkpoints."""

from collections.abc import Callable

from implicitsolve.drivers._batch import BatchResult, LostChunk, solve_batch
from implicitsolve.drivers._checkpoint import checkpointed
from implicitsolve.drivers._gradients import StreamGradients, stream_gradients
from implicitsolve.drivers._nested import Nested
from implicitsolve.drivers._race import RaceResult, race
from implicitsolve.drivers._stream import Solved, solve_sequences, solve_stream

__all__ = [
    "BatchResult",
    "LostChunk",
    "Nested",
    "RaceResult",
    "Solved",
    "StreamGradients",
    "checkpointed",
    "race",
    "solve_batch",
    "solve_sequences",
    "solve_stream",
    "stream_gradients",
]
__dir__: Callable[[], list[str]] = __all__.copy
