"""`status`: shows all services, or one profile in full."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from servicekit.cli.freshness import outdated
from servicekit.cli.output import as_json, duration, local, note, ours, paint, say, table
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

        now = look(session, [session.manifest(profile)])[0]
        verified = verification_status_of(session, profile).text
        fault = _last_fault(session, now)
        if json:
            as_json(now.as_json() | {"verified": verified, "last_fault": fault})
        else:
            _print(now, verified, fault)
        return
    installed = [manifest for _, manifest in sorted(session.manifests().items())]
    every = look(session, installed)
    if json:
        as_json([now.as_json() for now in every])
    elif every:
        table(("PROFILE", "STATE", "SINCE", "BOOT", "WHY"), [_row(now) for now in every])
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


def _age(now: Status) -> str:
    """Return how long it has been in its state: by the boot's clock if known, else the wall's."""
    known = now.since_seconds
    return age(now.since) if known is None else duration(known)


def why(now: Status) -> str:
    """Return why it is in its state; of a start also how long it takes so far, and usually."""
    if now.starting_seconds is None:
        return now.why
    usual = f" of about {duration(now.eta_seconds)}" if now.eta_seconds is not None else ""
    return f"{now.why} ({duration(now.starting_seconds)}{usual})"


def _row(now: Status) -> tuple[str, ...]:
    reason = why(now)
    if now.drift:
        reason += f" ({len(now.drift)} of its files changed by hand)"
    if now.outdated:
        reason += f" ({now.outdated.partition(':')[0]})"
    return now.profile, now.state, _age(now), "yes" if now.enabled else "no", reason


def measured(figures: dict[str, float], planned: dict[str, float]) -> str:
    """Format the memory figures of the engine's boot log, beside those of the plan."""
    names = {"weights": "weights", "kv": "KV cache", "state": "states", "graph": "graphs"}
    parts = []
    for name, words in names.items():
        key = f"{name}_gib"
        if key in figures:
            beside = f" (planned {planned[key]:.2f})" if key in planned else ""
            parts.append(f"{words} {figures[key]:.2f} GiB{beside}")
    if "free_gib" in figures:
        parts.append(f"{figures['free_gib']:.2f} GiB free")
    return ", ".join(parts)


def _last_fault(session: Session, now: Status) -> dict[str, str | None] | None:
    """Return what the service has recovered from, if anything since an operator started it."""
    if now.state not in {"ready", "degraded", "starting"}:
        return None
    from servicekit.watchdog import history, ledger

    try:
        records = ledger.read(Path(session.places.ledger(now.profile)))
    except UserError:
        return None
    fault = history.last_fault(records, now.run)
    if fault is None:
        return None
    return {
        "at": fault.at.isoformat(timespec="milliseconds"),
        "run": fault.run,
        "cause": fault.cause.value if fault.cause else None,
        "sentence": fault.sentence,
    }


def _past(fault: dict[str, str | None]) -> str:
    at = local(datetime.fromisoformat(str(fault["at"])))
    return f"{at} ({age(fault['at'])} ago): {fault['cause'] or 'degraded'}: {fault['sentence']}"


def _print(now: Status, verified: str, fault: dict[str, str | None] | None) -> None:
    boot = "starts at boot" if now.enabled else "does not start at boot"
    since = f" for {_age(now)}" if now.since else ""
    print(f"{now.profile}: {paint(now.state)}{since}")
    context = ", ".join(f"{name} {tokens}" for name, tokens in now.context.items() if tokens)
    process = f"watchdog {now.pid}" if now.pid else ""
    process += f", engine {now.engine_pid}" if now.engine_pid else ""
    accepted = now.kv_precision_accepted
    below_fp8 = f'below FP8, accepted because "{accepted}"' if accepted else ""
    for label, text in (
        ("why", why(now)),
        ("remedy", ours(now.remedy)),
        ("cause", now.cause),
        ("last fault", _past(fault) if fault else ""),
        ("serves", f"{now.served_name} at {now.url}" if now.url and now.pid else ""),
        ("model", now.model),
        ("context", f"{context} tokens" if context else ""),
        ("measured", measured(now.figures, now.planned)),
        ("plan", now.pool_drift),
        ("outdated", ours(now.outdated)),
        ("version", ours(now.upgrade)),
        ("KV cache", below_fp8),
        ("verified", verified),
        ("processes", process),
        ("loaded in", duration(now.ready_seconds)),
        ("restarts", str(now.restarts) if now.restarts else ""),
        ("run", now.run),
        ("manager", f"{now.manager}, {boot}"),
    ):
        if text:
            say(f"  {label + ':':11} {printable(text)}")
    for sentence in now.overruled:
        say(f"  {'anyway:':11} {printable(sentence)}")
    for sentence in now.trusted:
        say(f"  {'trusted:':11} {printable(sentence)}")
    for path in now.drift:
        say(f"  {'drift:':11} {path}")
