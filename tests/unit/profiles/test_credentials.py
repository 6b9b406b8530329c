"""Secrets are read from files of their own; one that cannot be is one line with what would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from plans import profile

from servicekit.errors import ExitCode, UserError
from servicekit.places import below
from servicekit.profiles import credentials

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("HF_TOKEN",)


def read(folder: Path) -> dict[str, str]:
    """Read the secrets of a profile that has one, from where a manager put them."""
    environ = {"CREDENTIALS_DIRECTORY": str(folder)}
    return credentials.read(profile("demo", secrets=NAMES), below("/nonexistent"), environ)


def test_a_value_is_the_line_of_its_file(tmp_path: Path) -> None:
    """The end of the line is none of the value."""
    (tmp_path / "HF_TOKEN").write_text("hf_value\n")
    assert read(tmp_path) == {"HF_TOKEN": "hf_value"}


def test_the_key_of_the_engine_is_read_alone(tmp_path: Path) -> None:
    """Whoever only asks the engine needs no other secret, and none where it asks for none."""
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    places = below("/nonexistent")
    keyed = profile("demo", secrets=("HF_TOKEN", "API_KEY"), api_key="API_KEY")
    (tmp_path / "API_KEY").write_text("sk-value\n")
    assert credentials.api_key(keyed, places, environ) == "sk-value"
    assert credentials.api_key(profile("demo", secrets=NAMES), places, environ) is None
    (tmp_path / "API_KEY").unlink()
    with pytest.raises(UserError, match="needs the secret API_KEY, which is not set"):
        credentials.api_key(keyed, places, environ)


def test_what_is_no_secret_is_said_in_one_line(tmp_path: Path) -> None:
    """Missing, no text or no file: the configuration must change, and the line says how."""
    with pytest.raises(UserError, match="which is not set; run `servicekit secret set demo HF_TO"):
        read(tmp_path)
    file = tmp_path / "HF_TOKEN"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read: it is not UTF-8 text; store it again: "):
        read(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(
        UserError, match="cannot be read: is a directory; store it again: "
    ) as found:
        read(tmp_path)
    assert found.value.code is ExitCode.CONFIG
