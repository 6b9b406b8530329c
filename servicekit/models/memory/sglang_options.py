"""SGLang's options as the engine itself resolves them, in the releases 0.5.16 and 0.5.23. Pure.

Read in `server_args.py` and `arg_groups/` (memory, speculation and graph hooks) of both. Bytes
throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from servicekit.models.memory.geometry import elements, mtp_parameters
from servicekit.models.memory.units import GIB, MIB, ceil_div

if TYPE_CHECKING:
    from servicekit.models.memory.geometry import Drafter, Geometry, Recurrent
    from servicekit.models.memory.recipe import Recipe

# What CUDA takes before SGLang measures for the first time. Estimated: 31.4 GiB usable on an RTX
# 5090, less the 31.05 GiB at which the published pool sizes come out.
CONTEXT: Final = round(0.35 * GIB)
# What is taken between that measurement and the first weight. Estimated: the same 31.05 GiB, less
# the 30.71 GiB that is logged when loading begins.
START: Final = round(0.34 * GIB)
WORKSPACE: Final = 384 * MIB  # FlashInfer's workspace (`SGLANG_FLASHINFER_WORKSPACE_SIZE`)
GRAPH_PER_BATCH: Final = 2 * MIB
# SGLang's own guesses for its decode and prefill graphs (`reserve_for_graph_mb`).
GRAPH_PER_PREFILL_SIZE: Final = 8 * MIB
# The pool of `--mm-feature-transport cuda_ipc` (`SGLANG_MM_FEATURE_CACHE_MB`).
IMAGE_POOL: Final = 1024 * MIB

DFLASH_FAMILY: Final = frozenset({"DSPARK", "DFLASH"})
_EAGLE_FAMILY: Final = frozenset({"EAGLE", "EAGLE3", "NEXTN"})
# What `--max-running-requests` becomes under speculation when it is not given.
SPECULATIVE_REQUESTS: Final = 48
# Architectures whose layers with a window get a pool of their own (`is_hybrid_swa_model`), and how
# many of its tokens there are for one of the other pool (`--swa-full-tokens-ratio`).
_WINDOW_POOLS: Final = frozenset(
    {
        *("GptOssForCausalLM", "Llama4ForConditionalGeneration", "MellumForCausalLM"),
        *("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "LagunaForCausalLM"),
        *("Gemma4UnifiedForConditionalGeneration", "Step3p5ForCausalLM", "MiMoV2ForCausalLM"),
        *("MiMoV2FlashForCausalLM", "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM"),
    }
)
_WINDOW_RATIO: Final = 0.8
_FOUR_BITS: Final = frozenset({"nvfp4", "fp4_mx_block16", "fp4_e2m1"})
# Below so many GiB: default prefill chunk and largest decode batch; 0: as `Arithmetic` says.
_GPU_CLASSES: Final = ((20, 2048, 8), (35, 0, 0), (60, 4096, 32), (160, 8192, 256))
_LARGEST_CLASS: Final = (16384, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """What differs between the releases."""

    version: tuple[int, ...]
    name: str
    padding: int
    """Rows that are charged beyond the slots and the requests. Both releases allocate them."""
    images: int  # bytes kept back for a multimodal model's caches (`SGLANG_VLM_CACHE_SIZE_MB`)
    replay: str  # option that replaces the draft states by a small ring per request
    replay_charged: bool
    """Whether the draft states are charged although that option leaves them out."""
    ring_per_slot: bool
    """Whether the ring is kept for every slot, not only for every request, and is not charged."""
    drafter_shape: bool
    """Whether a drafter's cache is worked out from its own shape, not taken for target layers."""
    lazy_speculation: bool  # whether `extra_buffer_lazy` may be combined with speculation
    capped_batch: bool
    """Whether `--max-running-requests` caps the largest decode batch that is captured."""
    skip_lock: bool  # whether `SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK` saves a slot per request
    chunk: int
    decode_batch: int  # defaults on a GPU between 20 and 35 GiB


ARITHMETIC: Final = (
    Arithmetic(
        version=(0, 5, 16),
        name="0.5.16",
        padding=0,
        images=0,
        replay="enable-gdn-replayssm-spec",
        replay_charged=True,
        ring_per_slot=True,
        drafter_shape=False,
        lazy_speculation=False,
        capped_batch=False,
        skip_lock=False,
        chunk=2048,
        decode_batch=24,
    ),
    Arithmetic(
        version=(0, 5, 23),
        name="0.5.23",
        padding=1,
        images=100 * MIB,
        replay="enable-linear-replayssm-spec",
        replay_charged=False,
        ring_per_slot=False,
        drafter_shape=True,
        lazy_speculation=True,
        capped_batch=True,
        skip_lock=True,
        chunk=4096,
        decode_batch=48,
    ),
)


def arithmetic(version: str) -> Arithmetic:
    """Return the arithmetic of the newest known release that is not newer than `version`.

    The newest of all for a version that is empty or no number, the oldest for one before it.
    """
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    if not numbers:
        return ARITHMETIC[-1]
    return next((one for one in reversed(ARITHMETIC) if one.version <= numbers), ARITHMETIC[0])


def slots_per_request(recipe: Recipe, rules: Arithmetic) -> int:
    """Return S, the state slots that one running request takes (`_calculate_mamba_ratio`).

    Radix cache off 1, `no_buffer` 3, `extra_buffer` 5 (4 without the overlap scheduler),
    `extra_buffer_lazy` 4; where 0.5.23 skips the decode lock one less, except for `no_buffer`.
    """
    if recipe.flag("disable-radix-cache"):
        return 1
    old_name = recipe.text("mamba-scheduler-strategy", "auto")
    strategy = recipe.text("mamba-radix-cache-strategy", old_name)
    if strategy == "no_buffer":
        return 3
    single = strategy == "extra_buffer_lazy" or recipe.flag("disable-overlap-schedule")
    skips = rules.skip_lock and recipe.switched_on("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK")
    return (4 if single else 5) - skips


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSpeculation:
    """A drafter as the pools see it."""

    algorithm: str
    draft_tokens: int  # D, the tokens that one verification covers; each keeps a recurrent state
    weights: int = 0
    token: int = 0  # bytes that one token adds to the drafter's own KV cache
    detail: str = ""
    known: bool = True

    @property
    def may_lose_its_graph(self) -> bool:
        return self.algorithm in DFLASH_FAMILY


NO_SPECULATION: Final = SglangSpeculation(algorithm="", draft_tokens=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings:
    """The options as they are resolved on one GPU."""

    rules: Arithmetic
    total: int
    geometry: Geometry
    state: Recurrent | None
    state_dtype: str
    slot: int  # bytes of one state slot
    per_request: int  # S
    kv_dtype: str
    token: int  # bytes of one token in the KV cache, the drafter's included
    speculation: SglangSpeculation
    replays: bool
    ring: int  # bytes that replaying takes in place of one request's draft states
    fraction: float
    ratio: float
    pinned: int | None  # `--max-mamba-cache-size`
    radix: bool
    chunk: int
    page: int
    decode_batch: int  # largest decode batch that is captured; 0 without decode graphs
    prefill_graphs: int
    requests: int | None  # `--max-running-requests`
    token_cap: int | None  # `--max-total-tokens`
    declared: int
    images: int
    workspace: int

    @property
    def before(self) -> int:
        """Bytes free before anything is loaded: the engine's `pre_model_load_memory`."""
        return self.total - CONTEXT

    @property
    def after(self) -> int:
        """Bytes free behind target and drafter: `avail mem` at `Load weight end`."""
        return self.before - START - self.geometry.weights - self.speculation.weights

    def rest(self, fraction: float) -> float:
        """Bytes that the pools may take together under a memory fraction."""
        return self.after - self.before * (1 - fraction) - self.images

    def fraction_for(self, rest: float) -> float:
        """Return the memory fraction that grants the pools `rest` bytes."""
        return 1 - (self.after - self.images - rest) / self.before


def resolve(recipe: Recipe, geometry: Geometry, total: int) -> SglangSettings:
    """Resolve the recipe's options on a GPU of `total` usable bytes.

    Raises `UserError` for a model spread over several GPUs, and for a type of unknown size.
    """
    recipe.refuse_several_gpus("tp", "tp-size", "tensor-parallel-size", "pp-size", "dp-size")
    rules, state = arithmetic(recipe.engine_version), geometry.recurrent
    kv_dtype = recipe.kv_dtype(geometry.kv_dtype)
    token = _kv_token(geometry, kv_dtype)
    if has_window_pool(geometry, recipe):
        ratio = recipe.number("swa-full-tokens-ratio") or _WINDOW_RATIO
        windowed = token * geometry.windowed_layers / geometry.attention_layers
        token = round(token - windowed + ratio * windowed)
    speculation = _speculation(recipe, geometry, rules, token, kv_dtype)
    requests = recipe.integer("max-running-requests")
    if requests is None and speculation.algorithm:
        requests = SPECULATIVE_REQUESTS
    default_chunk, default_batch = _gpu_class(rules, total)
    chunk = recipe.integer("chunked-prefill-size") or default_chunk
    decode_batch = _decode_batch(recipe, rules, default_batch, requests)
    prefill_graphs = _prefill_graphs(recipe, geometry, chunk)
    state_dtype = recipe.text("mamba-ssm-dtype", state.dtype if state else "float32")
    fraction = recipe.number("mem-fraction-static")
    if fraction is None:
        graphs = GRAPH_PER_BATCH * decode_batch + prefill_graphs
        fraction = _default_fraction(geometry, total, chunk, graphs)
    return SglangSettings(
        rules=rules,
        total=total,
        geometry=geometry,
        state=state,
        state_dtype=state_dtype,
        slot=state.slot_bytes(state_dtype) if state else 0,
        per_request=slots_per_request(recipe, rules),
        kv_dtype=kv_dtype,
        token=token + speculation.token,
        speculation=speculation,
        replays=state is not None and recipe.flag(rules.replay),
        ring=_ring(state, recipe) if state else 0,
        fraction=fraction,
        ratio=recipe.number("mamba-full-memory-ratio") or 0.9,
        pinned=recipe.integer("max-mamba-cache-size"),
        radix=not recipe.flag("disable-radix-cache"),
        chunk=chunk,
        page=recipe.integer("page-size") or 1,
        decode_batch=decode_batch,
        prefill_graphs=prefill_graphs,
        requests=requests,
        token_cap=recipe.integer("max-total-tokens"),
        declared=recipe.integer("context-length") or recipe.context_requested or geometry.context,
        images=_images(recipe, geometry, rules),
        workspace=WORKSPACE
        if recipe.text("attention-backend", "flashinfer") == "flashinfer"
        else 0,
    )


def has_window_pool(geometry: Geometry, recipe: Recipe) -> bool:
    """Whether layers with a window have a pool of their own; else they keep all tokens."""
    return (
        geometry.architecture in _WINDOW_POOLS
        and 0 < geometry.windowed_layers < geometry.attention_layers
        and not recipe.flag("disable-hybrid-swa-memory")
    )


def _kv_token(geometry: Geometry, dtype: str) -> int:
    """Bytes of one token, with the scales of the narrow types (`_compute_cell_size`)."""
    whole = geometry.kv_token_bytes("fp8")
    if dtype in _FOUR_BITS:
        return whole // 2 + whole // 16 + geometry.kv_layer_bytes("fp8")
    if dtype == "mxfp8":
        return whole + whole // 32
    return geometry.kv_token_bytes(dtype)


def _images(recipe: Recipe, geometry: Geometry, rules: Arithmetic) -> int:
    """Bytes kept back for images (`mm_runtime_reservation_gb`)."""
    if geometry.vision is None or not rules.images:
        return 0
    on_gpu = recipe.text("mm-feature-transport", "cpu") in {"cuda_ipc", "cuda_vmm"}
    return rules.images + (IMAGE_POOL if on_gpu else 0)


def _speculation(
    recipe: Recipe, geometry: Geometry, rules: Arithmetic, token: int, dtype: str
) -> SglangSpeculation:
    algorithm = recipe.text("speculative-algorithm", "").upper()
    draft_tokens = recipe.integer("speculative-num-draft-tokens")
    drafter = geometry.drafter(recipe.drafter) if recipe.drafter else None
    if not algorithm:
        return NO_SPECULATION
    if algorithm in DFLASH_FAMILY:
        gamma = recipe.integer("speculative-dspark-block-size")
        draft_tokens = gamma + 1 if gamma else draft_tokens
        return _block_drafter(algorithm, draft_tokens, drafter, geometry, rules, token, dtype)
    if algorithm == "NGRAM":
        return SglangSpeculation(
            algorithm=algorithm, draft_tokens=draft_tokens or 12, detail="n-grams"
        )
    if recipe.drafter is None and algorithm in _EAGLE_FAMILY and geometry.mtp_layers:
        steps = recipe.integer("speculative-num-steps") or 3
        return SglangSpeculation(
            algorithm=algorithm,
            draft_tokens=draft_tokens or steps + 1,
            weights=elements(mtp_parameters(geometry), "bfloat16"),
            token=token * geometry.mtp_layers // geometry.attention_layers,
            detail="the head inside the checkpoint, at BF16",
        )
    return SglangSpeculation(
        algorithm=algorithm,
        draft_tokens=draft_tokens or 4,
        weights=drafter.weights if drafter else 0,
        token=elements(drafter.kv_elements, "bfloat16") if drafter else 0,
        detail=drafter.id if drafter else "",
        known=drafter is not None,
    )


def _block_drafter(
    algorithm: str,
    draft_tokens: int | None,
    drafter: Drafter | None,
    geometry: Geometry,
    rules: Arithmetic,
    token: int,
    dtype: str,
) -> SglangSpeculation:
    """Describe DSpark or DFlash, whose drafter has a KV cache over the same tokens.

    0.5.16 takes each of its layers for one of the target's
    (`scale_kv_cell_size_per_token_for_dflash`), 0.5.23 works its cache out from the drafter's own
    shape (`dflash_draft_cell_size_per_token`).
    """
    if drafter is None:
        default = 8 if algorithm == "DSPARK" else 16
        return SglangSpeculation(
            algorithm=algorithm, draft_tokens=draft_tokens or default, known=False
        )
    layers = ceil_div(token * drafter.layers, geometry.attention_layers)
    return SglangSpeculation(
        algorithm=algorithm,
        draft_tokens=draft_tokens or drafter.draft_tokens,
        weights=drafter.weights,
        token=elements(drafter.kv_elements, _plain(dtype)) if rules.drafter_shape else layers,
        detail=drafter.id,
    )


def _plain(dtype: str) -> str:
    """Return a type of one size per element that is no smaller than `dtype`."""
    return "fp8" if dtype == "mxfp8" or dtype in _FOUR_BITS else dtype


def _gpu_class(rules: Arithmetic, total: int) -> tuple[int, int]:
    for below, chunk, batch in _GPU_CLASSES:
        if total < below * GIB:
            return chunk or rules.chunk, batch or rules.decode_batch
    return _LARGEST_CLASS


def _default_fraction(geometry: Geometry, total: int, chunk: int, graphs: int) -> float:
    """Return the memory fraction of a start that does not give one.

    Read in `_handle_gpu_memory_settings` and, for multimodal models, `adjust_mem_fraction_for_vlm`.
    """
    reserved = (512 + 128) * MIB + 3 * MIB * max(chunk, 2048) // 2 + graphs
    if total > 60 * GIB:
        reserved = max(reserved, 10 * GIB)
    fraction = round((total - reserved) / total, 3)
    if (vision := geometry.vision) is not None:
        complexity = vision.layers * vision.hidden**2 / (24 * 1024**2)
        fraction *= 0.95 * max(0.8, min(1.05, 1 - 0.1 * (complexity - 1)))
    return fraction


def _prefill_graphs(recipe: Recipe, geometry: Geometry, chunk: int) -> int:
    """Bytes of prefill graphs, which multimodal models go without unless a backend is named."""
    named = recipe.text("cuda-graph-backend-prefill", "disabled" if geometry.vision else "")
    off = recipe.flag("disable-prefill-cuda-graph") or recipe.flag("disable-cuda-graph")
    return 0 if off or named == "disabled" else GRAPH_PER_PREFILL_SIZE * _prefill_sizes(chunk)


def _prefill_sizes(largest: int) -> int:
    """Count the prefill sizes captured (`_generate_prefill_cuda_graph_batch_sizes`)."""
    steps = (
        range(4, 33, 4),
        range(48, 257, 16),
        range(288, 513, 32),
        range(576, 1025, 64),
        range(1280, 4097, 256),
        range(4608, largest + 1, 512),
    )
    return sum(1 for sizes in steps for size in sizes if size <= largest)


def _decode_batch(recipe: Recipe, rules: Arithmetic, default: int, requests: int | None) -> int:
    off = recipe.text("cuda-graph-backend-decode", "") == "disabled"
    if off or recipe.flag("disable-cuda-graph"):
        return 0
    given = recipe.integer("cuda-graph-max-bs-decode") or recipe.integer("cuda-graph-max-bs")
    if given:
        return given
    return min(default, requests) if rules.capped_batch and requests else default


def _ring(state: Recurrent, recipe: Recipe) -> int:
    """Bytes of one replay ring, all layers (`replayssm_ring_bytes_per_req`).

    Values and keys twice in BF16, high and low part, and one FP32 gate per head.
    """
    length = recipe.integer("linear-replayssm-cache-len") or 16
    rows = state.value_heads * state.value_dim + state.key_heads * state.key_dim
    return state.layers * length * (4 * rows + 4 * state.value_heads)
