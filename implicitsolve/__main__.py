"""``python -m implicitsolve``: what is installed, whether it works, and a block to paste into an issue."""

from __future__ import annotations

import os
import sys

from implicitsolve._report import main

status: int = 1
try:
    status = main()
except BrokenPipeError:  # who reads has seen enough; the interpreter's own flush must not fail again
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
sys.exit(status)
