"""llama.cpp's buffers: weights by layer, cells of keys and values, states, one compute buffer.

Checked against the buffers that llama.cpp b11434 and the wheel `xllamacpp` log for two models on a
CPU: they come out to a tenth of a per cent. What CUDA adds is an estimate.

    cells   = ctx-size / parallel, rounded up to 256, for each slot (--kv-unified: ctx-size for all)
    KV      = cells * attention layers * (keys + values), each in its type; layers with a window
              have min(cells of a slot, window + ubatch) cells for each slot, rounded up to 256
    states  = slots * (1 + draft tokens) * recurrent layers * (window + state) in FP32
    compute = ubatch * ((3 * ffn + 5 * hidden) * 4 + cells of a slot * 2) + slots * vocabulary * 4

Bytes throughout. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from servicekit.models.memory.geometry import elements
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
from servicekit.models.memory.units import GIB, ceil_div, counted, gib, product, short
from servicekit.models.memory.window import beyond_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.models.memory.geometry import Drafter, Geometry
    from servicekit.models.memory.recipe import Recipe

# CUDA's context, cuBLAS and kernels. A guess: no published log shows it.
CONTEXT: Final = round(0.45 * GIB)
CELL_ALIGNMENT: Final = 256
UBATCH: Final = 512
DRAFT_TOKENS: Final = 3  # default of `--spec-draft-n-max`
_EVERY_LAYER: Final = 1 << 20

# Other names of options, as llama-server's help gives them.
_SHORT: Final = {
    "c": "ctx-size",
    "np": "parallel",
    "ngl": "n-gpu-layers",
    "gpu-layers": "n-gpu-layers",
    "ctk": "cache-type-k",
    "ctv": "cache-type-v",
    "ub": "ubatch-size",
    "kvu": "kv-unified",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppSettings:
    """The options as llama-server resolves them."""

    slots: int
    cells: int  # cells of the whole cache
    slot_cells: int  # cells that one request can use
    window_cells: int  # cells of the layers with a window, in the whole cache
    key_type: str
    value_type: str
    ubatch: int
    on_gpu: int
    """How many layers are on the GPU, of `blocks` there are; the output head goes with the last."""
    blocks: int
    head: bool  # whether the output head is on the GPU
    on_host: bool  # whether nothing is on a GPU: the plan is then for the host's memory
    rows: int  # states that one sequence keeps
    drafter: Drafter | None

    def share(self, size: int) -> int:
        """Return how much of what all layers share lies where the plan is for."""
        return size if self.on_host else size * self.on_gpu // self.blocks


def resolve(recipe: Recipe, geometry: Geometry) -> LlamaCppSettings:
    """Resolve the recipe's options the way llama-server does."""
    long_names = {_SHORT.get(name, name): value for name, value in recipe.options.items()}
    recipe = replace(recipe, options=long_names)
    slots = max(1, recipe.integer("parallel") or recipe.parallel)
    size = recipe.integer("ctx-size") or (recipe.context_requested or 0) * slots
    size = size or geometry.context
    unified = recipe.flag("kv-unified")
    each = max(1, size if unified else size // slots)
    slot_cells = ceil_div(each, CELL_ALIGNMENT) * CELL_ALIGNMENT
    every = long_names.get("n-gpu-layers", "auto") in {"auto", "all", "-1", -1}
    wanted = _EVERY_LAYER if every else recipe.integer("n-gpu-layers") or 0
    wanted = wanted if recipe.gpu else 0
    blocks = geometry.layers + geometry.mtp_layers
    speculates = recipe.text("spec-type", "none") != "none" or recipe.drafter is not None
    drafts = recipe.integer("spec-draft-n-max") or DRAFT_TOKENS
    return LlamaCppSettings(
        slots=slots,
        cells=slot_cells if unified else slot_cells * slots,
        slot_cells=slot_cells,
        window_cells=_window_cells(recipe, geometry, slots, slot_cells, unified=unified),
        key_type=recipe.text("cache-type-k", "f16"),
        value_type=recipe.text("cache-type-v", "f16"),
        ubatch=recipe.integer("ubatch-size") or UBATCH,
        # The output head is the last of the layers that are asked for.
        on_gpu=min(blocks, max(0, wanted - 1)),
        blocks=blocks,
        head=wanted > 0,
        on_host=wanted == 0,
        rows=1 + (drafts if speculates else 0),
        drafter=geometry.drafter(recipe.drafter) if recipe.drafter else None,
    )


def _window_cells(
    recipe: Recipe, geometry: Geometry, slots: int, slot_cells: int, *, unified: bool
) -> int:
    """Count the cells of the layers with a window (`llama_kv_cache_iswa`)."""
    streams = 1 if unified else slots
    if recipe.flag("swa-full"):
        return slot_cells * streams
    ubatch = recipe.integer("ubatch-size") or UBATCH
    needed = geometry.window * (slots if unified else 1) + ubatch
    return ceil_div(min(slot_cells, needed), CELL_ALIGNMENT) * CELL_ALIGNMENT * streams


def token_bytes(geometry: Geometry, key_type: str, value_type: str) -> int:
    """Return the bytes of one cell, all attention layers.

    64, 34 and 18 KiB for Qwen3.8-27B with both types f16, q8_0 and q4_0.
    """
    width = geometry.kv_heads * geometry.head_dim
    return geometry.attention_layers * (elements(width, key_type) + elements(width, value_type))


def state_bytes(geometry: Geometry) -> int:
    """Return the bytes of one sequence's state in FP32: 149.6 MiB for Qwen3.8-27B."""
    if (state := geometry.recurrent) is None:
        return 0
    window = state.conv_dim * (state.conv_kernel - 1)
    return state.layers * elements(state.state_elements + window, "f32")


def compute_bytes(geometry: Geometry, *, ubatch: int, slot_cells: int) -> int:
    """Return the bytes of the compute buffer: the graph at its widest, and the mask in f16."""
    return ubatch * ((3 * geometry.ffn + 5 * geometry.hidden) * 4 + slot_cells * 2)


def weights_bytes(geometry: Geometry, setting: LlamaCppSettings) -> int:
    """Return the bytes of weights on the GPU, or of all where nothing is on a GPU.

    The embedding stays on the host. Where the output head is tied to it, the GPU gets a copy.
    """
    layout = geometry.layout
    if setting.on_host or layout is None:
        return setting.share(geometry.weights)
    head = layout.output + (layout.embedding if layout.tied else 0)
    layers = layout.layers[setting.blocks - setting.on_gpu :]
    return sum(layers) + (head if setting.head else 0)


def plan(recipe: Recipe, geometry: Geometry, total: int, average_length: int) -> Budget:
    """Plan `recipe` on a GPU of `total` usable bytes, or in so much host memory without one."""
    setting = resolve(recipe, geometry)
    parts = with_free(_parts(recipe, geometry, setting), total)
    free = parts[-1].bytes
    effective = min(setting.slot_cells, geometry.context)
    runs = free >= (0 if setting.on_host else -DOUBT)
    where = "host memory" if setting.on_host else "GPU memory"
    fits = (
        f"{counted(setting.slots, 'slot')} of {setting.slot_cells:,} tokens; "
        f"{gib(free)} of {where} stay free"
    )
    findings = _findings(recipe, setting, geometry.context, free)
    budget = Budget(
        title=f"{recipe.model} on llama.cpp {recipe.engine_version}".rstrip(),
        total=total,
        parts=parts,
        kv_tokens=setting.cells,
        slots=setting.slots,
        concurrency=setting.slots if runs else 0,
        effective_context=effective if runs else 0,
        usable_input=effective - 1 if runs else 0,
        average_length=average_length,
        reason=fits,
    )
    return judged(budget, findings, _notes(geometry, setting))


def _parts(recipe: Recipe, geometry: Geometry, setting: LlamaCppSettings) -> Iterator[Part]:
    host, drafter = setting.on_host, setting.drafter
    yield Part(PartName.RUNTIME, 0 if host else CONTEXT, "CUDA context", estimated=not host)
    layers = f"{setting.on_gpu} of {setting.blocks} layers"
    partial = "" if host or setting.on_gpu == setting.blocks else f", {layers}"
    weights = weights_bytes(geometry, setting)
    estimated = geometry.weights_estimated or (bool(partial) and geometry.layout is None)
    yield Part(PartName.WEIGHTS, weights, recipe.model + partial, estimated=estimated)
    yield Part(PartName.DRAFTER, drafter.weights if drafter else 0, drafter.id if drafter else "")
    state = state_bytes(geometry)
    sequences = product(counted(setting.slots, "sequence"), str(setting.rows), short(state))
    states = setting.share(setting.slots * setting.rows * state)
    yield Part(PartName.STATES, states, sequences if state else "")
    cell = token_bytes(geometry, setting.key_type, setting.value_type)
    windowed = cell * geometry.windowed_layers // geometry.attention_layers
    drafted = elements(drafter.kv_elements, "f16") if drafter else 0
    types = dict.fromkeys((setting.key_type, setting.value_type))
    cells = f"{product(counted(setting.cells, 'cell'), short(cell + drafted))}, {'/'.join(types)}"
    cache = setting.cells * (cell - windowed) + setting.window_cells * windowed
    if windowed:
        cells += f"; {setting.window_cells:,} in {geometry.windowed_layers} layers"
    yield Part(PartName.KV, setting.share(cache) + setting.cells * drafted, cells)
    yield Part(PartName.INTERMEDIATE, 0)
    yield Part(PartName.GRAPHS, 0)
    compute = compute_bytes(geometry, ubatch=setting.ubatch, slot_cells=setting.slot_cells)
    compute += setting.slots * geometry.vocabulary * 4
    detail = f"compute buffer of {setting.ubatch} tokens"
    yield Part(PartName.TRANSIENTS, compute, detail, estimated=not host)


def _findings(
    recipe: Recipe, setting: LlamaCppSettings, window: int, free: int
) -> Iterator[PlanFinding]:
    levers = tuple(_levers(setting))
    if free < 0:
        doubtful = not setting.on_host and free >= -DOUBT
        reason = f"the buffers {'may ' if doubtful else ''}exceed the memory by {gib(-free)}"
        yield PlanFinding(Fit.TIGHT if doubtful else Fit.DOES_NOT_FIT, reason, levers)
    elif free < COMFORT:
        yield PlanFinding(Fit.TIGHT, f"only {gib(free)} stay free", levers)
    wanted = recipe.context_requested
    beyond = None if wanted is None else beyond_window(recipe, window, wanted)
    if beyond is not None:
        yield beyond
    elif wanted is not None and setting.slot_cells < wanted:
        reason = f"a request can use {setting.slot_cells:,} tokens, not the {wanted:,} requested"
        lever = f"raise --ctx-size, which {counted(setting.slots, 'slot')} share"
        yield PlanFinding(Fit.TIGHT, reason, (lever,))
    if recipe.drafter and setting.drafter is None:
        yield unknown_drafter(recipe.drafter)


def _levers(setting: LlamaCppSettings) -> Iterator[str]:
    if setting.key_type == "f16":
        yield "halve the cache: --cache-type-k q8_0 --cache-type-v q8_0"
    yield f"lower the context (now {setting.slot_cells:,} tokens in each slot)"
    if setting.slots > 1:
        yield f"lower the number of slots (now {setting.slots})"
    if not setting.on_host:
        yield f"leave layers on the host: --n-gpu-layers (now {setting.on_gpu})"


def _notes(geometry: Geometry, setting: LlamaCppSettings) -> Iterator[str]:
    if not setting.on_host:
        yield "llama.cpp can check this itself, without loading: `llama-fit-params -fitp on`"
    if geometry.sliding:
        yield "sliding-window layers are counted in full: the cache will be smaller"
