"""vLLM's budget: what `--gpu-memory-utilization` leaves for blocks, and what they serve.

Read in vLLM 0.32.0: `v1/worker/gpu_worker.py` (`determine_available_memory`) and
`engine/arg_utils.py`.

    available = memory * utilization - weights - peak of a profiling run - estimate of the graphs
    blocks    = available / bytes of a block                                 (see `vllm_blocks`)

Bytes throughout. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from servicekit.errors import UserError
from servicekit.models.memory.geometry import SIXTEEN_BITS, elements, mtp_parameters
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
from servicekit.models.memory.units import GIB, counted, gib, product, short
from servicekit.models.memory.vllm_blocks import (
    KERNEL_BLOCK,
    NO_DRAFTS,
    Blocks,
    DraftLayers,
    block_layout,
)
from servicekit.models.memory.window import beyond_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.models.memory.geometry import Caution, Drafter, Geometry
    from servicekit.models.memory.recipe import Recipe

VERSION: Final = "0.32.0"
UTILIZATION: Final = 0.92
HIGHEST_UTILIZATION: Final = 0.96  # the largest of the public starts on one RTX 5090
FEW_SEQUENCES: Final = 8  # `--max-num-seqs` of the largest pool on vLLM's recipe page
# Defaults of the API server, and from where on they are larger (`get_batch_defaults`).
BATCHED_TOKENS: Final = 2048
SEQUENCES: Final = 256
LARGE_GPU: Final = 70 * GIB
LARGE_BATCHED_TOKENS: Final = 8192
LARGE_SEQUENCES: Final = 1024
# What the profiling run sees beyond weights and activations. Estimated: these three, and the
# vision encoder in the model's table, are fitted to five published pools and give each of them to
# the block.
RUNTIME: Final = round(0.44 * GIB)
# Bytes for each sequence and word of the vocabulary while sampling: three FP32 rows.
SAMPLER_ROW: Final = 12
SPECULATION: Final = round(0.10 * GIB)
# Graphs of one batch size. Estimated: `Graph capturing finished …, took 0.46 GiB` in a published
# log, over the 51 sizes that the default of 256 sequences brings.
GRAPH: Final = round(0.46 * GIB / 51)
# What capturing takes for however few sizes. Estimated, as for SGLang.
LEAST_GRAPHS: Final = round(0.10 * GIB)
LARGEST_GRAPH: Final = 512
# What CUDA takes before vLLM compares free memory with what it may use. Estimated, as for SGLang.
STARTUP: Final = round(0.35 * GIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSpeculation:
    """A drafter as the budget sees it."""

    method: str = ""
    layers: DraftLayers = NO_DRAFTS
    weights: int = 0
    detail: str = ""
    known: bool = True
    checked: bool = True  # whether how its layers are grouped was checked against a start


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """The recipe's options as the engine resolves them on one GPU."""

    total: int
    kv_dtype: str
    speculation: VllmSpeculation
    utilization: float
    pinned: int | None  # `--kv-cache-memory-bytes`
    count: int | None  # `--num-gpu-blocks-override`: blocks, however many would fit
    sequences: int
    batched_tokens: int
    eager: bool
    text_only: bool
    length: int | None  # `max_model_len`; `None` means as long as fits
    blocks: Blocks

    @property
    def doubt(self) -> int:
        """Bytes by which the pool may be larger or smaller than planned."""
        return DOUBT if self.count is None else 0


def resolve(recipe: Recipe, geometry: Geometry, total: int) -> VllmSettings:
    """Resolve the recipe's options on a GPU of `total` usable bytes.

    Raises `UserError` for a model spread over several GPUs, and for a type of unknown size.
    """
    recipe.refuse_several_gpus(
        "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"
    )
    kv_dtype = recipe.kv_dtype(geometry.kv_dtype)
    state_dtype = recipe.text("mamba-ssm-cache-dtype", "auto")
    if state_dtype == "auto":
        state = geometry.recurrent
        state_dtype = (state.automatic or state.dtype) if state else "float32"
    speculation = _speculation(recipe, geometry)
    large = total >= LARGE_GPU
    batched = recipe.integer("max-num-batched-tokens")
    batched = batched or (LARGE_BATCHED_TOKENS if large else BATCHED_TOKENS)
    sequences = recipe.integer("max-num-seqs")
    return VllmSettings(
        total=total,
        kv_dtype=kv_dtype,
        speculation=speculation,
        utilization=recipe.number("gpu-memory-utilization") or UTILIZATION,
        pinned=recipe.integer("kv-cache-memory-bytes"),
        count=recipe.integer("num-gpu-blocks-override"),
        sequences=sequences or (LARGE_SEQUENCES if large else SEQUENCES),
        batched_tokens=batched,
        eager=recipe.flag("enforce-eager"),
        text_only=_text_only(recipe),
        length=_declared_length(recipe, geometry),
        blocks=block_layout(
            geometry,
            kv_dtype=kv_dtype,
            state_dtype=state_dtype,
            aligned=_aligned(recipe),
            drafts=speculation.layers,
            batched_tokens=batched,
            block_size=recipe.integer("block-size") or KERNEL_BLOCK,
        ),
    )


def _declared_length(recipe: Recipe, geometry: Geometry) -> int | None:
    if recipe.options.get("max-model-len") in {"auto", "-1", -1}:
        return None
    return recipe.integer("max-model-len") or recipe.context_requested or geometry.context


def _text_only(recipe: Recipe) -> bool:
    """Whether no image is ever encoded: the vision tower is then not loaded."""
    limits = recipe.table("limit-mm-per-prompt")
    return recipe.flag("language-model-only") or (bool(limits) and not any(limits.values()))


def _aligned(recipe: Recipe) -> bool:
    """Whether states are cached at block boundaries, which prefix caching asks for by default."""
    off = recipe.flag("no-enable-prefix-caching")
    off = off or recipe.options.get("enable-prefix-caching") is False
    return recipe.text("mamba-cache-mode", "none" if off else "align") == "align"


def _speculation(recipe: Recipe, geometry: Geometry) -> VllmSpeculation:
    """Resolve `--speculative-config`: the checkpoint's own head, or a drafter that is known."""
    config = {**recipe.table("speculative-config"), **recipe.table("sc")}
    if not config:
        return VllmSpeculation()
    method = str(config.get("method", ""))
    tokens = config.get("num_speculative_tokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise UserError(
            'speculative-config: "num_speculative_tokens" must be a positive number, '
            f"not {tokens!r}"
        )
    if "mtp" in method:
        return VllmSpeculation(
            method=method,
            layers=DraftLayers(tokens=tokens, full=geometry.mtp_layers),
            weights=elements(mtp_parameters(geometry), "bfloat16"),
            detail="the head inside the checkpoint, at BF16",
        )
    if method in {"ngram", "suffix"}:
        return VllmSpeculation(method=method, layers=DraftLayers(tokens=tokens), detail=method)
    name = str(config.get("model") or recipe.drafter or "")
    if (drafter := geometry.drafter(name)) is None:
        return VllmSpeculation(
            method=method, layers=DraftLayers(tokens=tokens), detail=name, known=False
        )
    return VllmSpeculation(
        method=method,
        layers=_draft_layers(drafter, geometry, tokens),
        weights=drafter.weights,
        detail=drafter.id,
        checked=False,
    )


def _draft_layers(drafter: Drafter, geometry: Geometry, tokens: int) -> DraftLayers:
    """Count a drafter's layers as so many of the target's: pages of both kinds are equally long."""
    count = drafter.kv_elements // (2 * geometry.kv_heads * geometry.head_dim)
    if drafter.window is None:
        return DraftLayers(tokens=tokens, full=count)
    return DraftLayers(tokens=tokens, windowed=count, window=drafter.window)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What the profiling run takes, and what it leaves."""

    weights: int
    transients: int
    graphs: int
    available: int  # bytes for blocks; negative where there are none
    count: int  # blocks


def shares(setting: VllmSettings, geometry: Geometry) -> Shares:
    """Work out what is left for blocks (`determine_available_memory`)."""
    weights, encoder = geometry.weights, 0
    if (vision := geometry.vision) is not None:
        weights -= vision.weights if setting.text_only else 0
        encoder = 0 if setting.text_only else vision.encoder
    sampler = setting.sequences * geometry.vocabulary * SAMPLER_ROW
    transients = geometry.activation_bytes(setting.batched_tokens) + sampler + encoder
    transients += SPECULATION if setting.speculation.method else 0
    sizes = _captured_sizes(setting.sequences)
    graphs = 0 if setting.eager else max(LEAST_GRAPHS, sizes * GRAPH)
    available = setting.pinned
    if available is None:
        taken = RUNTIME + weights + setting.speculation.weights + transients + graphs
        available = round(setting.total * setting.utilization) - taken
    count = setting.count or max(0, available) // setting.blocks.bytes
    return Shares(
        weights=weights, transients=transients, graphs=graphs, available=available, count=count
    )


def _captured_sizes(sequences: int) -> int:
    """Count the batch sizes that are captured: 1, 2, 4, then every 8th and from 256 every 16th."""
    largest = min(2 * sequences, LARGEST_GRAPH)
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, LARGEST_GRAPH + 1, 16))
    return sum(1 for size in sizes if size <= largest)


def plan(recipe: Recipe, geometry: Geometry, total: int, average_length: int) -> Budget:
    """Plan `recipe` on a GPU of `total` usable bytes."""
    setting = resolve(recipe, geometry, total)
    blocks, sizes = setting.blocks, shares(setting, geometry)
    length = setting.length or max(1, min(geometry.context, blocks.longest(sizes.count)))
    missing = (blocks.per_request(length) + 1 - sizes.count) * blocks.bytes  # one is kept back
    tokens, at_once = blocks.reported(sizes.count, length)
    concurrency = min(max(1, int(at_once)), setting.sequences) if missing <= setting.doubt else 0
    effective = min(length, blocks.longest(sizes.count)) if missing <= setting.doubt else 0
    parts = with_free(_parts(recipe, geometry, setting, sizes, length), total)
    free = parts[-1].bytes
    fits = (
        f"{tokens:,} tokens, {counted(concurrency, 'request')} of {length:,} at once; "
        f"{gib(free)} stay free"
    )
    findings = _findings(recipe, geometry, setting, sizes, length, missing, free)
    budget = Budget(
        title=f"{recipe.model} on vLLM {recipe.engine_version or VERSION}",
        total=total,
        parts=parts,
        kv_tokens=tokens,
        concurrency=concurrency,
        effective_context=effective,
        usable_input=max(0, effective - 1),
        average_length=average_length,
        reason=fits,
    )
    return judged(budget, findings, _notes(recipe, geometry, setting))


def _parts(
    recipe: Recipe, geometry: Geometry, setting: VllmSettings, sizes: Shares, length: int
) -> Iterator[Part]:
    blocks, speculation = setting.blocks, setting.speculation
    yield Part(PartName.RUNTIME, RUNTIME, "CUDA context, engine start", estimated=True)
    yield Part(PartName.WEIGHTS, sizes.weights, recipe.model, estimated=geometry.weights_estimated)
    yield Part(PartName.DRAFTER, speculation.weights, speculation.detail)
    yield Part(PartName.STATES, 0)
    pool = product(counted(sizes.count, "block"), short(blocks.bytes))
    share = f"{blocks.per_request(length)}/request"
    if blocks.fixed:
        share += f", {blocks.fixed} states"
    yield Part(PartName.KV, sizes.count * blocks.bytes, f"{pool}; {share}")
    yield Part(PartName.INTERMEDIATE, 0)
    yield Part(PartName.GRAPHS, sizes.graphs, "", estimated=sizes.graphs > 0)
    batch = f"{setting.batched_tokens:,} tokens, {setting.sequences} sequences"
    yield Part(PartName.TRANSIENTS, sizes.transients, batch, estimated=True)


def _findings(
    recipe: Recipe,
    geometry: Geometry,
    setting: VllmSettings,
    sizes: Shares,
    length: int,
    missing: int,
    free: int,
) -> Iterator[PlanFinding]:
    if setting.utilization * setting.total > setting.total - STARTUP:
        yield PlanFinding(
            Fit.DOES_NOT_FIT,
            f"utilization {setting.utilization:g} is more than is free when the engine starts",
            (f"lower --gpu-memory-utilization to {1 - STARTUP / setting.total:.3f}",),
        )
    if (finding := beyond_window(recipe, geometry.context, length)) is not None:
        yield finding
    else:
        yield from _pool_findings(geometry, setting, sizes, length, missing, free)
    wanted = recipe.context_requested
    if wanted is not None and length < wanted:
        reason = f"a request can use {length:,} tokens, not the {wanted:,} requested"
        yield PlanFinding(Fit.TIGHT, reason, ("raise --max-model-len",))
    for caution in geometry.cautions:
        if _applies(caution, recipe, setting.total):
            yield PlanFinding(Fit.TIGHT, caution.text, (f"add --{caution.unless}",))
    if not setting.speculation.known:
        yield unknown_drafter(setting.speculation.detail)


def _pool_findings(
    geometry: Geometry, setting: VllmSettings, sizes: Shares, length: int, missing: int, free: int
) -> Iterator[PlanFinding]:
    levers = tuple(_pool_levers(geometry, setting))
    needed = setting.blocks.per_request(length)
    if sizes.available <= 0:
        yield PlanFinding(
            Fit.DOES_NOT_FIT,
            f"no memory is left for blocks: {gib(-sizes.available)} short",
            (*levers, "choose a smaller checkpoint"),
        )
    elif missing > 0:
        longest = setting.blocks.longest(sizes.count)
        shorter = (f"lower --max-model-len to {longest}",) if longest else ()
        yield PlanFinding(
            Fit.DOES_NOT_FIT if missing > setting.doubt else Fit.TIGHT,
            f"a request of {length:,} tokens takes {needed} blocks and one is reserved: "
            f"there {'may be' if missing <= setting.doubt else 'are'} only {sizes.count}",
            (*levers, *shorter),
        )
    elif free < 0:
        reason = f"the parts exceed the memory by {gib(-free)}"
        option = "kv-cache-memory-bytes" if setting.count is None else "num-gpu-blocks-override"
        yield PlanFinding(Fit.DOES_NOT_FIT, reason, (f"lower --{option}",))
    elif free < COMFORT:
        lever = f"lower --gpu-memory-utilization (now {setting.utilization:g})"
        yield PlanFinding(Fit.TIGHT, f"only {gib(free)} stay free", (lever,))


def _applies(caution: Caution, recipe: Recipe, total: int) -> bool:
    return caution.engine == "vllm" and total < caution.below and not recipe.flag(caution.unless)


def _pool_levers(geometry: Geometry, setting: VllmSettings) -> Iterator[str]:
    """Name what makes the pool larger, in the order of vLLM's recipe for one RTX 5090."""
    if setting.count is not None:
        yield f"raise --num-gpu-blocks-override (now {setting.count})"
        return
    if not setting.eager:
        yield "add --enforce-eager"
    if geometry.vision is not None and not setting.text_only:
        yield "add --language-model-only"
    if setting.sequences > FEW_SEQUENCES:
        yield f"lower --max-num-seqs to {FEW_SEQUENCES} (now {setting.sequences})"
    if setting.kv_dtype in SIXTEEN_BITS:
        yield "halve the cache: --kv-cache-dtype fp8"
    if setting.pinned is not None:
        yield f"raise --kv-cache-memory-bytes (now {setting.pinned})"
    elif setting.utilization < HIGHEST_UTILIZATION:
        yield (
            f"raise --gpu-memory-utilization to {HIGHEST_UTILIZATION} (now {setting.utilization:g})"
        )


def _notes(recipe: Recipe, geometry: Geometry, setting: VllmSettings) -> Iterator[str]:
    yield "vLLM's tokens depend on max_model_len: they are its pool in requests of that length"
    if recipe.engine_version not in {"", VERSION}:
        yield f"vLLM {recipe.engine_version} is planned like {VERSION}"
    if not setting.speculation.checked:
        yield "how this drafter's layers are grouped comes from vLLM's source, not from a start"
    if geometry.sliding:
        yield "sliding-window layers are counted in full: the pool will hold more tokens"
    if geometry.chunked:
        yield "vLLM keeps layers with chunked attention in full"
    if geometry.latent and geometry.recurrent is not None:
        yield "how latent attention and states share blocks was not checked against a start"
