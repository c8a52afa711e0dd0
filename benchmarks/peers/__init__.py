"""implicitsolve against the packages that a user would take instead, in turns in one process.

Everybody solves the same data from the same start until the workload's own NumPy residual, which measures every answer
from outside, is at most the target. Norms differ: a rival gets the loosest of a few tolerances by which it gets there.
Compilation, set-up and a first call come before the measurement, for all. Then every rival's call is followed by one of
ours, and medians are compared: of CPU seconds with one thread, of elapsed seconds with two. What a rival cannot do, and
what is not installed, is a line of the table too.

Freed memory stays with the process. By default glibc returns it at thresholds that depend on what ran earlier: the
stacked `solve_banded` of W4 met 15,206 page faults a solve in a process of its own, and none beside other solvers.
Those faults are the system's time, not the solver's, so nobody pays for them here.

Usage, from the root of the repository (`requirements.txt` here names the rivals)::

    python -m benchmarks.peers --json peers1.json              # everything, one thread
    python -m benchmarks.peers --threads 2 --json peers2.json
    python -m benchmarks.peers --quick --parts workloads --workloads W2-bratu-1e4 --rivals scipy jax
"""

from __future__ import annotations
