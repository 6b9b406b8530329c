"""`check` and `plan`: predict problems of a profile before a start."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from servicekit.cli.forecast import USUAL_GPU, memory_of, plan_of, recipe_for, survey_of
from servicekit.cli.geometry import geometry_of
from servicekit.cli.options import AsJson, ForUser, ProfileName, session_of
from servicekit.cli.output import as_json, coloured, say
from servicekit.cli.refusals import report_of
from servicekit.engines.options.parser import Level, Remark
from servicekit.models.memory.fitting import Longest, longest
from servicekit.models.memory.outcome import Budget, Fit
from servicekit.models.memory.planning import budget
from servicekit.models.memory.rendering import budget_json, render_budget
from servicekit.models.memory.units import counted, gib, parse_size
from servicekit.service.access import script_faults
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
    for sentence in script_faults("the engine", Path(survey.host.executable)):
        remark = Remark(Level.ERROR, "executable", sentence)
        report = replace(report, remarks=(remark, *report.remarks))
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
    fit: Annotated[
        bool, typer.Option("--fit", help="Search the longest context that fits.")
    ] = False,
    requests: Annotated[
        int, typer.Option("--requests", min=1, help="With --fit: requests at once.")
    ] = 1,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Plan this model instead: a local path, or a Hugging Face name, whose "
            "configuration and sizes are read from the hub if it is not in the cache.",
        ),
    ] = None,
    engine_version: Annotated[
        str | None,
        typer.Option("--engine-version", metavar="VERSION", help="Plan this version instead."),
    ] = None,
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Show how a profile uses the GPU memory.

    Nothing is started. Without --gpu-memory the profile's GPU is queried. Exit code 1 if it does
    not fit.
    """
    session = session_of(ctx, user=user)
    recipe = session.profile(profile)
    if model is not None:
        recipe = recipe.model_copy(update={"model": model, "revision": None})
    concrete = plan_of(session, recipe)
    size = parse_size(gpu_memory) if gpu_memory is not None else memory_of(recipe)
    wanted = recipe_for(concrete, engine_version)
    geometry = geometry_of(session, concrete, from_hub=model is not None)
    if fit:
        _show_longest(longest(wanted, geometry, size, requests=requests), size, json=json)
        return
    _show(budget(wanted, geometry, size, average_length=length), json=json)


def _show(plan: Budget, *, json: bool) -> None:
    if json:
        as_json(budget_json(plan))
    else:
        width = shutil.get_terminal_size().columns
        typer.echo(render_budget(plan, width=width, color=coloured()), nl=False)
    raise typer.Exit(1 if plan.verdict is Fit.DOES_NOT_FIT else 0)


def _show_longest(found: Longest, size: int, *, json: bool) -> None:
    if json:
        as_json(
            {
                "context": found.context,
                "requests": found.requests,
                "options": dict(found.options) if found.context else {},
                "reason": "" if found.context else found.reason,
                "plan": budget_json(found.plan),
            }
        )
    elif found.context:
        say(
            f"{found.plan.verdict.value}: {found.context:,} tokens each for "
            f"{counted(found.requests, 'request')} at once in {gib(size)}"
        )
        for name, number in found.options.items():
            say(f"  {name} = {number}")
    else:
        say(f"no context fits {counted(found.requests, 'request')} at once: {found.reason}")
        for number, lever in enumerate(found.plan.levers, start=1):
            say(f"  {number}. {lever}")
    raise typer.Exit(0 if found.context else 1)
