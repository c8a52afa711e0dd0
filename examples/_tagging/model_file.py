"""A model as an .npz file: numbers and strings only, never pickle, so that loading runs no code."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import UserError
from .features import TABLES, Encoder, Vocabulary
from .files import atomic_write
from .model import Sizes, Tagger, parameter_shapes

__all__ = ["FORMAT_VERSION", "load_model", "save_model"]

FORMAT_VERSION = 1

UNREADABLE = (ValueError, EOFError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error)
"""What np.load raises for pickled objects, other formats, truncated and corrupted files."""


def save_model(path: Path, tagger: Tagger, column: str) -> None:
    """Write a model; an existing file is replaced only when the new one is complete.

    Parameters
    ----------
    path : Path
        Where to write, under exactly this name.
    tagger : Tagger
        Model.
    column : {"xpos", "upos"}
        Which tags it predicts.
    """
    arrays: dict[str, Any] = {"format_version": np.asarray(FORMAT_VERSION), "column": np.asarray(column)}
    arrays["sizes"] = np.asarray([tagger.sizes.word, tagger.sizes.affix, tagger.sizes.state])
    arrays["tags"] = np.asarray(tagger.encoder.tags)
    for name in TABLES:
        arrays[f"table_{name}"] = np.asarray(tagger.encoder.tables[name].entries, dtype=np.str_)
    arrays |= {f"parameter_{name}": value for name, value in tagger.parameters.items()}
    with atomic_write(path) as file:
        np.savez_compressed(file, **arrays)


def load_model(path: Path) -> tuple[Tagger, str]:
    """Read a model and which column it predicts.

    Raises
    ------
    UserError
        If the file is missing, no .npz, of another format version, lacks an array, or an array has a wrong shape or
        type; the message names the file and what is wrong.
    """
    arrays = _read_arrays(path)
    version = _taken(path, arrays, "format_version", (), "iu")
    if int(version) != FORMAT_VERSION:
        raise UserError(f"{path}: format version {int(version)}, this program reads version {FORMAT_VERSION}")
    column = str(_taken(path, arrays, "column", (), "U"))
    if column not in ("xpos", "upos"):
        raise UserError(f"{path}: array column must be 'xpos' or 'upos', got {column!r}")
    word, affix, state = (int(size) for size in _taken(path, arrays, "sizes", (3,), "iu"))
    if min(word, affix, state) < 1:
        raise UserError(f"{path}: array sizes must be positive, got {[word, affix, state]}")
    tables = {name: Vocabulary(_strings(path, arrays, f"table_{name}")) for name in TABLES}
    encoder = Encoder(tables, _strings(path, arrays, "tags"))
    if not encoder.tags:
        raise UserError(f"{path}: array tags is empty")
    sizes = Sizes(word, affix, state)
    parameters = {
        name: _taken(path, arrays, f"parameter_{name}", shape, "f").astype(np.float32)
        for name, shape in parameter_shapes(encoder, sizes).items()
    }
    for name, value in parameters.items():
        if not np.isfinite(value).all():
            raise UserError(f"{path}: array parameter_{name} holds numbers that are not finite")
    return Tagger(encoder, sizes, parameters), column


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("a single array, not an .npz archive")
            with archive:
                return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UNREADABLE as error:
        reason = str(error).strip().splitlines() or ["no reason given"]
        raise UserError(f"{path}: not a model file: {reason[0]}") from error


def _taken(path: Path, arrays: dict[str, NDArray[Any]], name: str, shape: tuple[int, ...], kinds: str) -> NDArray[Any]:
    if name not in arrays:
        raise UserError(f"{path}: not a complete model: array {name} is missing")
    value = arrays[name]
    if value.shape != shape or value.dtype.kind not in kinds:
        raise UserError(f"{path}: array {name} must have shape {shape}, got {value.shape} of dtype {value.dtype}")
    return value


def _strings(path: Path, arrays: dict[str, NDArray[Any]], name: str) -> tuple[str, ...]:
    size = arrays[name].size if name in arrays else 0
    return tuple(str(entry) for entry in _taken(path, arrays, name, (size,), "U"))
