"""The hub's cache on disk, where every engine looks for models by name. Disk.

The layout is huggingface_hub's, and llama.cpp's as well: `blobs/` holds files under their
checksums, `snapshots/COMMIT/` links to them by their names, `refs/` says which commit a branch or
tag is.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from servicekit.host import untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COMMIT: Final = re.compile(r"[0-9a-f]{40}")
# Name of a blob: the SHA-256 of a large file, the id that git gives a small one.
DIGEST: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
PARTIAL: Final = ".incomplete"  # suffix of a blob that is not whole yet
LONGEST_REF: Final = 1024  # bytes of a file that names a commit
DEEPEST: Final = 16
MOST_FILES: Final = 20_000  # folders below each other, and files, that no model on the hub has
MAIN: Final = "main"  # the default branch


def cache_directory(environment: Mapping[str, str]) -> PurePosixPath:
    """Return the cache that a program with this environment uses, as huggingface_hub finds it."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return PurePosixPath(environment[name])
    if environment.get("HF_HOME"):
        return PurePosixPath(environment["HF_HOME"], "hub")
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '')}/.cache"
    return PurePosixPath(cache, "huggingface/hub")


@dataclass(frozen=True, slots=True)
class File:
    """A file of a model."""

    name: str  # path inside the repository
    size: int  # bytes
    digest: str  # as `DIGEST` says; empty where it is not known


@dataclass(frozen=True, slots=True)
class Listing:
    """What a model consists of at one commit."""

    commit: str
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """Bytes of all files; one that the repository has under two names counts once."""
        return sum({file.digest or file.name: file.size for file in self.files}.values())


class Repository:
    """The part of the cache `cache` that belongs to the model `owner/name`.

    Every method raises `PermissionError` where it may not look.
    """

    def __init__(self, cache: Path, model: str) -> None:
        self.folder = cache / f"models--{model.replace('/', '--')}"
        self.blobs = self.folder / "blobs"

    def blob(self, digest: str) -> Path:
        return self.blobs / digest

    def partial(self, digest: str) -> Path:
        return self.blobs / f"{digest}{PARTIAL}"

    def snapshot(self, commit: str) -> Path:
        return self.folder / "snapshots" / commit

    def ref(self, revision: str) -> Path:
        """File with the commit of `revision`."""
        return self.folder / "refs" / revision

    def commit(self, revision: str) -> str | None:
        """The commit of `revision` when it was fetched; `None` if it never was."""
        if COMMIT.fullmatch(revision):
            return revision
        try:
            text = untrusted.read(self.ref(revision), limit=LONGEST_REF).strip()
        except PermissionError:
            raise
        except OSError:  # there is none, or one that no fetch has written
            return None
        return text if COMMIT.fullmatch(text) else None

    def listing(self, revision: str) -> Listing | None:
        """List the files of `revision` by names and links; `None` if there are none."""
        commit = self.commit(revision)
        if commit is None:
            return None
        top = self.snapshot(commit)
        files = []
        for path in _walk(top):
            if path.is_file():  # a link that leads nowhere is none
                target = path.readlink().name if path.is_symlink() else ""
                digest = target if DIGEST.fullmatch(target) else ""
                files.append(File(str(path.relative_to(top)), path.stat().st_size, digest))
        return Listing(commit, tuple(files)) if files else None

    def begun(self) -> int:
        return sum(path.stat().st_size for path in _walk(self.blobs) if path.suffix == PARTIAL)

    def find(self, revision: str, name: str) -> Path | None:
        """Where the file `name` of `revision` is; `None` if it is not here."""
        commit = self.commit(revision)
        path = None if commit is None else self.snapshot(commit) / name
        return path if path is not None and path.is_file() else None


def _walk(top: Path) -> Iterator[Path]:
    """Yield every file below `top`, sorted; nothing where there is no such directory.

    Raises `PermissionError` where it may not look. Whoever owns the cache may have filled it with
    anything: what is nested deeper, or beyond more files, than in any model is left out.
    """
    files: list[Path] = []
    folders = [(top, 0)]
    while folders and len(files) < MOST_FILES:
        folder, depth = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in islice(entries, MOST_FILES):
                    if not entry.is_dir(follow_symlinks=False):
                        files.append(Path(entry.path))
                    elif depth < DEEPEST:
                        folders.append((Path(entry.path), depth + 1))
        except FileNotFoundError:
            continue
    yield from sorted(files)
