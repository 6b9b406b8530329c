"""What `check` finds on this host beside the command line: secrets and the model's own context."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit.engines.options.parser import Level, Remark
from servicekit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.places import Places
    from servicekit.profiles.model import Profile

# Options by which an engine serves more than the model declares.
_LONGER: Final = frozenset(
    {
        *("hf-overrides", "json-model-override-args", "override-kv", "rope-scaling", "rope-scale"),
        *("rope-freq-base", "rope-freq-scale", "yarn-orig-ctx"),
    }
)
_LENGTHS: Final = frozenset({"max-model-len", "context-length"})  # refused beyond that length
_LONGER_VARIABLES: Final = frozenset(
    {"VLLM_ALLOW_LONG_MAX_MODEL_LEN", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"}
)


def check_secrets(profile: Profile, places: Places) -> Iterator[Remark]:
    """Find secrets of `profile` that are not stored."""
    for name in profile.secrets:
        file = Path(places.secret(profile.name, name))
        try:
            empty = file.stat().st_size == 0
        except FileNotFoundError:
            message = f"is not stored: run `servicekit secret set {profile.name} {name}`"
            yield Remark(Level.ERROR, f"secrets.{name}", message)
        except OSError:
            continue  # only its owner can tell
        else:
            if empty:
                message = f"is empty: run `servicekit secret set {profile.name} {name}`"
                yield Remark(Level.ERROR, f"secrets.{name}", message)


def check_context(profile: Profile, model: Path | None) -> Iterator[Remark]:
    """Compare the context that `profile` needs with the length that its model declares.

    `model` is where its files are on this host; `None` where they are not here.
    """
    from servicekit.models.memory.sources import find_geometry

    if _LONGER & {*profile.options} or _LONGER_VARIABLES & {*profile.environment}:
        return
    try:
        declared = find_geometry(profile.model, model).context
    except (UserError, OSError):
        return  # nothing is known of this model; the engine itself will tell
    for option in _LENGTHS & {*profile.options}:
        length = profile.options[option]
        if isinstance(length, int) and declared and length > declared:
            message = f"{length} tokens are more than the {declared} that the model declares"
            yield Remark(Level.ERROR, f"options.{option}", message)
            return
    context = profile.context
    if not declared or context.requested <= declared:
        return
    if context.floor > declared:
        message = (
            f"{context.floor} tokens are needed, and the model declares {declared}: lower "
            f"context.requested to {declared} and context.minimum to no more than that"
        )
        yield Remark(Level.ERROR, "context", message)
    else:
        message = f"{context.requested} tokens are more than the {declared} that the model declares"
        yield Remark(Level.WARNING, "context.requested", message)
