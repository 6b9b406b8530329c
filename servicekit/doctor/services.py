"""Checks of the service manager, logins and the journal. Pure."""

from __future__ import annotations

from typing import Final

from servicekit.doctor.answer import Answer, Checks, fail, ok, seen, skip, warn
from servicekit.doctor.texts import leading_number
from servicekit.doctor.view import HostView, Journal, SupervisorView, SystemdView, Unseen
from servicekit.places import Scope

GROUP: Final = "services"
CHECKS: Final = Checks[HostView]()

OLDEST_SYSTEMD: Final = 247  # the first that hands credentials over (`LoadCredential=`)
OLDEST_SUPERVISOR: Final = 4  # the first for Python 3; older ones are untested
# Restart features of newer systemd versions. servicekit's own hold-off needs neither.
FEATURES: Final = ((254, "RestartSteps="), (258, "RESTART_RESET=1"))
# Its logind may stop a lingering user's systemd at the last logout; fixed in 256.3
# (systemd#43361).
LINGER_FAULT: Final = 255

SMALL_JOURNAL: Final = 100 << 20  # bytes; a smaller one loses a service's last start within days
LOW_RATE: Final = 1000  # messages per interval; one start of an engine can exceed it


@CHECKS.add("manager", "service manager")
def manager(host: HostView) -> Answer:
    """systemd or Supervisor runs, in a version that supports the generated files."""
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
            f'{runs}, but the user manager of "{host.account}" does not',
            f"`loginctl enable-linger {host.account}`, or log in without su or sudo",
        )
    if 0 < version < OLDEST_SYSTEMD:
        return warn(
            f"{runs}, which does not support LoadCredential=",
            f"upgrade it to {OLDEST_SYSTEMD} or newer to use profiles with secrets",
        )
    lacks = [f"{name} ({since})" for since, name in FEATURES if 0 < version < since]
    without = f", without {' and '.join(lacks)} (optional)" if lacks else ""
    return ok(f"{runs}{without}")


@CHECKS.add("cgroups", "control groups")
def groups(host: HostView) -> Answer:
    """Engines can be killed as a whole, by cgroup.kill of control groups version 2."""
    if not isinstance(host.manager, SystemdView):
        return skip("control groups apply to systemd only")
    groups = seen(host.groups)
    by_marker = "an engine's processes are found by their environment instead"
    if not groups.unified:
        return warn(
            f"control groups are version 1: {by_marker}",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    if not groups.kill:
        return warn(f"the kernel has no cgroup.kill: {by_marker}", "upgrade to Linux 5.14 or newer")
    return ok("version 2, with cgroup.kill")


@CHECKS.add("lingering", "lingering")
def lingering(host: HostView) -> Answer:
    """A user's services start at boot and survive the logout; systemd 255 has a bug there."""
    if host.scope is Scope.SYSTEM or not isinstance(host.manager, SystemdView):
        return skip("system services do not depend on logins")
    logins = seen(host.logins)
    if not logins.lingers:
        return fail(
            f'services of "{host.account}" stop at logout and do not start at boot',
            f"`loginctl enable-linger {host.account}`",
        )
    if host.manager.version == LINGER_FAULT:
        return warn(
            f'"{host.account}" has lingering enabled, but systemd {LINGER_FAULT} may stop its '
            "services at the last logout",
            "install system services, as root",
        )
    return ok(f'"{host.account}" has lingering enabled')


@CHECKS.add("kill-user-processes", "KillUserProcesses")
def kill_user_processes(host: HostView) -> Answer:
    """logind does not kill what was started from a login, such as a supervisord."""
    logins = seen(host.logins)
    if not logins.kills:
        return ok("logind does not kill processes at logout")
    if isinstance(host.manager, SupervisorView):
        return warn(
            "logind kills processes at logout, including a supervisord started from a login",
            "start supervisord at boot, or set KillUserProcesses=no in /etc/systemd/logind.conf",
        )
    return ok("logind kills processes at logout, but not services")


@CHECKS.add("journal", "journal")
def journal(host: HostView) -> Answer:
    """The journal survives a reboot, is large enough, and drops no lines at its rate limit."""
    if not isinstance(host.manager, SystemdView):
        return skip("Supervisor keeps log files, not a journal")
    config = seen(host.journal)
    if config.storage == "none":
        return fail(
            "journald stores nothing: `servicekit logs` has nothing to show",
            "set Storage=persistent in /etc/systemd/journald.conf",
        )
    if config.storage == "volatile":
        return warn(
            "the journal is in memory and is lost at a reboot",
            "`mkdir -p /var/log/journal` and `journalctl --flush` as root",
        )
    if config.most is not None and config.most < SMALL_JOURNAL:
        return warn(
            f"the journal is limited to {config.most >> 20} MiB, which one verbose start can fill",
            "raise SystemMaxUse in /etc/systemd/journald.conf",
        )
    return _rate(host, config)


def _rate(host: HostView, config: Journal) -> Answer:
    if not config.interval or not config.burst:
        return ok("persistent, without a rate limit")
    limit = f"{config.burst} messages in {config.interval:g} s"
    if host.scope is Scope.SYSTEM:
        return ok(f"persistent; its rate limit, {limit}, does not apply to servicekit's units")
    if config.burst < LOW_RATE:
        return warn(
            f"journald drops messages of user services above {limit}",
            "raise RateLimitBurst in /etc/systemd/journald.conf",
        )
    return ok(f"persistent; user services may log {limit}")


@CHECKS.add("journal-access", "journal access")
def journal_access(host: HostView) -> Answer:
    """The current user may read the journal of the services."""
    if not isinstance(host.manager, SystemdView):
        return skip("Supervisor keeps log files, not a journal")
    journal = seen(host.journal)
    if host.scope is Scope.USER:
        return ok("users may read the journal of their own services")
    if journal.readable:
        return ok(f'"{host.account}" may read it')
    return warn(
        f'"{host.account}" may not read the system journal',
        f"`usermod -aG systemd-journal {host.account}` as root, and log in again",
    )


@CHECKS.add("gpu-containers", "GPU containers")
def containers(host: HostView) -> Answer:
    """No running container would lose its GPU when systemd reloads its units."""
    if not isinstance(host.manager, SystemdView):
        return skip("applies to systemd only")
    containers = seen(host.containers)
    if containers:
        return warn(
            f"{', '.join(containers)} will lose the GPU when systemd reloads its units, "
            "which install and uninstall do",
            "restart them afterwards, or pass them the GPU by --device",
        )
    return ok("no container uses the GPU")
