"""The closed list of causes: complete, stable, and fit for a status line."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from servicekit import data
from servicekit.diagnosis.causes import Cause, Group, Retry
from servicekit.errors import ExitCode
from servicekit.profiles.vocabulary import Reason


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_explains_itself(cause: Cause) -> None:
    """Each has a sentence that fits a status line, at least one remedy, and ASCII text only."""
    assert cause.title
    assert not cause.title.endswith(".")
    assert len(cause.title) <= 100
    assert cause.remedies
    for text in (cause.title, *cause.remedies):
        assert text.isascii()
        assert text.format(profile="x")


@pytest.mark.parametrize("cause", Cause)
def test_without_a_gpu_nobody_is_sent_to_look_for_an_xid(cause: Cause) -> None:
    """Each cause has a remedy for a service on the CPU, and the usual first one with a GPU."""
    assert cause.first_remedy(gpu=True) == cause.remedies[0]
    assert "grep Xid" not in cause.first_remedy(gpu=False)


def test_nothing_else_is_in_the_table() -> None:
    """The table has every cause once, every heading has a cause, and every shared text is used."""
    table = tomllib.loads(data.read("causes"))
    shared = {f"@{name}" for part in ("shared", "gpu") for name in table.pop(part)}
    assert set(table) == {cause.value for cause in Cause}
    assert {cause.group for cause in Cause} == set(Group)
    remedies = {text for entry in table.values() for text in entry["remedies"]}
    assert {text for text in remedies if text.startswith("@")} <= shared


def test_message_ids_are_distinct_and_never_change() -> None:
    """Old journal entries find their explanation: the ids are those of the first release."""
    ids = [cause.message_id for cause in Cause]
    assert len(set(ids)) == len(ids)
    assert all(len(one) == 32 and int(one, 16) for one in ids)
    assert Cause.HUNG.message_id == "4a206839cfa757dfb76b88cebed430ea"
    assert Cause.STOP_REQUESTED.message_id == "53dc13bfec7255e795e763e3ed56c65d"


def test_a_cause_is_its_word() -> None:
    """The ledger stores words; a word leads back to the cause."""
    assert f"{Cause.OOM_KILL}" == "oom-kill"
    assert Cause("oom-kill") is Cause.OOM_KILL


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_for_degraded_is_explained(reason: Reason) -> None:
    """What a profile may name in `restart.on` has a cause of the same word."""
    assert Cause(reason.value).title


@pytest.mark.parametrize(
    ("retry", "code"),
    [
        (Retry.ALWAYS, ExitCode.TEMPFAIL),
        (Retry.ONCE, ExitCode.TEMPFAIL),
        (Retry.NEVER_CONFIG, ExitCode.CONFIG),
        (Retry.NEVER_HOST, ExitCode.UNAVAILABLE),
    ],
)
def test_the_manager_is_told_by_the_exit_code(retry: Retry, code: ExitCode) -> None:
    """75 restarts, 78 waits for the configuration, 69 for the host or an operator."""
    assert retry.exit_code is code


def test_the_list_is_cheap_to_import() -> None:
    """Importing the names loads no parser, no dataclass and no signature."""
    code = (
        "import sys, servicekit.diagnosis.causes;"
        "dear = {'tomllib', 'dataclasses', 'uuid', 'servicekit.diagnosis.signatures'};"
        "print(*dear & set(sys.modules))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == ""
