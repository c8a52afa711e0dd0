"""``python -m benchmarks.performance_page --help``."""

from __future__ import annotations

from benchmarks.performance_page._command import main

main()
