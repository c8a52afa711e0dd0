"""Arguments, and the page as a whole."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.performance_page import _asv_sections, _peer_sections
from benchmarks.performance_page._asv import Results
from benchmarks.performance_page._names import place
from benchmarks.performance_page._plots import figures

HEAD = """# Performance

<!-- Written by `python -m benchmarks.performance_page`; edit the program, not this file. -->

The cost of solves, first in counts (exact, the same on every machine) and then in time, and the cost of the same solves
in other packages. All numbers of a table are from one run on one machine; ratios are more meaningful than times.
Separate pages: [evaluations against SciPy](against_scipy.md),
[time of the drop-in](drop_in_times.md), [small systems](small_systems.md),
[large systems](large_systems.md), [the Brusselator in the plane](brusselator.md),
[robustness](robustness.md), [accuracy](accuracy.md) and [hostile systems](adversary.md).
Others are of [what the stages of "auto" earn](ablation.md),
[methods for fixed points](fixed_points.md),
[block LU against LAPACK](block_lu.md), [products of a layer](adapters.md), [counts by commit](trend.md),
[a GPU](../how_to/gpu.md#figures), [many ranks](../how_to/cluster.md#measured).

{about}

The workloads are defined in `benchmarks/benchmarks/workloads`:

- **Bratu** and **Burgers**: the 1-D Bratu problem and the steady Burgers equation with 10⁴ and 10⁵ unknowns. The user
  gives F and declares that J is tridiagonal.
- **Brusselator**: steady states on 2·10⁴ cells with 2 species each, or with 8, which are 4 coupled Brusselators.
- **Batch of 10⁴ Brusselators**: 8 cells each.
- **Implicit GRU**: 20 sequences of 40 positions (25 for 448 states) with 100 inputs, from zero. "recurrent weights × s"
  are s times as large as the others.
- **Elman network**: 20 sequences of 1000 positions with 100 states.
"""

AGAIN = """## To measure again

```bash
pip install --editable . --group benchmark
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1
asv machine --yes --config benchmarks/asv.conf.json
asv run --config benchmarks/asv.conf.json --python=same --set-commit-hash "$(git rev-parse HEAD)"
pip install --requirement benchmarks/peers/requirements.txt
python -m benchmarks.peers --threads 1 --json peers_1.json
python -m benchmarks.peers --threads 2 --json peers_2.json
python -m benchmarks.performance_page --peers peers_1.json peers_2.json
```

Use an idle machine, or the times mean little. The counts do not depend on the machine. `benchmarks.peers` also prints
its results beside the project's targets.

```{toctree}
:hidden:

against_scipy
drop_in_times
small_systems
large_systems
brusselator
robustness
accuracy
adversary
ablation
fixed_points
block_lu
adapters
trend
```
"""


def page(results: Results | None, runs: Sequence[dict[str, Any]], folder: Path) -> str:
    """The text; its figures are written into the folder in which it will stand."""
    drawn = figures(results, runs, folder)
    parts = [HEAD.format(about="\n".join(about(results, runs)))]
    for section in _sections(results, runs):
        title = section.split("\n", 1)[0].removeprefix("## ")
        parts += [section, *(f"![{title}]({path.name})" for path in drawn.get(title, ()))]
    return "\n\n".join(part.strip() for part in (*parts, AGAIN)) + "\n"


def _sections(results: Results | None, runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield from _peer_sections.sections(runs)
    if results is not None:
        yield from _asv_sections.sections(results)


def about(results: Results | None, runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each run: machine, versions and date."""
    if results is not None:
        machine, single = results.machine, " of one call each, a rough one" if results.calls == 1 else ""
        names = ", ".join(f"{name} {number}" for name, number in results.versions().items())
        yield (
            f"- This library: asv on {machine['cpu'] or machine['arch']}, {machine['num_cpu']} cores, "
            f"{machine['os']}, one thread, CPU time{single}; {names or 'versions unknown'}; "
            f"commit {results.commit[:8]}; {results.date}."
        )
    for run in runs:
        names = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
        yield (
            f"- Other packages, {_peer_sections.threads(run)}: {run['processor']}, {run['cores']} cores, "
            f"{run['clock']} time; Python {run['python']}, {names}; {run['date']}."
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Read the results and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.performance_page", description=__doc__)
    parser.add_argument("--asv", type=Path, default=Path("benchmarks/.asv/results"), help="asv's results, or one file")
    parser.add_argument("--peers", type=Path, nargs="*", default=[], help="JSON of benchmarks.peers, by threads")
    parser.add_argument(
        "--write", type=Path, default=Path("docs/performance/index.md"), help="the page; figures beside it"
    )
    arguments = parser.parse_args(argv)
    results = Results.read(arguments.asv) if arguments.asv.exists() else None
    runs = [{"workloads": []} | json.loads(path.read_text(encoding="utf-8")) for path in arguments.peers]
    for run in runs:
        run["workloads"].sort(key=lambda record: place(record["key"]))
    arguments.write.write_text(page(results, runs, arguments.write.parent), encoding="utf-8")
