"""The part of a profile that the arithmetic needs, with typed access to options. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from servicekit.errors import UserError

if TYPE_CHECKING:
    from servicekit.profiles.model import Profile

_WHOLE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)\Z")
# What the suffixes of whole numbers mean to each engine (`human_readable_int` in both): SGLang's
# M is decimal, vLLM's is binary. llama.cpp has none.
_SUFFIXES: Final[Mapping[str, Mapping[str, int]]] = {
    "sglang": {"k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30},
    "vllm": {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30},
}

_OFF: Final = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One way to start one engine with one model."""

    engine: str  # `sglang`, `vllm` or `llamacpp`
    model: str  # Hugging Face id or path of the checkpoint
    engine_version: str = ""
    """Version of the engine; empty means the newest whose arithmetic is known."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options by their long name without the leading dashes; `True` is a bare flag, `False` an
    absent one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the engine is started with."""
    context_requested: int | None = None  # tokens that one request is meant to be able to use
    context_minimum: int | None = None  # tokens below which the start would be called a fault
    parallel: int = 1  # llama.cpp's slots
    gpu: bool = True
    """Whether a GPU is used at all; llama.cpp can do without, and is then planned in host memory.
    """
    drafter: str | None = None  # Hugging Face id or path of the draft model

    def integer(self, name: str, default: int | None = None) -> int | None:
        """Return the option as a whole number, or `default` where it is not given."""
        value = self.options.get(name)
        if value is None or value is False:
            return default
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and (match := _WHOLE.match(value)):
            factor = _SUFFIXES.get(self.engine, {}).get(match[2]) if match[2] else 1
            if factor is not None:
                return round(float(match[1]) * factor)
        raise UserError(f'option "{name}" must be a whole number, not {value!r}')

    def number(self, name: str) -> float | None:
        """Return the option as a number, or `None` if it is not given."""
        value = self.options.get(name)
        if value is None or value is False:
            return None
        try:
            if isinstance(value, int | float | str) and not isinstance(value, bool):
                return float(value)
        except ValueError:
            pass
        raise UserError(f'option "{name}" must be a number, not {value!r}')

    def text(self, name: str, default: str) -> str:
        """Return the option as text, or `default` where it is not given."""
        value = self.options.get(name)
        return default if value is None or isinstance(value, bool) else str(value)

    def flag(self, name: str) -> bool:
        value = self.options.get(name, False)
        return value.lower() not in _OFF if isinstance(value, str) else bool(value)

    def switched_on(self, name: str) -> bool:
        """Whether the variable `name` is set to something that means yes."""
        return self.environment.get(name, "").lower() not in _OFF

    def refuse_several_gpus(self, *options: str) -> None:
        """Raise `UserError` if one of `options` spreads the model over several GPUs."""
        for option in options:
            if (self.integer(option) or 1) > 1:
                raise UserError(f'the plan is for one GPU: option "{option}" spreads the model')

    def kv_dtype(self, declared: str) -> str:
        """Return the type of `--kv-cache-dtype`, where `auto` means `declared`."""
        dtype = self.text("kv-cache-dtype", "auto")
        return declared if dtype == "auto" else dtype

    def table(self, name: str) -> Mapping[str, Any]:
        """Return an option that holds a table: as one, as JSON, or as dotted options `name.key`."""
        value = self.options.get(name) or {}
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise UserError(f'option "{name}" must be JSON, not {value!r}') from None
        if not isinstance(value, Mapping):
            raise UserError(f'option "{name}" must be a table, not {value!r}')
        prefix = f"{name}."
        dotted = {
            key.removeprefix(prefix): one
            for key, one in self.options.items()
            if key.startswith(prefix)
        }
        return {**value, **dotted}


def recipe_of(profile: Profile, engine_version: str = "") -> Recipe:
    return Recipe(
        engine=profile.engine.value,
        model=profile.model,
        engine_version=engine_version,
        options=profile.options,
        environment=profile.environment,
        context_requested=profile.context.requested,
        context_minimum=profile.context.floor,
        parallel=profile.context.parallel,
        gpu=bool(profile.gpus),
        drafter=profile.drafter,
    )
