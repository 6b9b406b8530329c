"""Changes are decided from what should be, what is there, and what was written; nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from servicekit.errors import UserError
from servicekit.install.changes import Act, Change, Present, changes, record
from servicekit.service.manifest import Manifest, Written, fingerprint, from_json, inherited, sha256
from servicekit.service.render import Artifact

UNIT = PurePosixPath("/etc/systemd/system/servicekit-x.service")
SHARED = PurePosixPath("/etc/systemd/system/servicekit.target")
LINK = PurePosixPath("/etc/systemd/system/multi-user.target.wants/servicekit-x.service")
SYMLINK = 0o120777


def artifact(text: str, path: PurePosixPath = UNIT, mode: int = 0o644) -> Artifact:
    """A file that an install wants."""
    return Artifact(path, mode, text, None)


def manifest(*files: tuple[PurePosixPath, str, int], profile: str = "x") -> Manifest:
    """A manifest of files written with these texts and modes."""
    written = tuple(
        Written(path, fingerprint(path, text.encode(), mode), mode, None)
        for path, text, mode in files
    )
    return Manifest(
        profile=profile,
        servicekit="1.0",
        manager="systemd",
        user_name=None,
        port=18000,
        gpus=("0",),
        enabled=True,
        files=written,
        directories=(),
    )


def decide(
    *wanted: Artifact,
    there: dict[PurePosixPath, tuple[str, int]] | None = None,
    own: Manifest | None = None,
    others: tuple[Manifest, ...] = (),
    force: bool = False,
) -> list[tuple[str, str, str]]:
    """Act, file name and reason of each change."""
    present = {path: Present(text.encode(), mode) for path, (text, mode) in (there or {}).items()}
    made = changes(wanted, present, own, others, force=force)
    return [(change.act.value, change.path.name, change.why) for change in made]


NAME = UNIT.name


def test_a_new_file_is_created() -> None:
    """Where nothing is there and nothing was written, the file is created."""
    assert decide(artifact("a")) == [("create", NAME, "")]


def test_an_equal_file_is_kept() -> None:
    """A file that is as it should be is kept, whoever wrote it."""
    assert decide(artifact("a"), there={UNIT: ("a", 0o644)}) == [("keep", NAME, "")]


def test_our_own_older_text_is_replaced() -> None:
    """A file that is as we wrote it gives way to the new text."""
    own = manifest((UNIT, "old", 0o644))
    there = {UNIT: ("old", 0o644)}
    assert decide(artifact("new"), there=there, own=own) == [("replace", NAME, "")]


@pytest.mark.parametrize("wanted", ["old", "new"])
def test_a_hand_edited_file_drifts_whether_or_not_we_have_a_new_text(wanted: str) -> None:
    """A file that was changed by hand is left alone and named."""
    own = manifest((UNIT, "old", 0o644))
    there = {UNIT: ("mine", 0o644)}
    why = "was changed by hand since it was installed"
    assert decide(artifact(wanted), there=there, own=own) == [("drifted", NAME, why)]


def test_a_file_that_is_not_ours_is_left_alone() -> None:
    """A different file that no install wrote is somebody's, and named as such."""
    there = {UNIT: ("theirs", 0o644)}
    assert decide(artifact("a"), there=there) == [
        ("drifted", NAME, "was not written by servicekit")
    ]


def test_a_changed_mode_is_drift() -> None:
    """A mode that somebody changed is named with the mode it has now."""
    own = manifest((UNIT, "a", 0o644))
    there = {UNIT: ("a", 0o666)}
    why = "its mode was changed to 0666 since it was installed"
    assert decide(artifact("a"), there=there, own=own) == [("drifted", NAME, why)]


def test_a_masked_unit_is_drift() -> None:
    """A unit that is masked is a symbolic link in our place, and stays one."""
    own = manifest((UNIT, "a", 0o644))
    there = {UNIT: ("/dev/null", SYMLINK)}
    assert decide(artifact("a"), there=there, own=own) == [
        ("drifted", NAME, "is a symbolic link to /dev/null")
    ]


def test_force_replaces_drift_and_saves_it() -> None:
    """With force, a hand-edited file is replaced and its text is saved."""
    own = manifest((UNIT, "old", 0o644))
    (change,) = changes([artifact("new")], {UNIT: Present(b"mine", 0o644)}, own, force=True)
    assert (change.act, change.saved) == (Act.REPLACE, True)


def test_force_does_not_save_what_is_ours() -> None:
    """With force, our own older text is replaced as ever and not saved."""
    own = manifest((UNIT, "old", 0o644))
    (change,) = changes([artifact("new")], {UNIT: Present(b"old", 0o644)}, own, force=True)
    assert (change.act, change.saved) == (Act.REPLACE, False)


def test_a_file_deleted_by_hand_comes_back() -> None:
    """A file of ours that is gone is created again."""
    assert decide(artifact("a"), own=manifest((UNIT, "a", 0o644))) == [("create", NAME, "")]


def test_a_unit_disabled_by_hand_stays_disabled() -> None:
    """The link that enables a unit is not made again once an administrator removed it."""
    link = artifact("../servicekit-x.service", LINK, SYMLINK)
    own = manifest((LINK, "../servicekit-x.service", SYMLINK))
    assert decide(link, own=own) == [("drifted", NAME, "disabled by hand")]
    assert decide(link, own=own, force=True) == [("create", NAME, "disabled by hand")]
    assert decide(link) == [("create", NAME, "")]


def test_a_unit_enabled_by_systemctl_is_enabled() -> None:
    """A link to the same unit is as good as ours, however it spells its target."""
    link = artifact("../servicekit-x.service", LINK, SYMLINK)
    assert decide(link, there={LINK: (str(UNIT), SYMLINK)}) == [("keep", NAME, "")]
    assert decide(link, there={LINK: ("/dev/null", SYMLINK)})[0][0] == "drifted"
    own = manifest((LINK, "../servicekit-x.service", SYMLINK))
    assert decide(there={LINK: (str(UNIT), SYMLINK)}, own=own) == [("remove", NAME, "")]


def test_what_is_no_longer_wanted_is_removed() -> None:
    """A file of an earlier version that the new one does without is removed."""
    own = manifest((UNIT, "a", 0o644))
    assert decide(there={UNIT: ("a", 0o644)}, own=own) == [("remove", NAME, "")]


def test_what_is_no_longer_wanted_but_changed_is_kept() -> None:
    """An uninstall leaves a hand-edited file, unless forced, and then saves its text."""
    own = manifest((UNIT, "a", 0o644))
    there = {UNIT: ("mine", 0o644)}
    why = "was changed by hand since it was installed"
    assert decide(there=there, own=own) == [("drifted", NAME, why)]
    (change,) = changes([], {UNIT: Present(b"mine", 0o644)}, own, force=True)
    assert (change.act, change.saved) == (Act.REMOVE, True)


def test_what_is_gone_already_is_not_mentioned() -> None:
    """An uninstall has nothing to say about a file that is not there."""
    assert decide(own=manifest((UNIT, "a", 0o644))) == []


def test_a_shared_file_stays_while_another_profile_needs_it() -> None:
    """A file of two profiles goes with the last of them."""
    own = manifest((SHARED, "t", 0o644))
    other = manifest((SHARED, "t", 0o644), profile="y")
    there = {SHARED: ("t", 0o644)}
    assert decide(there=there, own=own, others=(other,)) == [
        ("keep", SHARED.name, 'also belongs to "y"')
    ]
    assert decide(there=there, own=own) == [("remove", SHARED.name, "")]


def test_a_shared_file_that_another_install_renewed_is_not_drift() -> None:
    """A file that a newer install of another profile wrote is ours as well."""
    own = manifest((SHARED, "t1", 0o644))
    other = manifest((SHARED, "t2", 0o644), profile="y")
    wanted = artifact("t3", SHARED)
    there = {SHARED: ("t2", 0o644)}
    assert decide(wanted, there=there, own=own, others=(other,)) == [("replace", SHARED.name, "")]


def test_the_record_lists_what_is_ours() -> None:
    """The new manifest has what was written, drift as it was, and nothing that is not ours."""
    theirs = PurePosixPath("/etc/theirs")
    own = manifest((UNIT, "old", 0o644))
    present = {UNIT: Present(b"mine", 0o644), theirs: Present(b"theirs", 0o644)}
    wanted = [artifact("new"), artifact("x", theirs), artifact("s", SHARED, 0o755)]
    assert record(changes(wanted, present, own), own) == (
        Written(UNIT, sha256(b"old"), 0o644, None),
        Written(SHARED, sha256(b"s"), 0o755, None),
    )


def test_a_diff_shows_text_and_mode() -> None:
    """A change is shown as a unified diff, with the mode where it differs."""
    change = Change(Act.REPLACE, UNIT, Present(b"a\nb\n", 0o600), artifact("a\nc\n"))
    assert change.diff().splitlines() == [
        "old mode 0600",
        "new mode 0644",
        f"--- {UNIT}",
        f"+++ {UNIT}",
        "@@ -1,2 +1,2 @@",
        " a",
        "-b",
        "+c",
    ]


def test_a_diff_does_not_show_what_only_its_owner_may_read() -> None:
    """Neither a key that is written nor one that is removed gets into a terminal or a log."""
    secret = Present(b"secret", 0o600)
    created = Change(Act.CREATE, UNIT, None, replace(artifact("secret"), mode=0o600))
    for change in (created, Change(Act.REMOVE, UNIT, secret, None)):
        assert change.diff() == "(readable by its owner only: not shown)"


def test_a_diff_of_a_new_and_of_a_removed_file_names_no_file() -> None:
    """As in any unified diff, what does not exist is /dev/null."""
    created = Change(Act.CREATE, UNIT, None, artifact("a\n")).diff()
    removed = Change(Act.REMOVE, UNIT, Present(b"a\n", 0o644), None).diff()
    assert created.splitlines()[:2] == ["--- /dev/null", f"+++ {UNIT}"]
    assert removed.splitlines()[:2] == [f"--- {UNIT}", "+++ /dev/null"]


def test_what_is_no_text_is_not_shown() -> None:
    """A program in the place of a wrapper does not end up on a terminal."""
    change = Change(Act.DRIFTED, UNIT, Present(b"\x7fELF\0\x1b[2J", 0o755), artifact("a\n"))
    assert change.diff() == "(a binary file)"


def test_a_manifest_survives_its_file() -> None:
    """What is written as JSON is read back as the same value."""
    it = replace(manifest((UNIT, "a", 0o644), (LINK, "../x", SYMLINK)), planned={"kv_gib": 6.1})
    assert from_json(it.to_json(), where="m") == it


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', "null", "[" * 100_000])
def test_a_damaged_manifest_is_one_clear_line(text: str) -> None:
    """A manifest that cannot be read is a user's error that says what would do."""
    with pytest.raises(UserError, match=r'manifest "m.json" cannot be read.*install again'):
        from_json(text, where="m.json")


@pytest.mark.parametrize(
    ("key", "value"), [("profile", "../x"), ("profile", 7), ("manager", "init"), ("port", "none")]
)
def test_a_manifest_with_a_wrong_value_is_damaged(key: str, value: object) -> None:
    """Its name leads to what an uninstall removes, and its manager is asked: both must be real."""
    text = json.dumps(json.loads(manifest().to_json()) | {key: value})
    with pytest.raises(UserError, match=r'manifest "m.json" cannot be read'):
        from_json(text, where="m.json")


def test_a_newer_manifest_is_refused() -> None:
    """The layout of a later version is not guessed at."""
    with pytest.raises(UserError, match=r'manifest "m" has format 2, not 1'):
        from_json(manifest().to_json().replace('"format": 1', '"format": 2'), where="m")


def test_directories_are_inherited_from_other_installs() -> None:
    """A profile knows which directories others made for it, so that the last one removes them."""
    made = (PurePosixPath("/etc/servicekit"), PurePosixPath("/etc/else"))
    other = replace(manifest(profile="y"), directories=made)
    assert inherited([PurePosixPath("/etc/servicekit/a/b")], [other]) == (
        PurePosixPath("/etc/servicekit"),
    )
