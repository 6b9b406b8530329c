"""The page of causes is up to date, and journalctl understands their catalog."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.signatures import Role, knowledge
from servicekit.service.render import rendered

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).parents[3]
page: Final[Callable[[], str]] = runpy.run_path(str(ROOT / "tools/causes_page.py"))["page"]


def test_the_document_is_up_to_date() -> None:
    """`docs/causes.md` is what the signatures say today."""
    text = (ROOT / "docs/causes.md").read_text(encoding="utf-8")
    assert text == page(), "run: python tools/causes_page.py"


def test_the_document_has_every_cause_and_every_signature() -> None:
    """Each cause is a heading, and each signature's texts are below its cause."""
    text = page()
    for cause in Cause:
        assert text.count(f"\n### `{cause}`\n") == 1
    for signature in knowledge("any").signatures:
        for literal in signature.literals:
            assert f"`{literal.strip()}`" in text


def test_the_document_leaves_no_placeholder() -> None:
    """A person reads names, not braces."""
    assert "{" not in page()


def test_wrappers_have_no_cause_in_the_document() -> None:
    """What only wraps a cause stands in the list of such lines, before the causes."""
    introduction, _, causes = page().partition("\n## ")
    wrapper = next(one for one in knowledge("vllm").signatures if one.role is Role.ECHO)
    assert f"`{wrapper.literals[0]}`" in introduction
    assert f"`{wrapper.literals[0]}`" not in causes


@pytest.mark.skipif(shutil.which("journalctl") is None, reason="needs journalctl")
def test_journalctl_takes_the_catalog(tmp_path: Path) -> None:
    """The real tool compiles the catalog without a word and lists every cause in it."""
    catalog = tmp_path / "usr" / "lib" / "systemd" / "catalog"
    catalog.mkdir(parents=True)
    (tmp_path / "var" / "lib" / "systemd" / "catalog").mkdir(parents=True)
    (catalog / "servicekit.catalog").write_text(rendered("servicekit.catalog.j2", causes=Cause))
    root = f"--root={tmp_path}"
    update = subprocess.run(
        ["journalctl", root, "--update-catalog"], capture_output=True, text=True, check=False
    )
    assert (update.returncode, update.stdout, update.stderr) == (0, "", "")
    listed = subprocess.run(
        ["journalctl", root, "--list-catalog"], capture_output=True, text=True, check=True
    ).stdout
    for cause in Cause:
        assert (
            f"{cause.message_id} servicekit: servicekit @SERVICEKIT_PROFILE@: {cause.title}"
            in listed
        )
    one = subprocess.run(
        ["journalctl", root, "--dump-catalog", Cause.HUNG.message_id],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "- look for an Xid at that time" in one
