"""Checks of what keeps services: the manager, logins, the journal. Pure."""

from __future__ import annotations

from typing import Final

from servicekit.doctor.answer import Answer, Inquiry, fail, ok, skip, warn
from servicekit.doctor.texts import leading_number
from servicekit.doctor.view import HostView, Journal, SupervisorView, SystemdView, Unseen
from servicekit.places import Scope

GROUP: Final = "services"

OLDEST_SYSTEMD: Final = 247
"""The first that hands credentials over (`LoadCredential=`)."""
OLDEST_SUPERVISOR: Final = 4
"""The first for Python 3. What is written for it was not tried with older ones."""
FEATURES: Final = (
    (254, "RestartSteps="),
    (258, "RESTART_RESET=1"),
)
"""What newer versions of systemd have for restarts. servicekit's own hold-off needs neither."""
LINGER_FAULT: Final = 255
"""The version whose logind may stop a lingering user's systemd at the last logout; 256.3 has the
correction (systemd#43361)."""

SMALL_JOURNAL: Final = 100 << 20
"""Bytes below which a journal forgets a service's last start within days."""
LOW_RATE: Final = 1000
"""Messages in an interval of the rate limit that one start of an engine can exceed."""


def manager(host: HostView) -> Answer:
    """A manager runs, and in a version that knows what our files say."""
    if isinstance(host.manager, Unseen):
        return fail(
            host.manager.why, host.manager.remedy or "install and start systemd or Supervisor"
        )
    if isinstance(host.manager, SupervisorView):
        runs = f"Supervisor {host.manager.version} runs"
        if 0 < leading_number(host.manager.version) < OLDEST_SUPERVISOR:
            return warn(runs, "upgrade it to 4.0 or newer")
        return ok(runs)
    version, runs = host.manager.version, f"systemd {host.manager.text} runs"
    if host.manager.user is False:
        return fail(
            f'{runs}, but not that of the user "{host.account}"',
            f"`loginctl enable-linger {host.account}`, or log in other than by su or sudo",
        )
    if 0 < version < OLDEST_SYSTEMD:
        return warn(
            f"{runs}, which hands no secrets over",
            f"upgrade it to {OLDEST_SYSTEMD} or newer for profiles with secrets",
        )
    lacks = [f"{name} ({since})" for since, name in FEATURES if 0 < version < since]
    without = f", without {' and '.join(lacks)}, which are not needed" if lacks else ""
    return ok(f"{runs}{without}")


def groups(host: HostView) -> Answer:
    """An engine can be killed as a whole, whatever it did to escape."""
    if not isinstance(host.manager, SystemdView):
        return skip("control groups are used under systemd only")
    if isinstance(host.groups, Unseen):
        return skip(host.groups.why)
    by_marker = "an engine's processes are found by their marker instead"
    if not host.groups.unified:
        return warn(
            f"control groups are of version 1: {by_marker}",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    if not host.groups.kill:
        return warn(
            f"the kernel cannot kill a control group: {by_marker}", "run Linux 5.14 or newer"
        )
    return ok("version 2, with cgroup.kill")


def lingering(host: HostView) -> Answer:
    """A user's services outlive the login."""
    if host.scope is Scope.SYSTEM or not isinstance(host.manager, SystemdView):
        return skip("system services need no login")
    if isinstance(host.logins, Unseen):
        return skip(host.logins.why)
    if not host.logins.lingers:
        return fail(
            f'services of "{host.account}" stop at logout and are not started at boot',
            f"`loginctl enable-linger {host.account}`",
        )
    if host.manager.version == LINGER_FAULT:
        return warn(
            f'"{host.account}" lingers, but systemd {LINGER_FAULT} may stop it at the last '
            "logout all the same",
            "install as root, for a system service",
        )
    return ok(f'"{host.account}" lingers')


def kill_user_processes(host: HostView) -> Answer:
    """What is started from a login outlives it."""
    if isinstance(host.logins, Unseen):
        return skip(host.logins.why)
    if not host.logins.kills:
        return ok("logind leaves processes alone when their user logs out")
    if isinstance(host.manager, SupervisorView):
        return warn(
            "logind kills what a user leaves behind: a supervisord started from a login, too",
            "start supervisord at boot, or set KillUserProcesses=no in /etc/systemd/logind.conf",
        )
    return ok("logind kills what a user leaves behind, which no service is")


def journal(host: HostView) -> Answer:
    """What services said is kept long enough to explain a fault."""
    if not isinstance(host.manager, SystemdView):
        return skip("there is no journal: Supervisor keeps a log file for each service")
    found = host.journal
    if isinstance(found, Unseen):
        return skip(found.why)
    if found.storage == "none":
        return fail(
            "journald keeps nothing: `servicekit logs` has nothing to show",
            "set Storage=persistent in /etc/systemd/journald.conf",
        )
    if found.storage == "volatile":
        return warn(
            "the journal is in memory: what was said before a reboot is lost",
            "`mkdir -p /var/log/journal` and `journalctl --flush` as root",
        )
    if found.most is not None and found.most < SMALL_JOURNAL:
        return warn(
            f"the journal is limited to {found.most >> 20} MiB, which one verbose start can fill",
            "raise SystemMaxUse in /etc/systemd/journald.conf",
        )
    return _rate(host, found)


def _rate(host: HostView, found: Journal) -> Answer:
    if not found.interval or not found.burst:
        return ok("persistent, without a rate limit")
    limit = f"{found.burst} messages in {found.interval:g} s"
    if host.scope is Scope.SYSTEM:
        return ok(f"persistent; its rate limit, {limit}, does not hold for servicekit's units")
    if found.burst < LOW_RATE:
        return warn(
            f"journald drops what a user's services say beyond {limit}",
            "raise RateLimitBurst in /etc/systemd/journald.conf",
        )
    return ok(f"persistent; a user's services may say {limit}")


def journal_access(host: HostView) -> Answer:
    """Who asks may read what services said."""
    if not isinstance(host.manager, SystemdView):
        return skip("there is no journal")
    if isinstance(host.journal, Unseen):
        return skip(host.journal.why)
    if host.scope is Scope.USER:
        return ok("everyone may read what their own services said")
    if host.journal.readable:
        return ok(f'"{host.account}" may read it')
    return warn(
        f'"{host.account}" may not read what system services said',
        f"`usermod -aG systemd-journal {host.account}` as root, and log in again",
    )


def containers(host: HostView) -> Answer:
    """Nobody else loses the GPU when systemd reads its units again."""
    if not isinstance(host.manager, SystemdView):
        return skip("only systemd's reload takes the GPU from containers")
    if isinstance(host.containers, Unseen):
        return skip(host.containers.why)
    if host.containers:
        return warn(
            f"{', '.join(host.containers)} would lose the GPU when systemd reads its units again, "
            "as it does at install and uninstall",
            "restart them afterwards, or give them the GPU by --device",
        )
    return ok("no other container uses the GPU")


INQUIRIES: Final = (
    Inquiry(
        "manager",
        "service manager",
        "systemd or Supervisor runs, in a version that knows what the generated files say.",
        manager,
    ),
    Inquiry(
        "cgroups",
        "control groups",
        "Engines can be killed as a whole: control groups of version 2 with cgroup.kill.",
        groups,
    ),
    Inquiry(
        "lingering",
        "lingering",
        "A user's services start at boot and outlive the logout; systemd 255 has a fault there.",
        lingering,
    ),
    Inquiry(
        "kill-user-processes",
        "KillUserProcesses",
        "logind leaves alone what was started from a login, such as a supervisord.",
        kill_user_processes,
    ),
    Inquiry(
        "journal",
        "journal",
        "The journal survives a reboot, is large enough, and drops no lines at its rate limit.",
        journal,
    ),
    Inquiry(
        "journal-access",
        "journal access",
        "Whoever asks may read the journal of the services.",
        journal_access,
    ),
    Inquiry(
        "gpu-containers",
        "GPU containers",
        "No running container would lose its GPU when systemd reads its units again.",
        containers,
    ),
)
