"""What `check` finds on this host beside the command line: secrets and the model's own context."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from servicekit.engines.commandline import given
from servicekit.engines.options.parser import Level, Remark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.places import Places
    from servicekit.profiles.model import Profile


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
            continue  # only its owner can read it
        else:
            if empty:
                message = f"is empty: run `servicekit secret set {profile.name} {name}`"
                yield Remark(Level.ERROR, f"secrets.{name}", message)


def check_context(profile: Profile, model: Path | None) -> Iterator[Remark]:
    """Report a context above the model's own window, where that can be read without a network.

    `model` is what describes it on this host: its directory, `config.json` or GGUF file.
    """
    from servicekit.models.memory.outcome import Fit
    from servicekit.models.memory.recipe import recipe_of
    from servicekit.models.memory.sources import find_window
    from servicekit.models.memory.window import LENGTHS, beyond_window

    length = LENGTHS.get(profile.engine)
    window = find_window(profile.model, model)
    if length is None or window is None or given(profile, *length.extensions) is not None:
        return
    declared, where = profile.context.requested, "context.requested"
    if (option := profile.options.get(length.option)) is not None and type(option) is int:
        declared, where = option, f"options.{length.option}"
    finding = beyond_window(recipe_of(profile), window, declared)
    if finding is not None:
        level = Level.ERROR if finding.verdict is Fit.DOES_NOT_FIT else Level.WARNING
        yield Remark(level, where, f"{finding.reason}: {', or '.join(finding.levers)}")
