"""What every experiment shares: results with their origin, checkpoints to resume from, progress, and seeds."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import time
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from _tagging.files import atomic_write

RESULTS = Path(__file__).parent / "results"
"""Of the runs that the pages show."""


def write_json(path: Path, results: dict[str, Any], options: argparse.Namespace | None = None) -> None:
    """Write results with their origin and, of the command line, everything except paths."""
    if options is not None:
        left_out = {"quiet", "threads"} | ({"seed"} if hasattr(options, "seeds") else set())
        given = {k: v for k, v in vars(options).items() if not isinstance(v, Path) and k not in left_out}
        results = {"origin": origin(options.threads), "settings": given} | results
    with _written(path) as file:
        file.write((json.dumps(results, indent=1, default=_plain) + "\n").encode())


def origin(threads: int) -> dict[str, Any]:
    """Where and with what results are measured: commit, date, versions and machine."""
    packages = ("numpy", "scipy", "numba", "torch")
    cpu = Path("/proc/cpuinfo")
    models = re.findall(r"^model name\s*: (.*)$", cpu.read_text(), re.MULTILINE) if cpu.exists() else []
    changed = _git("status", "--porcelain", "--", ":/implicitsolve", ":/examples", ":/benchmarks/experiments/*.py")
    return {
        "commit": _git("rev-parse", "HEAD") + (", with changes" if changed else ""),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "hardware": {
            "processor": [*models, platform.machine()][0],
            "cores": os.cpu_count(),
            "threads": threads,
            "load": os.getloadavg()[0],
        },
    }


def _git(*arguments: str) -> str:
    found = subprocess.run(["git", *arguments], cwd=RESULTS.parent, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def write_figure(path: Path, figure: Any) -> None:
    """Write a figure of Matplotlib as PNG."""
    with _written(path) as file:
        figure.savefig(file, dpi=110, format="png")


def _written(path: Path) -> AbstractContextManager[IO[bytes]]:
    """A file that is complete or absent, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return atomic_write(path)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def command(name: str, summary: str) -> argparse.ArgumentParser:
    """A command line with what all experiments have."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.experiments.{name}", description=summary)
    parser.add_argument("--folder", type=Path, default=Path("results") / name, help="of checkpoints and figures")
    parser.add_argument("--json", type=Path, default=RESULTS / f"{name}.json", help="results (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all cores, %(default)s here")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


class Checkpoints:
    """The state of a training run in one file, saved every so many seconds and at the end of each epoch.

    Parameters
    ----------
    path : Path
        Of the file.
    settings : dict
        What a run must share with the one it goes on from; a file of other settings is an error.
    """

    def __init__(self, path: Path, settings: dict[str, Any], every: float = 60.0) -> None:
        self.path, self.settings, self.every = path, settings, every
        self.saved = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """The last state, if there is one."""
        if not self.path.exists():
            return None
        state = torch.load(self.path, weights_only=False)
        if state["settings"] != self.settings:
            different = {key for key in self.settings if state["settings"].get(key) != self.settings[key]}
            raise SystemExit(f"{self.path}: made with other settings ({', '.join(sorted(different))}); remove it")
        return state

    def restore(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
        """Bring a model and its optimizer to where the last state was, and return it, if there is one."""
        state = self.load()
        if state is not None:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        return state

    @property
    def is_due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self.saved > self.every

    def keep(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **facts: Any) -> None:
        """Save a model, its optimizer and what else is to be known."""
        self.save(facts | {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

    def save(self, state: dict[str, Any]) -> None:
        """Save the state."""
        with _written(self.path) as file:
            torch.save(state | {"settings": self.settings}, file)
        self.saved = time.monotonic()


class Progress:
    """A progress bar that may be silent."""

    def __init__(self, total: int, done: int, text: str, quiet: bool) -> None:
        from tqdm import tqdm

        self.bar = tqdm(total=total, initial=done, desc=text, disable=quiet, mininterval=1.0, dynamic_ncols=True)

    def step(self, **facts: Any) -> None:
        """One more."""
        self.bar.set_postfix(facts, refresh=False)
        self.bar.update()

    def close(self) -> None:
        """No more."""
        self.bar.close()
