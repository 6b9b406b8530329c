"""A site that fetches its model from the double of the hub."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from machines.hub import Model
from unit.cli.cli_runs import Ran, invoke

if TYPE_CHECKING:
    from pathlib import Path

    from machines.hub import Hub

TOKEN = "hf_0123456789abcdefghijABCDEFGHIJ"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
LARGE = 3 << 20
"""Bytes of each: some pieces on the wire, as the real ones are many."""

PROFILE = """\
summary = "s"
engine = "sglang"
model = "owner/name"
served_name = "m"
port = 18000
{more}
[context]
requested = 2048
"""


class Site:
    """A site with the profile `x`, whose model is on the hub, and everything below `root`."""

    def __init__(self, root: Path, hub: Hub) -> None:
        self.root = root
        self.hub = hub
        self.cache = root / "cache/huggingface/hub"
        self.profile()
        files = {name: os.urandom(LARGE) for name in SHARDS}
        files |= {"config.json": b"{}", "tokenizer.json": b"[]", "pytorch_model.bin": b"x" * 99}
        self.model = hub.add(Model("owner/name", files))

    def profile(self, more: str = "") -> None:
        """Write the profile `x` anew, with further keys."""
        file = self.root / "profiles.d/x.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(PROFILE.format(more=more))
        file.chmod(0o644)

    def environment(self, **env: str) -> dict[str, str]:
        """What leads servicekit here, and without the hub's variables of whoever tests."""
        site = {"SERVICEKIT_ROOT": str(self.root), "SERVICEKIT_ALLOW": "x"}
        quiet = dict.fromkeys(("HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE"), "")
        return self.hub.environment(**{**site, **quiet, **env})

    def run(self, verb: str, *words: str, **env: str) -> Ran:
        """Run a verb here."""
        return invoke("--user", verb, *words, env=self.environment(**env))

    def fetch(self, *words: str, **env: str) -> str:
        """Fetch, which must succeed; give what is printed."""
        ran = self.run("fetch", "x", *words, **env)
        assert ran.code == 0, ran.err
        return ran.out

    def refused(self, *words: str, **env: str) -> str:
        """Fetch, which must fail; give the one line that says why."""
        ran = self.run("fetch", "x", *words, **env)
        assert (ran.code, ran.out) == (1, "")
        told = [line for line in ran.err.splitlines() if not line.endswith("trying again")]
        return told[-1].removeprefix("servicekit: ")

    def break_down_after(self, size: int) -> None:
        """Have the storage hang up after so many bytes, and the hub answer nothing from then on."""
        self.hub.faults.cut_after = [size]
        self.hub.faults.before_sending = lambda: setattr(self.hub.faults, "status", 503)

    def json(self, *words: str) -> dict[str, Any]:
        """Fetch with --json; give what a program reads."""
        said: dict[str, Any] = json.loads(self.run("fetch", "x", "--json", *words).out)
        return said
