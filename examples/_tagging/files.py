"""Where the treebank is, and writing that never leaves half a file."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Generator
from pathlib import Path
from typing import IO

from .errors import UserError

__all__ = ["atomic_write", "check_writable", "find_treebank"]

COMMIT = "15d613d8447b3478787d4c278730a1e48a945efb"
HOME = f"https://raw.githubusercontent.com/UniversalDependencies/UD_English-EWT/{COMMIT}"
SHA256 = {
    "en_ewt-ud-train.conllu": "3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b",
    "en_ewt-ud-dev.conllu": "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6",
}
DATA_VARIABLE = "IMPLICITSOLVE_DATA"
SHARED_DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
"""Data beside a checkout of the project, used when nothing else is named."""

LAYOUTS = (("train.conllu", "dev.conllu"), ("en_ewt-ud-train.conllu", "en_ewt-ud-dev.conllu"))
FOLDERS = ("", "ud-english-ewt", "UD_English-EWT")


def find_treebank(data: Path | None = None) -> tuple[Path, Path]:
    """Return the paths of the training and the development part.

    Looked for in `data`, else in the folder that the environment variable ``IMPLICITSOLVE_DATA``
    names, else in ``../shared/data`` beside the project, else downloaded (once, into pooch's cache).

    Parameters
    ----------
    data : Path, optional
        A folder with ``train.conllu`` and ``dev.conllu``, or with the official names
        ``en_ewt-ud-*.conllu``, itself or in a subfolder ``ud-english-ewt``.

    Raises
    ------
    UserError
        If a folder that was named lacks the files, or the download fails.
    """
    variable = os.environ.get(DATA_VARIABLE)
    if data is not None:
        return _found_in(data, "--data")
    if variable:
        return _found_in(Path(variable), DATA_VARIABLE)
    return _look_in(SHARED_DATA) or _download()


def _found_in(folder: Path, source: str) -> tuple[Path, Path]:
    found = _look_in(folder)
    if found is None:
        raise UserError(f"{folder} (from {source}): no folder with train.conllu and dev.conllu there")
    return found


def _look_in(folder: Path) -> tuple[Path, Path] | None:
    for sub in FOLDERS:
        for train, dev in LAYOUTS:
            pair = folder / sub / train, folder / sub / dev
            if all(path.is_file() for path in pair):
                return pair
    return None


def _download() -> tuple[Path, Path]:
    try:
        import pooch
    except ImportError as error:
        raise UserError(
            f"no treebank found: give --data, set {DATA_VARIABLE}, or `pip install pooch` to download it"
        ) from error
    folder = pooch.os_cache("implicitsolve") / f"UD_English-EWT-{COMMIT[:12]}"
    try:
        train, dev = (
            Path(pooch.retrieve(f"{HOME}/{name}", known_hash=f"sha256:{digest}", fname=name, path=folder))
            for name, digest in SHA256.items()
        )
    except (OSError, ValueError) as error:  # no network; a checksum that differs
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"download from {HOME} failed: {reason}; give --data or set {DATA_VARIABLE}") from error
    return train, dev


def check_writable(path: Path) -> None:
    """Raise now, rather than after minutes of training, if `path` cannot be written later."""
    folder = path.resolve().parent
    if path.is_dir():
        raise UserError(f"{path}: is a folder, a file name was expected")
    if not folder.is_dir():
        raise UserError(f"{path}: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{path}: the folder {folder} is not writable")


@contextlib.contextmanager
def atomic_write(path: Path) -> Generator[IO[bytes]]:
    """Open a temporary file beside `path`, renamed to `path` only if the block ends without an exception.

    Raises
    ------
    UserError
        If the file cannot be created, written or renamed.
    """
    path = path.resolve()  # a symbolic link keeps pointing where it points
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
