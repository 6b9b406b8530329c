"""Checks of one profile: engine, model, disk, port. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from packaging.version import InvalidVersion, Version

from servicekit.doctor.answer import Answer, Check, Checks, fail, ok, seen, skip, warn
from servicekit.doctor.view import ProfileView, RefusedProfile, Unseen
from servicekit.engines.options.parser import Level
from servicekit.host.facts import GpuView
from servicekit.profiles.vocabulary import HUB_FILE, HUB_ID, EngineName
from servicekit.service.check import check as check_options

if TYPE_CHECKING:
    from servicekit.doctor.view import Place
    from servicekit.host.gpu import Device
    from servicekit.profiles.model import Profile

# Compute capability and the oldest CUDA for it, newest first, from NVIDIA's release notes.
OLDEST_CUDA: Final = (("12.1", "12.9"), ("10.0", "12.8"), ("8.9", "11.8"))
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
THROWN_AWAY: Final = frozenset({"overlay", "aufs"})  # layers of containers and live systems
# How WSL mounts Windows drives, which read weights many times slower.
OF_WINDOWS: Final = frozenset({"9p", "drvfs", "virtiofs"})
REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs"})

GIB: Final = 1 << 30
CACHES: Final = 5 * GIB  # bytes for the caches of an engine's compilers, generously
COMPILING: Final = frozenset({EngineName.SGLANG, EngineName.VLLM})  # engines with such caches
LEAST: Final = 1 * GIB  # bytes; with less, a start is likely to fill the disk

CHECKS: Final = Checks[ProfileView]()


@CHECKS.add("profile", "profile")
def profile(subject: ProfileView) -> Answer:
    """The profile is valid and may run here."""
    installed = "installed" if subject.installed else "not installed"
    return ok(f"valid, allowed and {installed}")


def refusal(refused: RefusedProfile) -> Answer:
    return fail(refused.why, "fix the profile; `servicekit list` shows all")


@CHECKS.add("engine", "engine")
def engine(subject: ProfileView) -> Answer:
    """Its program and model file exist, and the service's account may read them."""
    about = f'profile "{subject.profile.name}": '
    for says, sentences, otherwise in (
        (fail, subject.missing, "install it where the service's account can find it"),
        (warn, subject.obstacles, "grant the service's account read access"),
    ):
        if sentences:
            what, _, remedy = sentences[0].removeprefix(about).partition("; ")
            return says(what, remedy or otherwise)
    return ok(subject.plan.host.executable)


@CHECKS.add("protection", "protection")
def protection(subject: ProfileView) -> Answer:
    """Its service is as protected as the built-in unit, but for what its install accepted."""
    name = subject.profile.name
    if not subject.installed:
        return skip("it is not installed")
    rated = None if subject.exposure is None else seen(subject.exposure)
    exposure = "" if rated is None else f"exposure {rated[0]}, built-in unit {rated[1]}"
    if subject.trusted is None and subject.weakenings:
        return warn(
            f"installed before weakenings were recorded: {'; '.join(subject.weakenings)}",
            f"record them with `servicekit install {name}`",
        )
    if subject.trusted:
        return ok("; ".join(filter(None, (exposure, f"trusted: {'; '.join(subject.trusted)}"))))
    if subject.as_root:
        return warn(
            "Supervisor runs the engine and the model's code as root",
            f"`servicekit install {name}` as root, with --user-name if it can make no account",
        )
    if rated is None:
        return ok("no weakenings")
    if rated[0] > rated[1]:
        return warn(exposure, f"`systemctl cat {subject.profile.unit}` shows what was added")
    return ok(exposure)


@CHECKS.add("options", "versions, options")
def options(subject: ProfileView) -> Answer:
    """The installed engine has a version that the profile accepts, and supports its options."""
    installed = seen(subject.engine)
    version = installed.version(subject.profile.engine)
    if not installed.packages:
        return skip("the engine is not installed, or does not report its version")
    devices = named_devices(subject)
    # CUDA has a check of its own.
    capability = devices[0].capability if devices and devices[0] else None
    report = check_options(
        subject.profile, subject.plan, replace(installed, cuda=None, capability=capability)
    )
    grave = [remark for remark in report.remarks if remark.level is not Level.NOTE]
    here = f"{subject.profile.engine} {version}" if version else str(subject.profile.engine)
    if not grave:
        return ok(f"{here} supports all {report.options} options")
    first = grave[0]
    more = f" (and {len(grave) - 1} more)" if len(grave) > 1 else ""
    says = fail if first.level is Level.ERROR else warn
    return says(
        f"{here}: {first.where}: {first.message}{more}",
        f"see `servicekit check {subject.profile.name}`",
    )


@CHECKS.add("gpus", "its GPU")
def gpu(subject: ProfileView) -> Answer:
    """The GPUs that it names exist and are large enough."""
    wanted = subject.profile.gpus
    if not wanted:
        return skip("it needs no GPU")
    reading = seen(subject.gpu)
    if reading.view is not GpuView.PRESENT:
        return fail(reading.note, "see the driver check")
    devices = dict(zip(wanted, named_devices(subject), strict=True))
    absent = [name for name, device in devices.items() if device is None]
    if absent:
        there = ", ".join(f"{i} ({d.uuid})" for i, d in enumerate(reading.devices)) or "none"
        return fail(
            f"GPU {', '.join(absent)} was not found; available: {there}",
            "set gpus in the profile to one of them",
        )
    here = tuple(device.uuid for device in devices.values() if device is not None)
    if subject.plan.host.uuids not in {(), here}:
        return fail(
            f"GPU {', '.join(wanted)} has changed since the install",
            f"run `servicekit install {subject.profile.name}`",
        )
    least = subject.profile.watch.vram_minimum
    for name, device in devices.items():
        if device is not None and device.total is not None and device.total < least:
            return fail(
                f"GPU {name} has {device.total} MiB, but the profile requires {least} MiB",
                "choose a smaller profile, or lower [watch] vram_minimum",
            )
    return ok(", ".join(f"{name}: {device.name}" for name, device in devices.items() if device))


def named_devices(subject: ProfileView) -> tuple[Device | None, ...]:
    """Find the GPUs that a profile names, in its order; by index, or by UUID or its beginning."""
    known = () if isinstance(subject.gpu, Unseen) else subject.gpu.devices
    devices: list[Device | None] = []
    for name in subject.profile.gpus:
        if name.isdecimal():
            devices.append(known[int(name)] if int(name) < len(known) else None)
        else:
            devices.append(next((one for one in known if one.uuid.startswith(name)), None))
    return tuple(devices)


@CHECKS.add("cuda", "CUDA")
def cuda(subject: ProfileView) -> Answer:
    """The engine was built for a CUDA that knows the GPU (SM120: 12.8) and the driver can serve."""
    if not subject.profile.gpus:
        return skip("it needs no GPU")
    built, newest = seen(subject.engine).cuda, seen(subject.gpu).cuda
    if built is None:
        return skip("the engine's CUDA is not known")
    if newest and Version(built).major > Version(newest).major:
        return fail(
            f"the engine is built for CUDA {built}, and the driver serves {newest} at most",
            "upgrade the driver, or install a build of the engine for an older CUDA",
        )
    for device in filter(None, named_devices(subject)):
        needed = _oldest_cuda(device.capability)
        if needed is not None and Version(built) < Version(needed):
            return fail(
                f"{device.name} (SM{(device.capability or '').replace('.', '')}) needs CUDA "
                f"{needed} or newer, and the engine is built for {built}",
                "install a build of the engine for a newer CUDA",
            )
    serves = f", and the driver serves up to {newest}" if newest else ""
    return ok(f"the engine is built for CUDA {built}{serves}")


def compiles(profile: Profile) -> bool:
    """Whether the engine compiles CUDA kernels at a start: SGLang, and vLLM with FlashInfer."""
    if not profile.gpus or profile.engine not in {EngineName.SGLANG, EngineName.VLLM}:
        return False
    chosen = (*profile.options.items(), *profile.environment.items())
    return profile.engine is EngineName.SGLANG or "flashinfer" in str(chosen).casefold()


@CHECKS.add("compiler", "compiler")
def compiler(subject: ProfileView) -> Answer:
    """Ninja, nvcc and the CUDA headers are there if its engine compiles kernels."""
    if not compiles(subject.profile):
        return skip("its engine compiles no CUDA kernels")
    missing = seen(subject.compiler)
    if missing:
        return warn(
            f"a start that compiles kernels lacks {', '.join(missing)}",
            "install ninja beside the engine and the CUDA toolkit that matches it, and set "
            "CUDA_HOME in the profile's environment",
        )
    return ok("ninja, nvcc and the CUDA headers are there")


def _oldest_cuda(capability: str | None) -> str | None:
    try:
        own = Version(capability or "")
    except InvalidVersion:
        return None
    return next((needed for since, needed in OLDEST_CUDA if own >= Version(since)), None)


@CHECKS.add("model", "model")
def model(subject: ProfileView) -> Answer:
    """Its weights are on disk and complete, so that it starts without a network."""
    models = seen(subject.models)
    missing = models.missing
    if missing is None:
        size = "" if models.size is None else f", {_gib(models.size)}"
        return ok(f"{' and '.join(models.names) or 'chosen by the engine'}{size}")
    first = missing.lacks[0]
    more = f" (and {len(missing.lacks) - 1} more)" if len(missing.lacks) > 1 else ""
    if first.need is not None and subject.profile.service.network == "internet":
        return warn(f"{first.why}{more}: the first start downloads it", missing.remedy)
    return fail(f"{first.why}{more}", missing.remedy)


@CHECKS.add("storage", "storage")
def storage(subject: ProfileView) -> Answer:
    """Its weights, or HF_HOME, are on a disk that survives a reboot."""
    place = seen(subject.weights)
    where = f'"{place.path}" is on {place.kind} ({place.mount})'
    if place.kind in IN_MEMORY:
        return fail(f"{where}: in memory, and lost at a reboot", _elsewhere(subject))
    if place.kind in THROWN_AWAY:
        return warn(
            f"{where}: a layer that is deleted with its container",
            f"mount a volume, or {_elsewhere(subject)}",
        )
    if place.kind in OF_WINDOWS:
        return warn(f"{where}: reading weights from there is slow", _elsewhere(subject))
    if place.kind in REMOTE:
        return warn(f"{where}: a start needs the network", _elsewhere(subject))
    return ok(where)


def _elsewhere(subject: ProfileView) -> str:
    if HUB_ID.match(subject.profile.model) or HUB_FILE.match(subject.profile.model):
        return "set HF_HOME in the profile's environment to a directory on a disk"
    return "move the model to a disk"


@CHECKS.add("disk", "disk space")
def disk(subject: ProfileView) -> Answer:
    """There is space for the weights, and for the caches of an engine that compiles kernels."""
    cache = seen(subject.cache)
    missing = None if isinstance(subject.models, Unseen) else subject.models.missing
    lacks = [lack for lack in missing.lacks if lack.need is not None] if missing else []
    to_come = sum(max(0, (lack.size or 0) - lack.begun) for lack in lacks)
    if not isinstance(subject.weights, Unseen) and subject.weights.free < to_come:
        return fail(*_too_full(subject.weights, to_come, "the weights"))
    same = not isinstance(subject.weights, Unseen) and subject.weights.mount == cache.mount
    there = to_come if same else 0
    compiles = subject.profile.engine in COMPILING and bool(subject.profile.gpus)
    if cache.free < LEAST + there:
        use = "the compile cache" if compiles else "its history and other files"
        return fail(*_too_full(cache, LEAST + there, use))
    if compiles and cache.free < CACHES + there:
        return warn(*_too_full(cache, CACHES + there, "the compile cache"))
    unknown = [lack.need.repo for lack in lacks if lack.size is None and lack.need is not None]
    but = f'; the size of "{unknown[0]}" is unknown' if unknown else ""
    return ok(f"{_gib(cache.free)} free on {cache.mount}{but}")


def _too_full(place: Place, needed: int, what: str) -> tuple[str, str]:
    return (
        f"{_gib(place.free)} free on {place.mount}, but {what} may need {_gib(needed)}",
        f'free some space, or move "{place.path}" to a larger disk',
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


@CHECKS.add("port", "port")
def port(subject: ProfileView) -> Answer:
    """Its port is free or used by its own service."""
    wanted = f"{subject.profile.host}:{subject.profile.port}"
    port = seen(subject.port)
    if port.holder is None:
        return ok(f"{wanted} is free")
    if port.own:
        return ok(f"{wanted} is used by its own service")
    return fail(
        f"{wanted} is used by {port.holder.named}",
        "stop that process, or change the port in the profile",
    )


@CHECKS.add("interruptions", "interruptions")
def interruptions(subject: ProfileView) -> Answer:
    """No run was cut off by a suspend, a stopped virtual machine or a power loss."""
    interruptions = seen(subject.interruptions)
    if not interruptions:
        return ok("the host cut off no run recently")
    worst = max(interruptions, key=lambda cause: interruptions[cause])
    counted = ", ".join(
        f"{cause.value} {'once' if count == 1 else f'{count} times'}"
        for cause, count in interruptions.items()
    )
    return warn(f"runs were cut off: {counted}", worst.remedies[0])


@CHECKS.add("reporting", "reporting")
def reporting(subject: ProfileView) -> Answer:
    """Its last run met no bug in servicekit's own reporting."""
    bug = seen(subject.bug)
    if not bug:
        return ok("no bug in its last run")
    return warn(bug, "the engine is not affected; report this line as a bug of servicekit")


def group_of(name: str) -> str:
    return f"profile {name}"


# The same line for a profile that cannot be read or planned.
REFUSED: Final = Check("profile", "profile", refusal)
