"""A tunnel as a value: what is refused, what ssh is asked for, what its words mean."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import SYSTEM, USER
from supervisor.options import ServerOptions

from servicekit.errors import ExitCode, UserError
from servicekit.host import procfs
from servicekit.host.child import ExitStatus
from servicekit.install.changes import Act
from servicekit.install.installer import profile_id, removal, tunnel_id
from servicekit.install.rootfs import Tree
from servicekit.managers import Seen
from servicekit.places import below
from servicekit.profiles.trusted_toml import Document, parse
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service.manifest import Manifest, Written, fingerprint
from servicekit.service.render import LINK
from servicekit.tunnel.installation import TunnelFiles, barriers, propose
from servicekit.tunnel.keys import KeyPair
from servicekit.tunnel.outcome import SshOutput, TunnelCause, late, unusable_key
from servicekit.tunnel.state import TunnelState, read_state, sweep_ssh
from servicekit.tunnel.status import TunnelStatus, conclude
from servicekit.tunnel.values import (
    HostKey,
    Tunnel,
    TunnelError,
    address,
    checked_fingerprint,
    checked_name,
    directory,
    hold_off,
    host_keys,
    known_hosts,
    matching,
    state_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.places import Places

GOLDEN = Path(__file__).parents[2] / "golden/tunnel"
RELEASED = GOLDEN.parent / "0.1.0/tunnel"
TUNNEL = Tunnel(name="home", user="ada", host="box.example")
REVERSE = replace(TUNNEL, reverse=True)
ENDED = ExitStatus(code=255)

# The host key of GitHub's servers and its fingerprint, as GitHub publishes both.
GITHUB = HostKey(
    "ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
)
GITHUB_PRINT = "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"


def findings(**settings: Any) -> list[str]:  # noqa: ANN401 - whatever somebody writes
    """What is wrong with a tunnel that differs from a good one by `settings`."""
    with pytest.raises(TunnelError) as error:
        replace(TUNNEL, **settings)
    assert error.value.code is ExitCode.CONFIG
    return str(error.value).splitlines()


class TestAddress:
    """`user@host` becomes two words that can be nothing else to ssh."""

    @pytest.mark.parametrize(
        ("to", "user", "host"),
        [
            ("ada@box", "ada", "box"),
            ("ada.b_c-d@box-1.tail1234.ts.net", "ada.b_c-d", "box-1.tail1234.ts.net"),
            ("root@100.64.0.7", "root", "100.64.0.7"),
            ("ada@fd7a:115c:a1e0::7", "ada", "fd7a:115c:a1e0::7"),
            ("ada@[::1]", "ada", "::1"),
            ("ada@my_box.", "ada", "my_box."),
        ],
    )
    def test_names_and_addresses_are_taken(self, to: str, user: str, host: str) -> None:
        """As people write them, Tailscale's too."""
        assert address(to) == (user, host)
        assert Tunnel(name="home", user=user, host=host).to == f"{user}@{host}"

    @pytest.mark.parametrize(
        "to",
        [
            "",
            None,
            7,
            "box",
            "@box",
            "ada@",
            "ada@@box",
            "-oProxyCommand=id@box",
            "-ada@box",
            "ada@-oProxyCommand=id",
            "ada@-box",
            "ada@box-",
            "ada@box..example",
            "ada@box -oProxyCommand=id",
            "ada@box\n",
            "ada@box\x00",
            "ada@%h",
            "ada@$(id)",
            "ada@`id`",
            "ada@box;id",
            "ada@box/../x",
            "ada@box:22",
            "ada@fe80::1%eth0",
            "ada@::1::",
            "ssh://ada@box",
            "a da@box",
            "ada'@box",
            "ada@bo\u00f6x",
            "ada@" + "a" * 64,
            "ada@" + ".".join(["abc"] * 70),
            "a" * 65 + "@box",
        ],
    )
    def test_anything_that_ssh_could_take_for_more_is_refused(self, to: object) -> None:
        """Options, commands, expansions, ports and zones."""
        with pytest.raises(ValueError, match="must be user@host"):
            address(to)

    @given(to=st.text(max_size=40) | st.from_regex(r"[-@a-z:%$ .\[\]]{1,20}", fullmatch=True))
    def test_whatever_is_taken_is_two_plain_words(self, to: str) -> None:
        """No input at all becomes an option, a second argument or an expansion."""
        try:
            user, host = address(to)
        except ValueError:
            return
        argv = Tunnel(name="home", user=user, host=host).argv()
        assert argv[-1] == host
        assert argv[-2] == "--"
        assert argv[argv.index("-l") + 1] == user
        for word in (user, host):
            assert word.isascii()
            assert not word.startswith("-")
            assert not set(word) & set(" \t\n\r'\"\\$%`;&|<>()*?~#@/\0")


class TestTunnel:
    """A tunnel that exists is valid; of one that is not, all is said at once."""

    def test_every_finding_is_told(self) -> None:
        """Several mistakes are several lines, each with its key."""
        assert findings(local=80, remote=0, ssh_port=70000, alive_count=0) == [
            'tunnel "home": ssh_port: must be from 1 to 65535, not 70000',
            'tunnel "home": local: must be from 1024 to 65535, not 80',
            'tunnel "home": remote: must be from 1 to 65535, not 0',
            'tunnel "home": alive_count: must be from 1 to 100, not 0',
        ]

    @pytest.mark.parametrize("name", ["", "-x", "A", "a/b", "..", "a@b", "x" * 49, "a\n", 7])
    def test_a_name_is_one_for_units_and_paths(self, name: Any) -> None:  # noqa: ANN401 - as above
        """It becomes a unit, a Supervisor section and directories."""
        assert "a name has up to 48 of a-z, 0-9 and" in findings(name=name)[0]
        if isinstance(name, str):
            with pytest.raises(UserError, match="a name has up to 48"):
                checked_name(name)
        assert checked_name("home-2") == "home-2"

    def test_what_is_no_number_is_none(self) -> None:
        """Neither text nor a truth value is a port, nor a number a truth value."""
        assert findings(local=True, remote="18000", reverse=1) == [
            'tunnel "home": reverse: must be true or false',
            'tunnel "home": local: must be a whole number',
            'tunnel "home": remote: must be a whole number',
        ]
        assert findings(user=None, host=7) == [
            'tunnel "home": user: must be text',
            'tunnel "home": host: must be text',
        ]

    def test_a_reverse_tunnel_listens_where_it_may(self) -> None:
        """The account on the server is no superuser; of a forward tunnel it only connects there."""
        assert replace(TUNNEL, remote=80).engine_port == 80
        assert "must be from 1024" in findings(remote=80, reverse=True)[0]

    def test_its_file_is_read_back(self) -> None:
        """What is as usual is not in the file, but for the ports, which people look for."""
        assert TUNNEL.data() == {"to": "ada@box.example", "local": 18000, "remote": 18000}
        other = replace(REVERSE, ssh_port=2222, alive_interval=1)
        for tunnel in (TUNNEL, other):
            assert Tunnel.parse(Document(tunnel.data()), name="home", where="") == tunnel

    def test_what_is_wrong_in_its_file_is_told_by_line(self) -> None:
        """Unknown keys, a wrong server and wrong values, in the order of the lines."""
        said = parse(b'to = "box"\nlocl = 1\nremote = 0\n')
        with pytest.raises(TunnelError) as error:
            Tunnel.parse(said, name="home", where="/etc/tunnel.toml")
        assert str(error.value).splitlines() == [
            '/etc/tunnel.toml: line 1: to: must be user@host, not "box": the account is missing',
            '/etc/tunnel.toml: line 2: locl: unknown key; did you mean "local"?',
            "/etc/tunnel.toml: line 3: remote: must be from 1 to 65535, not 0",
        ]

    def test_a_file_without_a_server_is_refused(self) -> None:
        """Alone, that is the only finding."""
        with pytest.raises(TunnelError, match=r"^x: to: must be user@host$"):
            Tunnel.parse(Document(), name="home", where="x")

    def test_its_names_are_not_those_of_a_profile(self) -> None:
        """A profile may well be called "tunnel-home"."""
        assert TUNNEL.unit == "servicekit-tunnel@home"
        assert str(directory(SYSTEM, "home")) == "/etc/servicekit/tunnels/home"
        assert str(state_file(SYSTEM, "home")) == "/run/servicekit/tunnel@home/state.json"

    def test_it_is_told_where_the_engine_is_reached(self) -> None:
        """On this host, or in reverse on the server."""
        there = replace(TUNNEL, remote=18001)
        assert there.way == "127.0.0.1:18000 here -> 127.0.0.1:18001 on box.example"
        assert there.url == "http://127.0.0.1:18000/v1"
        back = replace(there, reverse=True)
        assert back.way == "127.0.0.1:18001 on box.example -> 127.0.0.1:18000 here"
        assert back.url == "http://127.0.0.1:18001/v1"


class TestArgv:
    """ssh does this one thing, and nothing of any configuration changes it."""

    def test_the_whole_command(self) -> None:
        """Each option is there for a reason, which is beside it in the code."""
        words = list(replace(TUNNEL, remote=18001, ssh_port=2222).argv())
        options = [words[at + 1] for at, word in enumerate(words) if word == "-o"]
        assert options == [
            "BatchMode=yes",
            "LogLevel=DEBUG1",
            "StrictHostKeyChecking=yes",
            "HostKeyAlias=home",
            "UserKnownHostsFile=known_hosts",
            "GlobalKnownHostsFile=/dev/null",
            "CheckHostIP=no",
            "UpdateHostKeys=no",
            "IdentityFile=key",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            "PreferredAuthentications=publickey",
            "ExitOnForwardFailure=yes",
            "ConnectTimeout=10",
            "ServerAliveInterval=15",
            "ServerAliveCountMax=3",
            "TCPKeepAlive=no",
            "ControlMaster=no",
            "ControlPath=none",
        ]
        rest = [w for at, w in enumerate(words) if w != "-o" and words[at - 1] != "-o"]
        assert rest == [
            *("ssh", "-F", "/dev/null", "-N", "-T", "-n"),
            *("-L", "127.0.0.1:18000:127.0.0.1:18001", "-l", "ada", "-p", "2222"),
            *("--", "box.example"),
        ]

    def test_in_reverse_the_server_listens(self) -> None:
        """On its loopback, for this host's."""
        words = replace(REVERSE, remote=18001).argv()
        assert words[words.index("-R") + 1] == "127.0.0.1:18001:127.0.0.1:18000"

    def test_ssh_itself_takes_every_option(self) -> None:
        """What this host's ssh makes of them is what is meant."""
        words = [word for word in TUNNEL.argv() if word != "-N"]
        done = subprocess.run(
            [words[0], "-G", *words[1:]], capture_output=True, text=True, check=True
        )
        said = set(done.stdout.splitlines())
        assert {
            "user ada",
            "hostname box.example",
            "localforward [127.0.0.1]:18000 [127.0.0.1]:18000",
            "exitonforwardfailure yes",
            "serveraliveinterval 15",
            "stricthostkeychecking true",
            "identityfile key",
        } <= said

    def test_the_line_for_the_server_names_one_port(self) -> None:
        """What it does not restrict by name it would allow."""
        key = "ssh-ed25519 AAAA home\n"
        assert TUNNEL.authorized_key(key) == (
            'restrict,port-forwarding,command="/bin/false",permitopen="127.0.0.1:18000",'
            'permitlisten="127.0.0.1:1" ssh-ed25519 AAAA home'
        )
        # In reverse it may connect to its own port, too: that is how it is looked through.
        assert REVERSE.authorized_key(key) == (
            'restrict,port-forwarding,command="/bin/false",permitopen="127.0.0.1:18000",'
            'permitlisten="127.0.0.1:18000" ssh-ed25519 AAAA home'
        )

    @pytest.mark.parametrize(
        ("faults", "seconds"), [(0, 0), (1, 5), (2, 10), (3, 20), (4, 40), (5, 60), (10**6, 60)]
    )
    def test_it_holds_off_longer_up_to_a_minute(self, faults: int, seconds: float) -> None:
        """A server that is away for a week is still found within a minute."""
        assert hold_off(faults) == seconds


class TestHostKeys:
    """Keys are compared as ssh shows them."""

    def test_a_fingerprint_is_that_of_ssh(self) -> None:
        """A published pair of key and fingerprint agrees."""
        assert GITHUB.fingerprint == GITHUB_PRINT

    def test_keys_are_read_from_what_ssh_writes(self) -> None:
        """In one order; comments, old and broken keys are passed over."""
        rsa = HostKey("ssh-rsa", "AAAAB3NzaC1yc2E=")
        text = (
            "# box:22 SSH-2.0-OpenSSH_9.2\n"
            f"[box]:22 ssh-rsa {rsa.blob}\n"
            f"box {GITHUB.type} {GITHUB.blob} a comment\n"
            "box ssh-dss AAAAB3NzaC1kc3M=\n"
            "box ssh-ed25519 not*base64\n"
            "box ssh-ed25519\n\n"
        )
        assert host_keys(text) == (GITHUB, rsa)
        assert host_keys(known_hosts("home", (GITHUB, rsa))) == (GITHUB, rsa)
        assert known_hosts("home", (GITHUB,)) == f"home {GITHUB.type} {GITHUB.blob}\n"

    def test_the_key_with_the_fingerprint_is_picked(self) -> None:
        """And no other one that the server has, since only this one was looked at."""
        other = HostKey("ssh-rsa", "AAAAB3NzaC1yc2E=")
        assert matching((other, GITHUB), GITHUB_PRINT, "box") == (GITHUB,)
        with pytest.raises(UserError, match='"box" has no host key SHA256:x, only SHA256:') as e:
            matching((other, GITHUB), "SHA256:x", "box")
        assert e.value.code is ExitCode.CONFIG

    @pytest.mark.parametrize("text", ["", "MD5:aa:bb", "SHA256:short", "SHA256:" + "*" * 43])
    def test_what_is_no_fingerprint_is_refused(self, text: str) -> None:
        """Before it is looked for in vain."""
        with pytest.raises(UserError, match="is not a fingerprint"):
            checked_fingerprint(text)
        assert checked_fingerprint(f" {GITHUB_PRINT}= ") == GITHUB_PRINT


def outcome(*lines: str, tunnel: Tunnel = TUNNEL) -> tuple[TunnelCause, str, str]:
    """What ssh's words mean when it has ended."""
    reader = SshOutput(tunnel)
    for line in lines:
        reader.hear(line)
    trouble = reader.conclude(ENDED)
    return trouble.cause, trouble.why, trouble.remedy


SESSION = "debug1: Entering interactive session."
SERVER_KEY = f"debug1: Server host key: ssh-ed25519 {GITHUB_PRINT}"


class TestOutcome:
    """ssh's words, as OpenSSH 9.2 says them, become one cause each."""

    def test_a_changed_host_key(self) -> None:
        """The key that was seen is in the remedy, ready to be compared."""
        cause, why, remedy = outcome(
            SERVER_KEY,
            "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@",
            "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @",
            "Host key verification failed.",
        )
        assert cause is TunnelCause.HOST_KEY
        assert why == f'the host key of "box.example" is not the pinned one, but {GITHUB_PRINT}'
        assert f"`servicekit tunnel install home --fingerprint {GITHUB_PRINT}`" in remedy

    def test_a_host_key_of_another_type(self) -> None:
        """The server has a key again, but none of a type that is pinned."""
        line = "No RSA host key is known for home and you have requested strict checking."
        assert outcome(line)[0] is TunnelCause.HOST_KEY
        assert "of another type" in outcome("Host key verification failed.")[1]

    @pytest.mark.parametrize(
        ("cause", "line"),
        [
            (TunnelCause.DENIED, "ada@box.example: Permission denied (publickey)."),
            (
                TunnelCause.DENIED,
                "Received disconnect from 100.64.0.7 port 22:2: Too many authentication failures",
            ),
            (TunnelCause.KEY, 'Load key "key": invalid format'),
            (TunnelCause.KEY, "no such identity: key: No such file or directory"),
            (TunnelCause.KEY, "Permissions 0644 for 'key' are too open."),
            (TunnelCause.SSH, "command-line: line 0: Bad configuration option: updatehostkeys"),
            (TunnelCause.SSH, "command-line line 0: Unsupported option"),
            (
                TunnelCause.SSH,
                "Unable to negotiate with 10.0.0.1 port 22: no matching host key type",
            ),
            (TunnelCause.SSH, "No user exists for uid 61234"),
            (TunnelCause.PORT_TAKEN, "bind [127.0.0.1]:18000: Address already in use"),
            (
                TunnelCause.UNREACHABLE,
                "ssh: connect to host box.example port 22: Connection refused",
            ),
            (TunnelCause.UNREACHABLE, "ssh: connect to host box.example port 22: No route to host"),
            (
                TunnelCause.UNREACHABLE,
                "ssh: Could not resolve hostname box.example: Name or service not known",
            ),
            (TunnelCause.UNREACHABLE, "Connection timed out during banner exchange"),
            (TunnelCause.UNREACHABLE, "Connection to 127.0.0.1 port 22 timed out"),
            (
                TunnelCause.UNREACHABLE,
                "kex_exchange_identification: Connection closed by remote host",
            ),
            (TunnelCause.UNREACHABLE, "Connection closed by 100.64.0.7 port 22"),
            (TunnelCause.UNREACHABLE, "Connection reset by 100.64.0.7 port 22"),
            (TunnelCause.UNKNOWN, "something new"),
        ],
    )
    def test_before_it_is_up(self, cause: TunnelCause, line: str) -> None:
        """Only what time mends is tried again."""
        trouble = SshOutput(TUNNEL)
        trouble.hear(line)
        found = trouble.conclude(ENDED)
        assert found.cause is cause
        final = cause in {TunnelCause.DENIED, TunnelCause.KEY, TunnelCause.SSH}
        assert found.code is (ExitCode.CONFIG if final else ExitCode.TEMPFAIL)
        assert found.why[0] in '"pts'
        assert "\n" not in found.why

    @pytest.mark.parametrize(
        "line",
        [
            "Connection to 127.0.0.1 closed by remote host.",
            "Connection reset by 100.64.0.7 port 22",
            "client_loop: send disconnect: Broken pipe",
            "Read from remote host 127.0.0.1: Connection reset by peer",
            "Received disconnect from 100.64.0.7 port 22:11: shutting down",
        ],
    )
    def test_once_it_was_up_it_is_lost(self, line: str) -> None:
        """The same words mean something else then."""
        cause, why, _ = outcome(SESSION, line)
        assert cause is TunnelCause.LOST
        assert why == f'the connection to "box.example" was cut: {line}'

    def test_a_frozen_connection(self) -> None:
        """After how long is what the tunnel's own settings say."""
        cause, why, _ = outcome(SESSION, "Timeout, server box.example not responding.")
        assert (cause, why) == (TunnelCause.LOST, '"box.example" did not respond for 45 s')

    def test_a_forwarding_that_the_server_refuses(self) -> None:
        """To connect to a port, or in reverse to listen on it."""
        line = "channel 1: open failed: administratively prohibited: open failed"
        cause, why, remedy = outcome(SESSION, line)
        assert cause is TunnelCause.REFUSED
        assert why == '"box.example" does not permit the tunnel to connect to 127.0.0.1:18000'
        assert "authorized_keys" in remedy
        failed = "Error: remote port forwarding failed for listen port 18000"
        for said in ("port forwarding refused", "Server has disabled port forwarding."):
            cause, why, _ = outcome(f"debug1: Remote: {said}", failed, tunnel=REVERSE)
            assert cause is TunnelCause.REFUSED
            assert "listen on 127.0.0.1:18000" in why

    def test_a_port_that_is_taken_on_the_server(self) -> None:
        """ssh says the same as of a refusal; the server's own words tell them apart."""
        line = "Error: remote port forwarding failed for listen port 18000"
        cause, why, remedy = outcome(line, tunnel=REVERSE)
        assert (cause, why) == (TunnelCause.PORT_TAKEN, "port 18000 on box.example is in use")
        assert "ClientAliveInterval" in remedy

    def test_up_is_what_each_way_needs(self) -> None:
        """Forward, ssh listens before it says so; in reverse, the server must have answered."""
        reader, back = SshOutput(TUNNEL), SshOutput(REVERSE)
        for each in (reader, back):
            each.hear(SESSION)
        assert (reader.up, back.up) == (True, False)
        back.hear("debug1: remote forward success for: listen 127.0.0.1:18000, connect x")
        assert back.up

    def test_a_greeting_is_no_trouble(self) -> None:
        """A server may say anything before it lets the tunnel in."""
        reader = SshOutput(TUNNEL)
        reader.hear("Host key verification failed.")
        reader.hear(SESSION)
        assert (reader.up, reader.trouble) == (True, None)

    def test_what_is_unknown_is_quoted_and_tried_again(self) -> None:
        """Or, where ssh said nothing at all, how it ended."""
        assert outcome("something new")[1] == 'ssh ended with exit code 255: "something new"'
        assert SshOutput(TUNNEL).conclude(ExitStatus(signal=11)).why == "ssh ended with SIGSEGV"

    def test_the_log_gets_news(self) -> None:
        """No debugging, no statistics, nothing twice in a row, and nothing unprintable."""
        reader = SshOutput(TUNNEL)
        lines = [
            "debug1: pledge: network",
            'Authenticated to 127.0.0.1 ([127.0.0.1]:22) using "publickey".',
            "channel 1: open failed: connect failed: Connection refused",
            "channel 2: open failed: connect failed: Connection refused",
            "",
            "Transferred: sent 3360, received 3416 bytes, in 0.4 seconds",
            "a \x1b[31mred\x1b[0m word\n",
            "x" * 1000,
        ]
        heard = [said for line in lines if (said := reader.hear(line))]
        assert heard == [
            "channel 1: open failed: connect failed: Connection refused",
            r"a \x1b[31mred\x1b[0m word",
            "x" * 300,
        ]

    def test_troubles_of_our_own(self) -> None:
        """A login without an end is tried again; a key that is not there is not."""
        assert late(TUNNEL).code is ExitCode.TEMPFAIL
        assert "within 30 s" in late(TUNNEL).why
        assert unusable_key(TUNNEL, "gone").code is ExitCode.CONFIG


def order(places: Places, manager: ManagerName, tunnel: Tunnel = TUNNEL) -> TunnelFiles:
    """An install of a tunnel."""
    command = ("/opt/servicekit/bin/servicekit", "tunnel", "run", tunnel.name)
    pair = KeyPair("PRIVATE\n", "ssh-ed25519 AAAA home\n")
    return TunnelFiles(tunnel, places, manager, command, pair, (GITHUB,))


CASES = {
    "system.service": order(SYSTEM, ManagerName.SYSTEMD),
    "reverse.service": order(SYSTEM, ManagerName.SYSTEMD, REVERSE),
    "user.service": order(USER, ManagerName.SYSTEMD),
    "supervisor.conf": order(SYSTEM, ManagerName.SUPERVISOR),
}


def main_file(of: TunnelFiles) -> str:
    """Text of the unit or program."""
    (text,) = (
        each.text
        for each in of.artifacts()
        if each.path.stem == of.tunnel.unit and each.mode != LINK
    )
    return text


class TestArtifacts:
    """The files of an install."""

    @pytest.mark.parametrize("file", CASES)
    def test_they_are_as_agreed(self, file: str) -> None:
        """The text equals the golden file; `WRITE_GOLDEN=1` writes it anew."""
        text, golden = main_file(CASES[file]), GOLDEN / file
        if os.environ.get("WRITE_GOLDEN"):
            golden.parent.mkdir(parents=True, exist_ok=True)
            golden.write_text(text, encoding="utf-8")
        assert text == golden.read_text(encoding="utf-8")

    def test_the_key_is_its_accounts_alone(self) -> None:
        """Under Supervisor, and for a user, that is whoever runs the manager."""
        owners = {}
        for name, of in CASES.items():
            (key,) = (each for each in of.artifacts() if each.path.name == "key")
            assert key.mode == 0o600
            owners[name] = key.owner
        assert owners == {
            "system.service": "servicekit-tunnel",
            "reverse.service": "servicekit-tunnel",
            "user.service": None,
            "supervisor.conf": None,
        }

    def test_every_directive_has_a_reason(self) -> None:
        """Each block of the unit's service begins with a comment that says why."""
        service = main_file(CASES["system.service"]).partition("[Service]")[2]
        comment = False
        for line in service.partition("[Install]")[0].splitlines():
            comment = line.startswith("#") or (comment and bool(line))
            plain = line.startswith(("ExecStart=", "User=", "SyslogIdentifier="))
            assert comment or plain or not line, line

    @pytest.mark.parametrize("file", ["system.service", "reverse.service", "user.service"])
    def test_systemd_finds_nothing_wrong(
        self, file: str, tmp_path: Path, runtime_dir: Path
    ) -> None:
        """`systemd-analyze verify` prints nothing; it exits 0 on unknown keys."""
        if shutil.which("systemd-analyze") is None:
            pytest.skip("needs systemd-analyze")
        unit = tmp_path / f"{TUNNEL.unit}.service"
        text = main_file(CASES[file]).replace("/opt/servicekit/bin/servicekit", "/bin/true")
        unit.write_text(text.replace("User=servicekit-tunnel", "User=daemon"))
        scope = ("--user",) if file == "user.service" else ()
        done = subprocess.run(
            ["systemd-analyze", *scope, "verify", str(unit)],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"XDG_RUNTIME_DIR": str(runtime_dir)},
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")

    def test_supervisor_reads_the_program(self, tmp_path: Path) -> None:
        """It is started again after anything but what somebody must look at."""
        (tmp_path / "log").mkdir()
        of = order(below(str(tmp_path)), ManagerName.SUPERVISOR)
        (tmp_path / "program.conf").write_text(main_file(of))
        (tmp_path / "main.conf").write_text("[supervisord]\n[include]\nfiles = program.conf\n")
        options = ServerOptions()
        options.realize(["-c", str(tmp_path / "main.conf"), "-n"])
        (group,) = options.process_group_configs
        (program,) = group.process_configs
        assert program.name == "servicekit-tunnel@home"
        assert program.exitcodes == [78]
        assert program.startsecs == 0
        assert program.stdout_logfile == f"{tmp_path}/log/tunnel@home.log"


MANIFEST = Manifest("home", "1", "systemd", None, 18000, (), enabled=True, files=(), directories=())


class TestPropose:
    """What an install refuses before anything is written."""

    def test_a_port_of_this_host_belongs_to_one(self, tmp_path: Path) -> None:
        """To a profile, to another tunnel, or to this one; in reverse it is the engine's own."""
        tree = Tree(str(tmp_path))
        taken = replace(MANIFEST, profile="demo")
        for places, kind in ((SYSTEM, "profile"), (SYSTEM.for_tunnels, "tunnel")):
            file = tmp_path / str(places.manifests / "demo.json").lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(taken.to_json())
            with pytest.raises(
                UserError, match=f'port 18000 on this host is used by {kind} "demo"'
            ):
                propose(CASES["system.service"], tree)
            assert propose(CASES["reverse.service"], tree).acts
            file.unlink()

    @pytest.mark.parametrize("last", ["demo", "home"])
    def test_the_target_is_shared_with_profiles(self, tmp_path: Path, last: str) -> None:
        """It starts both at boot; whoever goes last, a profile or a tunnel, takes it along."""
        tree, target = Tree(str(tmp_path)), SYSTEM.units / "servicekit.target"
        tree_path = tmp_path / str(target).lstrip("/")
        tree_path.parent.mkdir(parents=True)
        tree_path.write_text("[Unit]\n")
        tree_path.chmod(0o644)
        written = Written(target, fingerprint(target, b"[Unit]\n", 0o644), 0o644, None)
        kinds = {
            "demo": (SYSTEM.manifest("demo"), profile_id("demo")),
            "home": (SYSTEM.for_tunnels.manifest("home"), tunnel_id("home")),
        }
        for name, (path, _) in kinds.items():
            file = tmp_path / str(path).lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(replace(MANIFEST, profile=name, files=(written,)).to_json())

        def act(name: str) -> Act:
            (change,) = removal(kinds[name][1], tree, SYSTEM)[1]
            return change.act

        (first,) = {*kinds} - {last}
        assert (act(first), act(last)) == (Act.KEEP, Act.KEEP)
        tree.delete(kinds[first][0])
        assert act(last) == Act.REMOVE

    def test_a_program_that_the_account_cannot_run_is_named(self, tmp_path: Path) -> None:
        """A private /tmp hides it from the unit; under Supervisor the manager's account runs it."""
        script = tmp_path / "servicekit"
        script.write_text("#!/bin/sh\n")
        script.chmod(0o755)
        files = replace(CASES["system.service"], command=(str(script), "tunnel", "run", "home"))
        (sentence,) = barriers(files)
        assert f'"{script}"' in sentence
        assert "PrivateTmp" in sentence
        assert barriers(replace(files, manager=ManagerName.SUPERVISOR)) == []

    def test_a_tunnel_stays_with_its_manager(self, tmp_path: Path) -> None:
        """The other one would go on running it."""
        file = tmp_path / str(SYSTEM.for_tunnels.manifests / "home.json").lstrip("/")
        file.parent.mkdir(parents=True)
        file.write_text(MANIFEST.to_json())
        with pytest.raises(UserError, match="is installed for systemd, not supervisor"):
            propose(CASES["supervisor.conf"], Tree(str(tmp_path)))


class TestReleased:
    """A tunnel that version 0.1.0 installed still works, and is updated and removed as a whole."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Tree:
        """An image with the files that 0.1.0 wrote."""
        tree = Tree(str(tmp_path))
        home = directory(SYSTEM, "home")
        for name, path in {
            "manifest.json": SYSTEM.for_tunnels.manifest("home"),
            "tunnel.toml": home / "tunnel.toml",
            "known_hosts": home / "known_hosts",
            "servicekit-tunnel@home.service": SYSTEM.units / "servicekit-tunnel@home.service",
        }.items():
            file = tmp_path / str(path).lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(RELEASED / name, file)
            file.chmod(0o644)
        return tree

    def test_its_file_and_state_are_read(self) -> None:
        """Settings, and the faults that decide how long it holds off."""
        document = parse((RELEASED / "tunnel.toml").read_bytes())
        tunnel = Tunnel.parse(document, name="home", where="tunnel.toml")
        assert tunnel == replace(TUNNEL, ssh_port=2222, alive_count=4)
        found = read_state(RELEASED / "state.json")
        assert found is not None
        assert (found.cause, found.faults, found.code) == ("unreachable", 3, 75)

    def test_it_is_updated_without_drift(self, tree: Tree) -> None:
        """Its files count as ours: the unit is replaced, its settings and pins are kept."""
        tunnel = replace(TUNNEL, ssh_port=2222, alive_count=4)
        proposal = propose(order(SYSTEM, ManagerName.SYSTEMD, tunnel), tree)
        acts = {change.path: change.act for change in proposal.changes}
        assert acts[SYSTEM.units / f"{TUNNEL.unit}.service"] is Act.REPLACE
        home = directory(SYSTEM, "home")
        assert (acts[home / "tunnel.toml"], acts[home / "known_hosts"]) == (Act.KEEP, Act.KEEP)

    def test_it_is_removed_without_a_rest(self, tree: Tree) -> None:
        """No file of it is taken for somebody else's."""
        own, changes = removal(tunnel_id("home"), tree, SYSTEM)
        assert own.servicekit == "0.1.0"
        assert {change.act for change in changes} == {Act.REMOVE}
        assert len(changes) == 3


def state(phase: str, **values: Any) -> TunnelState:  # noqa: ANN401 - a TunnelState's
    """What a service that lives has published: ours, since this process does."""
    me = procfs.stat(os.getpid())
    assert me is not None
    return TunnelState("home", phase, "2026-01-31T12:00:00+00:00", me.pid, me.started, **values)


DEAD: dict[str, Any] = {"pid": 1, "pid_started": 0}
LOST = {"cause": "lost", "why": "it was cut", "faults": 1, "code": 75}


class TestConclude:
    """What is known of a tunnel before it is looked through."""

    @pytest.mark.parametrize(
        ("seen", "last", "standing", "why"),
        [
            (None, None, "stopped", "its service was never started"),
            (Seen("inactive"), None, "stopped", "its service was never started"),
            (Seen("activating"), None, "down", "its service is about to start"),
            (
                Seen("failed", exit_code=78),
                None,
                "down",
                "its service did not start (exit code 78)",
            ),
            (Seen("failed"), None, "down", "its service did not start"),
            (Seen("failed", text="no key"), None, "down", "no key"),
            (Seen("active"), state("up"), "up", "the tunnel is up"),
            (None, state("up"), "up", "the tunnel is up"),
            # The file can name any process; the manager knows which one is the service.
            (Seen("active", pid=1), state("up"), "down", "its service is about to start"),
            (Seen("inactive"), state("up"), "stopped", "it was stopped"),
            (
                Seen("activating"),
                state("connecting"),
                "down",
                "connecting to ada@box.example",
            ),
            (
                Seen("activating"),
                state("connecting", **LOST | {"code": None}),
                "down",
                "connecting to ada@box.example again after: it was cut",
            ),
            (
                Seen("activating"),
                state("waiting", **LOST | {"code": None}),
                "down",
                "it was cut; retrying",
            ),
            (Seen("activating"), state("down", **LOST), "down", "it was cut; retrying"),
            (
                Seen("activating"),
                replace(state("down", **LOST), **DEAD),
                "down",
                "it was cut; retrying",
            ),
            (Seen("inactive"), replace(state("down", **LOST), **DEAD), "down", "it was cut"),
            (
                Seen("failed"),
                replace(state("down", cause="denied", why="not let in", code=78), **DEAD),
                "down",
                "not let in",
            ),
            (
                Seen("activating"),
                state("waiting", cause="port-taken", why="port 18000 is taken"),
                "port-taken",
                "port 18000 is taken; retrying",
            ),
            (
                Seen("inactive"),
                replace(state("stopped", code=0), **DEAD),
                "stopped",
                "it was stopped",
            ),
            # Killed, and not started again yet: what it last said of itself is not believed.
            (
                Seen("activating"),
                replace(state("up"), **DEAD),
                "down",
                "its service is about to start",
            ),
            (Seen("inactive"), replace(state("up"), **DEAD), "stopped", "it was stopped"),
        ],
    )
    def test_the_service_and_the_manager_say_how_it_is(
        self, seen: Seen | None, last: TunnelState | None, standing: str, why: str
    ) -> None:
        """A service that lives is believed, a dead one only in what it ended with."""
        report = conclude(TUNNEL, MANIFEST, seen, last)
        assert (report.state, report.why) == (standing, why)
        assert report.as_json()["url"] == "http://127.0.0.1:18000/v1"

    def test_the_manager_knows_best_what_starts_at_boot(self) -> None:
        """An administrator may have disabled it."""
        assert conclude(TUNNEL, MANIFEST, Seen("inactive", enabled=False), None).enabled is False
        assert conclude(TUNNEL, MANIFEST, Seen("inactive"), None).enabled is True

    def test_every_standing_is_a_word_of_its_own(self) -> None:
        """As `tunnel status --help` lists them."""
        assert {*TunnelStatus} == {"up", "engine-down", "port-taken", "down", "stopped"}


class TestState:
    """What is published is read with care."""

    def test_what_is_no_state_is_none(self, tmp_path: Path) -> None:
        """A torn or foreign file is as good as none; keys of later versions are passed over."""
        file = tmp_path / "state.json"
        assert read_state(file) is None
        hostile = (
            '"faults": "many"',
            '"since": "yesterday"',
            '"code": ["x"]',
            '"failed_at": NaN',
            '"pid": -1',
        )
        whole = '{"tunnel": "home", "phase": "up", "since": "", "pid": 1, "pid_started": 0, %s}'
        for text in ("", "[]", "7", '{"tunnel": "home"}', *(whole % each for each in hostile)):
            file.write_text(text)
            assert read_state(file) is None
        file.write_text(
            '{"tunnel": "home", "phase": "up", "since": "", "pid": 1, "pid_started": 0, "later": 1}'
        )
        found = read_state(file)
        assert found is not None
        assert not found.is_alive

    def test_only_the_ssh_that_was_meant_is_ended(self, tmp_path: Path) -> None:
        """Not one with another start time, nor one of a service that lives."""
        sleeper = subprocess.Popen(["sleep", "60"])
        try:
            began = procfs.stat(sleeper.pid)
            assert began is not None
            file = tmp_path / "state.json"
            for spared in (
                replace(state("up"), **DEAD, ssh_pid=sleeper.pid, ssh_started=began.started + 1),
                replace(state("up"), ssh_pid=sleeper.pid, ssh_started=began.started),
            ):
                write(file, spared)
                sweep_ssh(file)
                assert sleeper.poll() is None
            meant = replace(state("up"), **DEAD, ssh_pid=sleeper.pid, ssh_started=began.started)
            write(file, meant)
            if os.geteuid() == 0:
                os.chown(file, 65534, 65534)
                sweep_ssh(file)
                assert sleeper.poll() is None, "who owns the file decides whom root kills"
                os.chown(file, 0, 0)
            sweep_ssh(file)
            assert sleeper.wait(10) == -9
        finally:
            sleeper.kill()
            sleeper.wait()

    def test_a_link_is_not_believed(self, tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
        """The tunnel's account can replace its state file by a link to a file of root's."""
        began = procfs.stat(sleeper.pid)
        assert began is not None
        meant = replace(state("up"), **DEAD, ssh_pid=sleeper.pid, ssh_started=began.started)
        elsewhere = tmp_path / "elsewhere"
        for kind in ("symbolic", "hard"):
            write(elsewhere, meant)
            file = tmp_path / f"{kind}/state.json"
            file.parent.mkdir()
            if kind == "symbolic":
                file.symlink_to(elsewhere)
            else:
                file.hardlink_to(elsewhere)
            sweep_ssh(file)
            assert sleeper.poll() is None, kind
        linked = tmp_path / "directory"
        linked.symlink_to(tmp_path / "hard")
        elsewhere.unlink()
        sweep_ssh(linked / "state.json")
        assert sleeper.poll() is None
        sweep_ssh(tmp_path / "hard/state.json")
        assert sleeper.wait(10) == -9

    def test_a_directory_of_another_account_is_not_believed(
        self, tmp_path: Path, sleeper: subprocess.Popen[bytes]
    ) -> None:
        """Root's own file there may have been moved or linked by that account."""
        if os.geteuid() != 0:
            pytest.skip("giving a directory away needs root")
        began = procfs.stat(sleeper.pid)
        assert began is not None
        file = tmp_path / "theirs/state.json"
        write(file, replace(state("up"), **DEAD, ssh_pid=sleeper.pid, ssh_started=began.started))
        os.chown(file.parent, 65534, 65534)
        sweep_ssh(file)
        assert sleeper.poll() is None


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that ends only when it is killed."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def write(file: Path, what: TunnelState) -> None:
    """Publish a state."""
    from servicekit.watchdog.publish import write_state

    write_state(file, what)
