"""Check and time the solvers on a GPU: one command, under eight minutes; prints a table and writes JSON.

Usage::

    python benchmarks/gpu_suite.py --json gpu.json          # everything
    python benchmarks/gpu_suite.py --only layers blocks     # some of PARTS
    python benchmarks/gpu_suite.py --dry-run                # tiny sizes on a stand-in for CuPy, without a GPU

Every row has an error measured outside the solver, in float64 on the CPU, and a bound for it; a row beyond its bound
makes the exit status 1. Times are medians of elapsed milliseconds, the device idle before and after, so that what the
host does counts. Where the project has a target, the row names it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "2")  # what the CPU is compared by

sys.path[0] = str(
    Path(__file__).resolve().parents[1]
)  # the root: this folder has a package of the name benchmarks, too

PARTS = ("layers", "rivals", "blocks", "systems", "sparse", "sequences", "memory")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--json", type=Path, help="where to write every figure")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each row, about (default 2)")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on a stand-in for CuPy")
    return parser.parse_args()


def machine(is_dry: bool) -> dict[str, Any]:
    """What the figures were measured on."""
    import cupy
    import numpy

    import implicitsolve

    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return {
        "device": name,
        "cuda": cupy.cuda.runtime.runtimeGetVersion(),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cupy": cupy.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "implicitsolve": implicitsolve.__version__,
        "dry run": is_dry,
    }


def rows(only: list[str], sizes: Any, seconds: float) -> Iterator[Any]:
    """All measurements, part by part."""
    from benchmarks.gpu import blocks, layers, memory, rivals, sequences, sparse, systems

    parts = dict(zip(PARTS, (layers, rivals, blocks, systems, sparse, sequences, memory)))
    for name in only:
        yield from parts[name].rows(sizes, seconds)


def main() -> int:
    """Run the parts, print each row as it comes, and write JSON."""
    options = arguments()
    if options.dry_run:
        from tests.device_double import install

        install()
    from benchmarks.gpu.rows import HEADER, Failures
    from benchmarks.gpu.sizes import FULL, TINY

    facts, failures, found = machine(options.dry_run), Failures(), []
    print(", ".join(f"{name} {value}" for name, value in facts.items()), *HEADER, sep="\n", flush=True)
    try:
        for row in rows(options.only, TINY if options.dry_run else FULL, 0.0 if options.dry_run else options.seconds):
            found.append(row)
            failures.note(row)
            print(row.line(), flush=True)
    finally:  # a part that fails does not take the others' figures with it
        if options.json:
            report = {"machine": facts, "rows": [row.facts() for row in found]}
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(failures.summary(len(found)))
    return failures.count > 0


if __name__ == "__main__":
    raise SystemExit(main())
