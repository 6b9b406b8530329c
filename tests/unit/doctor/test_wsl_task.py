"""The task for Windows: valid by the schema's rules, and with nothing in it that ends it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.doctor.wsl.task import (
    NAMESPACE,
    WITH_WINDOW,
    faults,
    powershell_word,
    registration,
    task_name,
    task_xml,
)
from servicekit.errors import UserError

XML = task_xml("Ubuntu-24.04", r"PC\ada")

# What the Task Scheduler schema, version 1.2, says of the elements that are used. A sequence has an
# order, in an "all" each element may come once.
SEQUENCES: Final = {
    "LogonTrigger": (
        *("Enabled", "StartBoundary", "EndBoundary", "Repetition", "ExecutionTimeLimit"),
        *("UserId", "Delay"),
    ),
}
ALLS: Final = {
    "Task": {"RegistrationInfo", "Triggers", "Principals", "Settings", "Data", "Actions"},
    "RegistrationInfo": {
        *("URI", "SecurityDescriptor", "Source", "Date", "Author", "Version", "Description"),
        "Documentation",
    },
    "Triggers": {"LogonTrigger"},
    "Principals": {"Principal"},
    "Principal": {"UserId", "LogonType", "GroupId", "DisplayName", "RunLevel"},
    "Settings": {
        *("AllowStartOnDemand", "RestartOnFailure", "MultipleInstancesPolicy"),
        *("DisallowStartIfOnBatteries", "StopIfGoingOnBatteries", "AllowHardTerminate"),
        *("StartWhenAvailable", "NetworkProfileName", "RunOnlyIfNetworkAvailable", "WakeToRun"),
        *("Enabled", "Hidden", "DeleteExpiredTaskAfter", "IdleSettings", "NetworkSettings"),
        *("ExecutionTimeLimit", "Priority", "RunOnlyIfIdle"),
    },
    "Repetition": {"Interval", "Duration", "StopAtDurationEnd"},
    "RestartOnFailure": {"Interval", "Count"},
    "Actions": {"Exec"},
    "Exec": {"Command", "Arguments", "WorkingDirectory"},
}
BOOLEANS: Final = {
    *("Enabled", "AllowStartOnDemand", "DisallowStartIfOnBatteries", "StopIfGoingOnBatteries"),
    *("AllowHardTerminate", "StartWhenAvailable", "RunOnlyIfNetworkAvailable", "WakeToRun"),
    *("Hidden", "RunOnlyIfIdle", "StopAtDurationEnd"),
}
ENUMERATIONS: Final = {
    "LogonType": {"S4U", "Password", "InteractiveToken", "InteractiveTokenOrPassword"},
    "RunLevel": {"LeastPrivilege", "HighestAvailable"},
    "MultipleInstancesPolicy": {"Parallel", "Queue", "IgnoreNew", "StopExisting"},
}
DURATION: Final = re.compile(r"P(?=.)(\d+Y)?(\d+M)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?")


def local(element: ET.Element) -> str:
    """Name an element without its namespace, which must be the schema's."""
    namespace, _, name = element.tag.removeprefix("{").partition("}")
    assert namespace == NAMESPACE
    return name


def parsed(xml: str) -> ET.Element:
    """Parse a task; its declaration, of an encoding that a text has not, is left out."""
    declaration, _, text = xml.partition("\n")
    assert declaration == '<?xml version="1.0" encoding="UTF-16"?>'
    return ET.fromstring(text)  # noqa: S314 - our own


def said(xml: str, path: str) -> str | None:
    """Give the text at a path of names."""
    steps = "/".join(f"{{{NAMESPACE}}}{name}" for name in path.split("/"))
    return parsed(xml).findtext(steps)


def check(element: ET.Element) -> None:
    """Hold an element and all below it against the rules above."""
    name, children = local(element), [local(child) for child in element]
    if name in SEQUENCES:
        order = [SEQUENCES[name].index(child) for child in children]
        assert order == sorted(order), name
        assert len(set(children)) == len(children), name
    elif name in ALLS:
        assert set(children) <= ALLS[name], name
        assert len(set(children)) == len(children), name
    else:
        assert children == [], name
        text = element.text or ""
        assert text, name
        assert name not in BOOLEANS or text in {"true", "false"}, name
        assert name not in ENUMERATIONS or text in ENUMERATIONS[name], name
        if name in {"ExecutionTimeLimit", "Interval"}:
            assert DURATION.fullmatch(text), name
    for child in element:
        check(child)


@pytest.mark.parametrize(
    ("distribution", "account"),
    [("Ubuntu", r"PC\ada"), ("my.distro_2-x", "AzureAD\\Jürgen <&> O'Neil")],
)
def test_the_task_keeps_the_rules_of_its_schema(distribution: str, account: str) -> None:
    """Every element is known where it stands, in order where there is one, with a legal value."""
    xml = task_xml(distribution, account)
    task = parsed(xml)
    assert task.attrib == {"version": "1.2"}
    check(task)
    assert said(xml, "Triggers/LogonTrigger/UserId") == account
    assert said(xml, "Principals/Principal/UserId") == account


def test_its_actions_are_of_its_principal() -> None:
    """The schema wants the context of the actions to be the id of a principal."""
    task = parsed(XML)
    (principal,) = task.iter(f"{{{NAMESPACE}}}Principal")
    (actions,) = task.iter(f"{{{NAMESPACE}}}Actions")
    assert actions.attrib["Context"] == principal.attrib["id"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("Settings/ExecutionTimeLimit", "PT0S"),
        ("Settings/DisallowStartIfOnBatteries", "false"),
        ("Settings/StopIfGoingOnBatteries", "false"),
        ("Settings/RunOnlyIfIdle", "false"),
        ("Settings/Hidden", "true"),
        ("Settings/MultipleInstancesPolicy", "IgnoreNew"),
        ("Triggers/LogonTrigger/Repetition/Interval", "PT5M"),
        ("Triggers/LogonTrigger/Repetition/Duration", None),
        ("Settings/RestartOnFailure/Interval", "PT1M"),
        ("Settings/RestartOnFailure/Count", "255"),
        ("Principals/Principal/LogonType", "InteractiveToken"),
        ("Principals/Principal/RunLevel", "LeastPrivilege"),
        ("Actions/Exec/Command", r"%ProgramFiles%\WSL\wslg.exe"),
        ("Actions/Exec/Arguments", "-d Ubuntu-24.04 -- sleep infinity"),
    ],
)
def test_nothing_ends_the_task(path: str, text: str | None) -> None:
    """No limit of three days, no batteries; it is started again and again, by its own user."""
    assert said(XML, path) == text


def test_without_the_client_for_graphics_the_other_one_runs() -> None:
    """It takes the program behind another option, and shows a window."""
    xml = task_xml("Ubuntu", r"PC\ada", client=WITH_WINDOW)
    assert said(xml, "Actions/Exec/Command") == r"%SystemRoot%\System32\wsl.exe"
    assert said(xml, "Actions/Exec/Arguments") == "-d Ubuntu --exec sleep infinity"


@pytest.mark.parametrize("name", ["", "a b", "a;b", '"', "ubuntu\n"])
def test_what_cannot_be_a_distribution_is_refused(name: str) -> None:
    """Its name becomes part of a command line, and WSL allows little in it."""
    with pytest.raises(UserError, match="not the name of a WSL distribution"):
        task_xml(name, "ada")


def test_the_line_that_registers_it_quotes_its_words() -> None:
    """A path with an apostrophe stays one word of PowerShell."""
    assert registration("Ubuntu", r"C:\Users\O'Neil\x.xml") == (
        "Register-ScheduledTask -Force -TaskName 'servicekit keeps Ubuntu running' "
        r"-Xml (Get-Content -Raw -LiteralPath 'C:\Users\O''Neil\x.xml')"
    )


@given(st.text())
def test_every_quote_that_powershell_knows_is_doubled(text: str) -> None:
    """PowerShell reads two quotes as one, whichever of the five kinds they are."""
    word = powershell_word(text)
    assert word[0] == word[-1] == "'"
    assert re.sub("(['\u2018\u2019\u201a\u201b])\\1", r"\1", word[1:-1]) == text


# What doctor reads of a registered task.


def test_our_own_task_has_no_fault() -> None:
    """What is rendered is what is wanted; Windows gives it back with a declaration or without."""
    assert list(faults(XML)) == []
    assert list(faults(XML.partition("\n")[2])) == []
    assert list(faults("\ufeff" + XML)) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "fault"),
    [
        ("<ExecutionTimeLimit>PT0S</ExecutionTimeLimit>", "", "ends it after PT72H, three days"),
        (">PT0S<", ">P3D<", "ends it after P3D, three days"),
        (">PT0S<", ">PT1H<", "ends it after PT1H"),
        ("<DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>", "",
         "is not started on batteries"),
        ("GoingOnBatteries>false", "GoingOnBatteries>true", "is stopped on batteries"),
        ("<RunOnlyIfIdle>false", "<RunOnlyIfIdle>true", "runs only while the PC is idle"),
        ("<Hidden>", "<Hidden>", None),
        ("<Enabled>true</Enabled>\n    <Hidden>", "<Enabled>false</Enabled>\n    <Hidden>",
         "is disabled"),
        ("LogonTrigger", "BootTrigger", "does not start at logon"),
    ],
)  # fmt: skip
def test_a_task_that_ends_is_found_out(ours: str, theirs: str, fault: str | None) -> None:
    """Windows' defaults end a task after three days and on batteries, where nothing is said."""
    assert ours in XML
    assert list(faults(XML.replace(ours, theirs))) == ([] if fault is None else [fault])


@pytest.mark.parametrize("xml", ["", "ERROR: The system cannot find the file", "<Task/>", "<a"])
def test_what_is_no_task_is_no_answer(xml: str) -> None:
    """An error message of Windows is not taken for a task."""
    with pytest.raises(ValueError, match=r".+"):
        list(faults(xml))


def test_a_task_is_named_after_its_distribution() -> None:
    """Two distributions have two tasks."""
    assert task_name("a") != task_name("b")
