"""``python -m implicitsolve``: what is installed, whether it works, and a block to paste into an issue."""

from __future__ import annotations

import sys

from implicitsolve._report import main

sys.exit(main())
