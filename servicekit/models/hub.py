"""The hub, from which models are fetched. The only door to huggingface_hub.

That library lists, authenticates, follows redirects and takes up a connection that broke. It is not
asked to store, since its own download begins every file anew that was broken off, and compares no
checksum of what came over plain HTTP.
"""

from __future__ import annotations

import logging
import os
import re
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, Self

from packaging.version import Version
from typing_extensions import override

from servicekit import __version__
from servicekit.errors import UserError
from servicekit.models.hub_cache import COMMIT, DIGEST, File, Listing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.models.weights import Need

TOKEN: Final = "HF_TOKEN"  # noqa: S105 - the name of a variable
"""Variable, and secret of a profile, that holds the token."""
PATIENCE: Final = 30.0
"""Seconds that the hub may take to list a model."""

OLDEST: Final = "1.31"
"""First release of huggingface_hub that tells how each file gets on."""

LARGEST: Final = 1 << 50
"""Bytes of a file, at most, that anybody can mean."""
CHUNK: Final = 1 << 20
"""Bytes that are read from the hub at once."""

_OURS: Final = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Set, it logs every request.
    "HF_DEBUG": "",
}
"""What the library reads from the environment when it is imported, and how it must be."""
_LIBRARY: Final = "huggingface_hub"
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_UNSAFE: Final = re.compile(r"(?:^|/)(?:\.{0,2})(?:/|$)|\\")
"""In the name of a file that would leave the snapshot's directory, or is no name at all."""


class ByteListener(Protocol):
    """Who is told how a download gets on."""

    def moved(self, size: int) -> None:
        """Take it that so many bytes more are here, or fewer where they must come again."""

    def broke_off(self) -> None:
        """Take it that the connection broke, and is being made anew."""


class HubUnreachableError(UserError):
    """The hub gave no answer that says anything about the model."""


def find_token(environ: Mapping[str, str], stored: str | None) -> str | None:
    """Return the token of the environment, else the one `stored`; `None` where there is none.

    Raises `UserError` for one that no token can be, without showing it.
    """
    token = (environ.get(TOKEN) or stored or "").strip()
    if token and not _TOKEN.fullmatch(token):
        raise UserError(f"{TOKEN} is not a token: it has spaces or letters that none has")
    return token or None


class Hub:
    """The hub of HF_ENDPOINT, as whoever `token` says. Every method raises `UserError`."""

    def __init__(self, profile: str, token: str | None, environ: Mapping[str, str]) -> None:
        if environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
            raise HubUnreachableError("HF_HUB_OFFLINE is set for this command", hint="unset it")
        try:
            here = metadata.version(_LIBRARY)
        except metadata.PackageNotFoundError:
            here = ""
        if not here or Version(here) < Version(OLDEST):
            raise UserError(
                f"fetching needs {_LIBRARY} {OLDEST} or newer beside servicekit"
                + (f", and {here} is installed" if here else ""),
                hint="`pip install 'servicekit[fetch]'` adds it",
            )
        os.environ.update(_OURS)
        # All of it now: once privileges are given up, its files may not be readable any more.
        from huggingface_hub import HfApi, constants, errors, file_download

        # What is read at once is lost when the connection breaks; its own 10 MiB are many for a
        # slow one, and a bar that moves by them stands still.
        constants.DOWNLOAD_CHUNK_SIZE = CHUNK
        self._errors, self._http_get = errors, file_download.http_get
        self._url = partial(file_download.hf_hub_url, endpoint=environ.get("HF_ENDPOINT") or None)
        self._transport_error: type[Exception] = errors.HfHubHTTPError.__bases__[0]
        """Base of every error of its HTTP client: httpx until 1.x, httpx2 since 2.0."""
        self._profile = profile
        self._token = token
        self._api = HfApi(
            endpoint=environ.get("HF_ENDPOINT") or None,
            token=token or False,
            library_name="servicekit",
            library_version=__version__,
        )
        self._headers = {
            "User-Agent": f"servicekit/{__version__}",
            # What is compressed on its way cannot be taken up in the middle.
            "Accept-Encoding": "identity",
        }
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._ear = _Ear()
        log = logging.getLogger(_LIBRARY)
        log.handlers[:], log.propagate = [self._ear], False

    def list(self, need: Need) -> Listing:
        """List all files of what is needed, with sizes and checksums."""
        try:
            info = self._api.model_info(
                need.repo, revision=need.revision, files_metadata=True, timeout=PATIENCE
            )
        except (self._transport_error, OSError) as error:
            raise self._refusal(error, need) from None
        except self._errors.HFValidationError:
            raise UserError(
                f'nothing on the hub can be called "{need.repo}"',
                hint=f"correct the {need.role} in the profile",
            ) from None
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            raise HubUnreachableError(
                "what answers in the hub's place is not the hub",
                hint="see whether a proxy or a login page of the network is in between",
            ) from None
        files = []
        for sibling in info.siblings or ():
            digest = sibling.blob_id if sibling.lfs is None else sibling.lfs.sha256
            size = sibling.size if sibling.lfs is None else sibling.lfs.size
            file = _file(sibling.rfilename, size, digest)
            if file is None:
                raise UserError(f'the hub lists "{need.repo}" with a file that cannot be fetched')
            files.append(file)
        if not isinstance(info.sha, str) or not COMMIT.fullmatch(info.sha) or not files:
            raise UserError(f'the hub lists no files of "{need.repo}"', hint="try again later")
        return Listing(info.sha, tuple(files))

    def read(
        self, need: Need, commit: str, file: File, into: BinaryIO, watcher: ByteListener
    ) -> None:
        """Append to `into`, which ends where an earlier attempt did, what `file` has beyond that.

        A connection that breaks is made anew a few times. `OSError` is that of `into`.
        """
        done = into.tell()
        meter: Any = partial(_Meter, watcher, done)
        try:
            self._ear.watcher = watcher
            self._http_get(
                self._url(need.repo, file.name, revision=commit),
                into,
                resume_size=done,
                headers=self._headers,
                expected_size=file.size,
                tqdm_class=meter,
            )
        except self._transport_error as error:
            raise self._refusal(error, need) from None
        except OSError as error:
            if error.errno is not None:
                raise
            raise UserError(
                f'"{file.name}" of "{need.repo}" came with another size than the hub lists',
                hint="run it again",
            ) from None
        except ValueError:
            raise UserError(
                f'"{file.name}" is too large for plain HTTP',
                hint=f"`hf download {need.repo} {file.name}` fetches it with the profile's HF_HOME",
            ) from None

    def _refusal(self, error: Exception, need: Need) -> UserError:
        """Say in one line what the hub answered, without anything that the hub says itself."""
        errors = self._errors
        give = (
            f"give a token that may read it: {TOKEN} in the environment, or name {TOKEN} in "
            f"secrets of the profile and run `servicekit secret set {self._profile} {TOKEN}`"
        )
        match error:
            case errors.GatedRepoError() if self._token is None:
                return UserError(
                    f"the hub gives {need.title} to nobody unknown: it is gated",
                    hint=f"accept its terms on its page, and {give}",
                )
            case errors.GatedRepoError():
                return UserError(
                    f"the hub does not give {need.title} to the owner of this token: it is gated",
                    hint="accept its terms on its page, and see that the token may read it",
                )
            case errors.RepositoryNotFoundError():
                known = self._token is not None
                return UserError(
                    f'there is no "{need.repo}" on the hub'
                    + (" that this token may see" if known else ", or it is private"),
                    hint="correct its name in the profile" + ("" if known else f", or {give}"),
                )
            case errors.RevisionNotFoundError():
                return UserError(
                    f'"{need.repo}" has no revision "{need.revision}"',
                    hint=f"correct the revision of the {need.role} in the profile",
                )
            case errors.HfHubHTTPError() if error.response.status_code in {401, 403}:
                return UserError(
                    f"the hub refuses this token for {need.title} "
                    f"(HTTP {error.response.status_code})",
                    hint="see on the hub that it is still valid and may read the model",
                )
            case errors.HfHubHTTPError():
                return HubUnreachableError(
                    f'the hub answers HTTP {error.response.status_code} for "{need.repo}"',
                    hint="try again later; what is here already stays",
                )
            case _:
                return HubUnreachableError(
                    f"the hub cannot be reached ({type(error).__name__})",
                    hint="see that this host is online, and run it again: what is here stays",
                )


def _file(name: object, size: object, digest: object) -> File | None:
    """Make a file of what is listed; `None` where it is none.

    The library passes on whatever a hub says, codes that lead a terminal, too.
    """
    if not isinstance(name, str) or not name.isprintable() or _UNSAFE.search(name):
        return None
    if not isinstance(size, int) or not 0 <= size <= LARGEST:
        return None
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        return None
    return File(name, size, digest)


class _Meter:
    """Stands where the library expects a progress bar of tqdm."""

    def __init__(
        self, watcher: ByteListener, counted: int, *, initial: int = 0, **_: object
    ) -> None:
        self._watcher = watcher
        # A server may send the whole file although only the rest was asked for.
        if initial != counted:
            watcher.moved(initial - counted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, size: float | None = 1) -> None:
        self._watcher.moved(int(size or 0))


class _Ear(logging.Handler):
    """Hears of a broken connection by the library's log, whose lines show URLs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.watcher: ByteListener | None = None

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if self.watcher is not None:
            self.watcher.broke_off()
