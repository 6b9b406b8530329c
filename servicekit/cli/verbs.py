"""The verbs, by what they are for, and the text of `servicekit --help`."""

from __future__ import annotations

from typing import Final, NamedTuple


class Verb(NamedTuple):
    """Module and function of a verb, and its line in `--help`."""

    module: str
    function: str
    summary: str


GROUPS: Final = {
    "Profiles": {
        "list": Verb("profiles", "list_profiles", "List the available profiles."),
        "show": Verb("profiles", "show", "Show a profile with everything it extends."),
        "check": Verb("advice", "check", "Check a profile against its engine's options."),
        "plan": Verb("advice", "plan", "Show how a profile uses the GPU memory."),
        "fetch": Verb("fetch", "fetch", "Download the weights of a profile."),
        "schema": Verb("profiles", "schema", "Print the JSON schema of profile files."),
    },
    "Services": {
        "install": Verb("install", "install", "Install a profile as a service."),
        "uninstall": Verb("install", "uninstall", "Stop a service and remove its files."),
        "render": Verb("profiles", "render", "Print the files that an install would write."),
        "diff": Verb("install", "diff", "Show what an install would change."),
        "secret": Verb("secret", "app", "Store, list and remove the secrets of a profile."),
        "start": Verb("control", "start", "Start a service and wait until it is ready."),
        "stop": Verb("control", "stop", "Stop a service and all its processes."),
        "restart": Verb("restart", "restart", "Stop a service and start it again."),
        "switch": Verb("switch", "switch", "Stop the running service and start another one."),
    },
    "Inspection": {
        "status": Verb("signatures", "status", "Show the status of all services or of one."),
        "history": Verb("history", "history", "Show when and why the runs of a service ended."),
        "logs": Verb("logs", "logs", "Show the log of a service."),
        "diagnose": Verb("diagnose", "diagnose", "Explain from its log why an engine failed."),
        "probe": Verb("signatures", "probe", "Check whether a service is healthy."),
        "doctor": Verb("doctor", "doctor", "Check the host and every service for problems."),
    },
    "Measurement": {
        "verify": Verb("verify", "verify", "Run the acceptance gates against a running profile."),
        "bench": Verb("bench", "bench", "Run a benchmark suite against a verified profile."),
        "compare": Verb("compare", "compare", "Compare benchmark results."),
    },
    "Host": {
        "tunnel": Verb("tunnel", "app", "Keep an engine's port reachable over ssh."),
        "wsl": Verb("wsl", "app", "Configure WSL2 to keep services running."),
        "watch": Verb("signatures", "watch", "Run an engine under its watchdog (for the manager)."),
        "alert": Verb("alert", "alert", "Send the configured alert for a service."),
    },
}
VERBS: Final = {name: verb for verbs in GROUPS.values() for name, verb in verbs.items()}

SUMMARY: Final = "Run local model servers as systemd or Supervisor services with a watchdog."

OPTIONS: Final = {
    "--user": "Manage the services of the calling user.",
    "--config FILE": "Read the settings from FILE.",
    "--version": "Show the version.",
    "--show-completion": "Print the completion script for the current shell.",
    "--install-completion": "Install the completion script.",
    "-h, --help": "Show this help. `servicekit COMMAND --help` shows more.",
}

EXIT_CODES_IN_SHORT: Final = (
    "0 done, 1 failed, 2 usage error, 78 invalid configuration, 130 interrupted",
    "probe: 0 healthy, 1 not healthy, 2 cannot tell",
    "watch: 0 stopped, 69 do not restart, 75 restart",
)
# The manual page has room for all of it.
EXIT_CODES: Final = {
    "0": "done; for probe: healthy",
    "1": "failed; for probe: not healthy",
    "2": "wrong command line; for probe: cannot tell",
    "69": "do not restart: the host or an operator must act",
    "75": "the run ended by a fault: restart it (watch only)",
    "78": "the configuration must change",
    "130": "interrupted",
}

FILES: Final = {
    "/etc/servicekit/servicekit.toml": "settings",
    "/etc/servicekit/profiles.d/*.toml": "site profiles",
    "/var/lib/servicekit/PROFILE/": "history of each profile",
    "~/.config/servicekit, ~/.local/state/servicekit": "the same with --user",
}


def help_text() -> str:
    """Return the text of `servicekit --help`: at most 80 columns."""
    lines = ["Usage: servicekit [OPTIONS] COMMAND [ARGS]...", "", SUMMARY]
    for group, verbs in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {name:9}  {verb.summary}" for name, verb in verbs.items()]
    lines += ["", "Options:", *(f"  {name:20}  {text}" for name, text in OPTIONS.items())]
    lines += ["", "Exit codes:", *(f"  {line}" for line in EXIT_CODES_IN_SHORT)]
    return "\n".join(lines)
