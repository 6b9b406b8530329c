"""The catalog: which profiles there are, which may run, and that a broken file breaks nothing."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import pytest

from servicekit.errors import ExitCode, NotAllowedError, ProfileError, UserError
from servicekit.places import Scope, below
from servicekit.profiles.catalog import BUILT_IN, Catalog, Listed
from servicekit.profiles.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

BUILT_IN_NAMES = (*("balanced", "demo", "dflash", "dspark", "long-context", "max-context", "mtp"),)
NIGHT = 'extends = "balanced"\nport = 18005\n'


class Site:
    """A site's settings and profiles below one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.profiles = root / "profiles.d"
        self.profiles.mkdir(mode=0o755)

    def write(self, name: str, text: str) -> Path:
        """Write the file of one profile as its owner would."""
        file = self.profiles / name
        file.write_text(text, encoding="utf-8")
        file.chmod(0o644)
        return file

    def catalog(self, *allow: str, deny: tuple[str, ...] = ()) -> Catalog:
        """Give the catalog of a site that allows and denies these."""
        return Catalog(Settings(allow=allow, deny=deny), below(str(self.root)))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Give a site without profiles."""
    return Site(tmp_path)


def by_name(catalog: Catalog) -> dict[str, Listed]:
    """Describe everything, by name."""
    return {listed.name: listed for listed in catalog.describe()}


def test_the_built_in_profiles_are_allowed(site: Site) -> None:
    """A host without any file of its own can run everything that comes with servicekit."""
    site.profiles.rmdir()
    catalog = site.catalog()
    assert catalog.names() == BUILT_IN_NAMES
    assert [listed.name for listed in catalog.describe()] == list(BUILT_IN_NAMES)
    assert by_name(catalog)["demo"] == Listed(
        name="demo",
        source=BUILT_IN,
        allowed=True,
        summary="SmolLM2-135M on llama.cpp: no GPU, no download",
        engine="llamacpp",
        port=18001,
    )


def test_a_denied_profile_does_not_run(site: Site) -> None:
    """`deny` wins, over being built in as over `allow`."""
    site.write("night.toml", NIGHT)
    catalog = site.catalog("night", deny=("mtp", "night"))
    assert "mtp" not in catalog.names()
    assert "night" not in catalog.names()
    assert not by_name(catalog)["mtp"].allowed
    for name in ("mtp", "night"):
        with pytest.raises(NotAllowedError) as refused:
            catalog.get(name)
        expected = (
            f'profile "{name}" must not run; remove it from deny in {site.root}/servicekit.toml'
        )
        assert str(refused.value) == expected


def test_a_profile_of_the_site_runs_only_when_it_is_allowed(site: Site) -> None:
    """The file alone is not enough: somebody must have named it in the settings."""
    file = site.write("night.toml", NIGHT)
    with pytest.raises(NotAllowedError) as refused:
        site.catalog().get("night")
    assert refused.value.code is ExitCode.CONFIG
    assert str(refused.value) == (
        f'profile "night" is not allowed to run; name it in {site.root}/servicekit.toml, as in '
        '`allow = ["night"]`'
    )
    profile = site.catalog("night").get("night")
    assert (profile.name, profile.port, profile.served_name) == ("night", 18005, "qwen3.8-27b")
    listed = by_name(site.catalog())["night"]
    assert (listed.source, listed.allowed, listed.port) == (str(file), False, 18005)
    assert site.catalog("night", "gone").names() == (*sorted((*BUILT_IN_NAMES, "night")),)


def test_a_name_that_is_not_there_is_guessed(site: Site) -> None:
    """A slip of the finger gets the name that was meant, nonsense the way to all names."""
    site.write("night.toml", NIGHT)
    for name, hint in (
        ("nigth", 'did you mean "night"?'),
        ("blanced", 'did you mean "balanced"?'),
        ("../etc/x", "`servicekit list` shows all profiles"),
    ):
        with pytest.raises(NotAllowedError) as refused:
            site.catalog().get(name)
        assert str(refused.value) == f'there is no profile "{name}"; {hint}'


def test_profiles_may_share_a_port(site: Site) -> None:
    """Those that take turns on one GPU have one URL, whatever they serve."""
    site.write("other.toml", 'extends = "demo"\nport = 18000\nserved_name = "other"\n')
    assert site.catalog("other").get("other").port == site.catalog().get("balanced").port


def test_a_broken_file_does_not_break_the_list(site: Site) -> None:
    """Every kind of broken file is a line of the list that says what is wrong with it."""
    site.write("not-toml.toml", "port = \n")
    site.write("My Profile.toml", NIGHT)
    site.write("open.toml", NIGHT).chmod(0o666)
    (site.profiles / "directory.toml").mkdir()
    (site.profiles / "dangling.toml").symlink_to("nowhere")
    (site.profiles / os.fsdecode(b"\xff\n.toml")).write_text(NIGHT)
    site.write("night.toml", NIGHT)
    listed = by_name(site.catalog("night"))
    assert listed["night"].findings == ()
    broken = {name: row.findings for name, row in listed.items() if row.findings}
    assert broken == {
        "not-toml": ("line 1, column 8: is not TOML: invalid value",),
        "My Profile": (
            (
                'name: must be 1 to 48 of a-z, 0-9 and "-", beginning with a letter or digit, '
                'not "My Profile"'
            ),
        ),
        "open": (
            (f"is writable by its group and everyone; run `chmod go-w {site.profiles}/open.toml`"),
        ),
        "directory": ("cannot be read: is a directory",),
        "dangling": ("links to a file that does not exist",),
        "\\udcff\\n": ("name: must be valid UTF-8",),
    }
    assert all(row.port is None and row.summary is None for row in listed.values() if row.findings)


def test_other_files_are_no_profiles(site: Site) -> None:
    """Notes, backups and what editors leave beside a file are passed over."""
    for name in ("README", "night.toml~", "night.toml.bak", ".night.toml.swp", ".#night.toml"):
        site.write(name, "nonsense")
    assert site.catalog().names() == BUILT_IN_NAMES


def test_a_file_must_not_shadow_a_built_in_profile(site: Site) -> None:
    """Neither is run in the other's place; those that extend the built-in one still work."""
    file = site.write("balanced.toml", NIGHT.replace("balanced", "demo"))
    site.write("night.toml", NIGHT)
    catalog = site.catalog("night")
    finding = (
        "has the name of a built-in profile; rename it, "
        'and write extends = "balanced" in it to change parts of that profile'
    )
    with pytest.raises(ProfileError) as refused:
        catalog.get("balanced")
    assert str(refused.value) == f"{file}: {finding}"
    assert catalog.get("long-context").port == 18000
    assert catalog.get("dspark").options["chunked-prefill-size"] == 2048
    with pytest.raises(ProfileError, match="is invalid"):
        catalog.get("night")
    rows = catalog.describe()
    assert [row.name for row in rows if row.findings] == ["balanced", "night"]


def test_a_directory_that_cannot_be_read_is_said(site: Site) -> None:
    """Profiles must not vanish because a directory is something else."""
    site.profiles.rmdir()
    site.profiles.write_text("")
    with pytest.raises(UserError) as refused:
        site.catalog().names()
    assert str(refused.value) == (
        f'profiles in "{site.profiles}" cannot be read: not a directory; '
        "make it a directory that the services' account can read"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_system_service_believes_root_alone(site: Site) -> None:
    """A profile of the machine's services must be root's, whoever runs servicekit."""
    file = site.write("night.toml", NIGHT)
    os.chown(file, 65534, -1)
    places = dataclasses.replace(below(str(site.root)), scope=Scope.SYSTEM)
    with pytest.raises(ProfileError) as refused:
        Catalog(Settings(allow=("night",)), places).get("night")
    assert str(refused.value) == f'{file}: is owned by "nobody", not by "root"'


def test_findings_of_trust_and_content_come_together(site: Site) -> None:
    """What is wrong with the file and what is wrong in it is one list."""
    site.write("night.toml", 'extends = "balanced"\nport = 80\n').chmod(0o664)
    with pytest.raises(ProfileError) as refused:
        site.catalog("night").get("night")
    assert [finding.partition(";")[0] for finding in refused.value.findings] == [
        "is writable by its group",
        "line 2: port: must be at least 1024, not 80",
    ]


def test_an_extended_profile_need_not_be_allowed(site: Site) -> None:
    """A common base is no service: only what runs must be allowed."""
    site.write("base.toml", 'extends = "demo"\nserved_name = "base"\n')
    site.write("night.toml", 'extends = "base"\nport = 18009\n')
    profile = site.catalog("night").get("night")
    assert (profile.served_name, profile.port, profile.engine) == ("base", 18009, "llamacpp")
