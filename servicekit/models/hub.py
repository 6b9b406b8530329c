"""The hub, from which models are fetched; the only module that imports huggingface_hub.

The library lists models and builds addresses and headers. Files are downloaded here over httpx:
the library's own download keeps no partial file, and compares no checksum over plain HTTP.
"""

from __future__ import annotations

import os
import re
import time
from functools import partial
from http import HTTPStatus
from importlib import metadata
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from packaging.version import Version

from servicekit import __version__
from servicekit.errors import UserError
from servicekit.models.hub_cache import COMMIT, DIGEST, File, Listing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from httpx import Client

    from servicekit.models.weights import Need

TOKEN: Final = "HF_TOKEN"  # noqa: S105 - the name of a variable
OLDEST: Final = "1.31"  # huggingface_hub
LIST_TIMEOUT: Final = 30.0  # seconds for the hub to list a model
READ_TIMEOUT: Final = 10.0  # seconds without a byte of a file
RETRIES: Final = 5  # attempts without a new byte; a broken connection is resumed
PAUSE: Final = 1.0  # seconds between two attempts
LARGEST: Final = 1 << 50  # bytes; a listed file that is larger is nonsense
CHUNK: Final = 1 << 20
MOST_OVER_HTTP: Final = 50 * 10**9  # bytes; the hub gives larger files by its own protocol only

# What the library reads from the environment when it is imported. HF_DEBUG logs every request.
_OURS: Final = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_DEBUG": ""}
_LIBRARY: Final = "huggingface_hub"
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
# A file name that leaves the snapshot's directory, or is not a name at all.
_UNSAFE: Final = re.compile(r"(?:^|/)(?:\.{0,2})(?:/|$)|\\")


class ByteListener(Protocol):
    """Receives the progress of a download."""

    def moved(self, size: int) -> None:
        """Count `size` bytes more; fewer if they must be downloaded again."""

    def broke_off(self) -> None:
        """The connection broke and is being resumed."""


class HubUnreachableError(UserError):
    """The hub gave no usable answer about the model."""


def find_token(environ: Mapping[str, str], stored: str | None) -> str | None:
    """Return the token of the environment, else the one `stored`.

    Raises `UserError` for an invalid token, without showing it.
    """
    token = (environ.get(TOKEN) or stored or "").strip()
    if token and not _TOKEN.fullmatch(token):
        raise UserError(
            f"{TOKEN} is not a token: it contains spaces or non-ASCII characters",
            hint="copy it again from the hub",
        )
    return token or None


class Hub:
    """The hub at HF_ENDPOINT, accessed with `token`. Every method raises `UserError`."""

    def __init__(self, profile: str, token: str | None, environ: Mapping[str, str]) -> None:
        if environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
            raise HubUnreachableError("HF_HUB_OFFLINE is set for this command", hint="unset it")
        try:
            here = metadata.version(_LIBRARY)
        except metadata.PackageNotFoundError:
            here = ""
        if not here or Version(here) < Version(OLDEST):
            raise UserError(
                f"fetching needs {_LIBRARY} {OLDEST} or newer"
                + (f"; {here} is installed" if here else ""),
                hint="install it: `pip install 'servicekit[fetch]'`",
            )
        os.environ.update(_OURS)
        # Everything now: once privileges are dropped, its files may not be readable any more.
        import httpx
        from huggingface_hub import HfApi, errors, hf_hub_url

        endpoint = environ.get("HF_ENDPOINT") or None
        self._errors = errors
        self._url = partial(hf_hub_url, endpoint=endpoint)
        # Base of every error of the library's HTTP client: httpx until 1.x, httpx2 since 2.0.
        self._transport_error: type[Exception] = errors.HfHubHTTPError.__bases__[0]
        self._profile = profile
        self._token = token
        self._api = HfApi(
            endpoint=endpoint,
            token=token or False,
            library_name="servicekit",
            library_version=__version__,
        )
        headers = {
            "User-Agent": f"servicekit/{__version__}",
            # What is compressed in transit cannot be resumed in the middle.
            "Accept-Encoding": "identity",
        }
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        # Redirected to another host, as to the hub's storage, httpx drops the token.
        self._client = partial(
            httpx.Client,
            headers=headers,
            follow_redirects=True,
            timeout=READ_TIMEOUT,
            verify=httpx.create_ssl_context(),
        )
        self._transient, self._http_error = httpx.TransportError, httpx.HTTPError

    def list(self, need: Need) -> Listing:
        try:
            info = self._api.model_info(
                need.repo, revision=need.revision, files_metadata=True, timeout=LIST_TIMEOUT
            )
        except (self._transport_error, OSError) as error:
            raise self._refused(error, need) from None
        except self._errors.HFValidationError:
            raise UserError(
                f'"{need.repo}" is not a valid name on the hub',
                hint=f"correct the {need.role} in the profile",
            ) from None
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            raise HubUnreachableError(
                "another server answers in place of the hub",
                hint="check for a proxy or a login page of the network",
            ) from None
        files = []
        for sibling in info.siblings or ():
            digest = sibling.blob_id if sibling.lfs is None else sibling.lfs.sha256
            size = sibling.size if sibling.lfs is None else sibling.lfs.size
            file = _file(sibling.rfilename, size, digest)
            if file is None:
                raise UserError(
                    f'the hub lists "{need.repo}" with a file that cannot be fetched',
                    hint=f"choose another {need.role}",
                )
            files.append(file)
        if not isinstance(info.sha, str) or not COMMIT.fullmatch(info.sha) or not files:
            raise UserError(f'the hub lists no files of "{need.repo}"', hint="try again later")
        return Listing(info.sha, tuple(files))

    def read(
        self, need: Need, commit: str, file: File, into: BinaryIO, listener: ByteListener
    ) -> None:
        """Append to `into` the rest of `file`, beyond what an earlier attempt wrote.

        A broken connection is resumed. `OSError` is that of `into`.
        """
        if file.size > MOST_OVER_HTTP and not into.tell():
            raise UserError(
                f'"{file.name}" is too large for plain HTTP',
                hint=f"`hf download {need.repo} {file.name}` fetches it with the profile's HF_HOME",
            )
        url = self._url(need.repo, file.name, revision=commit)
        left = RETRIES
        with self._client() as http:
            while into.tell() < file.size:
                before = into.tell()
                try:
                    self._stream(http, url, need, file, into, listener)
                except self._transient as error:
                    left = RETRIES if into.tell() > before else left - 1
                    if left < 0:
                        raise _unreachable(error) from None
                    listener.broke_off()
                    time.sleep(PAUSE)
                except self._http_error as error:
                    raise _unreachable(error) from None

    def _stream(
        self,
        http: Client,
        url: str,
        need: Need,
        file: File,
        into: BinaryIO,
        listener: ByteListener,
    ) -> None:
        begun = into.tell()
        headers = {"Range": f"bytes={begun}-"} if begun else {}
        with http.stream("GET", url, headers=headers) as answer:
            if answer.status_code not in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
                code = answer.headers.get("X-Error-Code", "")
                raise self._refusal(code, answer.status_code, need)
            if begun and answer.status_code == HTTPStatus.OK:  # the server ignores ranges
                listener.moved(-begun)
                into.truncate(into.seek(0))
            for chunk in answer.iter_bytes(CHUNK):
                into.write(chunk)
                listener.moved(len(chunk))
                if into.tell() > file.size:
                    break
        if into.tell() != file.size:
            raise UserError(
                f'"{file.name}" of "{need.repo}" has another size than the hub lists',
                hint="run the command again",
            )

    def _refused(self, error: Exception, need: Need) -> UserError:
        """Turn an error of the library into one line without any text of the hub."""
        errors = self._errors
        if not isinstance(error, errors.HfHubHTTPError):
            return _unreachable(error)
        codes = {
            errors.GatedRepoError: "GatedRepo",  # before its base, RepositoryNotFoundError
            errors.RepositoryNotFoundError: "RepoNotFound",
            errors.RevisionNotFoundError: "RevisionNotFound",
        }
        code = next((code for kind, code in codes.items() if isinstance(error, kind)), "")
        return self._refusal(code, error.response.status_code, need)

    def _refusal(self, code: str, status: int, need: Need) -> UserError:
        anonymous = self._token is None
        token = (
            f"give a token that may read it: {TOKEN} in the environment, or name {TOKEN} in "
            f"secrets of the profile and run `servicekit secret set {self._profile} {TOKEN}`"
        )
        match code:
            case "GatedRepo" if anonymous:
                return UserError(
                    f"{need.title} is gated: a Hugging Face token is required",
                    hint=f"accept its terms on its page, and {token}",
                )
            case "GatedRepo":
                return UserError(
                    f"{need.title} is gated: this token has no access to it",
                    hint="accept its terms on its page, and check that the token may read it",
                )
            case "RepoNotFound":
                return UserError(
                    f'"{need.repo}" does not exist on the hub, or '
                    + ("it is private" if anonymous else "this token may not read it"),
                    hint="correct its name in the profile" + (f", or {token}" if anonymous else ""),
                )
            case "RevisionNotFound":
                return UserError(
                    f'"{need.repo}" has no revision "{need.revision}"',
                    hint=f"correct the revision of the {need.role} in the profile",
                )
            case _ if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                return UserError(
                    f"the hub rejects this token for {need.title} (HTTP {status})",
                    hint="check on the hub that it is valid and may read the model",
                )
            case _:
                return HubUnreachableError(
                    f'the hub answers HTTP {status} for "{need.repo}"',
                    hint="try again later; the downloaded part is kept",
                )


def _unreachable(error: Exception) -> UserError:
    return HubUnreachableError(
        f"the hub cannot be reached ({type(error).__name__})",
        hint="check the network and run the command again; the downloaded part is kept",
    )


def _file(name: object, size: object, digest: object) -> File | None:
    """Return a listed file; `None` if it is unsafe.

    The library passes on whatever the hub sends, terminal control codes included.
    """
    if not isinstance(name, str) or not name.isprintable() or _UNSAFE.search(name):
        return None
    if not isinstance(size, int) or not 0 <= size <= LARGEST:
        return None
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        return None
    return File(name, size, digest)
