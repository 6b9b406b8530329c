"""`install --root` builds a service into an image and runs nothing of it; `uninstall` undoes it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from unit.cli.cli_runs import invoke, refused, said

UNIT = "etc/systemd/system/servicekit-demo.service"
ENABLED = "etc/systemd/system/servicekit.target.wants/servicekit-demo.service"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image with a little in it."""
    root = tmp_path / "image"
    (root / "etc").mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    return root


def files(root: Path) -> set[str]:
    """Everything in the image."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def install(root: Path, *words: str, profile: str = "demo") -> str:
    """Install for systemd into an image."""
    return said("install", profile, "--manager", "systemd", "--root", root, *words)


def test_an_image_gets_a_service_that_starts_at_boot(image: Path) -> None:
    """Unit, wrapper, account, enabling link and manifest are there, as if installed live."""
    install(image)
    assert "ExecStart=" in (image / UNIT).read_text()
    assert (image / ENABLED).is_symlink()
    assert os.access(image / "usr/local/lib/servicekit/wrappers/demo", os.X_OK)
    assert "u servicekit" in (image / "etc/sysusers.d/servicekit.conf").read_text()
    manifest = json.loads((image / "etc/servicekit/installed/demo.json").read_text())
    assert (manifest["manager"], manifest["port"], manifest["enabled"]) == ("systemd", 18001, True)


def test_an_uninstall_leaves_the_image_as_it_was(image: Path) -> None:
    """Nothing stays, not even an empty directory."""
    before = files(image)
    install(image)
    said("uninstall", "demo", "--root", image)
    assert files(image) == before


def test_a_purge_leaves_models_and_caches_alone(image: Path) -> None:
    """History and secrets of the profile go; what took hours to download or to compile stays."""
    install(image)
    for name in ("lib/servicekit/demo/history.jsonl", "cache/servicekit/huggingface/model"):
        file = image / "var" / name
        file.parent.mkdir(parents=True)
        file.write_text("x")
    said("uninstall", "demo", "--root", image)
    assert (image / "var/lib/servicekit/demo/history.jsonl").exists()
    install(image)
    said("uninstall", "demo", "--root", image, "--purge")
    assert not (image / "var/lib/servicekit").exists()
    assert (image / "var/cache/servicekit/huggingface/model").exists()


def test_a_dry_run_prints_what_an_install_does(image: Path) -> None:
    """The same lines come with the differences, and nothing is written."""
    before = files(image)
    dry = install(image, "--dry-run")
    assert files(image) == before
    wet = install(image)
    assert set(wet.splitlines()) <= set(dry.splitlines())
    assert "+Type=notify" in dry.splitlines()
    assert install(image, "--dry-run") == "nothing to do\n"


def test_drift_is_shown_kept_and_forced(image: Path) -> None:
    """A hand-edited unit stays until --force, which keeps its text beside it."""
    install(image)
    (image / UNIT).write_text("[Service]\n")
    said_now = install(image)
    assert f"drifted  /{UNIT}: was changed by hand since it was installed; kept" in said_now
    assert (image / UNIT).read_text() == "[Service]\n"
    install(image, "--force")
    assert "ExecStart=" in (image / UNIT).read_text()
    assert (image / f"{UNIT}.servicekit-old").read_text() == "[Service]\n"


def test_an_upgrade_shows_its_difference_and_writes_nothing_else(tmp_path: Path) -> None:
    """Of a changed profile the files that say so are replaced, and every other one is kept."""
    image, site = tmp_path / "image", tmp_path / "site"
    for folder in (image, site):
        folder.mkdir()
    config, recipe = tmp_path / "servicekit.toml", site / "here.toml"
    config.write_text(f'root = "/srv/x"\nallow = ["here"]\n[places]\nprofiles = "{site}"\n')
    config.chmod(0o644)

    def upgrade(summary: str, *words: str) -> list[str]:
        recipe.write_text(f'extends = "demo"\nsummary = "{summary}"\n')
        recipe.chmod(0o644)
        where = ("--manager", "systemd", "--root", image)
        return said("--user", "--config", config, "install", "here", *where, *words).splitlines()

    upgrade("the first")
    unit = "/srv/x/units/servicekit-here.service"
    plan = "/srv/x/wrappers/here.plan.json"
    before = {path: path.lstat().st_ino for path in image.rglob("*")}
    dry = upgrade("the second", "--dry-run")
    assert dry[0] == f"replace  {plan}"
    assert f"replace  {unit}" in dry
    assert [line for line in dry if line.startswith(("-D", "+D"))] == [
        "-Description=servicekit here: the first",
        "+Description=servicekit here: the second",
    ]
    assert upgrade("the second") == [f"replace  {plan}", f"replace  {unit}"]
    after = {path: path.lstat().st_ino for path in image.rglob("*")}
    manifest = image / "srv/x/installed/here.json"
    assert {path for path in after if after[path] != before.get(path)} == {
        image / unit.lstrip("/"),
        image / plan.lstrip("/"),
        manifest,
    }
    assert upgrade("the second") == ["nothing to do"]


def test_of_two_that_exclude_each_other_one_starts_at_boot(image: Path) -> None:
    """The second profile of a GPU is installed without starting at boot, and that is said."""
    install(image, "--force", profile="balanced")
    done = invoke("install", "mtp", "--manager", "systemd", "--root", image)
    assert done.code == 0
    assert '"mtp" does not start at boot, since "balanced" does and excludes it' in done.err
    unit = (image / "etc/systemd/system/servicekit-mtp.service").read_text()
    assert "Conflicts=servicekit-balanced.service" in unit
    assert not (image / ENABLED.replace("demo", "mtp")).exists()
    install(image, "--enable", profile="mtp")
    assert (image / ENABLED.replace("demo", "mtp")).is_symlink()
    # What was asked for once stays so.
    install(image, profile="mtp")
    assert (image / ENABLED.replace("demo", "mtp")).is_symlink()


def test_an_account_that_was_named_stays(image: Path) -> None:
    """--user-name is remembered by later installs."""
    install(image, "--user-name", "llm")
    assert "User=llm" in (image / UNIT).read_text()
    assert install(image) == "nothing to do\n"


def test_a_missing_engine_is_refused_in_one_line(tmp_path: Path) -> None:
    """Without its program a profile is not installed; the line says what would do."""
    env = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "SUPERVISOR_SERVER_URL": f"unix://{tmp_path}/s.sock",
    }
    text = refused("--user", "install", "mtp", "--manager", "supervisor", env=env)
    assert text == (
        'servicekit: profile "mtp": the engine\'s program "vllm" was not found; install it, '
        "or name its absolute path as executable in the profile; --anyway overrules this\n"
    )


def test_settings_that_the_service_would_not_have_are_refused(tmp_path: Path) -> None:
    """Variables of the command's own environment do not decide about a service."""
    env = {"SERVICEKIT_ROOT": str(tmp_path), "SUPERVISOR_SERVER_URL": f"unix://{tmp_path}/s.sock"}
    text = refused("--user", "install", "demo", "--manager", "supervisor", env=env)
    assert text.startswith("servicekit: SERVICEKIT_ROOT is set for this command only")


def test_under_supervisor_the_engine_has_an_account_where_the_image_has_it(image: Path) -> None:
    """Otherwise it runs as root, as the install says; an image gets no account."""
    program = image / "etc/supervisor/conf.d/servicekit-demo.conf"
    words = ("install", "demo", "--manager", "supervisor", "--root", image)
    assert "the engine runs as supervisord's account, usually root" in invoke(*words).err
    assert "\nuser=" not in program.read_text()
    with (image / "etc/passwd").open("a") as accounts:
        accounts.write("servicekit:x:998:998::/:/bin/false\n")
    assert "supervisord's account" not in invoke(*words).err
    assert "\nuser=servicekit\n" in program.read_text()


def test_another_manager_is_refused_before_anything_is_removed(image: Path) -> None:
    """What is installed for one manager is not moved to another in passing."""
    install(image)
    text = refused("install", "demo", "--manager", "supervisor", "--root", image)
    assert 'profile "demo" is installed for systemd, not supervisor' in text
    assert (image / UNIT).exists()


def test_wrong_combinations_are_refused(image: Path, tmp_path: Path) -> None:
    """What makes no sense together is said, before anything is done."""
    assert "an image has none" in refused("install", "demo", "--root", image, "--now")
    assert "not a directory" in refused("install", "demo", "--root", tmp_path / "no")
    text = refused("--user", "install", "demo", "--root", image, "--user-name", "me")
    assert "user services run as you" in text
    assert "either a profile or --all" in refused("install", "demo", "--all", code=2)
    assert "either a profile or --all" in refused("install", code=2)
    assert "is not installed" in refused("uninstall", "demo", "--root", image)
    assert '"a\\nb" is not installed' in refused("uninstall", "a\nb", "--root", image)


def test_without_any_manager_it_is_said_what_would_do(tmp_path: Path) -> None:
    """On a host without systemd and Supervisor the line names both and the way out."""
    if Path("/run/systemd/system").is_dir():
        pytest.skip("systemd runs here")
    text = refused("--user", "install", "demo", env={"HOME": str(tmp_path)})
    assert text.startswith("servicekit: neither systemd (/run/systemd/system) nor Supervisor (")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_who_may_not_write_is_told(tmp_path: Path) -> None:
    """Without the right to write, the line says how to get it."""
    env = {"SUPERVISOR_SERVER_URL": f"unix://{tmp_path}/s.sock"}
    text = refused("install", "demo", "--manager", "supervisor", env=env)
    assert "run it as root, or with --user" in text
