"""`compare` on the command line: what can be named, what is printed, what is written."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import bench_results
import pytest
from unit.cli.cli_runs import invoke, on_terminal, refused, said, servicekit

from servicekit.lab.bench import store

if TYPE_CHECKING:
    from pathlib import Path

    from unit.cli.cli_runs import Ran

    from servicekit.lab.bench.result import BenchResult


ESCAPE = re.compile("\x1b\\[[0-9;]*m")


class Site:
    """A directory with runs of some profiles."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {"SERVICEKIT_ROOT": str(root), "COLUMNS": "100"}

    def keep(self, profile: str, hour: int = 12, **changes: Any) -> BenchResult:  # noqa: ANN401
        """Store a run that began at this hour."""
        result = bench_results.result(
            profile, started=f"2026-01-31T{hour:02}:00:00.000+00:00", **changes
        )
        store.write(self.root / "state", result)
        return result

    def file(self, result: BenchResult) -> Path:
        """Give the file of a run that was stored."""
        return self.root / "state" / result.profile / "bench" / f"{result.name}.json"

    def said(self, *words: str | Path) -> str:
        """Give what a comparison that succeeds prints."""
        return said("compare", *words, env=self.env)

    def names(self, *words: str) -> list[str]:
        """Give the names of the runs that were compared."""
        told = json.loads(self.said(*words, "--json"))
        return [run["name"] for run in told["runs"]]

    def refused(self, *words: str | Path, code: int = 1) -> str:
        """Give the one line of a comparison that is refused."""
        line = refused("compare", *words, env=self.env, code=code)
        assert line.startswith("servicekit: ")
        assert line.count("\n") == 1
        return line.removeprefix("servicekit: ").strip()

    def run(self, *words: str | Path) -> Ran:
        """Run a comparison."""
        return invoke("compare", *words, env=self.env)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A directory without any run."""
    return Site(tmp_path)


def slow(**changes: Any) -> Any:  # noqa: ANN401
    """Give cases that decode at a fifth of the usual, as without a draft graph."""
    samples = [bench_results.sample(decode=19)] * 3
    return (bench_results.case(samples=samples, **changes),)


def test_a_table_for_a_person(site: Site) -> None:
    """Who was compared, every figure with its verdict, then traps and notes; plain in a pipe."""
    bound = bench_results.BOUND.__class__("a1", "0.1", "0.5.23", "c0ffee", "590.2", "RTX 5090")
    site.keep("dspark")
    second = site.keep("dflash", cases=slow(), verified=False, standing="not verified",
                       fingerprint=bound)  # fmt: skip
    text = site.said("dspark", second.name)
    assert text == TABLE
    assert max(map(len, text.splitlines())) <= 100


TABLE = """\
suite matched-32k version 1 (0123456789ab)

A  20260131T120000Z-dspark-matched-32k
   sglang 0.5.23, RTX 5090, driver 580.1
   RadixArk/Qwen3.8-27B-NVFP4 with RadixArk/Qwen3.8-27B-DSpark
   KV pool 40,000 tokens, 32,768 requested
   verified, prompts up to 32014 tokens

B  20260131T120000Z-dflash-matched-32k
   sglang 0.5.23, RTX 5090, driver 590.2
   RadixArk/Qwen3.8-27B-NVFP4 with RadixArk/Qwen3.8-27B-DSpark
   KV pool 40,000 tokens, 32,768 requested
   unverified: not verified

chat: 8,192 prompt tokens, up to 256 answer tokens, concurrency 1, context 32,768, KV fp8, cold
   prefix, thinking off, temperature 0, seed 0
FIGURE                    RUN  MEDIAN         P99    SAMPLES  AGAINST A
first token, s            A    0.600 ± 0.000  0.600  3
                          B    0.600 ± 0.000  0.600  3        no difference  0.0 %
first visible, s          A    0.600 ± 0.000  0.600  3
                          B    0.600 ± 0.000  0.600  3        no difference  0.0 %
prefill, tokens/s         A    13,653 ± 0            3
                          B    13,653 ± 0            3        no difference  0.0 %
decode, tokens/s          A    100 ± 0               3
                          B    19.0 ± 0.0            3        worse          -81.0 %
answer finished, s        A    2.60 ± 0.00    2.60   3
                          B    11.1 ± 0.0     11.1   3        worse          +327.8 %
throughput, tokens/s      A    70.1
                          B    54.2                                          -22.7 %
acceptance, %             A    75
                          B    75                                            0.0 %
per verification, tokens  A    4.00
                          B    4.00                                          0.0 %
correctness, %            A    100
                          B    100                                           0.0 %

trap: B, chat: drafter graph lost: acceptance looks healthy (4.00 tokens per verification, A's
   4.00), but decode is 19.0 tokens/s, less than half of the 100 tokens/s expected from A
note: B and A differ in driver (580.1, 590.2)
"""


def test_the_first_named_is_what_others_are_held_against(site: Site) -> None:
    """The order of the names is the order of the runs."""
    first, second = site.keep("dspark"), site.keep("dflash")
    assert site.names("dflash", "dspark") == [second.name, first.name]


def test_a_profile_is_its_latest_complete_run(site: Site) -> None:
    """Neither an older nor an interrupted one; a run can always be named itself."""
    old, new = site.keep("dspark", 10), site.keep("dspark", 11)
    cut, other = site.keep("dspark", 12, complete=False), site.keep("dflash")
    assert site.names("dspark", "dflash") == [new.name, other.name]
    assert site.names(old.name, cut.name, "dflash") == [old.name, cut.name, other.name]


def test_earlier_runs_of_a_profile_are_counted_back(site: Site) -> None:
    """What changed since the last time needs no name to be copied."""
    runs = [site.keep("dspark", hour) for hour in (8, 9, 10)]
    site.keep("dspark", 11, complete=False)
    assert site.names("dspark~1", "dspark") == [runs[1].name, runs[2].name]
    assert site.names("dspark~2", "dspark~0") == [runs[0].name, runs[2].name]
    assert site.refused("dspark", "dspark~3") == (
        'profile "dspark" has no complete run of suite "matched-32k" 3 before its latest; '
        "measure it: `servicekit bench dspark --suite matched-32k`"
    )
    assert site.refused("nobody~1", "dspark").startswith('there is no run "nobody~1"')


def test_a_profile_is_known_by_its_runs(site: Site) -> None:
    """It need not be installed or known here, and one is not taken for another."""
    gone, longer = site.keep("gone"), site.keep("gone-since", 13)
    assert site.names("gone", "gone-since") == [gone.name, longer.name]


def test_the_suite_is_that_of_the_first_run_unless_one_is_named(site: Site) -> None:
    """Later runs of other suites are passed over."""
    small = bench_results.SUITE.model_copy(update={"name": "small"})
    a, b = site.keep("dspark", 10), site.keep("dflash", 10)
    c, d = site.keep("dspark", 9, suite=small), site.keep("dflash", 11, suite=small)
    assert site.names("dspark", "dflash") == [a.name, b.name]
    assert site.names("dspark", "dflash", "--suite", "small") == [c.name, d.name]
    assert site.names(d.name, "dspark") == [d.name, c.name]


def test_a_file_from_another_machine_is_compared(site: Site, tmp_path: Path) -> None:
    """It is named by its path, and need not lie where runs are stored."""
    site.keep("dspark")
    there = tmp_path / "there.json"
    site.file(site.keep("dflash")).rename(there)
    assert "dflash" in site.said("dspark", there)
    there.write_text("{}")
    assert site.refused("dspark", there) == (
        f'"{there}" is not a benchmark result: it has no format number'
    )


def test_a_file_from_another_machine_leads_no_terminal(site: Site, tmp_path: Path) -> None:
    """Whatever it calls itself, what is printed is text."""
    odd = tmp_path / "odd.json"
    escape = "\x1b]0;owned\x07"
    told = {"model": escape, "profile": escape, "standing": escape, "verified": False}
    first = site.keep("dspark")
    odd.write_text(first.model_copy(update=told).as_text())
    assert "\x1b" not in site.said("dspark", odd)
    suite = bench_results.SUITE.model_copy(update={"version": 2})
    odd.write_text(first.model_copy(update={**told, "suite": suite}).as_text())
    assert "\x1b" not in site.refused("dspark", odd)
    assert "\x1b" not in site.refused(odd, odd)


def test_a_broken_file_is_passed_over_for_a_profile(site: Site) -> None:
    """The latest run that can be read is the latest run."""
    good, bad, other = site.keep("dspark", 10), site.keep("dspark", 11), site.keep("dflash")
    site.file(bad).write_text("{")
    assert site.names("dspark", "dflash") == [good.name, other.name]
    assert site.refused(bad.name, "dflash") == (
        f'"{bad.name}" is not a benchmark result: it is not JSON'
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("dspark", "demo"), (
            'profile "demo" has no complete run of suite "matched-32k"; '
            "measure it: `servicekit bench demo --suite matched-32k`"
        )),
        (("demo", "dspark"), (
            'profile "demo" has no complete run; measure it: `servicekit bench demo`'
        )),
        (("dspark", "demp"), (
            'there is no run "demp"; '
            "`servicekit bench --list` shows the stored runs; name a file by its path"
        )),
        (("dspark", "./no.json"), 'file "no.json" does not exist; correct the path'),
        (("dspark",), "a comparison needs two runs; name a second one"),
        (("dspark", "dspark"), (
            '"20260131T120000Z-dspark-matched-32k" is named twice; name each run once'
        )),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_said_in_one_line(
    site: Site, words: tuple[str, ...], line: str
) -> None:
    """With what would do."""
    site.keep("dspark")
    assert site.refused(*words) == line


def test_runs_that_do_not_match_are_not_compared(site: Site, tmp_path: Path) -> None:
    """Nothing is printed or written, and one line says what differs."""
    site.keep("dspark")
    conditions = bench_results.conditions(kv_precision="bf16")
    site.keep("dflash", cases=(bench_results.case(conditions=conditions),))
    ran = site.run("dspark", "dflash", "--html", tmp_path / "report.html")
    assert (ran.code, ran.out) == (1, "")
    assert "in kv precision (fp8, bf16); compare runs" in ran.err
    assert not (tmp_path / "report.html").exists()


def test_without_runs_nothing_is_typed(site: Site) -> None:
    """The command line itself is wrong."""
    assert "Missing argument" in refused("compare", env=site.env, code=2)


def test_a_report_is_written_beside_what_is_printed(site: Site, tmp_path: Path) -> None:
    """It replaces an older one at once, and where it is, is told."""
    site.keep("dspark")
    site.keep("dflash", cases=slow())
    report = tmp_path / "report.html"
    report.write_text("old")
    ran = site.run("dspark", "dflash", "--html", report)
    assert ran.code == 0
    assert ran.out.startswith("suite matched-32k")
    assert ran.err == f"servicekit: the report is {report}\n"
    assert report.read_text(encoding="utf-8").startswith("<!doctype html>\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "state"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no/report.html", 'cannot write the report to "{}": no such file or directory'),
        ("pipe", '"{}" is not a regular file'),
        ("loop", 'cannot write the report to "{}": too many levels of symbolic links'),
        ("x" * 300, 'cannot write the report to "{}": file name too long'),
    ],
)
def test_a_report_that_cannot_be_written_is_one_line(site: Site, path: str, reason: str) -> None:
    """No device or pipe is replaced by a file."""
    os.mkfifo(site.root / "pipe")
    (site.root / "loop").symlink_to(site.root / "loop")
    site.keep("dspark")
    site.keep("dflash")
    ran = site.run("dspark", "dflash", "--html", site.root / path)
    assert ran.code == 1
    assert ran.err == f"servicekit: {reason.format(site.root / path)}\n"
    assert (site.root / "pipe").is_fifo()


def test_a_report_may_have_the_longest_name(site: Site) -> None:
    """What it is written to first is not longer."""
    site.keep("dspark")
    site.keep("dflash")
    site.said("dspark", "dflash", "--html", site.root / ("x" * 255))


def test_without_the_extra_nothing_is_begun(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The line that says what to install is the only one."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    ran = site.run("dspark", "dflash", "--html", tmp_path / "report.html")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.endswith("install it: `pip install 'servicekit[report]'`\n")
    site.keep("dspark")
    site.keep("dflash")
    assert site.said("dspark", "dflash")  # without a report it is not needed


def test_on_a_terminal_lines_are_wrapped_and_coloured(site: Site) -> None:
    """Within a hundred columns nothing breaks where it should not."""
    site.keep("dspark")
    site.keep("dflash", cases=slow(), verified=False, standing="not verified")
    text = on_terminal("compare", "dspark", "dflash", env={**site.env, "TERM": "xterm"})
    lines = text.replace("\r", "").splitlines()
    assert any("\x1b[31mworse" in line for line in lines)
    assert any("\x1b[33m   unverified: not verified" in line for line in lines)
    assert max(len(ESCAPE.sub("", line)) for line in lines) <= 100


@pytest.mark.parametrize(
    ("typed", "offered", "withheld"),
    [("dsp", "dspark", "20260131T"), ("20260131T11", "20260131T110000Z-dspark", "Z-dflash")],
)
def test_runs_and_profiles_are_completed(
    site: Site, typed: str, offered: str, withheld: str
) -> None:
    """Whoever presses the tab key sees what can be compared."""
    site.keep("dspark", 11)
    site.keep("dflash", 12)
    env = {
        **site.env,
        "_SERVICEKIT_COMPLETE": "complete_bash",
        "COMP_WORDS": f"servicekit compare {typed}",
        "COMP_CWORD": "2",
    }
    done = servicekit(env=env)
    assert offered in done.out
    assert withheld not in done.out
