"""What is installed: manifests and files as they are on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servicekit.errors import UserError, reason
from servicekit.service.manifest import Manifest, from_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import PurePosixPath

    from servicekit.install.changes import Present
    from servicekit.install.rootfs import Tree
    from servicekit.places import Places
    from servicekit.service.manifest import Written


def manifests(tree: Tree, places: Places) -> dict[str, Manifest]:
    """Read what is installed, by profile."""
    installed = {}
    for name in tree.names(places.manifests):
        if name.endswith(".json") and not name.startswith("."):
            path = places.manifests / name
            try:
                present = tree.look(path)
            except OSError as error:
                raise UserError(f'manifest "{path}" cannot be read: {reason(error)}') from None
            if present is not None:
                manifest = from_json(present.content.decode(errors="replace"), where=str(path))
                installed[manifest.profile] = manifest
    return installed


def look(tree: Tree, paths: Iterable[PurePosixPath]) -> dict[PurePosixPath, Present]:
    """Read what is there at `paths`; those where nothing is are left out."""
    files = {path: tree.look(path) for path in paths}
    return {path: present for path, present in files.items() if present is not None}


def drifted(
    tree: Tree, installed: Sequence[Manifest], others: Iterable[Manifest] = ()
) -> dict[str, tuple[str, ...]]:
    """Return for each of `installed` which files differ from what was installed, and how.

    `others` are manifests of what may share files with them.
    """
    ours: dict[PurePosixPath, list[Written]] = {}
    for manifest in (*installed, *others):
        for written in manifest.files:
            ours.setdefault(written.path, []).append(written)
    changed: dict[PurePosixPath, str] = {}
    for path, known in ours.items():
        try:
            here = tree.look(path)
        except PermissionError:
            continue  # an account that may read it reports it
        except OSError as error:
            changed[path] = f"{path}: {error.strerror}"
            continue
        if here is None:
            changed[path] = f"{path} is missing"
        elif not any(written.is_(here.content, here.mode) for written in known):
            changed[path] = f"{path} was changed"
    return {
        manifest.profile: tuple(changed[w.path] for w in manifest.files if w.path in changed)
        for manifest in installed
    }
