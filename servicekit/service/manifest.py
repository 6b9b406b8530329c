"""What an install leaves behind as its memory: every file it wrote, with its hash. Pure.

One manifest per installed profile. With it a second install recognises files that were changed
by hand, and an uninstall removes exactly what was written.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import stat
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from servicekit.errors import UserError
from servicekit.profiles.vocabulary import NAME, ManagerName
from servicekit.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FORMAT: Final = 1  # version of the manifest's own layout; a newer one is refused, not guessed at


def sha256(content: bytes) -> str:
    """Hash of a file's content, as the manifest holds it."""
    return hashlib.sha256(content).hexdigest()


def fingerprint(path: PurePosixPath, content: bytes, mode: int) -> str:
    """Hash of what a file or link says; a link says where it leads, however that is spelt.

    `systemctl enable` makes a link with an absolute target where ours has a relative one.
    """
    if is_link(mode):
        content = posixpath.normpath(posixpath.join(str(path.parent).encode(), content))
    return sha256(content)


@dataclass(frozen=True, slots=True)
class Written:
    """One file that servicekit wrote: enough to detect a later change."""

    path: PurePosixPath  # absolute, as the running system sees it (without any `--root`)
    sha256: str  # its `fingerprint`
    mode: int  # permission bits; with `S_IFLNK` for a symbolic link, whose content is its target
    owner: str | None  # account that owns it; `None` for the account that installed it

    def is_(self, content: bytes, mode: int) -> bool:
        """Whether a file with this content and mode is what was written."""
        return self.mode == mode and self.sha256 == fingerprint(self.path, content, mode)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one install wrote, and the facts that later installs need of it."""

    profile: str
    servicekit: str  # version that wrote it
    manager: str
    user_name: str | None
    """Account that `--user-name` named; `None` where profile and settings decide."""
    port: int
    gpus: tuple[str, ...]
    """Names of its GPUs: what the profile calls them, and if the driver lists them, all others."""
    enabled: bool  # whether it starts at boot
    files: tuple[Written, ...]
    directories: tuple[PurePosixPath, ...]  # directories that did not exist before, outermost first
    kv_tokens: int | None = None
    """Tokens that the memory plan saw in the pool; `None` where the GPU could not be asked."""
    planned: Mapping[str, float] = field(default_factory=dict)
    """The memory plan's figures in GiB, by the names of those of a boot log."""
    uuids: tuple[str, ...] = ()
    """UUIDs of the profile's GPUs, in its order; none if the driver did not list them all."""
    kv_precision_accepted: str | None = None
    """Why the profile keeps its KV cache below FP8; `None` where it does not."""
    overruled: tuple[str, ...] = ()  # errors that `--anyway` overruled, one sentence each
    trusted: tuple[str, ...] | None = None
    """Weakenings that `--trust` accepted, one sentence each; 0.1.0 did not record them."""

    def to_json(self) -> str:
        """Text of the manifest's file."""
        data = asdict(self) | {
            "format": FORMAT,
            "files": [
                {
                    "path": str(written.path),
                    "sha256": written.sha256,
                    "mode": f"{written.mode:06o}",
                    "owner": written.owner,
                }
                for written in self.files
            ],
            "directories": [str(directory) for directory in self.directories],
        }
        return json.dumps(data, indent=2) + "\n"


def from_json(text: str, *, where: str) -> Manifest:
    """Read the manifest `text` of the file `where`, or raise `UserError` where it is not one."""
    try:
        data: dict[str, Any] = json.loads(text)
        if data["format"] != FORMAT:
            raise UserError(
                f'manifest "{where}" has format {data["format"]}, not {FORMAT}',
                hint="use the servicekit that wrote it",
            )
        return Manifest(
            profile=_name(data["profile"]),
            servicekit=data["servicekit"],
            manager=ManagerName(data["manager"]).value,
            user_name=data["user_name"],
            port=int(data["port"]),
            gpus=tuple(data["gpus"]),
            enabled=data["enabled"],
            files=tuple(
                Written(PurePosixPath(f["path"]), f["sha256"], int(f["mode"], 8), f["owner"])
                for f in data["files"]
            ),
            directories=tuple(map(PurePosixPath, data["directories"])),
            kv_tokens=data.get("kv_tokens"),
            planned={str(name): float(size) for name, size in data.get("planned", {}).items()},
            uuids=tuple(data.get("uuids", ())),
            kv_precision_accepted=data.get("kv_precision_accepted"),
            overruled=tuple(map(str, data.get("overruled", ()))),
            trusted=None if data.get("trusted") is None else tuple(map(str, data["trusted"])),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f'manifest "{where}" cannot be read: {type(error).__name__}: {error}',
            hint="remove it and install again with --force",
        ) from None


def _name(text: str) -> str:
    """Return `text` if it can be a profile's name: it becomes part of paths that are removed."""
    if re.fullmatch(NAME, text) is None:
        raise ValueError(f'no profile can be called "{shown(text)}"')
    return text


def is_link(mode: int) -> bool:
    """Whether `mode` is that of a symbolic link."""
    return stat.S_ISLNK(mode)


def inherited(
    paths: Iterable[PurePosixPath], others: Iterable[Manifest]
) -> tuple[PurePosixPath, ...]:
    """Directories that other installs made and that the files `paths` stand in, too.

    Whoever is uninstalled last removes them: so each manifest names all that its own files need.
    """
    above = {parent for path in paths for parent in path.parents}
    made = {directory for other in others for directory in other.directories}
    return tuple(sorted(above & made, key=lambda path: len(path.parts)))
