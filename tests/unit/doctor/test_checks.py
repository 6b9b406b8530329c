"""The checks: what each of them says of a host that is not as it should be."""

from __future__ import annotations

import re
import runpy
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import plans
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.doctor.doctor_hosts import CARD, DISK, GIB, LOOK, PACKAGES, STRANGER, host, subject, wsl

from servicekit.diagnosis.causes import Cause
from servicekit.doctor import recipe
from servicekit.doctor.answer import CheckResult, CheckStatus
from servicekit.doctor.examination import examine
from servicekit.doctor.view import (
    Clock,
    Driver,
    Groups,
    Held,
    Journal,
    KeepaliveTask,
    Logins,
    Models,
    Place,
    PortUse,
    RefusedProfile,
    SharedFile,
    SupervisorView,
    SystemdView,
    Unseen,
    Xids,
)
from servicekit.doctor.wsl.conf import WslKey
from servicekit.engines.base import InstalledEngine
from servicekit.host.facts import GpuView, Process
from servicekit.host.gpu import Device, GpuReading
from servicekit.host.xid import Xid
from servicekit.models.weights import Lack, Missing, Need
from servicekit.places import Scope

if TYPE_CHECKING:
    from servicekit.doctor.view import HostView
    from servicekit.service.plan import Plan

USER: Final = Scope.USER
LLAMA = plans.profile("demo", gpus=["0"])
NOT_SEEN: Final = Unseen("only root may look there")
NO_GPU: Final = GpuReading(GpuView.ABSENT, "the NVIDIA driver says: Driver Not Loaded")
PERSISTENT: Final = ("persistent", 30.0)


def checks(of: HostView) -> dict[str, CheckResult]:
    """Examine a host; give its checks by code."""
    return {check.code: check for check in examine(of).checks}


def said(of: HostView, code: str) -> tuple[str, str]:
    """Give the verdict of one check of a host, and its line."""
    check = checks(of)[code]
    return check.verdict.value, check.line


def one_more(**seen: Any) -> HostView:  # noqa: ANN401 - fields of a view
    """A host with one profile of which something was seen."""
    return host(subjects=(subject(**seen),))


def test_where_all_is_well_every_check_says_so() -> None:
    """No line of a sound host, profile and WSL asks for anything."""
    native = examine(host(subjects=(subject(),)))
    assert {c.code: c.line for c in native.checks if c.verdict is not CheckStatus.OK} == {
        "lingering": "system services do not depend on logins"
    }
    assert native.verdict is CheckStatus.OK
    assert native.summary == "26 ok, 1 skipped"
    under_wsl = examine(host(wsl=wsl()))
    assert under_wsl.verdict is CheckStatus.OK


@pytest.mark.parametrize(
    ("code", "seen", "verdict", "line"),
    [
        # systemd, Supervisor and their versions
        ("manager", {"manager": Unseen("neither runs")}, "fail",
         "neither runs; install and start systemd or Supervisor"),
        ("manager", {"manager": Unseen("it cannot be reached", "run it as ada")}, "fail",
         "it cannot be reached; run it as ada"),
        ("manager", {"manager": SystemdView(252, "252.39-1~deb12u1")}, "ok",
         "runs, without RestartSteps= (254) and RESTART_RESET=1 (258) (optional)"),
        ("manager", {"manager": SystemdView(255, "255.4")}, "ok", "without RESTART_RESET=1 (258)"),
        ("manager", {"manager": SystemdView(258, "258.1")}, "ok", "systemd 258.1 runs"),
        ("manager", {"manager": SystemdView(245, "245.4")}, "warn", "support LoadCredential="),
        ("manager", {"manager": SystemdView(0, "of unknown version")}, "ok",
         "systemd of unknown version runs"),
        ("manager", {"manager": SystemdView(257, "257", user=False)}, "fail",
         'the user manager of "ada" does not; `loginctl enable-linger ada`'),
        ("manager", {"manager": SystemdView(257, "257", user=True)}, "ok", "systemd 257 runs"),
        ("manager", {"manager": SupervisorView("4.3.0")}, "ok", "Supervisor 4.3.0 runs"),
        ("manager", {"manager": SupervisorView("3.4.0")}, "warn", "upgrade it to 4.0"),
        ("manager", {"manager": SupervisorView("unknown")}, "ok", "Supervisor unknown runs"),
        ("cgroups", {"groups": Groups(unified=False, kill=False)}, "warn", "are version 1"),
        ("cgroups", {"groups": Groups(unified=True, kill=False)}, "warn", "Linux 5.14"),
        ("cgroups", {"manager": SupervisorView("4.3.0")}, "skip", "apply to systemd only"),
        ("cgroups", {"groups": NOT_SEEN}, "skip", "only root may look there"),
        # logins
        ("lingering", {"scope": USER}, "fail", "stop at logout and do not start at boot"),
        ("lingering", {"scope": USER, "logins": Logins(kills=False, lingers=True)}, "ok",
         '"ada" has lingering enabled'),
        ("lingering", {"scope": USER, "logins": Logins(kills=False, lingers=True),
                       "manager": SystemdView(255, "255.4")}, "warn",
         "systemd 255 may stop its services at the last logout; install system services"),
        ("lingering", {"scope": USER, "logins": NOT_SEEN}, "skip", "only root"),
        ("lingering", {"scope": USER, "manager": SupervisorView("4.3.0")}, "skip", "do not depend"),
        ("kill-user-processes", {"logins": Logins(kills=True, lingers=True)}, "ok",
         "but not services"),
        ("kill-user-processes", {"logins": Logins(kills=True, lingers=True),
                                 "manager": SupervisorView("4.3.0")}, "warn",
         "including a supervisord started from a login; start supervisord at boot"),
        ("kill-user-processes", {"logins": NOT_SEEN}, "skip", "only root"),
        # the journal
        ("journal", {"journal": Journal("none", 30, 1, None, readable=True)}, "fail",
         "journald stores nothing"),
        ("journal", {"journal": Journal("volatile", 30, 1, None, readable=True)}, "warn",
         "lost at a reboot; `mkdir -p /var/log/journal`"),
        ("journal", {"journal": Journal(*PERSISTENT, 10000, 64 << 20, readable=True)}, "warn",
         "limited to 64 MiB"),
        ("journal", {"journal": Journal(*PERSISTENT, 10000, 1 << 30, readable=True)}, "ok",
         "10000 messages in 30 s, does not apply to servicekit's units"),
        ("journal", {"journal": Journal("persistent", 0, 10000, None, readable=True)}, "ok",
         "without a rate limit"),
        ("journal", {"scope": USER}, "ok", "user services may log 10000 messages in 30 s"),
        ("journal", {"scope": USER,
                     "journal": Journal(*PERSISTENT, 200, None, readable=True)}, "warn",
         "above 200 messages in 30 s; raise RateLimitBurst"),
        ("journal", {"manager": SupervisorView("4.3.0")}, "skip", "not a journal"),
        ("journal", {"journal": NOT_SEEN}, "skip", "only root"),
        ("journal-access", {"journal": Journal(*PERSISTENT, 1, None, readable=False)}, "warn",
         '"ada" may not read the system journal; `usermod -aG systemd-journal ada`'),
        ("journal-access", {"scope": USER}, "ok", "users may read"),
        ("journal-access", {"manager": SupervisorView("4.3.0")}, "skip", "not a journal"),
        ("journal-access", {"journal": NOT_SEEN}, "skip", "only root"),
        # containers
        ("gpu-containers", {"containers": ("docker 0123456789ab",)}, "warn",
         "docker 0123456789ab will lose the GPU"),
        ("gpu-containers", {"containers": NOT_SEEN}, "skip", "only root"),
        ("gpu-containers", {"manager": SupervisorView("4.3.0")}, "skip", "applies to systemd only"),
        # the driver
        ("driver", {"driver": Driver(None, None, ())}, "skip", "no NVIDIA driver"),
        ("driver", {"driver": Driver(None, "580.95.05", ())}, "fail", "`modprobe nvidia`"),
        ("driver", {"driver": Driver(None, "580.95.05", ()), "container": True}, "skip",
         "from inside this container"),
        ("driver", {"driver": Driver("580.95.05", None, ())}, "fail",
         "its library libnvidia-ml.so.1 is not found"),
        ("driver", {"driver": Driver("575.64", "580.95.05", ())}, "fail",
         "the kernel module is version 575.64, the library version 580.95.05; reboot"),
        ("driver", {"driver": Driver("580.95.05", "580.95.05", ("nvidiactl", "nvidia0"))}, "fail",
         "but /dev/nvidia-uvm is missing; `nvidia-modprobe -c 0 -u`"),
        ("driver", {"driver": Driver("580.95.05", "580.95.05",
                                     ("nvidiactl", "nvidia0", "nvidia-uvm"), ("nvidia0",))},
         "warn", '"ada" may not open /dev/nvidia0'),
        ("driver", {"wsl": wsl()}, "skip", "the driver belongs to Windows"),
        ("driver", {"driver": NOT_SEEN}, "skip", "only root"),
        # the GPU
        ("gpu", {}, "ok", "NVIDIA GeForce RTX 5090 (driver 580.95.05, CUDA up to 13.0)"),
        ("gpu", {"gpu": GpuReading(GpuView.PRESENT, devices=(CARD, CARD), driver="580.95")}, "ok",
         "2 x NVIDIA GeForce RTX 5090 (driver 580.95)"),
        ("gpu", {"gpu": GpuReading(GpuView.PRESENT)}, "skip", "the driver finds no GPU"),
        ("gpu", {"gpu": NO_GPU}, "skip", "Driver Not Loaded"),
        ("gpu", {"gpu": GpuReading(GpuView.UNRESPONSIVE, "a call has not returned for 5 s")},
         "fail", "a call has not returned for 5 s; reboot the host"),
        ("gpu", {"gpu": GpuReading(GpuView.LOST, "the GPU is lost")},
         "fail", "reset the GPU or reboot"),
        ("gpu", {"gpu": NOT_SEEN}, "skip", "only root"),
        ("gpu-memory", {"held": (Held(CARD.uuid, ((STRANGER, None),)),)}, "warn",
         "GPU 0: pid 812 (ada, python train.py, 20480 MiB), which a profile may need"),
        ("gpu-memory", {"held": (Held(CARD.uuid, ((STRANGER, "balanced"),)),)}, "ok",
         "600 of 32607 MiB in use by balanced"),
        ("gpu-memory", {"held": (Held("GPU-other", ((STRANGER, None),)),)}, "ok",
         "600 of 32607 MiB in use"),
        ("gpu-memory", {"held": NOT_SEEN}, "skip", "only root"),
        ("gpu-memory", {"gpu": NO_GPU}, "skip", "no GPU is available"),
        ("persistence", {"wsl": wsl()}, "skip", "the driver belongs to Windows"),
        ("persistence", {"gpu": NO_GPU}, "skip", "no GPU is available"),
        # Xids
        ("xids", {"xids": Xids((), whole=False)}, "ok", "in what is left of the kernel log"),
        ("xids", {"xids": Xids((Xid(79, "0000:03:00"),), whole=True)}, "fail",
         "Xid 79 on 0000:03:00 since boot; reboot the host for Xid 79"),
        ("xids", {"xids": Xids((Xid(31, "0000:03:00"), Xid(31, "0000:03:00"),
                                Xid(119, "0000:03:00")), whole=True)}, "fail",
         "Xid 31 2 times on 0000:03:00, Xid 119 on 0000:03:00 since boot; reset the GPU"),
        ("xids", {"xids": Xids((Xid(31, "0000:03:00"),), whole=True)}, "warn",
         "an application fault"),
        ("xids", {"xids": Xids((Xid(63, "0000:03:00"),), whole=True)}, "ok", "; harmless"),
        ("xids", {"xids": NOT_SEEN}, "skip", "only root"),
        ("xids", {"driver": Driver(None, None, ()),
                  "xids": Xids((Xid(79, "0000:03:00"),), whole=True)}, "skip", "no NVIDIA driver"),
        ("xids", {"wsl": wsl()}, "skip", "reports to Windows"),
        # the machine
        ("clock", {"clock": Clock(7260.0, None)}, "warn", "suspended for 121 min since boot"),
        ("clock", {"clock": Clock(30.0, 0.0)}, "warn", "suspended for 30 s"),
        ("clock", {"clock": Clock(0.0, 5400.0)}, "warn", "set ahead by 90 min since boot"),
        ("clock", {"clock": Clock(0.0, -8.0)}, "warn", "set back by 8 s"),
        ("clock", {"clock": Clock(0.0, 60.0), "wsl": wsl()}, "warn", "disable sleep in Windows"),
        ("clock", {"clock": Clock(0.4, 4.9)}, "ok", "its wall clock was not set"),
        ("clock", {"clock": Clock(0.0, None)}, "ok", "the host was not suspended since boot"),
        ("clock", {"clock": NOT_SEEN}, "skip", "only root"),
        ("shared-memory", {"shared": (SharedFile("psm_1", 3 << 20, used=False),
                                      SharedFile("psm_2", 3 << 20, used=True))}, "warn",
         "1 file in /dev/shm (3 MiB) left by engines that have ended; `rm /dev/shm/psm_1`"),
        ("shared-memory", {"shared": tuple(SharedFile(f"vllm{n}", 0, used=False)
                                           for n in range(5))}, "warn",
         "`rm /dev/shm/vllm0 /dev/shm/vllm1 /dev/shm/vllm2` and 2 more"),
        ("shared-memory", {"shared": (SharedFile("psm_1", 1 << 20, used=True),)}, "ok",
         "1 file in /dev/shm (1 MiB) of running engines"),
        ("shared-memory", {"shared": (SharedFile("psm_1", 1 << 20, used=None),)}, "skip",
         "run as root to see whether they are in use"),
        ("shared-memory", {"shared": NOT_SEEN}, "skip", "only root"),
    ],
)  # fmt: skip
def test_a_host_is_told_what_is_wrong_with_it(
    code: str, seen: dict[str, Any], verdict: str, line: str
) -> None:
    """Each thing that was seen has its verdict, and a line that names it and what would help."""
    assert said(host(**seen), code)[0] == verdict
    assert line in said(host(**seen), code)[1]


def test_a_gpu_that_no_profile_wants_is_not_missed() -> None:
    """A host that serves on its processor has no fault for lack of a GPU, one that does not has."""
    without = {"driver": Driver(None, None, ()), "gpu": NO_GPU}
    on_cpu = host(subjects=(subject("demo"),), **without)
    on_gpu = host(subjects=(subject("demo"), subject()), **without)
    for code in ("driver", "gpu"):
        assert said(on_cpu, code)[0] == "skip"
        assert "no profile needs one" in said(on_cpu, code)[1]
        assert said(on_gpu, code)[0] == "fail"
    worn = Xids((Xid(79, "0000:03:00"),), whole=True)
    assert said(host(subjects=(subject("demo"),), xids=worn), "xids")[0] == "skip"


def device(**changes: Any) -> GpuReading:  # noqa: ANN401 - fields of a device
    """A look that found one GPU which is a little different."""
    fields = {name: getattr(CARD, name) for name in Device.__dataclass_fields__}
    return GpuReading(GpuView.PRESENT, devices=(Device(**{**fields, **changes}),), cuda="13.0")


@pytest.mark.parametrize(
    ("code", "look", "verdict", "line"),
    [
        ("persistence", device(persistence=False), "warn", "`systemctl enable --now nvidia-pers"),
        ("persistence", device(persistence=None), "skip", "has no persistence mode"),
        ("gpu-memory", device(used=None, total=None), "ok", "shares its memory with the CPU"),
    ],
)
def test_a_card_is_judged_by_what_it_tells(
    code: str, look: GpuReading, verdict: str, line: str
) -> None:
    """What a driver does not tell is no fault."""
    assert said(host(gpu=look), code)[0] == verdict
    assert line in said(host(gpu=look), code)[1]


def test_memory_without_a_figure_is_the_cards() -> None:
    """Where the driver tells of no process how much it has (WSL), the whole use counts."""
    quiet = Process(pid=0, started=0, user="", command="outside this container", mib=None)
    held = (Held(CARD.uuid, ((quiet, None),)),)
    assert said(host(held=held), "gpu-memory")[0] == "ok"
    assert said(host(held=held, gpu=device(used=9000)), "gpu-memory")[0] == "warn"


def installed_on(*uuids: str) -> Plan:
    """The plan of an install on a host with these GPUs."""
    plan = subject().plan
    return replace(plan, host=replace(plan.host, uuids=uuids))


HUB: Final = Need("model", "a/b")
LACK: Final = Lack(HUB, 'the model "a/b" is not in /var/cache', size=20 * GIB)
FETCH: Final = "`servicekit fetch balanced`"
ONE_LACK: Final = Models(("a/b",), None, Missing("balanced", (LACK,), FETCH))
BEGUN: Final = Lack(HUB, "incomplete", size=20 * GIB, begun=15 * GIB)
HALF: Final = Models(("a/b",), None, Missing("balanced", (BEGUN, BEGUN), FETCH))
UNSIZED: Final = Models(("a/b",), None, Missing("balanced", (Lack(HUB, "gone"),), FETCH))
NO_FILE: Final = Missing("balanced", (Lack(None, 'the model "/m" does not exist'),), "put it there")


def place(kind: str, free: int = 500 * GIB, mount: str = "/") -> Place:
    """Somewhere else."""
    return Place(PurePosixPath("/var/cache/servicekit"), kind, PurePosixPath(mount), free)


@pytest.mark.parametrize(
    ("code", "seen", "verdict", "line"),
    [
        ("profile", {"installed": False}, "ok", "valid, allowed and not installed"),
        ("engine", {}, "ok", "/opt/sglang/bin/sglang"),
        ("engine", {"missing": ('profile "balanced": the program "sglang" was not found; get it',)},
         "fail", 'the program "sglang" was not found; get it'),
        ("engine", {"missing": ('profile "balanced": the model "/m" does not exist',)}, "fail",
         'the model "/m" does not exist; install it where the service'),
        ("engine", {"obstacles": ('"/root/x" is below /root, which the unit hides; move it',)},
         "warn", '"/root/x" is below /root, which the unit hides; move it'),
        # what the profile takes from the protection of its service
        ("protection", {"installed": False}, "skip", "it is not installed"),
        ("protection", {}, "ok", "no weakenings"),
        ("protection", {"as_root": True}, "warn",
         ("Supervisor runs the engine and the model's code as root; "
          "`servicekit install balanced` as root, with --user-name if it can make no account")),
        ("protection", {"exposure": (1.9, 1.9)}, "ok", "exposure 1.9, built-in unit 1.9"),
        ("protection", {"exposure": (4.2, 1.9)}, "warn",
         "exposure 4.2, built-in unit 1.9; `systemctl cat servicekit-balanced` shows what was"),
        ("protection", {"exposure": (6.6, 1.9), "trusted": ("service.user: as root",)}, "ok",
         "exposure 6.6, built-in unit 1.9; trusted: service.user: as root"),
        ("protection", {"trusted": ("service.user: as root",)}, "ok",
         "trusted: service.user: as root"),
        ("protection", {"weakenings": ("service.user: as root",)}, "warn",
         "service.user: as root; record them with `servicekit install balanced`"),
        ("protection", {"exposure": NOT_SEEN}, "skip", "only root"),
        # versions and options
        ("options", {}, "ok", "sglang 0.5.23 supports all"),
        ("options", {"engine": InstalledEngine()}, "skip", "does not report its version"),
        ("options", {"engine": NOT_SEEN}, "skip", "only root"),
        ("options", {"engine": InstalledEngine("/x", {"sglang": "0.5.9"}, "12.9")}, "fail",
         "requires.sglang: >=0.5.16 is required, but 0.5.9 is installed"),
        ("options", {"change": {"options": {"mem-fraction-statik": 0.85}}}, "fail",
         "see `servicekit check balanced`"),
        ("options", {"change": {"options": {"kv-cache-dtype": "fp8_e4m3",
                                            "attention-backend": "trtllm_mha"}}}, "fail",
         "SM120"),
        # its GPU
        ("gpus", {}, "ok", "0: NVIDIA GeForce RTX 5090"),
        ("gpus", {"change": {"gpus": ["1"]}}, "fail", "GPU 1 was not found; available: 0 (GPU"),
        ("gpus", {"change": {"gpus": ["GPU-111111"]}}, "ok", "GPU-111111: NVIDIA"),
        ("gpus", {"change": {"gpus": ["GPU-222222"]}}, "fail", "GPU GPU-222222 was"),
        ("gpus", {"gpu": GpuReading(GpuView.PRESENT)}, "fail", "available: none"),
        ("gpus", {"gpu": NO_GPU}, "fail", "Driver Not Loaded; see the driver check"),
        ("gpus", {"gpu": NOT_SEEN}, "skip", "only root"),
        ("gpus", {"gpu": device(total=8192)}, "fail", "has 8192 MiB"),
        ("gpus", {"gpu": device(total=None)}, "ok", "RTX 5090"),
        ("gpus", {"name": "demo"}, "skip", "it needs no GPU"),
        ("gpus", {"plan": installed_on("GPU-11111111")}, "ok", "RTX 5090"),
        ("gpus", {"plan": installed_on("GPU-22222222")}, "fail",
         "has changed since the install; run `servicekit install balanced`"),
        # CUDA
        ("cuda", {}, "ok", "built for CUDA 12.9, and the driver serves up to 13.0"),
        ("cuda", {"engine": InstalledEngine("/x", PACKAGES, "12.6")}, "fail",
         "RTX 5090 (SM120) needs CUDA 12.8 or newer, and the engine is built for 12.6"),
        ("cuda", {"engine": InstalledEngine("/x", PACKAGES, "12.8"),
                  "gpu": device(capability="12.1")}, "fail", "(SM121) needs CUDA 12.9"),
        ("cuda", {"engine": InstalledEngine("/x", PACKAGES, "11.7"),
                  "gpu": device(capability="9.0")}, "fail", "(SM90) needs CUDA 11.8"),
        ("cuda", {"engine": InstalledEngine("/x", PACKAGES, "11.7"),
                  "gpu": device(capability="8.6")}, "ok", "built for CUDA 11.7"),
        ("cuda", {"gpu": device(capability=None)}, "ok", "built for CUDA 12.9"),
        ("cuda", {"engine": InstalledEngine("/x", PACKAGES, "14.1")}, "fail",
         "built for CUDA 14.1, and the driver serves 13.0 at most"),
        ("cuda", {"gpu": GpuReading(GpuView.PRESENT, devices=(CARD,))},
         "ok", "built for CUDA 12.9"),
        ("cuda", {"engine": InstalledEngine("/x", PACKAGES)}, "skip", "CUDA is not known"),
        ("cuda", {"engine": NOT_SEEN}, "skip", "only root"),
        ("cuda", {"gpu": NOT_SEEN}, "skip", "only root"),
        ("cuda", {"name": "demo"}, "skip", "it needs no GPU"),
        # the model
        ("model", {}, "ok", "RadixArk/Qwen3.8-27B-NVFP4, 20.0 GiB"),
        ("model", {"models": Models((), None, None)}, "ok", "chosen by the engine"),
        ("model", {"models": NOT_SEEN}, "skip", "only root"),
        ("model", {"models": ONE_LACK}, "fail",
         'the model "a/b" is not in /var/cache; `servicekit fetch balanced`'),
        ("model", {"models": HALF}, "fail", "incomplete (and 1 more)"),
        ("model", {"models": ONE_LACK, "change": {"service": {"network": "internet"}}}, "warn",
         "the first start downloads it; `servicekit fetch balanced`"),
        ("model", {"models": Models(("/m",), None, NO_FILE),
                   "change": {"service": {"network": "internet"}}}, "fail", "put it there"),
        # what compiles its kernels
        ("compiler", {}, "ok", "ninja, nvcc and the CUDA headers are there"),
        ("compiler", {"compiler": ("ninja", "nvcc (/usr/local/cuda/bin/nvcc)")}, "warn",
         "lacks ninja, nvcc (/usr/local/cuda/bin/nvcc); install ninja beside the engine"),
        ("compiler", {"change": {"gpus": []}}, "skip", "compiles no CUDA kernels"),
        ("compiler", {"compiler": NOT_SEEN}, "skip", "only root"),
        # where it is
        ("storage", {}, "ok", "is on ext4 (/)"),
        ("storage", {"weights": place("tmpfs", mount="/ram")}, "fail",
         "is on tmpfs (/ram): in memory, and lost at a reboot; set HF_HOME"),
        ("storage", {"weights": place("overlay")}, "warn", "with its container; mount a vol"),
        ("storage", {"weights": place("9p", mount="/mnt/c")}, "warn", "from there is slow"),
        ("storage", {"weights": place("nfs4")}, "warn", "needs the network"),
        ("storage", {"weights": place("tmpfs"), "change": {"model": "/m"}}, "fail",
         "move the model to a disk"),
        ("storage", {"weights": NOT_SEEN}, "skip", "only root"),
        # room
        ("disk", {}, "ok", "500.0 GiB free on /"),
        ("disk", {"models": ONE_LACK, "weights": place("ext4", 10 * GIB)}, "fail",
         "10.0 GiB free on /, but the weights may need 20.0 GiB; free some space"),
        ("disk", {"models": ONE_LACK, "cache": place("ext4", 20 * GIB)}, "fail",
         "20.0 GiB free on /, but the compile cache may need 21.0 GiB"),
        ("disk", {"models": ONE_LACK, "cache": place("ext4", 24 * GIB)}, "warn", "need 25.0 GiB"),
        ("disk", {"models": ONE_LACK, "cache": place("ext4", 24 * GIB, "/var")}, "ok", "24.0 GiB"),
        ("disk", {"models": HALF, "cache": place("ext4", 14 * GIB)}, "warn", "need 15.0 GiB"),
        ("disk", {"models": UNSIZED}, "ok", 'the size of "a/b" is unknown'),
        ("disk", {"cache": place("ext4", GIB // 2)}, "fail", "0.5 GiB free"),
        ("disk", {"cache": place("ext4", 2 * GIB)}, "warn", "may need 5.0 GiB"),
        ("disk", {"profile": LLAMA, "cache": place("ext4", 2 * GIB)}, "ok", "2.0 GiB free"),
        ("disk", {"profile": LLAMA, "cache": place("ext4", GIB // 2)}, "fail", "its history"),
        ("disk", {"name": "demo", "cache": place("ext4", 2 * GIB)}, "ok", "2.0 GiB free"),
        ("disk", {"cache": NOT_SEEN}, "skip", "only root"),
        ("disk", {"models": NOT_SEEN, "weights": NOT_SEEN}, "ok", "500.0 GiB free"),
        # the port
        ("port", {}, "ok", "127.0.0.1:18000 is free"),
        ("port", {"port": PortUse(STRANGER, own=True)}, "ok", "used by its own service"),
        ("port", {"port": PortUse(STRANGER)}, "fail",
         "127.0.0.1:18000 is used by pid 812 (ada, python train.py, 20480 MiB); stop that process"),
        ("port", {"port": NOT_SEEN}, "skip", "only root"),
        # its history
        ("interruptions", {"interruptions": {Cause.IDLE_KILL: 3, Cause.POWER_LOSS: 1}}, "warn",
         "runs were cut off: idle-kill 3 times, power-loss once; "),
        ("interruptions", {"interruptions": NOT_SEEN}, "skip", "only root"),
        ("reporting", {}, "ok", "no bug in its last run"),
        ("reporting", {"bug": "a bug in servicekit concerns the log: KeyError"}, "warn",
         "a bug in servicekit concerns the log: KeyError; the engine is not affected"),
        ("reporting", {"bug": NOT_SEEN}, "skip", "only root"),
    ],
)  # fmt: skip
def test_a_profile_is_told_what_it_lacks(
    code: str, seen: dict[str, Any], verdict: str, line: str
) -> None:
    """Each thing that a profile needs is looked at by itself."""
    found = said(one_more(**seen), code)
    assert found[0] == verdict, found[1]
    assert line in found[1]


def test_a_profile_that_is_refused_is_a_failure() -> None:
    """One whose file is damaged is a line like any other, and the others are examined."""
    found = examine(host(refused=(RefusedProfile("mine", "port: must be 1024 at least"),)))
    (check,) = (check for check in found.checks if check.profile == "mine")
    assert (check.group, check.code, check.verdict) == ("profile mine", "profile", CheckStatus.FAIL)
    assert check.what == "port: must be 1024 at least"


NOT_SET: Final = dict[WslKey, str]()
MIRRORED: Final = {"networking": "mirrored"}
IDLE: Final = WslKey("general", "instanceidletimeout")


@pytest.mark.parametrize(
    ("code", "seen", "verdict", "line"),
    [
        ("wsl-systemd", {"conf": NOT_SET}, "warn", "[boot] systemd is not set in wsl.conf: only"),
        ("wsl-systemd", {"conf": {WslKey("boot", "systemd"): "false"}}, "warn", "systemd = false"),
        ("wsl-systemd", {"conf": NOT_SEEN}, "skip", "only root"),
        ("wsl-instance-idle", {}, "ok", "[general] instanceIdleTimeout = -1"),
        ("wsl-instance-idle", {"wslconfig": NOT_SET}, "warn",
         "[general] instanceIdleTimeout is not set in .wslconfig: without a window"),
        ("wsl-instance-idle", {"wslconfig": {IDLE: "15000"}}, "warn", "`servicekit wsl render`"),
        ("wsl-vm-idle", {"wslconfig": NOT_SET}, "warn", "vmIdleTimeout is not set"),
        ("wsl-vm-idle", {"wslconfig": NOT_SEEN}, "skip", "only root"),
        ("wsl-memory-reclaim", {"wslconfig": NOT_SET}, "warn", "drops the page cache"),
        ("wsl-networking", MIRRORED, "warn", "networking is mirrored: loopback connections"),
        ("wsl-networking", {"networking": "wsl1"}, "fail", "WSL 1, which has no GPU"),
        ("wsl-networking", {"networking": "none"}, "ok", "networking is none"),
        ("wsl-networking", {"networking": NOT_SEEN}, "skip", "only root"),
        ("wsl-keepalive", {}, "ok", 'the task "servicekit keeps Ubuntu running" is registered'),
        ("wsl-keepalive", {"task": KeepaliveTask(name="t", registered=False)}, "warn",
         'Windows has no task "t": nothing starts the distribution after a boot'),
        ("wsl-keepalive",
         {"task": KeepaliveTask(name="t", registered=True, faults=("is disabled", "x"))},
         "warn", 'the task "t" is disabled and x; register it again'),
        ("wsl-keepalive", {"task": NOT_SEEN}, "skip", "only root"),
        ("wsl-cuda", {}, "ok", "/usr/lib/wsl/lib/libcuda.so.1"),
        ("wsl-cuda", {"device": False}, "fail", "/dev/dxg is missing"),
        ("wsl-cuda", {"cuda": None}, "fail", "libcuda.so.1 was not found"),
        ("wsl-cuda", {"cuda": "/lib/x86_64-linux-gnu/libcuda.so.1"}, "fail",
         "from a Linux driver, which finds no GPU under WSL; remove that package"),
        ("wsl-cuda", {"cuda": NOT_SEEN}, "skip", "only root"),
        ("wsl-cuda", {"wslconfig": {WslKey("wsl2", "gpusupport"): "False"}}, "fail", "gpuSupport"),
        ("wsl-cuda", {"wslconfig": NOT_SEEN}, "ok", "libcuda.so.1"),
    ],
)  # fmt: skip
def test_windows_is_told_what_is_wrong_with_it(
    code: str, seen: dict[str, Any], verdict: str, line: str
) -> None:
    """Settings count with their defaults; a mode that is in force counts more than a file."""
    found = said(host(wsl=wsl(**seen)), code)
    assert found[0] == verdict, found[1]
    assert line in found[1]


def test_windows_is_no_subject_elsewhere() -> None:
    """A host that is no WSL is not asked about it."""
    assert not [code for code in checks(host()) if code.startswith("wsl-")]


# The whole.


@pytest.mark.parametrize(
    ("seen", "verdict", "summary"),
    [
        ({}, CheckStatus.OK, "13 ok, 1 skipped"),
        ({"clock": Clock(9, 0)}, CheckStatus.WARN, "1 warned, 12 ok, 1 skipped"),
        (
            {"clock": Clock(9, 0), "gpu": GpuReading(GpuView.LOST, "it is lost")},
            CheckStatus.FAIL,
            "1 failed, 1 warned, 9 ok, 3 skipped",
        ),
    ],
)
def test_the_worst_check_is_the_verdict(
    seen: dict[str, Any], verdict: CheckStatus, summary: str
) -> None:
    """What was skipped says nothing for or against a host."""
    found = examine(host(**seen))
    assert found.verdict is verdict
    assert found.summary == summary


def test_codes_are_stable_and_each_is_one_check() -> None:
    """A code is a check of the host, or one of each profile; programs rely on it."""
    whole = examine(host(wsl=wsl(), subjects=(subject(), subject("demo"))))
    keys = [(check.code, check.profile) for check in whole.checks]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code, _ in keys)
    of_profiles = {code for code, profile in keys if profile is not None}
    assert of_profiles == {check.code for check in recipe.CHECKS}


def test_the_handbook_is_up_to_date() -> None:
    """`docs/doctor.md` is what `python tools/doctor_page.py` writes."""
    root = Path(__file__).parents[3]
    page = runpy.run_path(str(root / "tools/doctor_page.py"))["page"]
    assert page() == (root / "docs/doctor.md").read_text(encoding="utf-8")


UNSEEABLE: Final = (
    *("manager", "groups", "logins", "journal", "containers", "driver", "gpu", "held", "xids"),
    *("clock", "shared"),
)
OF_PROFILE: Final = ("engine", "models", "cache", "weights", "port", "interruptions", "gpu", "bug")
OF_WSL: Final = ("conf", "wslconfig", "networking", "task", "cuda")


@given(
    st.sets(st.sampled_from(UNSEEABLE)),
    st.sets(st.sampled_from(OF_PROFILE)),
    st.sets(st.sampled_from(OF_WSL)),
    st.sampled_from(Scope),
)
def test_what_could_not_be_looked_at_fails_nothing(
    host_unseen: set[str], profile_unseen: set[str], wsl_unseen: set[str], scope: Scope
) -> None:
    """Every check answers whatever is unseen, and skips: only a host without a manager fails."""
    hidden: dict[str, Any] = dict.fromkeys(profile_unseen, NOT_SEEN)
    found = examine(
        host(
            scope=scope,
            subjects=(replace(subject(), **hidden),),
            wsl=wsl(**dict.fromkeys(wsl_unseen, NOT_SEEN)),
            **dict.fromkeys(host_unseen, NOT_SEEN),
        )
    )
    failed = {check.code for check in found.checks if check.verdict is CheckStatus.FAIL}
    assert failed <= {"manager", "lingering"}
    assert ("manager" in failed) == ("manager" in host_unseen)
    assert all(check.line.isprintable() for check in found.checks)


def test_every_complaint_says_what_would_help() -> None:
    """No warning and no failure is without a remedy, and nothing else has one."""
    bad = host(
        manager=Unseen("none"),
        driver=Driver("1", "2", ()),
        clock=Clock(9, 0),
        refused=(RefusedProfile("x", "no"),),
        subjects=(subject(port=PortUse(STRANGER), weights=place("tmpfs"), cache=DISK),),
        wsl=wsl(conf=NOT_SET, **MIRRORED),
        gpu=LOOK,
    )
    for check in examine(bad).checks:
        complains = check.verdict in {CheckStatus.WARN, CheckStatus.FAIL}
        assert bool(check.remedy) == complains, check
