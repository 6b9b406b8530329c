"""`check` and `plan`: predict problems of a profile before a start."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Annotated

import typer

from servicekit.cli.forecast import USUAL_GPU, budget_of, memory_of, plan_of, survey_of
from servicekit.cli.options import AsJson, ForUser, ProfileName, session_of
from servicekit.cli.output import as_json, coloured, say
from servicekit.cli.refusals import report_of
from servicekit.engines.options.parser import Level, Remark
from servicekit.models.memory.outcome import Fit
from servicekit.models.memory.rendering import budget_json, render_budget
from servicekit.models.memory.units import parse_size
from servicekit.service.plan import make_plan


def check(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    ask: Annotated[
        bool, typer.Option("--ask", help="Query the engine for its options; takes up to a minute.")
    ] = False,
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Check a profile against its engine's options.

    Every option must exist in the engine's version and have a valid value, the versions must be
    those that the profile requires, and the combination must have no known issue. Exit code 1 if
    the check finds an error; that the settings do not allow the profile is one. What makes the
    service less protected is listed as warnings.
    """
    session = session_of(ctx, user=user)
    recipe = session.catalog.draft(profile)
    survey = survey_of(session, recipe)
    report = report_of(make_plan(recipe, survey.host), ask=ask, weaker=survey.weakenings)
    if (refusal := session.catalog.refusal(profile)) is not None:
        remark = Remark(Level.ERROR, "allow", str(refusal))
        report = replace(report, remarks=(*report.remarks, remark))
    if json:
        as_json(report.json())
    else:
        say(report.text())
    raise typer.Exit(0 if report.ok else 1)


def plan(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    gpu_memory: Annotated[
        str | None,
        typer.Option("--gpu-memory", metavar="SIZE", help=f'GPU memory, such as "{USUAL_GPU}".'),
    ] = None,
    length: Annotated[
        int, typer.Option("--length", min=1, metavar="TOKENS", help="Tokens of an average request.")
    ] = 5120,
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Show how a profile uses the GPU memory.

    Nothing is started. Without --gpu-memory the profile's GPU is queried. Exit code 1 if it does
    not fit.
    """
    session = session_of(ctx, user=user)
    concrete = plan_of(session, session.profile(profile))
    size = parse_size(gpu_memory) if gpu_memory is not None else memory_of(concrete.profile)
    budget = budget_of(concrete, size, average_length=length)
    if json:
        as_json(budget_json(budget))
    else:
        width = shutil.get_terminal_size().columns
        typer.echo(render_budget(budget, width=width, color=coloured()), nl=False)
    raise typer.Exit(1 if budget.verdict is Fit.DOES_NOT_FIT else 0)
