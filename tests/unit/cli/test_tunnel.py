"""`servicekit tunnel` says what is wrong in one line, before it asks anybody for anything."""

from __future__ import annotations

import json
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest
from unit.cli.cli_runs import refused, said, servicekit

from servicekit.tunnel import keys

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = ("start", "stop", "restart", "logs")
SUBVERBS = ("install", "uninstall", *ORDERS, "status", "list", "run")


@pytest.fixture
def site(tmp_path: Path) -> tuple[str | Path, ...]:
    """Options for a site of its own, whose supervisord does not answer."""
    config = tmp_path / "servicekit.toml"
    config.write_text(
        f'root = "{tmp_path}"\nmanager = "supervisor"\nsupervisor_socket = "{tmp_path}/no.sock"\n'
    )
    config.chmod(0o644)
    return "--user", "--config", config, "tunnel"


@pytest.mark.parametrize("verb", SUBVERBS)
def test_each_verb_has_help_whose_first_line_is_whole(verb: str) -> None:
    """In the list of verbs no line is cut off, and no list of states is run together."""
    listed = next(line for line in said("tunnel", "-h").splitlines() if line.split()[:1] == [verb])
    assert not listed.endswith("...")
    assert "\n    engine-down  the tunnel is up" in said("tunnel", "status", "--help")


def test_nothing_is_installed(site: tuple[str | Path, ...]) -> None:
    """Said beside the result, which is empty."""
    done = servicekit(*site, "status")
    assert (done.code, done.out) == (0, "")
    assert "no tunnel is installed; see `servicekit --user tunnel install NAME --to" in done.err
    assert json.loads(said(*site, "status", "--json")) == []
    assert 'tunnel "home" is not installed' in refused(*site, "status", "home")
    for verb in (*ORDERS, "uninstall"):
        assert 'tunnel "home" is not installed' in refused(*site, verb, "home")
    assert 'tunnel "home" is not installed' in refused(*site, "run", "home", code=78)


def test_the_server_must_be_named_once(site: tuple[str | Path, ...]) -> None:
    """And as an account and a host, whatever else that could be to ssh."""
    assert refused(*site, "install", "home") == (
        'servicekit: tunnel "home" is not installed yet; name its server with --to USER@HOST\n'
    )
    text = refused(*site, "install", "home", "--to=-oProxyCommand=id@box", code=78)
    assert 'must be user@host, not "-oProxyCommand=id@box"' in text


@pytest.mark.parametrize("name", ["../x", "Home", "a@b", "-x"])
def test_a_name_that_is_none_reaches_no_path(site: tuple[str | Path, ...], name: str) -> None:
    """Neither for an install nor for the service."""
    for words in (("install", "--to", "ada@box", "--", name), ("run", "--", name)):
        assert "a name has up to 48 of a-z, 0-9 and" in refused(*site, *words, code=78)


def test_every_mistake_is_told_at_once(site: tuple[str | Path, ...]) -> None:
    """One line each."""
    words = ("--to", "box", "--local", "80", "--remote", "0")
    lines = refused(*site, "install", "home", *words, code=78).splitlines()
    assert [line.split(": ")[2] for line in lines] == ["to", "local", "remote"]


def test_a_server_that_shows_no_key_is_not_installed(
    site: tuple[str | Path, ...], tmp_path: Path
) -> None:
    """There is nothing to pin, and nothing is left on disk."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = str(mute.getsockname()[1])
    words = ("--to", "ada@127.0.0.1", "--ssh-port", port)
    text = refused(*site, "install", "home", *words)
    assert f'"127.0.0.1" shows no host key on port {port}' in text
    assert {path.name for path in tmp_path.iterdir()} == {"servicekit.toml"}


class TestKeys:
    """Keys are OpenSSH's business; here it is only said what it refuses."""

    def test_a_pair_belongs_together(self, tmp_path: Path) -> None:
        """A new key has a comment that says whose it is; a key that is named is read."""
        pair = keys.make("servicekit-home@box")
        assert pair.public.split()[::2] == ["ssh-ed25519", "servicekit-home@box"]
        file = tmp_path / "id"
        file.write_text(pair.private)
        file.chmod(0o600)
        assert keys.read(file).private == pair.private
        assert keys.read(file).public.split()[1] == pair.public.split()[1]

    def test_a_key_that_a_service_cannot_use_is_refused(
        self, site: tuple[str | Path, ...], tmp_path: Path
    ) -> None:
        """With what ssh-keygen says of it, and never with what is in it."""
        file = tmp_path / "id"
        words = ("install", "home", "--to", "ada@127.0.0.1", "--identity", file)
        assert f'key "{file}" cannot be read' in refused(*site, *words)
        file.write_text("no key at all")
        file.chmod(0o600)
        text = refused(*site, *words)
        assert f'key "{file}" cannot be used: ' in text
        assert "no key at all" not in text
        file.write_text(keys.make("x").private)
        file.chmod(0o644)
        assert "bad permissions" in refused(*site, *words)
        file.unlink()
        locked = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "a passphrase", "-f", str(file)]
        subprocess.run(locked, check=True)
        assert "a service needs a key without a passphrase" in refused(*site, *words)
