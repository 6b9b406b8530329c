"""What a survey makes of a run's memory. Pure; `reactions` has the other events."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, assert_never

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.fault import Fault
from servicekit.host.facts import GpuView
from servicekit.profiles.vocabulary import Reason
from servicekit.watchdog import ending
from servicekit.watchdog.conditions import set_condition
from servicekit.watchdog.ending import fault_of
from servicekit.watchdog.events import (
    Actions,
    Policy,
    RunPhase,
    SurveyResult,
    SurveyTaken,
    Sweep,
)

if TYPE_CHECKING:
    from servicekit.watchdog.memory import Memory

# Seconds between surveys.
SETTLE_EVERY: Final = 0.1
HOLD_EVERY: Final = 1.0
# What an engine that was asked to end may still have running for so long: its workers end, too.
LINGER: Final = 1.0
# Surveys in a row that find the GPU slowed down before this is a condition.
SLOWDOWNS: Final = 2


def survey_taken(policy: Policy, memory: Memory, event: SurveyTaken) -> tuple[Memory, Actions]:
    """Note what a survey found; late ones, of a phase that is over, say nothing."""
    memory = replace(memory, survey=replace(memory.survey, running=False))
    match memory.phase:
        case RunPhase.HOLDING:
            return _surveyed_holding(policy, memory, event)
        case RunPhase.SETTLING:
            return _surveyed_settling(policy, memory, event)
        case RunPhase.SERVING | RunPhase.DEGRADED:
            return _surveyed_serving(policy, memory, event)
        case RunPhase.LOADING | RunPhase.STOPPING | RunPhase.KILLING | RunPhase.GONE:
            return memory, ()
        case _:
            assert_never(memory.phase)


def survey_next(memory: Memory, at: float) -> Memory:
    """Take the next survey at `at`."""
    return replace(memory, survey=replace(memory.survey, next_at=at))


def _swept(memory: Memory, survey: SurveyResult) -> tuple[Memory, Actions]:
    return memory, (Sweep(survey.orphans),) if survey.orphans else ()


def _surveyed_holding(policy: Policy, memory: Memory, event: SurveyTaken) -> tuple[Memory, Actions]:
    survey, at = event.survey, event.at
    blocked = _in_the_way(policy, survey)
    since = memory.hold.blocked_since if memory.hold.blocked else at
    hold = replace(memory.hold, clear=blocked is None, blocked=blocked, blocked_since=since)
    memory = survey_next(
        replace(memory, hold=hold), at + (SETTLE_EVERY if survey.orphans else HOLD_EVERY)
    )
    if blocked and survey.gpu is GpuView.LOST:
        return ending.settle(policy, memory, at, blocked)
    return _swept(memory, survey)


def _names(survey: SurveyResult) -> str:
    return ", ".join(process.named for process in survey.orphans)


def _held_by_others(policy: Policy, survey: SurveyResult) -> str:
    """Say what foreign processes hold of the GPU, where it is more than the profile allows."""
    held = sum(process.mib or 0 for process in survey.foreign)
    names = ", ".join(process.named for process in survey.foreign)
    return f"{held} MiB of VRAM are held by {names}" if held > policy.foreign_allowance else ""


def _unattributed(policy: Policy, survey: SurveyResult) -> str:
    mib = survey.unattributed_mib
    allowed = mib <= policy.foreign_allowance
    return "" if allowed else f"{mib} MiB of VRAM are held by no visible process"


def _in_the_way(policy: Policy, survey: SurveyResult) -> Fault | None:
    """Say what must be gone (or there) before an engine may be launched."""
    if survey.orphans:
        stuck = any(process.stuck for process in survey.orphans)
        why = "in uninterruptible sleep" if stuck else "still alive"
        sentence = f"orphan of an earlier run, {why}: {_names(survey)}"
        return Fault(Cause.UNKILLABLE, sentence, "reboot the machine")
    if survey.port_holder:
        sentence = f"the port is held by {survey.port_holder.named}"
        if not survey.port_holder.pid:  # of another account: only root can see who it is
            return fault_of(Cause.PORT_BUSY, sentence)
        return Fault(Cause.PORT_BUSY, sentence, "stop that process or change the port")
    return _gpu_in_the_way(policy, survey)


def _gpu_in_the_way(policy: Policy, survey: SurveyResult) -> Fault | None:
    if survey.locked_by:
        remedy = f"servicekit stop {survey.locked_by}"
        return Fault(Cause.VRAM_BUSY, f'profile "{survey.locked_by}" uses the same GPU', remedy)
    if survey.gpu in {GpuView.ABSENT, GpuView.UNRESPONSIVE}:
        return Fault(Cause.DRIVER, survey.gpu_note, "see `nvidia-smi` and `journalctl -k -g NVRM`")
    if survey.gpu is GpuView.LOST:
        return Fault(Cause.GPU_LOST, survey.gpu_note, "reboot the machine")
    if sentence := _held_by_others(policy, survey):
        return Fault(Cause.VRAM_BUSY, sentence, "stop that process")
    if sentence := _unattributed(policy, survey):
        return Fault(Cause.VRAM_ORPHAN, sentence, "reset the GPU or reboot the machine")
    return None


def _surveyed_settling(
    policy: Policy, memory: Memory, event: SurveyTaken
) -> tuple[Memory, Actions]:
    survey, at, end = event.survey, event.at, memory.end
    if event.asked_at < memory.since:  # taken while the engine was still alive: take another
        return survey_next(memory, at), ()
    if not survey.orphans and survey.unattributed_mib <= policy.foreign_allowance:
        clean = replace(memory, end=replace(end, unsettled="", orphaned=False))
        return ending.gone(policy, clean)
    memory = survey_next(memory, at + SETTLE_EVERY)
    if end.stop and not end.fault and at < memory.since + min(LINGER, policy.settle / 2):
        return memory, ()
    left = f"left behind: {_names(survey)}"
    held = f"{survey.unattributed_mib} MiB of VRAM not yet released"
    orphaned = bool(survey.orphans)
    end = replace(end, unsettled=left if orphaned else held, orphaned=orphaned)
    return _swept(replace(memory, end=end), survey)


def _surveyed_serving(policy: Policy, memory: Memory, event: SurveyTaken) -> tuple[Memory, Actions]:
    survey, at = event.survey, event.at
    if survey.gpu is GpuView.LOST:
        fault = Fault(Cause.GPU_LOST, survey.gpu_note, "reboot the machine")
        return ending.stop(policy, memory, at, fault)
    orphan = _unattributed(policy, survey)
    if survey.orphans:
        orphan = f"orphan of an earlier run: {_names(survey)}"
    if survey.gpu_busy is not None:
        vitals = memory.vitals
        still, idle_at = (None, 0.0) if survey.gpu_busy else (vitals.still, at)
        memory = replace(memory, vitals=replace(vitals, still=still, gpu_idle_at=idle_at))
    memory = _slowed_down(survey_next(memory, at + policy.survey), event)
    memory = set_condition(memory, Reason.STRANGER_ON_GPU, at, _held_by_others(policy, survey))
    return _swept(set_condition(memory, Reason.VRAM_ORPHAN, at, orphan), survey)


def _slowed_down(memory: Memory, event: SurveyTaken) -> Memory:
    """Note a GPU below its clocks when it lasts: it comes and goes with the temperature."""
    slowdown, before = event.survey.slowdown, memory.vitals.slowdowns
    count = min(before + 1, SLOWDOWNS + 1) if slowdown else max(before - 1, 0)
    memory = replace(memory, vitals=replace(memory.vitals, slowdowns=count))
    if count and not (slowdown and count >= SLOWDOWNS):
        return memory
    return set_condition(memory, Reason.GPU_SLOWED_DOWN, event.at, slowdown)
