"""What an install or uninstall would do, as a value to print, compare and carry out. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from servicekit.service.manifest import Written, fingerprint, is_link, sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import PurePosixPath

    from servicekit.service.manifest import Manifest
    from servicekit.service.render import Artifact

FOR_OTHERS: Final = 0o077  # permission bits of all but the owner


class Act(StrEnum):
    """What is done to one path."""

    CREATE = "create"
    REPLACE = "replace"
    KEEP = "keep"
    REMOVE = "remove"
    DRIFTED = "drifted"  # not as servicekit left it: shown, and left alone unless forced


@dataclass(frozen=True, slots=True)
class Present:
    """A file or symbolic link as it is on disk."""

    content: bytes  # a symbolic link's content is its target
    mode: int  # permission bits; with `S_IFLNK` for a symbolic link


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one path, from what to what, and why where that is not plain."""

    act: Act
    path: PurePosixPath
    before: Present | None
    after: Artifact | None
    """What should be there; for `REMOVE`, and for `KEEP` of what another profile needs, nothing."""
    why: str = ""
    saved: bool = False  # whether `before` is kept beside the path: it holds somebody's own text

    @property
    def acts(self) -> bool:
        """Whether anything is done."""
        return self.act in {Act.CREATE, Act.REPLACE, Act.REMOVE}

    def diff(self) -> str:
        """Unified diff from what is there to what should be; empty where they agree.

        What only its owner may read, such as a key, is not shown.
        """
        import difflib

        kept = self.after or self.before
        if kept is not None and not kept.mode & FOR_OTHERS:
            return "(readable by its owner only: not shown)"
        if self.before is not None and b"\0" in self.before.content:
            return "(a binary file)"
        old = _lines(None if self.before is None else self.before.content)
        new = _lines(None if self.after is None else self.after.text.encode())
        modes = _mode_lines(self.before, self.after)
        name = str(self.path)
        body = difflib.unified_diff(
            old,
            new,
            "/dev/null" if self.before is None else name,
            "/dev/null" if self.after is None else name,
            lineterm="",
        )
        return "\n".join([*modes, *body])


def changes(
    artifacts: Iterable[Artifact],
    present: Mapping[PurePosixPath, Present],
    own: Manifest | None,
    others: Iterable[Manifest] = (),
    *,
    force: bool = False,
) -> tuple[Change, ...]:
    """Compare what should be (`artifacts`) with what is there (`present`) and what was written.

    `own` is the manifest of the profile's earlier install, `others` those of other profiles, which
    may share files. No artifacts at all is an uninstall. With `force`, drift is overwritten and
    saved.
    """
    others = tuple(others)
    wanted = {artifact.path: artifact for artifact in artifacts}
    remembered: dict[PurePosixPath, list[Written]] = {}
    for manifest in (*others, *((own,) if own else ())):
        for written in manifest.files:
            remembered.setdefault(written.path, []).append(written)
    sharers = {written.path: m.profile for m in others for written in m.files}
    result = [_arriving(a, present.get(p), remembered.get(p, ())) for p, a in wanted.items()]
    for written in own.files if own else ():
        if written.path not in wanted:
            here = present.get(written.path)
            leaving = _leaving(written, here, remembered[written.path], sharers.get(written.path))
            result.extend(leaving)
    return tuple(_forced(change) if force else change for change in result)


def record(made: Iterable[Change], own: Manifest | None) -> tuple[Written, ...]:
    """List the files of the new manifest once `made` is done.

    A drifted file that was ours stays on the list as it was written, so that it is still known as
    drifted; one that never was ours is not listed.
    """
    before = {written.path: written for written in own.files} if own else {}
    files: list[Written] = []
    for change in made:
        if change.act is Act.DRIFTED:
            files.extend([before[change.path]] if change.path in before else [])
        elif change.after is not None:
            after = change.after
            digest = fingerprint(after.path, after.text.encode(), after.mode)
            files.append(Written(after.path, digest, after.mode, after.owner))
    return tuple(files)


def _arriving(artifact: Artifact, here: Present | None, ours: Sequence[Written]) -> Change:
    if here is None:
        if ours and is_link(artifact.mode):
            # Only enablement is a link, and removing it is how an administrator disables a unit.
            return Change(Act.DRIFTED, artifact.path, None, artifact, "disabled by hand")
        return Change(Act.CREATE, artifact.path, None, artifact)
    if _is_as_wanted(here, artifact):
        return Change(Act.KEEP, artifact.path, here, artifact)
    if _is_one_of(here, ours):
        return Change(Act.REPLACE, artifact.path, here, artifact)
    return Change(Act.DRIFTED, artifact.path, here, artifact, _reason(here, ours))


def _leaving(
    written: Written, here: Present | None, ours: Sequence[Written], sharer: str | None
) -> Iterable[Change]:
    if here is None:
        return ()
    if sharer is not None:
        return (Change(Act.KEEP, written.path, here, None, f'also belongs to "{sharer}"'),)
    if _is_one_of(here, ours):
        return (Change(Act.REMOVE, written.path, here, None),)
    return (Change(Act.DRIFTED, written.path, here, None, _reason(here, ours)),)


def _is_as_wanted(here: Present, artifact: Artifact) -> bool:
    return here.mode == artifact.mode and fingerprint(
        artifact.path, here.content, here.mode
    ) == fingerprint(artifact.path, artifact.text.encode(), artifact.mode)


def _is_one_of(here: Present, ours: Sequence[Written]) -> bool:
    return any(written.is_(here.content, here.mode) for written in ours)


def _reason(here: Present, ours: Sequence[Written]) -> str:
    if is_link(here.mode):
        return f"is a symbolic link to {here.content.decode(errors='replace')}"
    digest = sha256(here.content)
    if not ours:
        return "was not written by servicekit"
    if any(written.sha256 == digest for written in ours):
        return f"its mode was changed to {here.mode:04o} since it was installed"
    return "was changed by hand since it was installed"


def _forced(change: Change) -> Change:
    if change.act is not Act.DRIFTED:
        return change
    if change.before is None:
        return replace(change, act=Act.CREATE)
    return replace(change, act=Act.REMOVE if change.after is None else Act.REPLACE, saved=True)


def _lines(content: bytes | None) -> list[str]:
    return [] if content is None else content.decode(errors="replace").splitlines()


def _mode_lines(before: Present | None, after: Artifact | None) -> list[str]:
    if before is None or after is None or before.mode == after.mode:
        return []
    return [f"old mode {before.mode:04o}", f"new mode {after.mode:04o}"]
