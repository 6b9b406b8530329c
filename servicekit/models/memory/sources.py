"""Finds geometries: in our tables, a checkpoint, or a GGUF. Disk."""

from __future__ import annotations

import json
import os
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from servicekit import data
from servicekit.errors import UserError, reason
from servicekit.host import untrusted
from servicekit.models.memory.description import geometry_from_config, geometry_from_table
from servicekit.models.memory.gguf import (
    Header,
    geometry_from_header,
    read_header,
    window_of_header,
)
from servicekit.models.memory.window import window_of_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from servicekit.models.memory.geometry import Geometry

LARGEST_CONFIG: Final = 4 << 20  # bytes of a `config.json` beyond which it is not read
_PART: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf\Z")


@cache
def _tables() -> tuple[Mapping[str, Any], ...]:
    return tuple(tomllib.loads(data.read("models", name)) for name in data.names("models"))


def known_checkpoints() -> tuple[str, ...]:
    return tuple(one["id"] for table in _tables() for one in table["checkpoints"])


def known_geometry(checkpoint: str) -> Geometry | None:
    """Return the geometry of `checkpoint` from our own tables, or `None` if it is not there."""
    for table in _tables():
        if any(one["id"] == checkpoint for one in table["checkpoints"]):
            return geometry_from_table(table, checkpoint)
    return None


def geometry_from_gguf(path: Path) -> Geometry:
    """Read the geometry of a GGUF file from its header, or from those of all parts of a split one.

    Raises `UserError` for a file that is missing, damaged, or no language model.
    """
    headers = [_header(part) for part in _parts(path)]
    tensors = {name: size for header in headers for name, size in header.tensors.items()}
    return geometry_from_header(Header(headers[0].metadata, tensors), checkpoint=path.name)


def _parts(path: Path) -> Iterator[Path]:
    match = _PART.match(path.name)
    if match is None:
        yield path
        return
    for number in range(1, int(match[3]) + 1):
        yield path.with_name(f"{match[1]}-{number:05d}-of-{match[3]}.gguf")


def _header(path: Path) -> Header:
    try:
        with os.fdopen(untrusted.open_linked(path), "rb") as stream:
            return read_header(stream, os.fstat(stream.fileno()).st_size, path.name)
    except OSError as error:
        raise UserError(f'"{path}" cannot be read: {reason(error)}') from None


def geometry_from_directory(path: Path) -> Geometry:
    """Read the geometry of a local checkpoint from `config.json` and the sizes of its weights.

    Raises `UserError` for a directory without a readable `config.json`, or a model whose pools are
    not known.
    """
    config = path / "config.json" if path.is_dir() else path
    table = _read_config(config)
    try:
        weights = sum(file.stat().st_size for file in config.parent.glob("*.safetensors"))
    except OSError as error:
        raise UserError(f'"{config.parent}" cannot be read: {reason(error)}') from None
    return geometry_from_config(table, checkpoint=path.name, weights=weights or None)


def _read_config(config: Path) -> dict[str, Any]:
    try:
        with os.fdopen(untrusted.open_linked(config), "rb") as stream:
            text = stream.read(LARGEST_CONFIG + 1)
    except OSError as error:
        raise UserError(f'"{config}" cannot be read: {reason(error)}') from None
    if len(text) > LARGEST_CONFIG:
        raise UserError(
            f'"{config}" is longer than {LARGEST_CONFIG} bytes, too long for a model configuration'
        )
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f'"{config}" is not JSON') from None
    if not isinstance(table, dict):
        raise UserError(f'"{config}" is not a table')
    return table


def find_window(checkpoint: str, path: Path | None = None) -> int | None:
    """Return the window of `checkpoint` in tokens; `None` where it cannot be read on this host.

    Needs less than `find_geometry`: the window stands in every configuration and every header.
    """
    if (known := known_geometry(checkpoint)) is not None:
        return known.context
    if path is None:
        return None
    try:
        if path.suffix == ".gguf":
            return window_of_header(_header(path))
        config = _read_config(path / "config.json" if path.is_dir() else path)
    except UserError:
        return None
    text = config.get("text_config", config)
    declared = text.get("max_position_embeddings") if isinstance(text, dict) else None
    try:
        return window_of_config(text, declared) if type(declared) is int else None
    except (TypeError, ValueError, ArithmeticError):  # no model has such a rope scaling
        return None


def find_geometry(checkpoint: str, path: Path | None = None) -> Geometry:
    """Return the geometry of `checkpoint`, from our tables or else from `path` on this host.

    `path` may be a GGUF file, a checkpoint's directory or its `config.json`. Raises `UserError`
    if it is unknown.
    """
    if (known := known_geometry(checkpoint)) is not None:
        return known
    place = path if path is not None else Path(checkpoint)
    if place.suffix == ".gguf":
        return geometry_from_gguf(place)
    if place.is_dir() or place.suffix == ".json":
        return geometry_from_directory(place)
    known_ids = ", ".join(known_checkpoints())
    raise UserError(
        f'the geometry of the model "{checkpoint}" is not known',
        hint=f"give its local directory or GGUF file; known models are {known_ids}",
    )
