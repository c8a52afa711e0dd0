"""The command: threads are limited, and freed memory is kept, before NumPy is imported."""

from __future__ import annotations

import sys

from benchmarks.peers._threads import keep_memory, limit, wanted

limit(wanted(sys.argv[1:]))
keep_memory()

from benchmarks.peers._command import main

main()
