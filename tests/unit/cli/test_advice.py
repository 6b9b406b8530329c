"""`check`, `plan`, `diagnose` and `secret` as commands; what they find has tests of its own."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest
from unit.cli.cli_runs import invoke, refused, said

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """Give an environment whose servicekit is below a directory of the test."""
    (tmp_path / "profiles.d").mkdir()
    return {
        "SERVICEKIT_ROOT": str(tmp_path),
        "SERVICEKIT_ALLOW": "here",
        "SERVICEKIT_MANAGER": "supervisor",
        "SUPERVISOR_SERVER_URL": f"unix://{tmp_path}/s.sock",
    }


def write_profile(tmp_path: Path, text: str) -> None:
    """Write the profile `here`."""
    file = tmp_path / "profiles.d/here.toml"
    file.write_text(text)
    file.chmod(0o644)


@pytest.mark.parametrize("profile", ["demo", "balanced", "mtp"])
def test_a_sound_profile_checks_out(profile: str, site: dict[str, str]) -> None:
    """A built-in profile has nothing against it, in words and as JSON."""
    assert " ok: " in said("--user", "check", profile, env=site)
    report = json.loads(said("--user", "check", profile, "--json", env=site))
    assert (report["profile"], report["ok"]) == (profile, True)


def test_an_option_that_the_engine_does_not_have_fails_the_check(
    site: dict[str, str], tmp_path: Path
) -> None:
    """A misspelt option is an error with the place to mend, and exit code 1."""
    write_profile(tmp_path, 'extends = "balanced"\n[options]\nmem-fraction-statik = 0.5\n')
    done = invoke("--user", "check", "here", env=site)
    assert done.code == 1
    assert "mem-fraction-statik" in done.out


def test_a_profile_that_is_not_allowed_yet_is_checked_all_the_same(
    site: dict[str, str], tmp_path: Path
) -> None:
    """What else is wrong with it shows before it is allowed; that it is not, is one more error."""
    write_profile(tmp_path, 'extends = "balanced"\n[options]\nmem-fraction-statik = 0.5\n')
    done = invoke("--user", "check", "here", env=site | {"SERVICEKIT_ALLOW": "other"})
    assert done.code == 1
    assert "mem-fraction-statik" in done.out
    assert 'error: allow: profile "here" is not allowed to run; name it in ' in done.out
    assert '"here": 2 errors: ' in done.out


def test_a_key_in_the_place_of_its_name_is_not_repeated(
    site: dict[str, str], tmp_path: Path
) -> None:
    """`api_key` names a variable; who writes the key itself must not see it in a log."""
    write_profile(tmp_path, 'extends = "balanced"\napi_key = "sk-0123456789"\n')
    done = invoke("--user", "check", "here", env=site)
    assert done.code == 78
    assert "line 2: api_key: must be the name of a variable" in done.err
    assert "sk-0123456789" not in done.err + done.out


def test_a_plan_tells_whether_it_fits(site: dict[str, str]) -> None:
    """The budget for a memory of a given size ends in a verdict, which is the exit code, too."""
    words = ("--user", "plan", "long-context", "--gpu-memory")
    assert "\nfits: " in said(*words, "31.4GiB", env=site)
    small = invoke(*words, "16GiB", env=site)
    assert small.code == 1
    assert "does not fit" in small.out
    assert json.loads(said(*words, "31.4GiB", "--json", env=site))["verdict"] == "fits"
    assert 'must be like "31.4GiB"' in refused(*words, "much", env=site)


def test_the_plan_of_a_cpu_profile_is_for_the_hosts_memory(site: dict[str, str]) -> None:
    """A profile without a GPU needs no size to be named."""
    assert "host memory" in said("--user", "plan", "demo", env=site)


def test_the_longest_context_for_a_card_is_searched(site: dict[str, str]) -> None:
    """In words, what to set; as JSON, the plan with it; where none fits, why, and exit code 1."""
    words = ("--user", "plan", "long-context", "--fit", "--requests", "2", "--gpu-memory")
    first, *options = said(*words, "31.4GiB", env=site).splitlines()
    told = json.loads(said(*words, "31.4GiB", "--json", env=site))
    context, plan = told["context"], told["plan"]
    assert first == f"fits: {context:,} tokens each for 2 requests at once in 31.40 GiB"
    assert options == [
        f"  context-length = {context}",
        "  max-running-requests = 2",
    ]
    assert told["options"] == {"context-length": context, "max-running-requests": 2}
    assert (plan["verdict"], plan["kv_tokens"] >= 2 * context, told["reason"]) == ("fits", True, "")
    none = invoke(*words, "16GiB", env=site)
    assert none.code == 1
    assert none.out.startswith("no context fits 2 requests at once: ")
    assert "  1. " in none.out
    told = json.loads(invoke(*words, "16GiB", "--json", env=site).out)
    assert (told["context"], told["options"], bool(told["reason"])) == (0, {}, True)


def test_a_plan_is_for_the_version_that_is_asked_for(site: dict[str, str], tmp_path: Path) -> None:
    """Else for the one that is installed; where none is, for the one that the profile pins."""
    words = ("--user", "plan", "here", "--json", "--gpu-memory", "31.4GiB")

    def notes(pin: str, *more: str) -> str:
        write_profile(tmp_path, f'extends = "balanced"\n[requires]\nsglang = "{pin}"\n')
        return invoke(*words, *more, env=site).out

    old, new = notes("==0.5.16"), notes("==0.5.23")
    assert old == notes("==0.5.23", "--engine-version", "0.5.16")
    assert new == notes("==0.5.16", "--engine-version", "0.5.23")
    assert old != new
    assert notes(">=0.5.16") not in (old, "")


LOG = "INFO start\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def test_a_log_is_diagnosed_from_a_file_and_from_standard_input(tmp_path: Path) -> None:
    """The same log has the same cause, wherever it is read from."""
    log = tmp_path / "log"
    log.write_text(LOG)
    assert "out of memory" in said("diagnose", "--file", log)
    told = json.loads(said("diagnose", "--file", log, "--json"))
    assert (told["cause"], bool(told["remedies"])) == ("cuda-oom", True)
    log.write_text("nothing that is known\n")
    remedy = "`servicekit --user logs PROFILE`"
    assert remedy in said("--user", "diagnose", "--file", log)
    assert f'cannot read log "{tmp_path}/no"' in refused("diagnose", "--file", tmp_path / "no")
    assert "out of memory" in said("diagnose", "-", stdin=LOG)
    assert "out of memory" in said("diagnose", "--file", "-", stdin=LOG)


def test_a_diagnosis_needs_a_log_and_a_known_engine(tmp_path: Path) -> None:
    """Without a profile and a log, or with an unknown engine, the command line is wrong."""
    assert "give a profile, - or --file LOG" in refused("diagnose", code=2)
    words = ("diagnose", "--file", tmp_path / "x", "--engine", "tgi")
    assert '"tgi" must be one of sglang, vllm' in refused(*words, code=2)


def test_several_logs_are_one_diagnosis(tmp_path: Path) -> None:
    """Rotated files, and the kernel's log beside the engine's, are read in the order given."""
    (tmp_path / "1").write_text("[2026-12-01 02:10:00] server_args=ServerArgs(port=30000)")
    (tmp_path / "2").write_text("[  9.000001] Out of memory: Killed process 7 (sglang) total-vm:1")
    words = ("diagnose", "--file", tmp_path / "1", "--file", tmp_path / "2", "--engine", "sglang")
    assert said(*words).startswith("cause: oom-kill\n")


def test_the_remedies_for_a_file_fit_the_named_profile(
    site: dict[str, str], tmp_path: Path
) -> None:
    """With a profile and a log, what the profile already sets is in the remedies."""
    log = tmp_path / "log"
    log.write_text("ValueError: No available memory for the cache blocks. Try more.\n")
    text = said("--user", "diagnose", "mtp", "--file", log, env=site)
    assert text.startswith("cause: kv-cache-too-small\n")
    assert "PROFILE" not in text


def test_a_log_from_a_wrapped_terminal_is_read(tmp_path: Path) -> None:
    """Line breaks that a terminal put into long lines do not hide a cause."""
    message = "ValueError: No available memory for the cache blocks. Try increasing it."
    front = "ERROR 12-01 02:10:00 [core.py:1266]"
    lines = [f"(EngineCore pid={number}) {front} {message}" for number in range(3)]
    wrapped = [piece for text in lines for piece in (text[:70], text[70:])]
    log = tmp_path / "log"
    log.write_text("\n".join(wrapped))
    assert said("diagnose", "--file", log).startswith("cause: kv-cache-too-small\n")
    log.write_text("\n".join(["x" * 70] * 9 + lines))
    assert said("diagnose", "--file", log).startswith("cause: kv-cache-too-small\n")


def test_a_profile_that_never_ran_has_no_diagnosis(site: dict[str, str]) -> None:
    """Who is not installed is told so."""
    assert "is not installed" in refused("--user", "diagnose", "demo", env=site)


SECRET = 'extends = "demo"\nsecrets = ["HF_TOKEN"]\n'


def test_a_secret_is_stored_listed_and_forgotten(site: dict[str, str], tmp_path: Path) -> None:
    """A value from standard input is in one file that only its owner may read, and nowhere else."""
    write_profile(tmp_path, SECRET)
    before = sorted(tmp_path.rglob("*"))
    words = ("--user", "secret")
    assert "missing" in said(*words, "list", "here", env=site)
    none = 'servicekit: profile "demo" has no secrets\n'
    assert invoke(*words, "list", "demo", env=site) == (0, "", none)
    text = said(*words, "set", "here", "HF_TOKEN", env=site, stdin="hf_value\n")
    file = tmp_path / "secrets/here/HF_TOKEN"
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("hf_value\n", 0o600)
    assert "hf_value" not in text
    assert "stored" in said(*words, "list", "here", env=site)
    for path in tmp_path.rglob("*"):
        assert path == file or not path.is_file() or "hf_value" not in path.read_text()
    said(*words, "remove", "here", "HF_TOKEN", env=site)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("value", ["", "\n", "two\nlines\n", "nul\0"])
def test_a_value_that_no_engine_could_read_is_refused(
    value: str, site: dict[str, str], tmp_path: Path
) -> None:
    """Nothing, several lines and NUL are no secrets."""
    write_profile(tmp_path, SECRET)
    text = refused("--user", "secret", "set", "here", "HF_TOKEN", env=site, stdin=value)
    assert "must be one line that is not empty" in text
    assert not (tmp_path / "secrets").exists()


def test_a_value_that_no_variable_could_hold_is_refused(
    site: dict[str, str], tmp_path: Path
) -> None:
    """What the kernel would not hand to an engine, or is no text, is refused at once."""
    write_profile(tmp_path, SECRET)
    words = ("--user", "secret", "set", "here", "HF_TOKEN")
    assert "at most 65536 bytes" in refused(*words, env=site, stdin="a" * 65537)
    assert "must be text in UTF-8" in refused(*words, env=site, stdin=b"\xff\xfe")


def test_a_secret_that_the_profile_does_not_name_is_refused(site: dict[str, str]) -> None:
    """A value that no wrapper would read is not stored."""
    text = refused("--user", "secret", "set", "demo", "HF_TOKEN", env=site, stdin="x")
    assert 'profile "demo" has no secret "HF_TOKEN"' in text
