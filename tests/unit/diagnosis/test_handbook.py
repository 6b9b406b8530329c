"""The handbook of causes: up to date in the repository, and understood by journalctl."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.handbook import COMMAND, catalog_text, main, markdown
from servicekit.diagnosis.signatures import Role, knowledge

DOCUMENT = Path(__file__).parent.parent.parent.parent / "docs" / "causes.md"


def test_the_document_is_up_to_date() -> None:
    """`docs/causes.md` is what the signatures say today."""
    assert DOCUMENT.read_text() == markdown(), f"run: {COMMAND} markdown > docs/causes.md"


def test_the_document_has_every_cause_and_every_signature() -> None:
    """Each cause is a heading, and each signature's texts are below its cause."""
    text = markdown()
    for cause in Cause:
        assert text.count(f"\n### `{cause}`\n") == 1
    for signature in knowledge("any").signatures:
        for literal in signature.literals:
            assert f"`{literal.strip()}`" in text


def test_the_document_leaves_no_placeholder() -> None:
    """A person reads names, not braces."""
    assert "{" not in markdown()


def test_wrappers_have_no_cause_in_the_document() -> None:
    """What only wraps a cause stands in the list of such lines, before the causes."""
    introduction, _, causes = markdown().partition("\n## ")
    wrapper = next(one for one in knowledge("vllm").signatures if one.role is Role.ECHO)
    assert f"`{wrapper.literals[0]}`" in introduction
    assert f"`{wrapper.literals[0]}`" not in causes


@pytest.mark.parametrize("what", ["markdown", "catalog"])
def test_the_command_prints_both(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line chooses what is written."""
    arguments, sys.argv = sys.argv, ["handbook", what]
    try:
        main()
    finally:
        sys.argv = arguments
    assert capsys.readouterr().out == {"markdown": markdown, "catalog": catalog_text}[what]()


@pytest.mark.skipif(shutil.which("journalctl") is None, reason="needs journalctl")
def test_journalctl_takes_the_catalog(tmp_path: Path) -> None:
    """The real tool compiles the catalog without a word and lists every cause in it."""
    catalog = tmp_path / "usr" / "lib" / "systemd" / "catalog"
    catalog.mkdir(parents=True)
    (tmp_path / "var" / "lib" / "systemd" / "catalog").mkdir(parents=True)
    (catalog / "servicekit.catalog").write_text(catalog_text())
    root = f"--root={tmp_path}"
    update = subprocess.run(
        ["journalctl", root, "--update-catalog"], capture_output=True, text=True, check=False
    )
    assert (update.returncode, update.stdout, update.stderr) == (0, "", "")
    listed = subprocess.run(
        ["journalctl", root, "--list-catalog"], capture_output=True, text=True, check=True
    ).stdout
    for cause in Cause:
        assert f"{cause.message_id} servicekit: @SERVICEKIT_PROFILE@: {cause.title}" in listed
    one = subprocess.run(
        ["journalctl", root, "--dump-catalog", Cause.HUNG.message_id],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "1. look for an Xid at that time" in one
