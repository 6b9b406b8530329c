"""Settings: from the file, then the environment; mistakes in either are one line each."""

from __future__ import annotations

import os
import pwd
from pathlib import Path, PurePosixPath

import pytest

from servicekit.errors import ExitCode, UserError
from servicekit.places import Scope, below, system_places, user_places
from servicekit.profiles.rules import RESERVED_TUNABLES
from servicekit.profiles.settings import PLACES, Settings, default_places, load_settings, places_of

HOME = {"HOME": "/home/u"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Give an empty settings file that is believed."""
    path = tmp_path / "servicekit.toml"
    path.touch(0o644)
    path.chmod(0o644)
    return path


def load(file: Path | None, **environ: str) -> Settings:
    """Load a user's settings with these variables."""
    return load_settings(file, {**HOME, **environ}, scope=Scope.USER)


def refusal(file: Path | None, **environ: str) -> list[str]:
    """Say why these settings are refused, with the file's name cut off."""
    with pytest.raises(UserError) as refused:
        load(file, **environ)
    assert refused.value.code is ExitCode.CONFIG
    return [line.removeprefix(f"{file}: ") for line in str(refused.value).splitlines()]


def test_the_page_of_the_settings_lists_every_key_and_every_place() -> None:
    """`docs/settings.md` has a row for each, in order, in the words that the code has for it."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (Path(__file__).parents[3] / "docs/settings.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    keys = [[f"`{name}`", field.description] for name, field in Settings.model_fields.items()]
    system, user = system_places(), user_places("~", 0, {})
    for name in PLACES:
        mine = getattr(user, name)
        there = "" if mine is None else f"`{mine}`".replace("/user/0/", "/user/UID/")
        keys.append([f"`{name}`", f"`{getattr(system, name)}`", there])
    assert rows == keys


def test_without_anything_all_is_default() -> None:
    """No file is needed: built-in profiles run, alerts are off, the manager is found by itself."""
    settings = load(None)
    assert settings == Settings()
    assert settings.file is None
    assert settings.variables == ()
    assert settings.manager == "auto"
    assert settings.service_user == "servicekit"
    assert settings.alert_command == ()
    assert settings.alert_webhook is None


def test_the_file_says_everything(file: Path) -> None:
    """Each key can be set in the file, and the settings know which file it was."""
    file.write_text(
        """\
allow = ["night", "day"]
deny = ["mtp"]
manager = "supervisor"
supervisor_socket = "/run/supervisor.sock"
service_user = "llm"
root = "/srv/llm"
log_format = "json"
alert_command = ["/usr/local/bin/page", "on call"]
alert_webhook = "https://alerts.example/T0/secret"
[places]
cache = "/big/cache"
"""
    )
    settings = load(file)
    assert settings.file == file
    webhook = settings.alert_webhook
    assert webhook is not None
    assert webhook.get_secret_value() == "https://alerts.example/T0/secret"
    assert "T0" not in repr(settings)
    assert settings.model_dump(exclude={"alert_webhook"}) == {
        "allow": ("night", "day"),
        "deny": ("mtp",),
        "manager": "supervisor",
        "supervisor_socket": "/run/supervisor.sock",
        "service_user": "llm",
        "root": "/srv/llm",
        "places": {"cache": "/big/cache"},
        "log_format": "json",
        "alert_command": ("/usr/local/bin/page", "on call"),
    }


def test_the_environment_wins(file: Path) -> None:
    """A variable replaces what the file says, and is remembered: a service will not have it."""
    file.write_text('allow = ["night"]\nmanager = "systemd"\n')
    settings = load(
        file,
        SERVICEKIT_ALLOW="a, b  c",
        SERVICEKIT_DENY='["mtp"]',
        SERVICEKIT_ALERT_COMMAND="/bin/page 'on call'",
        SERVICEKIT_PLACES='{"cache": "/big"}',
        SERVICEKIT_SERVICE_USER="",
    )
    assert settings.allow == ("a", "b", "c")
    assert settings.deny == ("mtp",)
    assert settings.manager == "systemd"
    assert settings.alert_command == ("/bin/page", "on call")
    assert settings.places == {"cache": "/big"}
    assert settings.service_user == "servicekit"
    assert sorted(settings.variables) == [
        "SERVICEKIT_ALERT_COMMAND",
        "SERVICEKIT_ALLOW",
        "SERVICEKIT_DENY",
        "SERVICEKIT_PLACES",
    ]


def test_tunables_of_profiles_are_no_settings() -> None:
    """SERVICEKIT_PORT belongs to a profile; neither it nor the process' own variables matter."""
    assert load(None, SERVICEKIT_PORT="18005", SERVICEKIT_MAX_TOTAL_TOKENS="x") == Settings()


def test_no_tunable_can_be_a_setting() -> None:
    """The variables of all settings, and the one that names the file, are kept from profiles."""
    assert set(Settings.model_fields) | {"config"} <= RESERVED_TUNABLES


def test_the_process_environment_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the environment that is given counts, so that a test or a service can give another."""
    monkeypatch.setenv("SERVICEKIT_MANAGER", "nonsense")
    assert load(None) == Settings() == Settings()


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        ('alow = ["x"]', ['line 1: alow: unknown key; did you mean "allow"?']),
        ('\n_env_file = "/etc/shadow"', ["line 2: _env_file: unknown key"]),
        ('allow = "night"', ["line 1: allow: must be an array, not text"]),
        ("allow = [1]", ["line 1: allow[0]: must be text in quotes, not 1"]),
        ("manager = 1", ['line 1: manager: must be one of "auto", "systemd", "supervisor", not 1']),
        (
            'manager = "runit"',
            ['line 1: manager: must be one of "auto", "systemd", "supervisor", not "runit"'],
        ),
        ('root = "here"', ['line 1: root: must be an absolute path below "/", not "here"']),
        ('root = "/"', ['line 1: root: must be an absolute path below "/", not "/"']),
        ('[places]\nstte = "/x"', ['line 1: places: has no place "stte"; did you mean "state"?']),
        ('[places]\nconfig = "/x"', ['line 1: places: has no place "config"']),
        (
            '[places]\nstate = "x"',
            ['line 2: places.state: must be an absolute path below "/", not "x"'],
        ),
        (
            'alert_command = ["page"]',
            ["line 1: alert_command: must begin with the absolute path of a program"],
        ),
        (
            'alert_webhook = "ftp://user:secret@x"',
            ["line 1: alert_webhook: must be a URL that begins with https:// or http://"],
        ),
        (
            "alert_webhook = 5",
            ["line 1: alert_webhook: must be text in quotes, not 5"],
        ),
        ("x = ", ["end of document: is not TOML: invalid value"]),
        (
            'x = 1\nmanager = "x"\nroot = "y"',
            [
                "line 1: x: unknown key",
                'line 2: manager: must be one of "auto", "systemd", "supervisor", not "x"',
                'line 3: root: must be an absolute path below "/", not "y"',
            ],
        ),
    ],
)
def test_a_mistake_in_the_file_has_a_line(file: Path, text: str, findings: list[str]) -> None:
    """All mistakes are told together, each with its line, and secrets are not repeated."""
    file.write_text(text)
    assert refusal(file) == findings


@pytest.mark.parametrize(
    ("variable", "value", "finding"),
    [
        ("MANAGER", "sytemd", 'must be one of "auto", "systemd", "supervisor", not "sytemd"'),
        ("ALLOW", "a,B", 'must be 1 to 48 of a-z, 0-9 and "-", beginning with a letter or digit'),
        ("ALLOW", "[a", "cannot be read: expecting value"),
        ("ALERT_COMMAND", "/bin/page 'x", "cannot be read: no closing quotation"),
        ("PLACES", "cache=/big", "must be a table, not an array"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    variable: str, value: str, finding: str
) -> None:
    """The user finds out which variable to mend."""
    (line,) = refusal(None, **{f"SERVICEKIT_{variable}": value})
    assert line.startswith(f"environment: SERVICEKIT_{variable} {finding}")


def test_mistakes_of_file_and_environment_come_together(file: Path) -> None:
    """A variable that replaces a wrong value in the file does not hide the rest."""
    file.write_text('manager = "x"\nservice_user = "y z"\n')
    assert [line.partition(" must")[0] for line in refusal(file, SERVICEKIT_MANAGER="z")] == [
        "line 2: service_user:",
        "environment: SERVICEKIT_MANAGER",
    ]


def test_which_file_is_read(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--config comes before SERVICEKIT_CONFIG, that before the file below SERVICEKIT_ROOT."""
    other = tmp_path / "other.toml"
    other.write_text('service_user = "other"\n')
    other.chmod(0o644)
    assert load(file, SERVICEKIT_CONFIG=str(other)).file == file
    assert load(None, SERVICEKIT_CONFIG=str(other)).service_user == "other"
    assert load(None, SERVICEKIT_ROOT=str(tmp_path)).file == file
    monkeypatch.chdir(tmp_path)
    assert load(Path("other.toml")).file == other


def test_the_usual_file_is_read_where_there_is_one(tmp_path: Path) -> None:
    """A user's own file is below their configuration directory."""
    usual = tmp_path / ".config" / "servicekit" / "servicekit.toml"
    usual.parent.mkdir(parents=True, mode=0o755)
    usual.write_text('allow = ["night"]\n')
    usual.chmod(0o644)
    settings = load_settings(None, {"HOME": str(tmp_path)}, scope=Scope.USER)
    assert (settings.allow, settings.file) == (("night",), usual)


def test_a_file_that_is_named_must_exist() -> None:
    """Nobody is to run with the defaults because of a misspelt path."""
    for config, environ in ((Path("/none.toml"), {}), (None, {"SERVICEKIT_CONFIG": "/none.toml"})):
        with pytest.raises(UserError) as refused:
            load_settings(config, environ, scope=Scope.SYSTEM)
        assert str(refused.value) == (
            'settings file "/none.toml" does not exist; '
            "create it, or omit --config and SERVICEKIT_CONFIG"
        )


def test_a_file_that_others_may_write_is_refused(file: Path) -> None:
    """Who may write the allowlist may run anything."""
    file.write_text("x = 1\n")
    file.chmod(0o666)
    first, second = refusal(file)
    assert first == f"is writable by its group and everyone; run `chmod go-w {file}`"
    assert second == "line 1: x: unknown key"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_system_service_believes_root_alone(file: Path) -> None:
    """The settings of the machine's services must be root's."""
    os.chown(file, 65534, -1)
    with pytest.raises(UserError, match='is owned by "nobody", not by "root"'):
        load_settings(file, {}, scope=Scope.SYSTEM)


def test_settings_are_frozen() -> None:
    """Nobody can change what was checked."""
    with pytest.raises(ValueError, match="frozen"):
        load(None).manager = "systemd"  # type: ignore[misc]


def test_places_follow_scope_and_settings(file: Path) -> None:
    """The usual places, or those below one root; then what is moved; then the file itself."""
    assert places_of(Settings(), {}, scope=Scope.SYSTEM) == system_places()
    assert places_of(Settings(), HOME, scope=Scope.USER) == user_places("/home/u", os.getuid(), {})
    file.write_text('root = "/srv/llm"\n[places]\ncache = "/big"\n')
    places = places_of(load(file), HOME, scope=Scope.SYSTEM)
    assert places.cache == PurePosixPath("/big")
    assert places.config == PurePosixPath(file)
    assert places.state == below("/srv/llm").state


def test_every_place_can_be_moved() -> None:
    """All but the scope and the settings file itself."""
    moved = Settings(places={name: f"/moved/{name}" for name in PLACES})
    places = places_of(moved, {}, scope=Scope.SYSTEM)
    assert all(getattr(places, name) == PurePosixPath(f"/moved/{name}") for name in PLACES)
    assert places.scope is Scope.SYSTEM


def test_a_home_is_found_without_the_variable() -> None:
    """Service managers may leave HOME away; an account without a home is told what would do."""
    home = pwd.getpwuid(0).pw_dir
    for environ in ({}, {"HOME": "relative"}):
        found = default_places(environ, scope=Scope.USER, uid=0)
        assert found == user_places(home, 0, {})
    with pytest.raises(UserError, match="user id 2147483647 has no home directory; set HOME"):
        default_places({}, scope=Scope.USER, uid=2**31 - 1)
