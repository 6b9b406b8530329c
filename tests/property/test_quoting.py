"""Quoting is proved by reading back with the very parser that reads it in service."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from machines.supervisor import Supervisor
from machines.waiting import wait_until
from supervisor.options import ProcessConfig, ServerOptions
from supervisor.process import Subprocess

from servicekit.quoting import (
    Reference,
    UnquotableError,
    sh_default,
    sh_word,
    supervisor_logfile,
    supervisor_value,
    supervisor_words,
    systemd_path,
    systemd_value,
    systemd_words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from machines.systemd import Machine

# What has a meaning to a shell, to systemd, to Supervisor, to its file parser or to Python's "%".
MEANINGFUL = st.sampled_from(
    [
        *" '\"\\%$;#\n\t\r-@:+!|&`~*?{}()[]<>=^,\x01\x07\x1b\x7f\x80\x85\xa0é\u2028\ufeff😀",
        *("$$", "${HOME}", "$HOME", "$(id)", "%%", "%n", "%s", "%(here)s", "%(ENV_HOME)s", "%("),
        *(" ;", " #", "; ", "\n#", "\n;", "\n[x]", "\n\n", "\r\n", "--", "\\n", "\\x41", "''"),
    ]
)
CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")
TEXT = st.lists(MEANINGFUL, max_size=8).map("".join) | st.text(CHARACTERS, max_size=12)
LONG = "a long $HOME %n ; 'word' " * 5_000
VARIABLES = st.dictionaries(
    st.from_regex(r"QUOTE_[A-Z0-9_]{1,8}", fullmatch=True), TEXT, max_size=3
)

NUMBERS = itertools.count()

# A real parser in another process has no fixed time to answer in.
real = settings(deadline=None)
# Examples that are batches of many commands: a failing one is quick to read, and slow to shrink.
whole = [Phase.explicit, Phase.reuse, Phase.generate]
batch = settings(deadline=None, max_examples=20, phases=whole)

NONCHARACTER = "[\ufdd0-\ufdef{}]".format(
    "".join(chr(plane * 0x10000 + low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
)


def without(pattern: str) -> Callable[[str], bool]:
    """A filter for texts in which nothing matches `pattern`."""
    return lambda text: re.search(pattern, text) is None


SYSTEMD_TEXT = TEXT.filter(without(NONCHARACTER))


def recorded(commands: list[list[str]]) -> bytes:
    """What the recording programs write when run by these commands, one after the other."""
    return "".join(f"{word}\0" for command in commands for word in ("/bin/sh", *command)).encode()


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all examples, in whose path every dialect has something to quote."""
    path = tmp_path_factory.mktemp("quoting") / "a dir; 100%n $HOME 'é'"
    path.mkdir()
    return path


@pytest.fixture(scope="session", params=["bash", "bash --posix", "dash"])
def shell(request: pytest.FixtureRequest) -> list[str]:
    """The command of each shell that a wrapper may meet as `sh`."""
    command: list[str] = request.param.split()
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    return command


def run_script(shell: list[str], script: Path, text: str, variables: dict[str, str]) -> list[str]:
    """Run `text` as a script file and return what it printed, split at NUL."""
    script.write_bytes(text.encode())
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **variables}
    done = subprocess.run([*shell, script], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode().split("\0")[:-1]


class TestSh:
    """POSIX sh, for wrappers."""

    @real
    @given(data=st.data(), variables=VARIABLES)
    def test_a_shell_reads_every_word_back(
        self, data: st.DataObject, variables: dict[str, str], shell: list[str], directory: Path
    ) -> None:
        """Literals, references and mixtures of both reach the program that the wrapper execs."""
        references = [st.just(Reference(name)) for name in variables]
        piece: st.SearchStrategy[str | Reference] = st.one_of(TEXT, *references)
        words = [tuple(word) for word in data.draw(st.lists(st.lists(piece), min_size=1))]
        script = f"exec printf '%s\\0' {' '.join(map(sh_word, words))}\n"
        expected = [
            "".join(variables[p.name] if isinstance(p, Reference) else p for p in word)
            for word in words
        ]
        assert run_script(shell, directory / "words.sh", script, variables) == expected

    def test_a_shell_reads_a_long_word_back(self, shell: list[str], directory: Path) -> None:
        """A word of 125,000 characters is read back."""
        script = f"exec printf '%s\\0' {sh_word((LONG,))}\n"
        assert run_script(shell, directory / "long.sh", script, {}) == [LONG]

    @real
    @given(default=TEXT, override=st.none() | TEXT)
    def test_a_default_gives_way_to_a_value_only(
        self, default: str, override: str | None, shell: list[str], directory: Path
    ) -> None:
        """A tunable has its default when unset or empty, else exactly the value from outside."""
        script = f"set -eu\n{sh_default('QUOTED', default)}\nprintf '%s\\0' \"$QUOTED\"\n"
        variables = {} if override is None else {"QUOTED": override}
        found = run_script(shell, directory / "default.sh", script, variables)
        assert found == [override or default]

    def test_a_plain_word_is_written_bare(self) -> None:
        """Quotes appear only where they are needed, in each dialect."""
        assert sh_word(("--model=org/name-27B",)) == "--model=org/name-27B"
        assert sh_word(("--port=", Reference("PORT"))) == '--port="${PORT}"'
        assert sh_word(("",)) == sh_word(()) == "''"
        assert systemd_words(["/bin/x", "-o", "a=1,2", "5%"]) == "/bin/x -o a=1,2 5%%"
        assert supervisor_words(["/bin/x", "-o", "a=1,2", "5%"]) == "/bin/x -o a=1,2 5%%"

    @pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A\n", "Ä", "A}"])
    def test_a_reference_names_a_variable(self, name: str) -> None:
        """What sh would not take for a variable's name is refused, wherever it is given."""
        for refused in (Reference, lambda name: sh_default(name, "")):
            with pytest.raises(UnquotableError, match="not the name of a variable"):
                refused(name)


def read_by_supervisor(directory: Path, settings: str) -> ProcessConfig:
    """Supervisor's reading of a program with `settings`, in an included file as in service."""
    (directory / "program.conf").write_bytes(f"[program:quoted]\n{settings}\n".encode())
    main = directory / "supervisord.conf"
    main.write_text("[supervisord]\n[include]\nfiles = program.conf\n")
    options = ServerOptions()
    options.realize(["-c", str(main), "-n"])
    (group,) = options.process_group_configs
    (program,) = group.process_configs
    return program


@pytest.fixture(scope="module")
def private_supervisord() -> Iterator[Supervisor]:
    """One running supervisord for all examples."""
    supervisor = Supervisor()
    try:
        supervisor.start()
        yield supervisor
    finally:
        supervisor.remove()


class TestSupervisor:
    """Supervisor's configuration."""

    @real
    @given(arguments=st.lists(TEXT.filter(without("\r"))))
    def test_supervisor_reads_every_command_back(
        self, arguments: list[str], directory: Path
    ) -> None:
        """What Supervisor is about to execute is the command that was written."""
        command = ["/bin/true", *arguments]
        program = read_by_supervisor(directory, f"command={supervisor_words(command)}")
        assert Subprocess(program).get_execv_args() == ("/bin/true", command)

    @real
    @given(text=TEXT)
    def test_supervisor_reads_every_value_back_or_it_is_refused(
        self, text: str, directory: Path
    ) -> None:
        """A plain value is read back as it was, or was refused for one of the five reasons."""
        try:
            value = supervisor_value(text)
        except UnquotableError:
            assert re.search(r"[\r\n]|^\s|\s$|\s[;#]|%\(here\)s", text)
            return
        program = read_by_supervisor(directory, f"command=/bin/true\nserverurl={value}")
        assert program.serverurl == text

    @real
    @given(name=TEXT.filter(without("[/\0\r\n]")))
    def test_supervisor_reads_the_path_of_a_log_back(self, name: str, directory: Path) -> None:
        """Supervisor expands these twice, unlike other values."""
        path = f"{directory}/{name}."
        try:
            value = supervisor_logfile(path)
        except UnquotableError:
            return
        program = read_by_supervisor(directory, f"command=/bin/true\nstdout_logfile={value}")
        assert program.stdout_logfile == path

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("a\nb", "cannot contain U+000A"),
            ("a\rb", "cannot contain U+000D"),
            (" a", "cannot begin or end with white space"),
            ("a\u2028", "cannot begin or end with white space"),
            ("a ;b", 'cannot contain U+003B ";" after white space, where it begins a comment'),
            ("a\xa0#b", 'cannot contain U+0023 "#" after white space'),
            ("%(here)s", 'cannot contain "%(here)s"'),
        ],
    )
    def test_a_value_that_supervisor_would_change_is_refused(self, text: str, why: str) -> None:
        """Nothing that Supervisor would strip, cut or replace is written."""
        with pytest.raises(UnquotableError, match=re.escape(why)):
            supervisor_value(text)

    @pytest.mark.supervisord
    @settings(batch, max_examples=5)
    @given(commands=st.lists(st.lists(TEXT.filter(without("\r"))), min_size=20, max_size=40))
    def test_supervisord_passes_every_argument(
        self, commands: list[list[str]], private_supervisord: Supervisor, directory: Path
    ) -> None:
        """What a running supervisord executes got the arguments that were written."""
        dump = directory / "dump"
        dump.write_text("#!/bin/sh\ncat /proc/$$/cmdline\n")
        dump.chmod(0o755)
        expected, text = {}, ""
        for arguments in commands:
            command = [str(dump), *arguments]
            name = f"quoted-{next(NUMBERS)}"
            text += f"[program:{name}]\ncommand={supervisor_words(command)}\n"
            text += f"stdout_logfile={supervisor_logfile(str(directory / name))}\n"
            text += "startsecs=0\nautorestart=false\n"
            expected[name] = recorded([command])
        private_supervisord.add("quoted", text)

        def all_ended() -> bool:
            lines = private_supervisord.ctl("status").stdout.splitlines()
            return {tuple(line.split()[:2]) for line in lines} == {(n, "EXITED") for n in expected}

        wait_until(all_ended, 30, "all programs have run")
        assert {name: (directory / name).read_bytes() for name in expected} == expected

    def test_supervisor_reads_a_long_command_back(self, directory: Path) -> None:
        """A word of 125,000 characters is read back."""
        program = read_by_supervisor(directory, f"command={supervisor_words(['/bin/true', LONG])}")
        assert shlex.split(program.command)[1] == LONG

    def test_a_carriage_return_is_refused_in_a_command(self) -> None:
        """Python's universal newlines would turn it into a newline."""
        with pytest.raises(UnquotableError, match=r"a Supervisor command cannot contain U\+000D$"):
            supervisor_words(["/bin/true", "a\rb"])


DUMP = "/srv/dump"
ODD_DUMP = "/srv/a dir; 100%n ${HOME} é/-du$$mp"
SAID = "/srv/said"


@pytest.fixture(scope="module")
def machine(systemd_machine: Machine) -> Machine:
    """A booted machine with two programs that record the arguments they got from the kernel."""
    for program in (DUMP, ODD_DUMP):
        systemd_machine.write(program, f"#!/bin/sh\ncat /proc/$$/cmdline >>{SAID}\n", mode=0o755)
    return systemd_machine


def said_by_unit(machine: Machine, settings: str) -> bytes:
    """What a new oneshot unit with `settings` wrote to `SAID`, once it has ended well."""
    machine.path(SAID).unlink(missing_ok=True)
    unit = f"quoting-{next(NUMBERS)}.service"
    machine.write(f"/run/systemd/system/{unit}", f"[Service]\nType=oneshot\n{settings}")
    machine.run("systemctl", "start", unit)
    return machine.path(SAID).read_bytes()


@pytest.mark.systemd
class TestSystemd:
    """systemd's unit files."""

    @batch
    @given(
        commands=st.lists(st.lists(SYSTEMD_TEXT), min_size=1, max_size=30),
        program=st.sampled_from([DUMP, ODD_DUMP]),
    )
    def test_systemd_passes_every_argument(
        self, commands: list[list[str]], machine: Machine, program: str
    ) -> None:
        """Each command of a unit reaches its program as it was, whatever its path holds."""
        commands = [[program, *arguments] for arguments in commands]
        lines = "".join(f"ExecStart={systemd_words(command)}\n" for command in commands)
        assert said_by_unit(machine, lines) == recorded(commands)

    def test_systemd_passes_a_long_argument(self, machine: Machine) -> None:
        """An argument of 125,000 characters, near the kernel's limit for one, arrives."""
        command = [DUMP, LONG]
        assert said_by_unit(machine, f"ExecStart={systemd_words(command)}") == recorded([command])

    @batch
    @given(texts=st.lists(TEXT, min_size=1, max_size=20))
    def test_systemd_reads_every_value_back_or_it_is_refused(
        self, texts: list[str], machine: Machine
    ) -> None:
        """A description is read back as it was, or was refused for one of four reasons."""
        units = {}
        for text in texts:
            try:
                value = systemd_value(text)
            except UnquotableError:
                assert re.search(rf"[\r\n]|^\s|\s$|\\$|{NONCHARACTER}", text)
                continue
            unit = f"quoting-{next(NUMBERS)}.target"
            machine.write(f"/run/systemd/system/{unit}", f"[Unit]\nDescription={value}\n")
            units[unit] = text or unit
        assume(units)
        shown = machine.run("systemctl", "show", "--value", "-p", "Description", *units).stdout
        assert shown.removesuffix("\n").split("\n\n") == list(units.values())

    def test_a_unit_that_systemctl_could_not_show_is_refused(self) -> None:
        """D-Bus has no noncharacters: `systemctl status` would fail on a unit with one."""
        for quote in (
            lambda text: systemd_words(["/bin/true", text]),
            systemd_value,
            systemd_path,
        ):
            with pytest.raises(UnquotableError, match=r"cannot contain U\+1FFFE"):
                quote("a\U0001fffeb")

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("a\nb", "cannot contain U+000A"),
            ("a\rb", "cannot contain U+000D"),
            ("a ", "cannot begin or end with white space"),
            ("a\\\\\\", "cannot end in a backslash"),
        ],
    )
    def test_a_value_that_systemd_would_change_is_refused(self, text: str, why: str) -> None:
        """Nothing that systemd would strip, cut or continue is written."""
        with pytest.raises(UnquotableError, match=re.escape(why)):
            systemd_value(text)

    @pytest.mark.parametrize(
        ("program", "why"),
        [
            ("true", 'must begin with "/", not "true"'),
            ("-/bin/true", 'must begin with "/", not "-/bin/true"'),
            ("/bin/a'b", 'the program of a systemd command cannot contain U+0027 "\'"'),
            ("/bin/a\tb", "the program of a systemd command cannot contain U+0009"),
        ],
    )
    def test_a_program_that_systemd_would_not_run_is_refused(self, program: str, why: str) -> None:
        """A prefix would be an order to systemd, and it refuses quotes and control characters."""
        with pytest.raises(UnquotableError, match=re.escape(why)):
            systemd_words([program])


class TestRefusal:
    """What no dialect can hold."""

    @pytest.mark.parametrize("character", [chr(0), chr(0xD800), chr(0xDFFF)])
    @pytest.mark.parametrize(
        "quote",
        [
            lambda text: sh_word(("--option=", text)),
            lambda text: sh_default("NAME", text),
            lambda text: systemd_words([f"/bin/{text}"]),
            lambda text: systemd_words(["/bin/true", text]),
            systemd_value,
            systemd_path,
            lambda text: supervisor_words(["/bin/true", text]),
            supervisor_value,
            supervisor_logfile,
        ],
    )
    def test_nul_and_lone_surrogates_are_refused_everywhere(
        self, quote: Callable[[str], str], character: str
    ) -> None:
        """The error names the character; it never shows the text, which may be a secret."""
        with pytest.raises(UnquotableError) as caught:
            quote(f"before{character}after")
        assert str(caught.value).endswith(f"cannot contain U+{ord(character):04X}")

    @pytest.mark.parametrize("quote", [systemd_words, supervisor_words])
    @pytest.mark.parametrize("argv", [[], ["", "x"]])
    def test_a_command_has_a_program(
        self, quote: Callable[[list[str]], str], argv: list[str]
    ) -> None:
        """An empty command, or one whose program is empty, is refused."""
        with pytest.raises(UnquotableError, match="must begin with a program"):
            quote(argv)
