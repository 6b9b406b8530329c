"""`status`: shows all services, or one profile in full."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from servicekit.cli.freshness import outdated
from servicekit.cli.output import as_json, duration, note, ours, paint, table
from servicekit.cli.session import Session
from servicekit.errors import UserError
from servicekit.install.present import drifted
from servicekit.install.rootfs import Tree
from servicekit.managers import Seen
from servicekit.service.manifest import Manifest
from servicekit.text import printable
from servicekit.watchdog.status import Status, status_of


def status(session: Session, profile: str | None, *, json: bool) -> None:
    if profile is not None:
        from servicekit.cli.verification import verification_status_of

        found = look(session, [session.manifest(profile)])[0]
        verified = verification_status_of(session, profile).text
        if json:
            as_json(found.as_json() | {"verified": verified})
        else:
            _tell(found, verified)
        return
    installed = [manifest for _, manifest in sorted(session.manifests().items())]
    every = look(session, installed)
    if json:
        as_json([found.as_json() for found in every])
    elif every:
        table(("PROFILE", "STATE", "SINCE", "BOOT", "WHY"), [_row(found) for found in every])
    else:
        note("no service is installed; `servicekit list` shows the available profiles")


def look(session: Session, installed: list[Manifest]) -> list[Status]:
    """Return the status of each, querying each manager once."""
    seen: dict[str, Seen] = {}
    for name in sorted({manifest.manager for manifest in installed}):
        seen |= _ask(session, name, [m.profile for m in installed if m.manager == name])
    every = (*session.manifests().values(), *session.tunnels().values())
    drift = drifted(Tree(), installed, every)
    return [
        replace(
            status_of(manifest, session.places, seen.get(manifest.profile)),
            drift=drift[manifest.profile],
            outdated=outdated(session, manifest.profile),
        )
        for manifest in installed
    ]


def _ask(session: Session, manager: str, profiles: list[str]) -> dict[str, Seen]:
    try:
        seen = session.manager(manager).look([f"servicekit-{profile}" for profile in profiles])
    except UserError as error:
        # What the watchdogs published is shown all the same.
        note(f"cannot query the manager: {error.message}")
        return {}
    return {unit.removeprefix("servicekit-"): how for unit, how in seen.items()}


def age(since: str | None) -> str:
    if since is None:
        return ""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds()
    return duration(max(0.0, seconds))


def _age(found: Status) -> str:
    """Return how long it has been in its state: by the boot's clock if known, else the wall's."""
    known = found.since_seconds
    return age(found.since) if known is None else duration(known)


def why(found: Status) -> str:
    """Return why it is in its state; of a start also how long it takes so far, and usually."""
    if found.starting_seconds is None:
        return found.why
    usual = f" of about {duration(found.eta_seconds)}" if found.eta_seconds is not None else ""
    return f"{found.why} ({duration(found.starting_seconds)}{usual})"


def _row(found: Status) -> tuple[str, ...]:
    reason = why(found)
    if found.drift:
        reason += f" ({len(found.drift)} of its files changed by hand)"
    if found.outdated:
        reason += f" ({found.outdated.partition(':')[0]})"
    return found.profile, found.state, _age(found), "yes" if found.enabled else "no", reason


def measured(figures: dict[str, float]) -> str:
    """Format the memory figures of the engine's boot log."""
    names = {"weights": "weights", "kv": "KV cache", "state": "states", "graph": "graphs"}
    parts = [
        f"{words} {figures[f'{name}_gib']:.2f} GiB"
        for name, words in names.items()
        if f"{name}_gib" in figures
    ]
    if "free_gib" in figures:
        parts.append(f"{figures['free_gib']:.2f} GiB free")
    return ", ".join(parts)


def _tell(found: Status, verified: str) -> None:
    boot = "starts at boot" if found.enabled else "does not start at boot"
    since = f" for {_age(found)}" if found.since else ""
    print(f"{found.profile}: {paint(found.state)}{since}")
    context = ", ".join(f"{name} {tokens}" for name, tokens in found.context.items() if tokens)
    process = f"watchdog {found.pid}" if found.pid else ""
    process += f", engine {found.engine_pid}" if found.engine_pid else ""
    accepted = found.kv_precision_accepted
    below_fp8 = f'below FP8, accepted because "{accepted}"' if accepted else ""
    for label, text in (
        ("why", why(found)),
        ("remedy", ours(found.remedy)),
        ("cause", found.cause),
        ("serves", f"{found.served_name} at {found.url}" if found.url and found.pid else ""),
        ("model", found.model),
        ("context", f"{context} tokens" if context else ""),
        ("measured", measured(found.figures)),
        ("plan", found.pool_drift),
        ("outdated", ours(found.outdated)),
        ("version", ours(found.upgrade)),
        ("KV cache", below_fp8),
        ("verified", verified),
        ("processes", process),
        ("loaded in", duration(found.ready_seconds)),
        ("restarts", str(found.restarts) if found.restarts else ""),
        ("run", found.run),
        ("manager", f"{found.manager}, {boot}"),
    ):
        if text:
            print(f"  {label + ':':11} {printable(text)}")
    for sentence in found.overruled:
        print(f"  {'anyway:':11} {printable(sentence)}")
    for sentence in found.trusted:
        print(f"  {'trusted:':11} {printable(sentence)}")
    for path in found.drift:
        print(f"  {'drift:':11} {path}")
