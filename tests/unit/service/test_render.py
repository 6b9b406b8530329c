"""Every generated file: as it was agreed upon (golden), and as its reader takes it (parsed)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest
from jinja2 import Environment, nodes
from plans import BUILT_IN, SYSTEM, USER, plan, profile
from supervisor.datatypes import RestartWhenExitUnexpected
from supervisor.options import ServerOptions

from servicekit.diagnosis.causes import Cause
from servicekit.errors import ExitCode, UserError
from servicekit.places import Scope, below
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service.render import FILTERS, LINK, artifacts, wrapper
from servicekit.service.unit import LONGEST_GROUP, own_group, sandbox

if TYPE_CHECKING:
    from supervisor.options import ProcessConfig

    from servicekit.places import Places
    from servicekit.service.plan import Plan
    from servicekit.service.render import Artifact

GOLDEN = Path(__file__).parents[2] / "golden"
SHELLCHECK = Path(sys.executable).with_name("shellcheck")
HOSTILE = (
    '--text=it\'s "$HOME" `id` $(id) \\',
    "100% %n %% ; # !",
    "",
    "two\nlines\ttab",
    "-é😀",
    "--also={port}",
)


def rendered(
    of: Plan, manager: ManagerName = ManagerName.SYSTEMD, *, enabled: bool = True
) -> dict[str, Artifact]:
    """The artifacts of a plan by their path."""
    return {str(a.path): a for a in artifacts(of, manager, enabled=enabled)}


def service(of: Plan) -> str:
    """The text of a plan's unit."""
    return rendered(of)[f"{of.host.places.units}/{of.profile.unit}.service"].text


def directives(unit: str) -> dict[str, list[str]]:
    """All assignments of a unit, by the name of the directive."""
    found = defaultdict(list)
    for line in unit.splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


def program(of: Plan, folder: Path, *, enabled: bool = True) -> ProcessConfig:
    """Supervisor's own reading of a plan's program."""
    path = f"{of.host.places.supervisor}/{of.profile.unit}.conf"
    text = rendered(of, ManagerName.SUPERVISOR, enabled=enabled)[path].text
    (folder / "program.conf").write_text(text, encoding="utf-8")
    (folder / "main.conf").write_text("[supervisord]\n[include]\nfiles = program.conf\n")
    options = ServerOptions()
    options.realize(["-c", str(folder / "main.conf"), "-n"])
    (group,) = options.process_group_configs
    (found,) = group.process_configs
    return found


class TestGolden:
    """A change of any generated file shows in review."""

    @pytest.mark.parametrize("name", BUILT_IN)
    @pytest.mark.parametrize(
        ("file", "places", "manager"),
        [
            ("wrapper", SYSTEM, ManagerName.SYSTEMD),
            ("system.service", SYSTEM, ManagerName.SYSTEMD),
            ("user.service", USER, ManagerName.SYSTEMD),
            ("supervisor.conf", SYSTEM, ManagerName.SUPERVISOR),
        ],
    )
    def test_a_built_in_profile_is_rendered_as_agreed(
        self, name: str, file: str, places: Places, manager: ManagerName
    ) -> None:
        """The text equals the golden file; `WRITE_GOLDEN=1` writes it anew."""
        of = plan(name, places)
        path = {
            "wrapper": places.wrapper(name),
            "supervisor.conf": places.supervisor / f"{of.profile.unit}.conf",
        }.get(file, places.units / f"{of.profile.unit}.service")
        text = rendered(of, manager)[str(path)].text
        golden = GOLDEN / name / file
        if os.environ.get("WRITE_GOLDEN"):
            golden.parent.mkdir(parents=True, exist_ok=True)
            golden.write_text(text, encoding="utf-8")
        assert text == golden.read_text(encoding="utf-8")


class TestTemplates:
    """Templates lay values out and decide nothing."""

    @pytest.mark.parametrize(
        "template",
        sorted(f.name for f in files("servicekit.templates").iterdir() if f.name.endswith(".j2")),
    )
    def test_a_template_has_only_loops_and_plain_conditions(self, template: str) -> None:
        """No comparison, no arithmetic, no call, no macro, and no filter but ours."""
        text = (nodes.Template, nodes.Output, nodes.TemplateData, nodes.Include)
        allowed = (*text, nodes.For, nodes.If)
        values = (nodes.Name, nodes.Getattr, nodes.Filter, nodes.Const, nodes.Tuple)
        environment = Environment(autoescape=True)
        environment.filters.update({quote.__name__: quote for quote in FILTERS})
        tree = environment.parse((files("servicekit.templates") / template).read_text())
        for node in [tree, *tree.find_all(nodes.Node)]:
            assert isinstance(node, allowed + values), f"line {node.lineno}: {node}"
        for test in tree.find_all(nodes.If):
            assert isinstance(test.test, (nodes.Name, nodes.Getattr)), f"line {test.lineno}"
        for quoted in tree.find_all(nodes.Filter):
            assert quoted.name in {quote.__name__ for quote in FILTERS}

    def test_every_filter_is_used(self) -> None:
        """A quoting function that no template uses would be there for nothing."""
        texts = [f.read_text() for f in files("servicekit.templates").iterdir() if f.is_file()]
        for quote in FILTERS:
            assert any(re.search(rf"\| {quote.__name__}\b", text) for text in texts), quote


class TestWrapper:
    """The script that becomes the engine."""

    @pytest.mark.parametrize("name", BUILT_IN)
    def test_shells_and_shellcheck_have_nothing_to_say(self, name: str, tmp_path: Path) -> None:
        """bash, dash and shellcheck read the script without a word."""
        script = tmp_path / "wrapper"
        script.write_text(wrapper(plan(name)).text, encoding="utf-8")
        checks = [["bash", "-n"], ["dash", "-n"], [str(SHELLCHECK), "--shell=sh", "--norc"]]
        for check in checks:
            if shutil.which(check[0]):
                done = subprocess.run([*check, script], capture_output=True, text=True, check=False)
                assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), check

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A folder for wrappers, with an engine that only tells how it was called."""
        engine = tmp_path / "an engine's bin" / "engine"
        engine.parent.mkdir()
        engine.write_text('#!/bin/sh\nprintf "%s\\0" "$0" "$@"\nprintf "\\n\\0"\nexec env -0\n')
        engine.chmod(0o755)
        return tmp_path

    def called(
        self, of: Plan, folder: Path, environment: dict[str, str]
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Run a plan's wrapper and tell the arguments and the environment that the engine got."""
        script = folder / "wrapper"
        script.write_text(wrapper(of).text, encoding="utf-8")
        inherited = {"PATH": os.environ["PATH"], **environment}
        done = subprocess.run(
            ["/bin/sh", script], env=inherited, capture_output=True, text=True, check=True
        )
        arguments, _, variables = done.stdout.partition("\0\n\0")
        pairs = (line.partition("=") for line in variables.split("\0") if line)
        return tuple(arguments.split("\0")), {name: value for name, _, value in pairs}

    def hostile_plan(self, folder: Path) -> Plan:
        """A plan whose arguments and variables have everything that a shell might change."""
        changes = {
            "arguments": list(HOSTILE),
            "environment": {f"VALUE_{n}": text for n, text in enumerate(HOSTILE)},
            "tunables": ["port", "VALUE_0"],
        }
        wanted = profile("demo", **changes)
        return plan(wanted, executable=str(folder / "an engine's bin" / "engine"))

    def test_the_engine_gets_what_the_plan_says(self, folder: Path) -> None:
        """Arguments and variables arrive as they are in the profile, placeholders filled in."""
        of = self.hostile_plan(folder)
        arguments, environment = self.called(of, folder, {})
        assert arguments == of.argv()
        assert "--also=18001" in arguments
        filled = [text.replace("{port}", "18001") for text in HOSTILE]
        assert [environment[f"VALUE_{n}"] for n, _ in enumerate(HOSTILE)] == filled
        assert environment["HOME"] == "/var/lib/servicekit/demo"
        assert environment["XDG_CACHE_HOME"] == "/var/lib/servicekit/demo/.cache"
        assert environment["HF_HOME"] == "/var/cache/servicekit/huggingface"
        assert environment["PATH"].split(":")[0] == f"{folder}/an engine's bin"

    def test_declared_tunables_give_way_to_the_environment(self, folder: Path) -> None:
        """A tunable takes its value from outside unless that is empty; nothing else does."""
        of = self.hostile_plan(folder)
        outside = {"SERVICEKIT_PORT": "19000", "VALUE_0": "", "VALUE_1": "not declared"}
        arguments, environment = self.called(of, folder, outside)
        assert "--also=19000" in arguments
        assert environment["VALUE_0"] == HOSTILE[0]
        assert environment["VALUE_1"] == HOSTILE[1]
        _, environment = self.called(of, folder, {"VALUE_0": "it's $outside"})
        assert environment["VALUE_0"] == "it's $outside"

    def test_settings_of_the_engine_do_not_leak_in(self, folder: Path) -> None:
        """Variables that would change the recipe are unset, whatever they hold."""
        of = plan("demo", executable=str(folder / "an engine's bin" / "engine"))
        outside = {"LLAMA_ARG_CTX_SIZE": "a\nLLAMA_ARG_X=b", "LLAMA_ARG_N": "3", "A": "kept"}
        _, environment = self.called(of, folder, outside)
        assert not [name for name in environment if name.startswith("LLAMA_ARG_")]
        assert environment["A"] == "kept"

    def test_secrets_are_read_where_they_are_used(self, folder: Path) -> None:
        """A secret is in the engine's environment, from systemd's copy or from its file."""
        places = below(str(folder / "it's"))
        wanted = profile("demo", secrets=["API_KEY"])
        of = plan(wanted, places, executable=str(folder / "an engine's bin" / "engine"))
        own, handed_over = Path(places.secret("demo", "API_KEY")), folder / "credentials/API_KEY"
        for file, value in ((own, "own $value"), (handed_over, "handed over")):
            file.parent.mkdir(parents=True)
            file.write_text(f"{value}\n")
        assert self.called(of, folder, {})[1]["API_KEY"] == "own $value"
        credentials = {"CREDENTIALS_DIRECTORY": str(handed_over.parent)}
        assert self.called(of, folder, credentials)[1]["API_KEY"] == "handed over"
        assert "own $value" not in wrapper(of).text

    def test_a_missing_secret_ends_the_start(self, folder: Path) -> None:
        """No engine runs without the secret that it should have; the file is named."""
        wanted = profile("demo", secrets=["API_KEY"])
        places = below(str(folder))
        of = plan(wanted, places, executable=str(folder / "an engine's bin" / "engine"))
        with pytest.raises(subprocess.CalledProcessError) as caught:
            self.called(of, folder, {})
        assert str(places.secret("demo", "API_KEY")) in caught.value.stderr


class TestSystemd:
    """The unit, as systemd's own tools read it."""

    @pytest.fixture
    def units(self, tmp_path: Path) -> Path:
        """A folder for units, with a program that their commands can name."""
        (tmp_path / "servicekit").write_text("#!/bin/sh\n")
        (tmp_path / "servicekit").chmod(0o755)
        return tmp_path

    def write(self, of: Plan, units: Path) -> Path:
        """Write a plan's units to a folder and give the path of its service."""
        base = of.host.places.units
        for artifact in artifacts(of, ManagerName.SYSTEMD):
            if artifact.path.is_relative_to(base) and artifact.mode != LINK:
                path = units / artifact.path.relative_to(base)
                path.parent.mkdir(exist_ok=True)
                path.write_text(artifact.text, encoding="utf-8")
        return units / f"{of.profile.unit}.service"

    @pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
    @pytest.mark.parametrize("name", BUILT_IN)
    @pytest.mark.parametrize("places", [SYSTEM, USER], ids=["system", "user"])
    def test_systemd_analyze_has_nothing_to_say(
        self, name: str, places: Places, units: Path, runtime_dir: Path
    ) -> None:
        """Not a line from verify, which exits 0 on mistakes; the alert and the target included."""
        path = self.write(
            plan(name, places, servicekit=(str(units / "servicekit"),), rivals=("other",)), units
        )
        alert = units / f"servicekit-alert@{path.name}"
        scope = ["--user"] if places is USER else []
        done = subprocess.run(
            ["systemd-analyze", *scope, "verify", path, alert, units / "servicekit.target"],
            env={
                **os.environ,
                "SYSTEMD_UNIT_PATH": f"{units}:",
                "XDG_RUNTIME_DIR": str(runtime_dir),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    @pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
    @pytest.mark.parametrize("name", BUILT_IN)
    def test_the_exposure_is_at_most_2(self, name: str, units: Path) -> None:
        """The exposure by systemd's own measure, from 0 to 10, stays within what it calls OK."""
        path = self.write(plan(name, servicekit=(str(units / "servicekit"),)), units)
        done = subprocess.run(
            ["systemd-analyze", "security", "--offline=yes", "--threshold=20", path],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    @pytest.mark.parametrize("name", BUILT_IN)
    def test_the_unit_says_what_must_hold(self, name: str) -> None:
        """Readiness, restarts, kills and boot are as the watchdog needs them."""
        found = directives(service(plan(name)))
        expected = {
            "Type": "notify",
            "NotifyAccess": "main",
            "ExecStart": f"/opt/servicekit/bin/servicekit watch {name} --plan {SYSTEM.plan(name)}",
            "User": "servicekit",
            "KillMode": "mixed",
            "Delegate": "yes",
            "WatchdogSec": "30",
            "Restart": "on-failure",
            "RestartForceExitStatus": "75",
            "RestartPreventExitStatus": "69 78 243",
            "OnFailure": "servicekit-alert@%n",
            "WantedBy": "servicekit.target",
            "StateDirectory": f"servicekit/{name}",
            "RuntimeDirectory": f"servicekit/{name}",
            "Group": own_group(name),
        }
        assert found["CacheDirectory"] == []
        assert {key: found[key] for key in expected} == {k: [v] for k, v in expected.items()}
        assert "multi-user.target" in found["After"][0].split()
        assert "ProtectControlGroups" not in found, "the delegated control group must be writable"

    def test_a_service_of_the_shared_account_has_a_group_of_its_own(self) -> None:
        """The kernel compares groups, too; an account that a profile names keeps its own."""
        found = rendered(plan("demo"))
        assert directives(service(plan("demo")))["Group"] == ["servicekit_demo"]
        described = found["/etc/sysusers.d/servicekit-group-demo.conf"].text.splitlines()
        assert described[-1] == "g servicekit_demo -"
        of = plan("demo")
        assert directives(service(replace(of, host=replace(of.host, user="ada"))))["Group"] == []

    def test_the_group_of_a_long_name_is_short_enough(self) -> None:
        """A name has at most 31 characters for systemd, and long profiles still differ."""
        names = [own_group("a" * length) for length in range(1, 49)]
        assert max(map(len, names)) <= LONGEST_GROUP
        assert len({*names}) == len(names)

    def test_a_gpu_profile_sees_its_devices_and_a_cpu_profile_none(self) -> None:
        """The device policy follows from the profile's GPUs."""
        gpu, cpu = (directives(service(plan(name))) for name in ("balanced", "demo"))
        assert gpu["DeviceAllow"] == ["char-nvidia* rw", "/dev/dxg rw"]
        assert (gpu["DevicePolicy"], gpu["PrivateDevices"]) == (["closed"], [])
        assert "modprobe@nvidia_uvm.service" in gpu["Wants"][0]
        assert (cpu["DeviceAllow"], cpu["PrivateDevices"], cpu["Wants"]) == ([], ["yes"], [])

    def test_the_network_is_loopback_unless_the_profile_may_download(self) -> None:
        """`service.network = "internet"` takes the filter away, and lets it write the weights."""
        closed = directives(service(plan("demo")))
        opened = directives(service(plan(profile("demo", service={"network": "internet"}))))
        assert (closed.pop("IPAddressDeny"), closed.pop("IPAddressAllow")) == (
            ["any"],
            ["localhost"],
        )
        assert opened.pop("CacheDirectory") == ["servicekit"]
        assert "CacheDirectory" not in closed
        assert opened == closed

    def test_homes_are_hidden_unless_the_profile_reads_them(self) -> None:
        """`service.home` decides what the service sees of people's files."""
        reading = profile("demo", service={"home": "read-only"})
        assert directives(service(plan("demo")))["ProtectHome"] == ["yes"]
        assert directives(service(plan(reading)))["ProtectHome"] == ["read-only"]

    def test_paths_of_the_profile_and_moved_places_are_writable(self) -> None:
        """What systemd does not make for the service is named in its sandbox."""
        wanted = profile("demo", service={"read_write": ["/data/a b", "/data/100%"]})
        places = replace(SYSTEM, cache=PurePosixPath("/big disk/cache"))
        found = directives(service(plan(wanted, places)))
        assert found["ReadWritePaths"] == ['"/data/a b"', "/data/100%%"]
        assert found["CacheDirectory"] == []
        assert found["StateDirectory"] == ["servicekit/demo"]
        online = profile("demo", service={"network": "internet"})
        found = directives(service(plan(online, places)))
        assert found["ReadWritePaths"] == ['"/big disk/cache"']

    def test_rivals_exclude_each_other(self) -> None:
        """A start of one stops the other first."""
        found = directives(service(plan("mtp", rivals=("balanced", "dflash"))))
        rivals = "servicekit-balanced.service servicekit-dflash.service"
        assert found["Conflicts"] == [rivals]
        assert found["After"][0].endswith(rivals)

    def test_secrets_are_handed_over_by_systemd(self) -> None:
        """The unit names the files of secrets and none of their values."""
        found = directives(service(plan(profile("demo", secrets=["HF_TOKEN"]))))
        assert found["LoadCredential"] == ["HF_TOKEN:/etc/servicekit/secrets/demo/HF_TOKEN"]

    def test_a_stop_may_take_as_long_as_the_watchdog_allows_itself(self) -> None:
        """The manager's bound lies beyond grace, kill and settle together."""
        wanted = profile("demo", stop={"grace": 10, "kill": 20, "settle": 30.5})
        assert directives(service(plan(wanted)))["TimeoutStopSec"] == ["76"]

    def test_the_profile_may_leave_a_directive_out(self) -> None:
        """`service.without` takes away what it names."""
        wanted = profile("demo", service={"without": ["PrivateTmp", "DeviceAllow"]})
        with pytest.raises(UserError, match=r'names "DeviceAllow", which the unit does not set'):
            service(plan(wanted))
        whole = directives(service(plan("demo")))
        less = directives(service(plan(profile("demo", service={"without": ["PrivateTmp"]}))))
        assert whole.pop("PrivateTmp") == ["yes"]
        assert less == whole

    def test_a_misspelt_directive_is_named(self) -> None:
        """The error says which directive was probably meant."""
        wanted = profile("demo", service={"without": ["PrivateTemp"]})
        with pytest.raises(UserError, match='did you mean "PrivateTmp"') as caught:
            sandbox(wanted, Scope.SYSTEM)
        assert caught.value.code is ExitCode.CONFIG

    def test_a_user_unit_has_only_what_a_user_may_set(self) -> None:
        """No account, no device policy, no directories of the system's, and default.target."""
        found = directives(service(plan("balanced", USER)))
        for name in ("User", "DeviceAllow", "IPAddressDeny", "ProtectSystem", "RemoveIPC"):
            assert found[name] == [], name
        assert found["WantedBy"] == ["servicekit.target"]
        assert found["After"] == ["default.target servicekit.target"]

    def test_each_account_has_a_file_of_its_own(self) -> None:
        """The account of one profile is never replaced by another's; root needs no description."""
        texts: dict[str, str] = {}
        for user in ("servicekit", "ada", "root"):
            of = plan("demo")
            found = rendered(replace(of, host=replace(of.host, user=user)))
            texts |= {path: a.text for path, a in found.items() if "/sysusers.d/" in path}
        assert {path.rpartition("/")[2]: t.splitlines()[1][:12] for path, t in texts.items()} == {
            "servicekit.conf": "u servicekit",
            "servicekit-group-demo.conf": "g servicekit",
            "servicekit-user-ada.conf": 'u ada - "Mod',
        }

    def test_other_files_of_a_system_install(self) -> None:
        """Alert, target, account, catalog and enabling links are where systemd looks for them."""
        found = rendered(plan("demo"))
        units = "/etc/systemd/system"
        drop_in = f"{units}/servicekit-alert@servicekit-demo.service.d/servicekit.conf"
        command = f"/opt/servicekit/bin/servicekit alert demo --plan {SYSTEM.plan('demo')}"
        alert = directives(found[drop_in].text)
        assert alert["ExecStart"] == ["", command]
        assert (alert["DynamicUser"], alert["User"]) == (["yes"], ["servicekit-alert"])
        account = found["/etc/sysusers.d/servicekit.conf"].text.splitlines()
        assert account[1].split()[:2] == ["u", "servicekit"]
        assert account[-1] == "m servicekit servicekit"
        for target, unit in (("multi-user", "servicekit-boot"), ("servicekit", "servicekit-demo")):
            link = found[f"{units}/{target}.target.wants/{unit}.service"]
            assert (link.mode, link.text) == (LINK, f"../{unit}.service")
        assert {path for path, a in found.items() if a.mode == 0o755} == {
            "/usr/local/lib/servicekit/wrappers/demo"
        }
        assert not any(".wants/" in path for path in rendered(plan("demo"), enabled=False))

    def test_a_user_install_has_neither_account_nor_catalog(self) -> None:
        """What only root can write is not among a user's files."""
        for artifact in artifacts(plan("demo", USER), ManagerName.SYSTEMD):
            assert artifact.path.is_relative_to("/home/ada")

    def test_the_catalog_explains_every_cause(self) -> None:
        """Each cause has its entry, with the profile's name filled in by the journal."""
        text = rendered(plan("demo"))["/usr/local/lib/systemd/catalog/servicekit.catalog"].text
        entry = re.compile(r"^-- ([0-9a-f]{32})\nSubject: .*@SERVICEKIT_PROFILE@", re.MULTILINE)
        assert entry.findall(text) == [cause.message_id for cause in Cause]
        assert "{profile}" not in text


class TestSupervisor:
    """The program, as Supervisor itself reads it."""

    @pytest.mark.parametrize("name", BUILT_IN)
    def test_the_program_says_what_must_hold(self, name: str, tmp_path: Path) -> None:
        """Restarts without end but for the codes that say so, and time to stop."""
        of = plan(name, replace(SYSTEM, logs=PurePosixPath(tmp_path)))
        of = replace(of, host=replace(of.host, user="root"))
        found = program(of, tmp_path)
        assert found.name == f"servicekit-{name}"
        file = SYSTEM.plan(name)
        assert found.command == f"/opt/servicekit/bin/servicekit watch {name} --plan {file}"
        assert found.autorestart is RestartWhenExitUnexpected
        assert found.exitcodes == [0, 69, 78]
        assert (found.startsecs, found.autostart, found.uid) == (0, True, 0)
        assert found.stopwaitsecs > sum(
            (of.profile.stop.grace, of.profile.stop.kill, of.profile.stop.settle)
        )
        assert found.stdout_logfile == f"{tmp_path}/{name}.log"
        assert found.redirect_stderr
        assert found.umask == 0o077

    def test_paths_may_hold_anything(self, tmp_path: Path) -> None:
        """Below a directory with any name, command and log are still the right ones."""
        places = below(str(tmp_path / "it's 100%; (here)"))
        Path(places.logs).mkdir(parents=True)
        command = (f"{tmp_path}/it's 100% ; \n%(here)s/servicekit", "--config", "a #b")
        found = program(plan("demo", places, servicekit=command), tmp_path, enabled=False)
        assert found.stdout_logfile == str(places.log_file("demo"))
        assert (
            found.command
            == "".join(
                (f"'{tmp_path}/it'\"'\"'s 100% '';", " '\"\n\"'%''(here)s/servicekit'"),
            )
            + " --config 'a ''#b' watch demo --plan "
            + f"'{tmp_path}/it'\"'\"'s 100%; (here)/wrappers/demo.plan.json'"
        )
        assert not found.autostart

    def test_only_wrapper_and_program_are_written(self) -> None:
        """Supervisor needs no other file."""
        found = rendered(plan("demo"), ManagerName.SUPERVISOR)
        assert set(found) == {
            "/usr/local/lib/servicekit/wrappers/demo",
            "/usr/local/lib/servicekit/wrappers/demo.plan.json",
            "/etc/supervisor/conf.d/servicekit-demo.conf",
        }


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        (ManagerName.SYSTEMD, "/opt/it's/servicekit"),
        (ManagerName.SUPERVISOR, "/opt/a\rb/servicekit"),
    ],
)
def test_what_a_file_cannot_hold_is_the_users_to_mend(manager: ManagerName, command: str) -> None:
    """The error names the profile and the character, and is one of configuration."""
    with pytest.raises(
        UserError, match=r'^profile "demo" cannot be written down: .*U\+00'
    ) as caught:
        artifacts(plan("demo", servicekit=(command,)), manager)
    assert caught.value.code is ExitCode.CONFIG
