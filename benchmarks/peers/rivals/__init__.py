"""The rivals: each module's `solvers(workload)` returns what its package has for a workload, in its best settings."""

from __future__ import annotations
