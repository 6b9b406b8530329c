"""`fetch`: downloads weights, so that an engine without a network can start."""

from __future__ import annotations

import dataclasses
import os
import pwd
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer

from servicekit.cli.options import AsJson, ForUser, ProfileName, session_of
from servicekit.cli.orders import order_of
from servicekit.cli.output import as_json, duration, note, ours, warn
from servicekit.cli.session import Session
from servicekit.cli.transfer import Display, display
from servicekit.errors import UserError, refused
from servicekit.install.installation import propose
from servicekit.install.installer import ensure_account
from servicekit.install.rootfs import Tree
from servicekit.install.transaction import Directory, make_directory
from servicekit.managers import accounts
from servicekit.models.download import FetchState, check_space, complete, free_bytes, stand
from servicekit.models.hub import TOKEN, Hub, HubUnreachableError, find_token
from servicekit.models.hub_cache import Listing, Repository, cache_directory
from servicekit.models.memory.units import counted, short
from servicekit.models.weights import Need, needs, select
from servicekit.places import Places
from servicekit.profiles import credentials
from servicekit.profiles.model import Profile
from servicekit.profiles.vocabulary import PACKAGED
from servicekit.service.access import only_root_changes
from servicekit.service.host import find_model
from servicekit.service.missing import missing
from servicekit.service.plan import hub_cache


def fetch(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Verify the local files by their checksums, without downloading."
        ),
    ] = False,
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Download the weights of a profile.

    The engine then starts without a network. Files that are present are verified and not downloaded
    again; an interrupted download resumes. As root, the service's account writes the files. With
    --check, exit code 1 if a file is missing or damaged.
    """
    session = session_of(ctx, user=user)
    recipe = session.profile(profile)
    lacking = missing(recipe, session.places)
    if lacking is not None and (absent := [each for each in lacking.lacks if each.need is None]):
        raise UserError(absent[0].why, hint=f"{lacking.remedy} fixes this")
    wanted = needs(recipe)
    began = time.monotonic()
    try:
        with display() as shown:
            result = _fetched(session, recipe, wanted, shown, check=check)
    except KeyboardInterrupt:
        if not check:
            note(f"the files so far are kept: `servicekit fetch {profile}` resumes")
        raise
    except OSError as error:
        where = f'"{error.filename}"' if error.filename else "a file of the cache"
        raise refused(f"{where} cannot be read", error) from None
    if result.fetched and recipe.revision is None:
        _note_of_pin(result.after[0])
    if json:
        as_json(result.json())
    else:
        for line in result.lines(time.monotonic() - began):
            typer.echo(line)
    raise typer.Exit(0 if result.complete else 1)


@dataclasses.dataclass(frozen=True)
class _Result:
    profile: Profile
    cache: Path
    before: Sequence[FetchState]
    after: Sequence[FetchState]
    reachable: bool  # whether the hub itself said what belongs to each model

    @property
    def complete(self) -> bool:
        return not any(standing.wanting or not standing.named for standing in self.after)

    @property
    def fetched(self) -> int:
        return sum(each.left for each in self.before) - sum(each.left for each in self.after)

    def json(self) -> dict[str, Any]:
        return {
            "profile": self.profile.name,
            "cache": str(self.cache),
            "complete": self.complete,
            "reachable": self.reachable,
            "fetched_bytes": self.fetched,
            "left_bytes": sum(each.left for each in self.after),
            "free_bytes": free_bytes(self.cache),
            "models": [
                {
                    "role": each.need.role,
                    "model": each.need.repo,
                    "revision": each.need.revision,
                    "commit": each.listing.commit,
                    "files": len(each.listing.files),
                    "bytes": each.listing.size,
                    "left_bytes": each.left,
                    "named": each.named,
                    "wanting": [file.name for file in each.wanting],
                    "damaged": [file.name for file in each.wanting if file.digest in each.damaged],
                }
                for each in self.after
            ],
        }

    def lines(self, seconds: float) -> Iterator[str]:
        name = self.profile.name
        for each in self.after:
            about = f"{each.need.role} {each.need.repo} at {each.listing.commit[:12]}"
            size = f"{counted(len(each.listing.files), 'file')}, {short(each.listing.size)}"
            if not each.wanting:
                also = (
                    ""
                    if each.named
                    else f", not under its names: `servicekit fetch {name}` fixes this"
                )
                yield ours(f"{name}: {about}: {size}, present and complete{also}")
                continue
            yield f"{name}: {about}: {size}, {short(each.left)} of them missing"
            for file in each.wanting:
                state = "damaged" if file.digest in each.damaged else "missing"
                yield f"  {state:8} {file.name} ({short(file.size)})"
        if not self.after:
            yield f"{name}: nothing to fetch: {_at_hand(self.profile)}"
        elif self.fetched:
            yield f"{name}: {short(self.fetched)} fetched in {duration(seconds)}"
        elif any(each.left for each in self.after):
            yield f"{name}: {short(free_bytes(self.cache))} are free at {self.cache}"


def _at_hand(profile: Profile) -> str:
    """Describe where a model is that needs no download."""
    if packaged := PACKAGED.match(profile.model):
        where = find_model(profile)
        return f'its model is part of the Python package "{packaged["package"]}" ({where})'
    if profile.model.startswith("/"):
        return f"its model is {profile.model}"
    return "the engine downloads the model itself"


def _fetched(
    session: Session, profile: Profile, wanted: Sequence[Need], shown: Display, *, check: bool
) -> _Result:
    cache = Path(hub_cache(profile, session.places))
    if not wanted:
        return _Result(profile, cache, (), (), reachable=False)
    _note_of_other_cache(cache)
    try:
        hub = hub_of(session, profile)
        listings = [hub.list(need) for need in wanted]
    except HubUnreachableError as error:
        standings = _offline(session, profile, wanted, error, shown)
        return _Result(profile, cache, standings, standings, reachable=False)
    chosen = []
    for need, listing in zip(wanted, listings, strict=True):
        names = set(select(need, [file.name for file in listing.files]))
        files = tuple(file for file in listing.files if file.name in names)
        chosen.append((need, dataclasses.replace(listing, files=files)))
    if not check:
        _become_the_service(session, profile, cache)

    here = [(need, Repository(cache, need.repo), listing) for need, listing in chosen]
    shown.stage("checking", sum(_size_here(each, listing) for _, each, listing in here))
    before = [stand(*each, shown) for each in here]
    if check:
        return _Result(profile, cache, before, before, reachable=True)
    check_space(before, cache)
    begun = sum(each.begun for each in before)
    shown.stage("fetching", sum(each.left for each in before) + begun, begun)
    for standing in before:
        complete(standing, hub, shown)
    after = [standing.completed() for standing in before]
    return _Result(profile, cache, before, after, reachable=True)


def _size_here(repository: Repository, listing: Listing) -> int:
    """Bytes of local files with the checksums of `listing`."""
    blobs = {repository.blob(file.digest) for file in listing.files}
    return sum(blob.stat().st_size for blob in blobs if blob.is_file())


def _offline(
    session: Session, profile: Profile, wanted: Sequence[Need], error: UserError, shown: Display
) -> list[FetchState]:
    """Check local files by their own names, because the hub cannot be reached."""
    lacking = missing(profile, session.places)
    if lacking is not None:
        raise UserError(f"{error.message}, and {lacking.lacks[0].why}", hint=error.hint) from None
    here = []
    for need in wanted:
        repository = Repository(Path(hub_cache(profile, session.places)), need.repo)
        listing = repository.listing(need.revision)
        if listing is not None:
            named = tuple(file for file in listing.files if file.digest)
            here.append((need, repository, dataclasses.replace(listing, files=named)))
    shown.stage("checking", sum(listing.size for _, _, listing in here))
    standings = [stand(*each, shown) for each in here]
    note(f"{error.message}: compared the local files with their own checksums")
    return standings


def hub_of(session: Session, profile: Profile) -> Hub:
    """Return the hub, accessed with the token of the environment or of the profile."""
    stored = None
    if TOKEN in profile.secrets:
        try:
            folder = credentials.directory(profile, session.places, os.environ)
            stored = (folder / TOKEN).read_text(encoding="utf-8")
        except (FileNotFoundError, PermissionError):
            stored = None  # the hub may well give the model to anybody
    return Hub(profile.name, find_token(os.environ, stored), os.environ)


def _become_the_service(session: Session, profile: Profile, cache: Path) -> None:
    """As root, go on as the account that will read the files, for good.

    What it owns, it may also exchange: as root, a link that it left in the cache could have any
    file of the system overwritten.
    """
    if os.geteuid() != 0:
        return
    tree, own = Tree(), session.manifests().get(profile.name)
    manager = session.manager_name(None if own is None else own.manager)
    order = order_of(session, profile, tree, manager=manager)
    if order.user is None:
        return
    if not accounts.exists(order.user):
        ensure_account(order.user, propose(order, tree).sysusers, tree)
        note(f'created the account "{order.user}" of the service')
    ours = PurePosixPath(session.places.cache)
    # Below its own cache the account makes directories itself.
    top = ours if PurePosixPath(cache).is_relative_to(ours) else PurePosixPath(cache)
    for path in tree.missing([top]):
        if not only_root_changes(Path(path.parent)):
            break  # others could have put a link on the way: the account makes the rest itself
        make_directory(tree, Directory(path, 0o755, order.user))
    user = pwd.getpwnam(order.user)
    os.umask(0o022)
    os.initgroups(user.pw_name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


def note_missing(profile: Profile, places: Places, root: Path = Path("/")) -> None:
    """Warn of what the engine will not find, with its size and the command that downloads it."""
    lacking = missing(profile, places, root)
    for lack in lacking.lacks if lacking is not None else ():
        if lack.need is None:
            warn(lack.why)
            continue
        size = "" if lack.size is None else f" (about {short(lack.size)})"
        begun = f", {short(lack.begun)} of it downloaded" if lack.begun else ""
        offline = profile.service.network == "loopback"
        then = "service has no network" if offline else "first start will download it"
        fetch = f"`servicekit fetch {profile.name}` downloads it now"
        warn(f"{lack.why}{size}{begun}; the {then}: {fetch}")


def _note_of_other_cache(cache: Path) -> None:
    """Print that a variable of this shell does not move the service's cache."""
    named = [name for name in ("HF_HUB_CACHE", "HF_HOME") if os.environ.get(name)]
    if named and str(cache_directory(os.environ)) != str(cache):
        names = " and ".join(named)
        note(f"{names} of this shell does not apply to the service, whose cache is {cache}")


def _note_of_pin(standing: FetchState) -> None:
    """Print how to pin the fetched revision."""
    if standing.need.role == "model" and standing.need.gguf is None:
        commit = standing.listing.commit
        note(f'the profile has no revision; to pin this one, add revision = "{commit}"')
