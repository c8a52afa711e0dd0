"""The command: threads are limited before NumPy is imported."""

from __future__ import annotations

import sys

from benchmarks.peers._threads import limit, wanted

limit(wanted(sys.argv[1:]))

from benchmarks.peers._command import main

main()
