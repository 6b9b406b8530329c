"""What the service's account cannot use is named beforehand, each with its own remedy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from unit.service.test_host import look, profile, program

from servicekit.places import system_places, user_places
from servicekit.service.access import (
    EXECUTE,
    HOMES,
    READ,
    Hidden,
    RequiredAccess,
    barriers,
    only_root_changes,
    proved,
    script_faults,
    way,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = "nobody"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another account")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory that everybody may pass."""
    for directory in (tmp_path, *tmp_path.parents):
        if not directory.stat().st_mode & 1:
            directory.chmod(directory.stat().st_mode | 0o111)
    return tmp_path


def file(path: Path, mode: int = 0o644) -> Path:
    """Write a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    path.chmod(mode)
    return path


ways = pytest.mark.parametrize("ask", [barriers, pytest.param(proved, marks=needs_root)])


@ways
def test_a_closed_directory_is_named(
    folder: Path, ask: Callable[[list[RequiredAccess], str, list[Hidden]], list[str]]
) -> None:
    """The first directory that keeps the account out is named with the order that opens it."""
    model = file(folder / "open/closed/model")
    assert ask([RequiredAccess("the model", model)], NOBODY, []) == []
    model.parent.chmod(0o700)
    assert ask([RequiredAccess("the model", model)], NOBODY, []) == [
        (
            f'"nobody" cannot read the model "{model}" because of "{model.parent}": '
            f"`chmod o+x {model.parent}`, or move it, to /opt say"
        )
    ]


@ways
def test_a_file_of_another_account_is_named(
    folder: Path, ask: Callable[[list[RequiredAccess], str, list[Hidden]], list[str]]
) -> None:
    """A file that only its owner reads, and a program that nobody else executes."""
    model, engine = file(folder / "model", 0o600), file(folder / "engine", 0o744)
    needs = [RequiredAccess("the model", model), RequiredAccess("the engine", engine, EXECUTE)]
    assert ask(needs, NOBODY, []) == [
        f'"nobody" cannot read the model "{model}": `chmod o+r {model}`, or move it, to /opt say',
        (
            f'"nobody" cannot execute the engine "{engine}": '
            f"`chmod o+rx {engine}`, or move it, to /opt say"
        ),
    ]


@ways
def test_the_mode_of_a_secret_is_no_remedy(
    folder: Path, ask: Callable[[list[RequiredAccess], str, list[Hidden]], list[str]]
) -> None:
    """A secret is stored again for the account; one that does not exist yet cannot have it yet."""
    token = file(folder / "token", 0o600)
    needs = [RequiredAccess("the secret T", token, READ, "run `x` again", secret=True)]
    assert ask(needs, NOBODY, []) == [f'"nobody" cannot read the secret T "{token}": run `x` again']
    assert ask(needs, "not-an-account-yet", []) == []


@ways
def test_every_link_on_the_way_counts(
    folder: Path, ask: Callable[[list[RequiredAccess], str, list[Hidden]], list[str]]
) -> None:
    """A link through a closed directory is closed, though its end is open to all."""
    end = file(folder / "end")
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    (closed / "middle").symlink_to(end)
    (folder / "link").symlink_to("closed/middle")
    (sentence,) = ask([RequiredAccess("the model", folder / "link")], NOBODY, [])
    assert f'because of "{closed}"' in sentence
    assert closed in way(folder / "link")


def test_links_that_go_round_end(folder: Path) -> None:
    """Two links that lead to each other are a file that does not exist."""
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    assert barriers([RequiredAccess("the model", folder / "a")], NOBODY, [])


@needs_root
def test_weights_that_only_root_reads_are_named_once(folder: Path) -> None:
    """Of a model's directory each kind of file is tried; many of one kind are one sentence."""
    model = folder / "model"
    file(model / "config.json")
    weights = [file(model / f"{number}.safetensors", 0o600) for number in range(3)]
    recipe = profile(model=str(model), service={"without": ["PrivateTmp"]})
    found = look(system_places(), recipe, "", user="not-made-yet").barred
    (sentence,) = [said for said in found if "safetensors" in said]
    assert sentence.startswith(f'"not-made-yet" cannot read a file of the model "{weights[0]}"')


@needs_root
def test_one_barrier_is_told_once(folder: Path) -> None:
    """Program, interpreter and packages behind one closed directory are one sentence."""
    python = program(folder / "venv/bin/python", "")
    (folder / "venv/pyvenv.cfg").touch()
    (folder / "venv/lib/python3.11/site-packages").mkdir(parents=True)
    engine = program(folder / "venv/bin/vllm", f"#!{python}\nimport vllm\n")
    (folder / "venv").chmod(0o700)
    recipe = profile(executable=str(engine), service={"without": ["PrivateTmp"]})
    found = look(system_places(), recipe, "", user="not-made-yet").barred
    (sentence,) = [said for said in found if "engine" in said]
    assert sentence.startswith('"not-made-yet" cannot')


@pytest.mark.parametrize(
    ("first", "sentence"),
    [
        (b"#!/bin/sh\r\n", "ends with CR LF"),
        (b"#!/opt/none/python\n", 'names the interpreter "/opt/none/python", which does not exist'),
        (b"#!/bin/sh\n", ""),
        (b"\x7fELF", ""),
    ],
)
def test_a_first_line_that_starts_nothing_is_named(
    folder: Path, first: bytes, sentence: str
) -> None:
    """A CR at its end and a missing interpreter have each a sentence and a remedy."""
    script = file(folder / "engine", 0o755)
    script.write_bytes(first)
    found = list(script_faults("the engine", script))
    assert [sentence in each for each in found] == ([True] if sentence else [])


def test_what_the_unit_hides_is_refused_with_the_way_out() -> None:
    """Nothing below a hidden home or the host's /tmp can be read, whatever its mode."""
    home = next(h for h in HOMES if h.is_dir())
    recipe = profile(executable="/bin/true", model=str(home))
    found = look(system_places(), recipe, "").barred
    assert (
        f'the model "{home}" is below {home}, which the unit hides (ProtectHome): move it, to '
        '/opt say, or set service.home = "read-only" in the profile'
    ) in found
    visible = {"model": str(home), "executable": "/bin/true"}
    for fine in (
        look(system_places(), profile(**visible, service={"home": "read-only"}), ""),
        look(system_places(), profile(**visible, service={"without": ["ProtectHome"]}), ""),
        look(system_places(), profile(**visible), "", manager="supervisor"),
        look(user_places("/home/me", 1000, {}), profile(**visible), ""),
    ):
        assert not any("ProtectHome" in sentence for sentence in fine.barred)


def test_a_private_tmp_hides_the_hosts(tmp_path: Path) -> None:
    """An engine below /tmp is there for an install, and not for the service."""
    engine = program(tmp_path / "vllm")
    found = look(system_places(), profile(executable=str(engine)), "").barred
    hidden = [sentence for sentence in found if "(PrivateTmp)" in sentence and "engine" in sentence]
    assert len(hidden) == 1
    without = profile(executable=str(engine), service={"without": ["PrivateTmp"]})
    assert not any("PrivateTmp" in one for one in look(system_places(), without, "").barred)


def test_a_directory_that_others_can_redirect_is_not_roots_alone(tmp_path: Path) -> None:
    """A link or directory of another account, or a writable one, on the way is enough."""
    assert only_root_changes(Path("/usr/bin"))
    (tmp_path / "usr").symlink_to("/usr")
    tmp_path.chmod(0o777)
    assert not only_root_changes(tmp_path)
    assert not only_root_changes(tmp_path / "usr/bin")
