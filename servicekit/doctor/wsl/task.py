"""The Windows task that starts a distribution at logon and keeps it running. Pure.

It runs as the user, since WSL cannot be reached from the session of Windows services. Its Windows
process keeps the distribution from being idle, in every version of WSL. Elements and their order
are those of the Task Scheduler schema, version 1.2.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Final

from servicekit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMESPACE: Final = "http://schemas.microsoft.com/windows/2004/02/mit/task"
VERSION: Final = "1.2"
FILE: Final = "servicekit-keepalive.xml"

# WSL's client for graphical programs, which opens no console.
WITHOUT_WINDOW: Final = r"%ProgramFiles%\WSL\wslg.exe"
WITH_WINDOW: Final = r"%SystemRoot%\System32\wsl.exe"  # WSL's client where that one is missing

FOR_EVER: Final = "PT0S"  # no limit. Without it Windows ends a task after three days.
# How often it is started again; no effect while it runs. Windows may not count the end of WSL as
# a failure.
AGAIN: Final = "PT5M"
RESTART_INTERVAL: Final = "PT1M"  # the shortest that the schema allows
RESTART_COUNT: Final = 255  # the most that it allows

_DISTRIBUTION: Final = re.compile(r"[A-Za-z0-9._-]+")  # what WSL lets a distribution be called


def task_name(distribution: str) -> str:
    return f"servicekit keeps {distribution} running"


def task_xml(distribution: str, account: str, *, client: str = WITHOUT_WINDOW) -> str:
    r"""Return the task's XML as a text, to be written as UTF-16.

    `account` is the Windows account as `COMPUTER\name`. Without it, only an administrator may
    register the trigger.
    """
    if not _DISTRIBUTION.fullmatch(distribution):
        raise UserError(
            f'"{distribution}" is not the name of a WSL distribution',
            hint="see `wsl.exe --list` for the names",
        )
    ET.register_namespace("", NAMESPACE)
    task = ET.Element(_tag("Task"), version=VERSION)
    about = _add(task, "RegistrationInfo")
    _add(about, "Author", "servicekit")
    _add(about, "Description", f"Starts the WSL distribution {distribution} and keeps it running.")
    trigger = _add(_add(task, "Triggers"), "LogonTrigger")
    _add(trigger, "Enabled", "true")
    again = _add(trigger, "Repetition")
    _add(again, "Interval", AGAIN)
    _add(again, "StopAtDurationEnd", "false")
    _add(trigger, "UserId", account)
    principal = _add(_add(task, "Principals"), "Principal", id="Author")
    _add(principal, "UserId", account)
    _add(principal, "LogonType", "InteractiveToken")
    _add(principal, "RunLevel", "LeastPrivilege")
    settings = _add(task, "Settings")
    for name, value in _SETTINGS:
        _add(settings, name, value)
    restart = _add(settings, "RestartOnFailure")
    _add(restart, "Interval", RESTART_INTERVAL)
    _add(restart, "Count", str(RESTART_COUNT))
    run = _add(_add(task, "Actions", Context="Author"), "Exec")
    _add(run, "Command", client)
    command = "--exec" if client == WITH_WINDOW else "--"
    _add(run, "Arguments", f"-d {distribution} {command} sleep infinity")
    ET.indent(task)
    text = ET.tostring(task, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-16"?>\n{text}\n'


# All of them are explicit, whatever the defaults of Windows are.
_SETTINGS: Final = (
    ("MultipleInstancesPolicy", "IgnoreNew"),
    ("DisallowStartIfOnBatteries", "false"),
    ("StopIfGoingOnBatteries", "false"),
    ("AllowHardTerminate", "true"),
    ("StartWhenAvailable", "true"),
    ("RunOnlyIfNetworkAvailable", "false"),
    ("AllowStartOnDemand", "true"),
    ("Enabled", "true"),
    ("Hidden", "true"),
    ("RunOnlyIfIdle", "false"),
    ("WakeToRun", "false"),
    ("ExecutionTimeLimit", FOR_EVER),
    ("Priority", "7"),
)


def _tag(name: str) -> str:
    return f"{{{NAMESPACE}}}{name}"


def _add(parent: ET.Element, name: str, text: str = "", **attributes: str) -> ET.Element:
    child = ET.SubElement(parent, _tag(name), attributes)
    child.text = text or None
    return child


def registration(distribution: str, path: str) -> str:
    """Return the line for Windows PowerShell that registers the task from the file at `path`.

    It replaces the task of that name, and needs no administrator.
    """
    return (
        f"Register-ScheduledTask -Force -TaskName {powershell_word(task_name(distribution))} "
        f"-Xml (Get-Content -Raw -LiteralPath {powershell_word(path)})"
    )


def powershell_word(text: str) -> str:
    """Quote `text` as one word of PowerShell, in which nothing is expanded."""
    # PowerShell treats typographic quotes as plain ones.
    return "'" + re.sub("(['\u2018\u2019\u201a\u201b])", r"\1\1", text) + "'"


def faults(xml: str) -> Iterator[str]:
    """Say why a registered task, as Windows exports it, does not keep WSL running.

    Raises `ValueError` where it is no task.
    """
    declared = re.sub(r"\A\ufeff?\s*<\?xml[^>]*\?>", "", xml)
    try:
        task = ET.fromstring(declared)  # noqa: S314 - Windows' own, asked for by its user
    except ET.ParseError as error:
        raise ValueError(str(error)) from None
    if task.tag != _tag("Task"):
        raise ValueError("not a task")
    limit = _setting(task, "Settings/ExecutionTimeLimit", "PT72H")
    if limit != FOR_EVER:
        yield f"ends it after {limit}" + (", three days" if limit in {"PT72H", "P3D"} else "")
    for name, why in (
        ("DisallowStartIfOnBatteries", "is not started on batteries"),
        ("StopIfGoingOnBatteries", "is stopped on batteries"),
        ("RunOnlyIfIdle", "runs only while the PC is idle"),
    ):
        default = "false" if name == "RunOnlyIfIdle" else "true"
        if _setting(task, f"Settings/{name}", default) == "true":
            yield why
    if _setting(task, "Settings/Enabled", "true") != "true":
        yield "is disabled"
    if task.find("/".join(map(_tag, ("Triggers", "LogonTrigger")))) is None:
        yield "does not start at logon"


def _setting(task: ET.Element, path: str, default: str) -> str:
    value = task.findtext("/".join(map(_tag, path.split("/"))))
    return default if value is None else value.strip()
