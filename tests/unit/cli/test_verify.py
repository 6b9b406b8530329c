"""`servicekit verify` from its command line, and what `status` and `show` say of it later."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xmlrpc.client import Fault

import pytest
from machines.driver import CARD
from machines.scripted import completion, scripted
from unit.models.sound_model import CONTEXT, sound, spoken, words
from unit.watchdog.running_host import SECRET, Host

from servicekit.lab.verify.gates import GATES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from machines.driver import Driver
    from unit.models.sound_model import Answer


@pytest.fixture
def host(tmp_path: Path, driver: Driver) -> Iterator[Host]:
    """Give a host whose service runs."""
    host = Host(tmp_path, driver)
    try:
        yield host
    finally:
        host.close()


def test_a_verification_holds_until_something_changes(host: Host) -> None:
    """Profile, engine, model, driver or GPU: what changed is named, and nothing is taken back."""
    assert host.standings() == {"not verified"}
    done = host.verify(sound)
    assert done.code == 0, done.out + done.err
    longest = json.loads(host.kept[0])["longest_measured"]
    verified = f"verified, prompts up to {longest} tokens"
    assert host.standings() == {verified}
    changes: tuple[tuple[Callable[[], object], Callable[[], object], str], ...] = (
        (
            lambda: host.release("0.5.23"),
            lambda: host.release("0.5.16"),
            "engine (0.5.16 → 0.5.23)",
        ),
        (
            lambda: host.commit("deadbeef"),
            lambda: host.commit("c0ffee00"),
            "model (c0ffee00 → deadbeef)",
        ),
        (
            lambda: host.driver.does(gpus=[CARD], driver="590.1"),
            lambda: host.driver.does(gpus=[CARD]),
            "driver (580.95 → 590.1)",
        ),
        (
            lambda: host.driver.does(gpus=[{**CARD, "name": "NVIDIA H200"}]),
            lambda: host.driver.does(gpus=[CARD]),
            "gpu (NVIDIA GeForce RTX 5090 → NVIDIA H200)",
        ),
        (
            lambda: host.driver.does(error="DriverNotLoaded"),
            lambda: host.driver.does(gpus=[CARD]),
            "driver (580.95 → ?), gpu (NVIDIA GeForce RTX 5090 → ?)",
        ),
        (lambda: host.profile("revision = 'v2'"), host.profile, "profile, model (c0ffee00 → ?)"),
        (lambda: host.profile("port = 18009"), host.profile, "profile"),
    )
    for change, back, named in changes:
        change()
        assert host.standings() == {f"changed since: {named}"}
        back()
    assert host.standings() == {verified}


def test_a_failed_gate_is_a_profile_that_is_not_verified(host: Host) -> None:
    """Exit code 1, the gate in what status says, until it passes again; --only proves a part."""

    def forgets(body: dict[str, Any]) -> Answer:
        short, over = words(body) <= 700, words(body) >= CONTEXT
        return sound(body) if short or over else (200, completion("No.", prompt=words(body)))

    done = host.verify(forgets)
    assert done.code == 1
    assert "recall: fail: everything is recalled up to " in done.err
    assert host.standings() == {"not verified: recall failed"}
    assert host.verify(sound, "--only", "recall").code == 0
    assert host.standings() == {"not verified: recall failed"}
    assert host.verify(sound).code == 0
    assert len(host.standings()) == 1
    assert host.verify(forgets, "--only", "recall").code == 1
    assert "not verified" not in host.standings().pop()


def test_what_is_printed_and_what_is_kept_are_one(host: Host) -> None:
    """--json is the file; without, there is a line for each gate, and one for each length."""
    done = host.verify(sound, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert [told] == [json.loads(text) for text in host.kept]
    assert tuple(told["gates"]) == tuple(GATES)
    assert [finding["gate"] for finding in told["findings"]] == list(GATES)
    assert "9 gates, 0.0 s so far" in done.err
    text = host.verify(sound)
    assert [line.split()[0] for line in text.out.splitlines()] == ["GATE", *GATES] + ["recall:"] * 4
    assert " left)" in text.err
    assert "prompt tokens, first token after " in text.out


def test_a_run_that_ended_meanwhile_is_told(host: Host) -> None:
    """What failed since then is not held against the model without a word."""
    state = host.home / "run/here/state.json"

    def dies(body: dict[str, Any]) -> Answer:
        state.write_text(state.read_text().replace('"r1"', '"r2"'))
        return sound(body)

    told = '"here" stopped or restarted during the run'
    assert told in host.verify(dies, "--only", "text").err
    assert told not in host.verify(sound, "--only", "text").err


def test_a_key_is_in_no_evidence(host: Host) -> None:
    """A server that repeats the key finds it neither kept nor printed."""

    def repeats(body: dict[str, Any]) -> Answer:
        status, answer = sound(body)
        if status != 200:
            return status, {"error": f"Authorization: Bearer {SECRET}"}
        message = answer["choices"][0]["message"]
        if message["content"]:
            message["content"] += f" {SECRET}"
        return status, answer

    done = host.verify(repeats)
    assert "[API key]" in host.kept[0]
    for text in (*host.kept, done.out, done.err):
        assert SECRET not in text


def test_the_published_address_is_not_asked(host: Host) -> None:
    """Whatever address of this host the service's account published, the profile's is asked."""
    host.published = "::1"
    assert host.verify(sound, "--only", "text").code == 0
    assert json.loads(host.run("status", "here", "--json").out)["url"].startswith("http://[::1]:")


def test_a_server_cannot_lead_the_terminal(host: Host) -> None:
    """Control characters in an answer are spelt out wherever they are printed."""
    done = host.verify(lambda _: (200, completion("\x1b[2J\x07")), "--only", "text")
    assert done.code == 1
    assert "\\x1b[2J" in done.out
    assert not any(character in done.out + done.err for character in "\x1b\x07")


def test_what_was_started_otherwise_is_not_verified(host: Host) -> None:
    """A service is not bound to a profile, a wrapper or an engine that are newer than it is."""

    def refused(why: str) -> None:
        done = host.verify(sound, "--only", "text")
        assert (done.code, host.kept) == (1, [])
        assert f'"here" cannot be verified, since {why}' in done.err
        assert "servicekit --user restart here" in done.err

    host.profile("port = 18009")
    refused("its wrapper is not what an install would write now")
    host.profile()
    host.age(host.engine, seconds=-60)
    refused("its engine changed after it was started")
    host.age(host.engine)
    host.age(host.home / "wrappers/here", seconds=-60)
    refused("its files changed after it was started")
    (host.home / "wrappers/here").unlink()
    refused(f'"{host.home}/wrappers/here" cannot be read: no such file')


def test_nothing_is_asked_where_nothing_could_be_kept(host: Host) -> None:
    """A state directory that is somebody's link is refused before the first question."""
    asked: list[dict[str, Any]] = []
    folder = host.home / "state/here/verifications"
    folder.symlink_to(host.home)

    def notes(body: dict[str, Any]) -> Answer:
        asked.append(body)
        return sound(body)

    done = host.verify(notes)
    assert done.code == 1
    assert 'cannot write the verification below "' in done.err
    assert asked == []


def test_what_cannot_be_kept_in_the_end_is_told_all_the_same(host: Host) -> None:
    """A disk that fails while the gates are asked costs the file and not the findings."""
    folder = host.home / "state/here/verifications"

    def pulls_the_rug(body: dict[str, Any]) -> Answer:
        if folder.is_dir() and not folder.is_symlink():
            folder.rmdir()
            folder.symlink_to(host.home)
        return sound(body)

    done = host.verify(pulls_the_rug, "--only", "text")
    assert done.code == 1
    assert "3 known answers" in done.out
    assert 'cannot write the verification below "' in done.err


def test_what_was_found_outlives_a_stop_that_fails(host: Host) -> None:
    """A service that was started for it is stopped afterwards; what it said is kept before."""
    name = "servicekit-here"
    host.supervisord.program(name, "STOPPED")
    host.supervisord.refuses["stopProcess"] = Fault(6, "SHUTDOWN_STATE")
    with scripted(spoken(sound)) as base:

        def start(method: str) -> None:
            if method == "startProcess":
                host.serve_at(base)
                host.supervisord.program(name, "RUNNING")

        host.supervisord.heard = start
        done = host.run("verify", "here", "--only", "text")
    assert done.code == 1
    assert "SHUTDOWN_STATE" in done.err
    (kept,) = host.kept
    assert json.loads(kept)["findings"][0]["outcome"] == "pass"


def test_a_gate_that_is_none_is_refused(host: Host) -> None:
    """A wrong name is a mistake of the command line, and says which names there are."""
    done = host.run("verify", "here", "--only", "sight")
    assert done.code == 2
    assert 'no gate "sight"' in done.err
    assert "kv-precision" in done.err
