"""SGLang's pools: how states, speculation and KV cache share what `--mem-fraction-static` grants.

Read in `srt/mem_cache/kv_cache_configurator.py` (`_profile_available_bytes`,
`_handle_max_mamba_cache`, `resolve_max_num_reqs`), `pool_configurator.py` and `memory_pool.py` of
the releases 0.5.16 and 0.5.23, and checked against published start-up logs of Qwen3.8-27B on an RTX
5090. With M the memory free before loading, A what is free behind the weights, f the memory
fraction, r the state ratio, S the slots a request takes, D the draft tokens and `slot` one state,
the engine works out

    rest = A - M * (1 - f)                               [0.5.23: less 100 MiB for images]
    K    = rest * r / (1 + r) / (slot * (1 + D / S))     [0.5.23: after one slot and D more]
    kv   = rest - K * slot - min(requests, K // S) * D * slot
                                                         [0.5.23: K + 1, and one request more]
    tokens = kv / bytes of a token

with `--max-mamba-cache-size` in place of K where it is given. Bytes throughout. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING, Final

from servicekit.models.memory.geometry import SIXTEEN_BITS
from servicekit.models.memory.outcome import (
    COMFORT,
    DOUBT,
    Budget,
    Fit,
    Part,
    PartName,
    PlanFinding,
    judged,
    unknown_drafter,
    with_free,
)
from servicekit.models.memory.sglang_options import (
    CONTEXT,
    GRAPH_PER_BATCH,
    SPECULATIVE_REQUESTS,
    START,
    SglangSettings,
    has_window_pool,
    resolve,
)
from servicekit.models.memory.units import GIB, counted, gib, product, short
from servicekit.models.memory.window import beyond_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.models.memory.geometry import Geometry
    from servicekit.models.memory.recipe import Recipe

CHUNK: Final = 2048  # the prefill chunk of the published starts
# Static buffers and attention metadata at that chunk. Estimated: 4.47 GiB are logged when the
# pools stand, and 3.96 before the decode graphs are captured; the workspace is the rest of the
# difference.
BUFFERS: Final = round(0.135 * GIB)
# Graphs of one decode runner. Estimated: `mem usage=0.10 GB` in the published log.
DECODE_GRAPHS: Final = round(0.10 * GIB)
# What requests take beyond their activations: cuBLAS workspaces, kernels loaded late, sampling.
# Estimated: the published 200,000-token start holds 31.1 of 32.6 GB under load, which is this
# much more than its log accounts for.
PASS: Final = round(0.46 * GIB)
# Free memory below which the workers of DSpark and DFlash give up their draft graph
# (`available_mem < 1.0`): decoding drops to a fifth while acceptance looks healthy.
DRAFT_GRAPH_FLOOR: Final = GIB
# Tokens of a context that input cannot use (`tp_worker.py`, `max_req_input_len`).
RESERVED_INPUT: Final = 6
# The largest memory fraction of the published starts on one RTX 5090.
HIGHEST_FRACTION: Final = 0.95


def balanced_ratio(
    slot: int,
    token: int,
    *,
    slots_per_request: int,
    draft_tokens: int = 0,
    average_length: int = 5120,
) -> float:
    """Return the state ratio at which states and KV cache run out together (SGLang's cookbook).

    (S + D) * slot / (L * token): 4.59 for Qwen3.8-27B with S = 5, FP32 states, an FP8 cache and
    requests of L = 5,120 tokens.
    """
    return (slots_per_request + draft_tokens) * slot / (average_length * token)


def draft_states_bytes(slot: int, draft_tokens: int) -> int:
    """Return what speculation sets aside for one request: one state for each draft token.

    Eight BF16 states of Qwen3.8-27B, DSpark's window, are 627 MB. The engine then allocates 2 %
    less, since the convolution windows of neighbouring tokens overlap.
    """
    return slot * draft_tokens


@dataclass(frozen=True, slots=True)
class SglangPools:
    """What the engine allocates."""

    rest: float  # bytes granted to states and KV cache together
    slots: int  # K; 0 for a model without recurrent layers
    tokens: int
    requests: int  # `max_num_reqs`: requests that may run at once


def pools(setting: SglangSettings, fraction: float) -> SglangPools:
    rest = setting.rest(fraction)
    slots, left = (0, rest) if setting.state is None else _states(setting, rest)
    tokens = max(0, floor(left)) // setting.token
    if setting.token_cap is not None:
        tokens = min(tokens, setting.token_cap)
    tokens = tokens // setting.page * setting.page
    guess = max(min(tokens * 512 // setting.declared, 4096), 2048)
    requests = min(guess if setting.requests is None else setting.requests, tokens // 2)
    if setting.state is not None:
        requests = min(requests, slots // setting.per_request)
    return SglangPools(rest, slots, tokens, requests)


def _charged_drafts(setting: SglangSettings) -> int:
    """Return D as far as it is charged to the pools."""
    charged = setting.rules.replay_charged or not setting.replays
    return setting.speculation.draft_tokens if charged else 0


def _replay(setting: SglangSettings) -> int:
    """Bytes of replay rings that are charged to the pools."""
    if not setting.replays or setting.rules.ring_per_slot:
        return 0
    return setting.ring * (max(1, setting.requests or 1) + 1)


def _states(setting: SglangSettings, rest: float) -> tuple[int, float]:
    """Return K and the bytes left for the KV cache (`_handle_max_mamba_cache`)."""
    slot, padding = setting.slot, setting.rules.padding
    drafts, replay = _charged_drafts(setting), _replay(setting)
    if setting.pinned is not None:
        slots = setting.pinned
    elif not setting.radix and setting.requests is not None:
        slots = setting.requests
    else:
        grant = rest * setting.ratio / (1 + setting.ratio) - replay
        each = slot * (1 + drafts / setting.per_request)
        slots = max(0, floor((grant - padding * slot * (1 + drafts)) / each))
    if drafts:
        running = min(setting.requests or SPECULATIVE_REQUESTS, slots // setting.per_request)
        rest -= draft_states_bytes(slot, drafts) * (running + padding)
    return slots, rest - (slots + padding) * slot - replay


def _rest_for(setting: SglangSettings, slots: int) -> float:
    drafts, padding = _charged_drafts(setting), setting.rules.padding
    each = setting.slot * (1 + drafts / setting.per_request)
    grant = slots * each + padding * setting.slot * (1 + drafts) + _replay(setting)
    return grant * (1 + setting.ratio) / setting.ratio


def plan(recipe: Recipe, geometry: Geometry, total: int, average_length: int) -> Budget:
    """Plan `recipe` on a GPU of `total` usable bytes."""
    setting = resolve(recipe, geometry, total)
    sizes = pools(setting, setting.fraction)
    parts = with_free(_parts(recipe, setting, sizes), total)
    free = parts[-1].bytes
    serves = sizes.requests > 0
    effective = min(setting.declared, sizes.tokens) if serves else 0
    concurrency = sizes.requests
    if setting.state is None:
        concurrency = min(concurrency, max(1, sizes.tokens // average_length))
    captured = total - sum(part.bytes for part in parts if part.name not in _LATE)
    captured -= _fixed(setting) + _target_graphs(setting)
    fits = (
        f"{sizes.tokens:,} tokens for {counted(concurrency, 'request')} at once; "
        f"{gib(free)} stay free"
    )
    findings = _findings(recipe, setting, sizes, effective, captured, free)
    budget = Budget(
        title=f"{recipe.model} on SGLang {recipe.engine_version or setting.rules.name}",
        total=total,
        parts=parts,
        kv_tokens=sizes.tokens,
        slots=sizes.slots if setting.state is not None else None,
        concurrency=concurrency if serves else 0,
        effective_context=effective,
        usable_input=max(0, effective - RESERVED_INPUT),
        balanced_ratio=_balanced(setting, average_length),
        average_length=average_length,
        reason=fits,
    )
    return judged(budget, findings, _notes(recipe, setting))


_LATE: Final = (PartName.GRAPHS, PartName.TRANSIENTS, PartName.FREE)


def _parts(recipe: Recipe, setting: SglangSettings, sizes: SglangPools) -> Iterator[Part]:
    geometry, speculation = setting.geometry, setting.speculation
    yield Part(PartName.RUNTIME, CONTEXT + START, "CUDA context, engine start", estimated=True)
    yield Part(
        PartName.WEIGHTS, geometry.weights, recipe.model, estimated=geometry.weights_estimated
    )
    yield Part(PartName.DRAFTER, speculation.weights, speculation.detail)
    if setting.state is not None:  # one row more than slots: it takes what padding writes
        rows = sizes.slots + 1
        detail = f"{product(counted(rows, 'slot'), short(setting.slot))}, {setting.state_dtype}"
        yield Part(PartName.STATES, rows * setting.slot, detail)
    else:
        yield Part(PartName.STATES, 0)
    cells = product(counted(sizes.tokens, "token"), short(setting.token))
    yield Part(PartName.KV, sizes.tokens * setting.token, f"{cells}, {setting.kv_dtype}")
    yield _intermediate(setting, sizes)
    graphs = _target_graphs(setting) + _draft_graphs(setting)
    runners = "decode and draft" if _draft_graphs(setting) else "decode"
    runners += " and prefill" if setting.prefill_graphs else ""
    yield Part(PartName.GRAPHS, graphs, runners if graphs else "", estimated=graphs > 0)
    transients = _fixed(setting) + PASS + geometry.activation_bytes(setting.chunk)
    yield Part(
        PartName.TRANSIENTS, transients, f"a prefill of {setting.chunk:,} tokens", estimated=True
    )


def _intermediate(setting: SglangSettings, sizes: SglangPools) -> Part:
    """Bytes that speculation keeps, for one request more than may run (`MambaPool`)."""
    rows, drafts = sizes.requests + 1, setting.speculation.draft_tokens
    if setting.state is None or not drafts:
        return Part(PartName.INTERMEDIATE, 0)
    if not setting.replays:
        detail = product(counted(rows, "request"), str(drafts), short(setting.slot))
        size = rows * draft_states_bytes(setting.slot, drafts)
        return Part(PartName.INTERMEDIATE, size, detail)
    rings = sizes.slots + 1 if setting.rules.ring_per_slot else rows
    columns = setting.state.conv_kernel - 2 + drafts  # neighbouring windows share theirs
    windows = rows * setting.state.layers * setting.state.conv_dim * columns * 2
    detail = product(counted(rings, "ring"), short(setting.ring))
    return Part(PartName.INTERMEDIATE, rings * setting.ring + windows, detail, estimated=True)


def _target_graphs(setting: SglangSettings) -> int:
    decode = max(DECODE_GRAPHS, GRAPH_PER_BATCH * setting.decode_batch)
    return (decode if setting.decode_batch else 0) + setting.prefill_graphs


def _draft_graphs(setting: SglangSettings) -> int:
    return DECODE_GRAPHS if setting.decode_batch and setting.speculation.algorithm else 0


def _fixed(setting: SglangSettings) -> int:
    """Bytes of workspace and static buffers, which are there before any request is."""
    return setting.workspace + BUFFERS * setting.chunk // CHUNK


def _balanced(setting: SglangSettings, average_length: int) -> float | None:
    if setting.state is None:
        return None
    return balanced_ratio(
        setting.slot,
        setting.token,
        slots_per_request=setting.per_request,
        draft_tokens=0 if setting.replays else setting.speculation.draft_tokens,
        average_length=average_length,
    )


def _findings(
    recipe: Recipe,
    setting: SglangSettings,
    sizes: SglangPools,
    effective: int,
    captured: int,
    free: int,
) -> Iterator[PlanFinding]:
    """Say what is wrong. `captured` is what is left when the target's graphs stand."""
    if (obstacle := _obstacle(recipe, setting, sizes)) is not None:
        yield obstacle
        return
    if (finding := beyond_window(recipe, setting.geometry.context, setting.declared)) is not None:
        yield finding
        return
    relief = _relief_levers(setting, sizes)
    if free < 0:
        yield PlanFinding(
            Fit.DOES_NOT_FIT if free < -DOUBT else Fit.TIGHT,
            f"the pools leave {gib(max(0, captured))} beside the graphs, "
            f"and a request would need about {gib(captured - free)}",
            relief,
        )
    elif free < COMFORT:
        yield PlanFinding(Fit.TIGHT, f"only {gib(free)} stay free under a request", relief)
    speculation = setting.speculation
    if speculation.may_lose_its_graph and setting.decode_batch and captured < DRAFT_GRAPH_FLOOR:
        yield PlanFinding(
            Fit.TIGHT,
            f"{gib(captured)} are left after target capture: below {gib(DRAFT_GRAPH_FLOOR)} "
            f"{speculation.algorithm} gives up its draft graph, and decoding drops to a fifth",
            relief,
        )
    yield from _context_findings(recipe, setting, effective)
    if not speculation.known:
        yield unknown_drafter(recipe.drafter)


def _obstacle(recipe: Recipe, setting: SglangSettings, sizes: SglangPools) -> PlanFinding | None:
    """Name what keeps the engine from starting at all."""
    smaller = "choose a smaller checkpoint"
    if setting.after <= 0:
        reason = f"the weights need {gib(-setting.after)} more than the GPU has"
        return PlanFinding(Fit.DOES_NOT_FIT, reason, (smaller,))
    if sizes.rest <= 0 or (setting.state is None and not sizes.requests):
        least = setting.fraction_for(0)
        return PlanFinding(
            Fit.DOES_NOT_FIT,
            f"the weights leave no memory for a pool at memory fraction {setting.fraction:g}",
            (f"raise --mem-fraction-static above {least:.3f}", smaller),
        )
    if setting.state is not None and sizes.slots < setting.per_request:
        return _serves_nothing(setting, sizes)
    if not sizes.requests:
        return PlanFinding(
            Fit.DOES_NOT_FIT,
            f"serves nothing: {sizes.slots} state slots leave no memory for the KV cache",
            _context_levers(setting, sizes, recipe.context_requested or setting.declared),
        )
    return None


def _serves_nothing(setting: SglangSettings, sizes: SglangPools) -> PlanFinding:
    """Say that K is below S, with the remedies in the order of the engine's own error.

    The one behind them, halving the states, is what a published guide tries before all others.
    """
    per_request = setting.per_request
    fewer = "reduce --max-running-requests"
    enough = setting.fraction_for(_rest_for(setting, per_request)) + 0.0005
    more = "increase --mem-fraction-static"
    if setting.pinned is not None:
        fewer += f", and raise --max-mamba-cache-size to {per_request + 1}"
    elif setting.fraction < enough < HIGHEST_FRACTION:
        more += f" to {enough:.3f} or above"
    levers = [fewer, f"{more} (now {setting.fraction:g})"]
    lazy = setting.rules.lazy_speculation or not setting.speculation.algorithm
    if per_request > 1:
        lower = "--disable-radix-cache (S = 1)"
        if lazy and per_request == 5:  # noqa: PLR2004 (extra_buffer, which has a lazy form)
            lower = f"--mamba-radix-cache-strategy extra_buffer_lazy (S = 4) or {lower}"
        levers.append(f"lower S, the slots of a request: {lower}")
    if setting.state_dtype == "float32":
        levers.append("halve the states: --mamba-ssm-dtype bfloat16")
    return PlanFinding(
        Fit.DOES_NOT_FIT,
        f"serves nothing: {counted(sizes.slots, 'state slot')}, and a request needs {per_request}",
        tuple(levers),
    )


def _context_findings(
    recipe: Recipe, setting: SglangSettings, effective: int
) -> Iterator[PlanFinding]:
    wanted, least = recipe.context_requested, recipe.context_minimum
    if wanted is None or effective >= wanted:
        return
    levers = _context_levers(setting, pools(setting, setting.fraction), wanted)
    if least is not None and effective < least:
        reason = f"a request can use {effective:,} tokens, less than the minimum of {least:,}"
        yield PlanFinding(Fit.DOES_NOT_FIT, reason, levers)
    else:
        reason = f"a request can use {effective:,} tokens, not the {wanted:,} requested"
        yield PlanFinding(Fit.TIGHT, reason, levers)


def _context_levers(setting: SglangSettings, sizes: SglangPools, wanted: int) -> tuple[str, ...]:
    """Name what makes the KV cache larger, in the order of the published 200,000-token start."""
    levers = []
    if setting.fraction < HIGHEST_FRACTION:
        levers.append(
            f"raise --mem-fraction-static to {HIGHEST_FRACTION} (now {setting.fraction:g})"
        )
    if setting.token_cap is None:
        levers.append(f"keep the rest free: --max-total-tokens {wanted}")
    elif setting.token_cap < wanted:
        levers.append(f"raise --max-total-tokens to {wanted} (now {setting.token_cap})")
    if setting.declared < wanted:
        levers.append(f"raise --context-length to {wanted} (now {setting.declared})")
    if setting.state is not None:
        spare = setting.rest(max(setting.fraction, HIGHEST_FRACTION)) - wanted * setting.token
        slots = max(setting.per_request + 1, floor(spare / setting.slot) - 1)
        if slots < sizes.slots:
            levers.append(
                f"move memory from states to tokens: --max-mamba-cache-size {slots} "
                f"(now {sizes.slots})"
            )
        if setting.state_dtype == "float32":
            levers.append("halve the states: --mamba-ssm-dtype bfloat16")
    if setting.kv_dtype in SIXTEEN_BITS:
        levers.append("halve the cache: --kv-cache-dtype fp8_e4m3")
    return tuple(levers)


def _relief_levers(setting: SglangSettings, sizes: SglangPools) -> tuple[str, ...]:
    """Name what leaves more beside the pools, in the order of the published troubleshooting.

    A prefill chunk beyond 2,048 comes first: it is what cost a published DSpark start its draft
    graph.
    """
    levers = [f"lower --max-total-tokens (now {sizes.tokens})"]
    if setting.chunk > CHUNK:
        levers.insert(0, f"lower --chunked-prefill-size to {CHUNK} (now {setting.chunk})")
    if setting.state is not None:
        levers.append(f"shrink --max-mamba-cache-size (now {sizes.slots})")
    levers.append(f"lower --mem-fraction-static (now {setting.fraction:g})")
    return tuple(levers)


def _notes(recipe: Recipe, setting: SglangSettings) -> Iterator[str]:
    if recipe.engine_version not in {"", setting.rules.name}:
        yield f"SGLang {recipe.engine_version} is planned like {setting.rules.name}"
    geometry = setting.geometry
    if geometry.sliding:
        yield "sliding-window layers are counted in full: the pool will hold more tokens"
    elif geometry.windowed_layers and not has_window_pool(geometry, recipe):
        yield "SGLang keeps all tokens in this model's sliding-window layers, too"
