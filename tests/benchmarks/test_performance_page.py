"""The page: what asv and the comparison have written is read, and put where it belongs."""

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from benchmarks.performance_page._asv import Results, newest
from benchmarks.performance_page._command import main

COLUMNS = ["result", "params", "version", "duration", "started_at"]
METHODS = ["'BlockLU'", "'CyclicReduction'"]
NAN = math.nan
FORWARD = {"residuals": [9, 3], "jvps": [0, 5], "products_of_each": [9, 7.5], "krylov_iterations": [0, 5]}
BENCHMARKS: dict[str, tuple[list[Any], list[list[str]]]] = {
    **{f"solves.Forward.track_{what}": (values, [["'W1'", "'W5'"]]) for what, values in FORWARD.items()},
    "solves.Forward.track_peak_bytes": ([2_500_000, None], [["'W1'", "'W5'"]]),
    "solves.Forward.track_residual": ([0.5, 0.25], [["'W1'", "'W5'"]]),
    "solves.ForwardTime.time_solve": ([0.125, NAN], [["'W1'", "'W5'"]]),
    "block_banded.FactorizationTime.time_factor": ([0.002, 0.03, 0.004, NAN], [METHODS, ["1", "64"]]),
    "block_banded.FactorizationTime.time_solve": ([0.001, 0.01, 0.002, NAN], [METHODS, ["1", "64"]]),
    "block_banded.LapackTime.time_factor": ([0.004, 0.01], [["1", "64"]]),
    "block_banded.LapackTime.time_solve": ([0.002, 0.02], [["1", "64"]]),
    "adapters.Layers.track_residual": ([1.25, 1.1], [["'elman'"], ["200"], ["'float64'", "'float32'"]]),
    "newton.Newton.track_solved": ([1.0, 0.0, 1.0], [["'wood'", "'watson'", "'bratu'"]]),
    "newton.Newton.track_residuals": ([10, 20, 4], [["'wood'", "'watson'", "'bratu'"]]),
    "newton.NewtonTime.time_solve": ([0.01], [["'bratu'"]]),
    "start.Start.timeraw_import": ([0.25], []),
}


def row(package: str, median: float | None, **others: Any) -> dict[str, Any]:
    """A row of the comparison."""
    ratio = None if median is None else median / 0.1
    given: dict[str, Any] = {"method": "", "is_ours": False, "status": "solved", "residual": 1e-9}
    return given | {"products": 7, "note": "", "package": package, "median": median, "ratio": ratio} | others


PEERS = {
    "date": "2026-01-31",
    "threads": 1,
    "clock": "CPU",
    "python": "3.11",
    "processor": "a processor",
    "cores": 2,
    "versions": {"numpy": "2.0", "jax": "not installed"},
    "workloads": [
        {
            "key": "W1",
            "name": "W1 k=200",
            "target": 1e-8,
            "rows": [
                row("slow", 0.5),
                row("implicitsolve", 0.1, is_ours=True, method="auto"),
                row("fast", 0.25, method="gmres"),
                row("absent", None, status="not installed: no module", residual=None, products=None),
                row("lost", None, status="failed: 1|2", residual=0.5, products=None),
            ],
        }
    ],
    "targets": [
        {"target": "W1: best rival / ours", "goal": ">= 3", "measured": 2.5, "verdict": "missed"},
        {"target": "W2", "goal": "<= 0.8", "measured": None, "verdict": "not measured"},
    ],
    "products": [{"key": "W1", "rows": [{"what": "JVP", "median": 0.011, "ratio": 1.1}]}],
    "training": [
        {
            "key": "W1",
            "rows": [
                {"what": "nn.LSTM", "median": 0.03, "ratio": 1.0},
                {"what": "cold start", "median": 0.09, "ratio": 3.0, "residual": 5e-5, "residuals": 8, "jvps": 0},
            ],
        }
    ],
    "adjoints": [{"key": "W1", "products": 10, "iterations": 8, "residual": 9e-7}],
}


@pytest.fixture(scope="module")
def asv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like asv's."""
    record = {
        "commit_hash": "0123456789abcdef",
        "params": {"cpu": "a processor", "arch": "", "num_cpu": "2", "os": "an OS"},
        "python": sys.executable,
        "result_columns": COLUMNS,
        "results": {
            name: [values, axes, "version", 1.0, 86_400_000 * day]
            for day, (name, (values, axes)) in enumerate(BENCHMARKS.items())
        },
    }
    folder = tmp_path_factory.mktemp("asv") / "results" / "machine"
    folder.mkdir(parents=True)
    (folder / "01234567-env.json").write_text(json.dumps(record), encoding="utf-8")
    (folder / "machine.json").write_text("{}", encoding="utf-8")
    (folder.parent / "benchmarks.json").write_text("{}", encoding="utf-8")
    return folder.parent


def text_of(folder: Path, asv: Path, peers: dict[str, Any] | None = None) -> str:
    """The page of asv's results and of a comparison."""
    given, file = folder / "peers.json", folder / "performance.md"
    given.write_text(json.dumps(peers), encoding="utf-8")
    main(["--asv", str(asv), *(["--peers", str(given)] if peers else []), "--write", str(file)])
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(asv: Path) -> str:
    """The text of both."""
    return text_of(asv.parent, asv, PEERS)


def test_parameters_find_their_values(asv: Path) -> None:
    results = Results.read(asv)
    assert results["solves.Forward.track_jvps"] == {("W1",): 0, ("W5",): 5}
    assert results["block_banded.FactorizationTime.time_factor"]["CyclicReduction", 1] == 0.004
    assert ("CyclicReduction", 64) not in results["block_banded.FactorizationTime.time_factor"]
    assert results["start.Start.timeraw_import"] == {(): 0.25}
    assert results["nothing"] == {}
    assert results.first("solves.Forward.track_jvps", "newton.NewtonTime.time_solve") == ["W1", "W5", "bratu"]


def test_a_quick_run_is_marked(asv: Path, page: str, tmp_path: Path) -> None:
    assert "of one call each" in page
    record = json.loads(newest(asv).read_text(encoding="utf-8"))
    record["result_columns"].append("stats_repeat")
    record["results"]["solves.ForwardTime.time_solve"].append([None, 7])
    many = tmp_path / "many.json"
    many.write_text(json.dumps(record), encoding="utf-8")
    assert Results.read(many).calls == 7
    assert "of one call each" not in text_of(tmp_path, many)


def test_versions_are_those_of_the_interpreter_that_was_measured(asv: Path) -> None:
    import numpy

    assert Results.read(asv).versions()["numpy"] == numpy.__version__
    assert Results("", {}, "/no/python").versions() == {}


def test_the_newest_file_counts(tmp_path: Path) -> None:
    files = [tmp_path / "machine" / f"{name}.json" for name in ("one", "two", "machine")]
    files[0].parent.mkdir()
    for time, file in enumerate(files):
        file.write_text("{}", encoding="utf-8")
        os.utime(file, (time, time))
    assert newest(tmp_path) == files[1]
    os.utime(files[0], (5, 5))
    assert newest(tmp_path) == files[0]


def test_no_results_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no results"):
        newest(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "| W1 | 9 | 0 | 9 | 0 | 2.5 | 125 | 0.5 |",  # counts, MB and ms
        "| Elman network | 3 | 5 | 7.5 | 5 |  |  | 0.25 |",  # what failed is empty
        "| BlockLU | 64 | 30 | 3 | 10 | 0.5 |  |  |",  # over LAPACK
        "| bratu | yes | 4 |  |  | 10 |",
        "| 2 classic problems | 1 of 2 | 30 | 0 | 0 |  |",
        "Not solved: watson.",
        "| elman | 200 | float32 | 1.1 |  |  |  |",
        "| import implicitsolve | 250 |",
        "| W1 | 1 | fast gmres | 250 | 7 | 100 | 7 | 2.5 | 1 |",  # the best rival, and one failure
        "| implicitsolve auto | solved | 1.0e-09 | 7 | 100 | 1 |  |",
        "| lost | failed: 1\\|2 | 0.5 |  |  |  |  |",
        "| W1 | 1 | JVP | 11 | 1.1 |",
        "| W1 | 1 | nn.LSTM | 30 | 1 |  |  |",
        "| W1 | 1 | cold start | 90 | 3 | 8 | 5.0e-05 |",
        "| W1 | 10 | 8 | 9.0e-07 |",
    ],
)
def test_numbers_stand_in_their_places(page: str, line: str) -> None:
    assert line in page.splitlines()


def test_ours_comes_first_then_by_time_then_failures(page: str) -> None:
    solvers = page.split("### W1, one thread")[1]
    places = [solvers.index(f"\n| {name}") for name in ("implicitsolve", "fast", "slow", "lost")]
    assert places == sorted(places)


def test_the_page_of_either_alone(asv: Path, tmp_path: Path) -> None:
    none = tmp_path / "none"
    assert "## Solves" not in text_of(tmp_path, none, PEERS)
    assert "## Against" not in text_of(tmp_path, asv)
    lacks_workloads = {key: value for key, value in PEERS.items() if key != "workloads"}
    assert "| W1 | 1 | JVP | 11 | 1.1 |" in text_of(tmp_path, none, lacks_workloads)
