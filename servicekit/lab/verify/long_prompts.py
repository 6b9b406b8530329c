"""Gates that need long prompts: recall, wall, stability and KV precision. Pure.

Prompts are sized by the engine's own count of two short ones, since a word may be one token or
five.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from servicekit.lab.ruler import LONG, SENTENCE, SHORT, Ruler
from servicekit.lab.verify.gate import (
    ANSWER,
    LEAST_SENTENCES,
    QUESTIONS,
    TWIN_TOKENS,
    LookAtVram,
    ask,
    ask_all,
    chat_body,
    contains,
    decided,
    skipped,
    user_message,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.lab.verify.chat import ChatReply
    from servicekit.lab.verify.gate import GateVerdict, ServedModel, Steps


class Needle(NamedTuple):
    """A fact that is hidden in a long prompt."""

    depth: float  # position, as a part of the prompt
    fact: str
    question: str
    pattern: str  # what the answer must contain


NEEDLES: Final = (
    Needle(
        0.1,
        "The dog of the baker is called Rufus. ",
        "What is the baker's dog called?",
        r"\brufus\b",
    ),
    Needle(
        0.5,
        "The train to the coast leaves from platform 47. ",
        "From which platform does the train to the coast leave?",
        r"\b47\b",
    ),
    Needle(
        0.9,
        "The favourite fruit of the queen is the mango. ",
        "What is the favourite fruit of the queen?",
        r"\bmango\b",
    ),
)
# Lengths of the recall gate, as parts of what one request can use. The last one leaves room for
# what an estimate from shorter prompts may be off by.
SHARES: Final = (0.125, 0.25, 0.5, 0.97)
LEAST_HAYSTACK: Final = 10  # sentences of the longest prompt, below which recall proves nothing
# A prompt that is refused was perhaps estimated too long: it is shortened this often, to this part.
RETRIES: Final = 2
SHORTER: Final = 0.9
CREEP: Final = 2.0  # factor by which even the fastest late answer may exceed the early ones
CREEP_SECONDS: Final = 1.0  # below, slower answers are jitter
TEMPLATE: Final = 1024  # limit of the tokens that a chat template adds to a prompt
WORD: Final = 0.25  # least tokens per word; an engine that counts fewer does not count
VRAM_CREEP: Final = 256  # MiB by which VRAM in use may grow during the stability gate
LOAD_SENTENCES: Final = 60  # length of the long prompts in the stability gate's mixed load

UNCOUNTED: Final = "the engine does not count prompt tokens"
NOT_GROWING: Final = "the token count does not grow with the prompt"


def haystack(sentences: int, label: str = "") -> str:
    """Return a text of so many sentences with the needles at their depths.

    Texts with different labels differ from their first words on, so that no cache knows them.
    """
    parts = [SENTENCE] * sentences
    for needle in NEEDLES:
        parts[int(needle.depth * sentences)] += needle.fact
    return label + "".join(parts)


def _room(model: ServedModel) -> int:
    """Prompt tokens that leave room for the answer."""
    return min(model.usable, model.context - ANSWER)


def _may_be_too_long(prompt: str, model: ServedModel) -> bool:
    """Whether `prompt` may exceed the context: no tokenizer makes more tokens than characters."""
    return len(prompt) + TEMPLATE > model.usable


class _Count(NamedTuple):
    """Two prompts counted by the engine, or why they could not be."""

    ruler: Ruler | None
    tokens: tuple[int, int] = (0, 0)
    fault: str = ""
    too_long: bool = False  # whether even the short prompts may not have fitted


def _count(model: ServedModel) -> Steps[_Count]:
    counts = []
    for sentences in (SHORT, LONG):
        prompt = f"{haystack(sentences, 'Report 0. ')}\n\n{NEEDLES[1].question}"
        reply = yield from ask(chat_body(model, user_message(prompt), tokens=1))
        if reply.fault:
            too_long = reply.is_refused and _may_be_too_long(prompt, model)
            return _Count(None, fault=reply.fault, too_long=too_long)
        if not reply.prompt_tokens:
            return _Count(None, fault=UNCOUNTED)
        if wrong := _overcounted(prompt, reply.prompt_tokens):
            return _Count(None, fault=wrong)
        counts.append(reply.prompt_tokens)
    ruler = Ruler.of(*counts)
    if ruler is None:
        return _Count(None, fault=NOT_GROWING)
    return _Count(ruler, (counts[0], counts[1]))


def _overcounted(prompt: str, tokens: int) -> str:
    if tokens <= len(prompt) + TEMPLATE:
        return ""
    return f"the engine counts {tokens} tokens in a prompt of {len(prompt)} characters"


def recall(model: ServedModel) -> Steps[GateVerdict]:
    """Ask for three facts in longer and longer prompts, up to all that one request can use."""
    count = yield from _count(model)
    room = _room(model)
    small = count.ruler is not None and count.ruler.length(room).sentences < LEAST_HAYSTACK
    if small or count.too_long:
        return skipped(f"{model.context} tokens of context are too few for a hidden fact")
    if count.ruler is None:
        nothing = {"longest_measured": 0, "effective": model.context, "lengths": []}
        return decided([count.fault], "", nothing)
    counted = dict(zip((SHORT, LONG), count.tokens, strict=True))
    measured: dict[int, int] = {}
    lengths: list[dict[str, Any]] = []
    faults: list[str] = []
    claimed = 0
    for share in SHARES:
        wanted = int(room * share)
        sentences = _sentences(counted | measured, wanted)
        if lengths and sentences <= max(measured):
            continue
        row, sentences = yield from _recalled(model, sentences, f"Report {'ABCD'[len(lengths)]}. ")
        tokens = row["prompt_tokens"]
        lengths.append(row)
        if tokens is not None and (wrong := _miscounted(measured, sentences, tokens)):
            row["lost"].append(wrong)
            faults.append(wrong)
            break
        if row["lost"]:
            faults.append(f"{tokens or wanted} tokens: {', '.join(row['lost'])}")
        if tokens is None:
            break  # nothing longer will be answered either
        measured[sentences] = tokens
        claimed = claimed if faults else tokens
    evidence = {"longest_measured": claimed, "effective": model.context, "lengths": lengths}
    if claimed:
        faults = [f"everything is recalled up to {claimed} tokens", *faults] if faults else []
    return decided(faults, f"all facts recalled up to {claimed} tokens, engine's count", evidence)


def _sentences(counted: Mapping[int, int], wanted: int) -> int:
    """Estimate the sentences of a prompt of at most `wanted` tokens from the two longest counted.

    A sentence has more than one token, whatever the server reports.
    """
    (fewer, before), (sentences, tokens) = sorted(counted.items())[-2:]
    more = (sentences - fewer) * (wanted - tokens) / max(1, tokens - before)
    return min(wanted, max(LEAST_SENTENCES, sentences + int(more)))


def _miscounted(measured: Mapping[int, int], sentences: int, tokens: int) -> str:
    """Explain why this count is impossible, so that nothing may be claimed by it."""
    if any(fewer < sentences and tokens <= before for fewer, before in measured.items()):
        return NOT_GROWING
    return _overcounted(haystack(sentences), tokens)


def _recalled(model: ServedModel, sentences: int, label: str) -> Steps[tuple[dict[str, Any], int]]:
    """Ask for each fact at one length; return the evidence and the length that was accepted.

    The first question finds no cache. A prompt that the engine refuses is shortened: the estimate
    of its length is ours.
    """
    lost: list[str] = []
    ttft: float | None = None
    tokens: int | None = None
    for needle in NEEDLES:
        reply = yield from _asked(model, sentences, label, needle)
        for _ in range(RETRIES):
            if tokens is not None or not reply.is_refused:
                break
            sentences = max(LEAST_SENTENCES, int(sentences * SHORTER))
            reply = yield from _asked(model, sentences, label, needle)
        if reply.fault:
            lost.append(reply.fault)
            break
        if tokens is None:
            tokens, ttft = reply.prompt_tokens, reply.first_token
        if not contains(reply.content, needle.pattern):
            lost.append(f'the fact at {needle.depth:.0%} came back as "{reply.content[:40]}"')
    if tokens is None and not lost:
        lost.append(UNCOUNTED)
    return {"prompt_tokens": tokens, "ttft_seconds": ttft, "lost": lost}, sentences


def _asked(model: ServedModel, sentences: int, label: str, needle: Needle) -> Steps[ChatReply]:
    prompt = f"{haystack(sentences, label)}\n\n{needle.question}"
    return (yield from ask(chat_body(model, user_message(prompt)), streamed=True))


def wall(model: ServedModel) -> Steps[GateVerdict]:
    """Send one token too many: a clean refusal, and the next request is answered."""
    short, more = 64, 128
    counts = []
    for words in (short, more):
        prompt = "a " * words
        reply = yield from ask(chat_body(model, user_message(prompt), tokens=1))
        if reply.is_refused and _may_be_too_long(prompt, model):
            return skipped(f"{model.context} tokens of context are too few to count a prompt in")
        if reply.fault or not reply.prompt_tokens:
            return decided([reply.fault or UNCOUNTED], "")
        counts.append(reply.prompt_tokens)
    each = (counts[1] - counts[0]) / (more - short)
    if each < WORD:
        return decided([NOT_GROWING], "")
    # Rounded up: where a word is more than a token, the first prompt that is too long.
    words = short + int(-(-(model.usable + 1 - counts[0]) // each))
    evidence: dict[str, Any] = {"words": words, "tokens": model.usable + 1}
    refused = yield from ask(chat_body(model, user_message("a " * words), tokens=1))
    after = yield from ask(chat_body(model, user_message(QUESTIONS[0][0])))
    evidence |= {"status": refused.status, "said": refused.error[:200]}
    faults = []
    if not refused.is_refused:
        response = f"HTTP {refused.status}" if refused.status else refused.error
        faults.append(f"{model.usable + 1} tokens were answered with {response}, not refused")
    if after.fault:
        faults.append(f"the next request was not answered: {after.fault}")
    passed = f"{model.usable + 1} tokens: HTTP {refused.status}, and the next request is answered"
    return decided(faults, passed, evidence)


def stability(model: ServedModel) -> Steps[GateVerdict]:
    """Ask the same question repeatedly, with a mixed load in between, and compare."""
    count = yield from _count(model)
    sentences = LEAST_SENTENCES
    if count.ruler is not None:
        room = count.ruler.length(_room(model) // 4).sentences
        sentences = max(LEAST_SENTENCES, min(LOAD_SENTENCES, room))
    body = chat_body(model, user_message(QUESTIONS[1][0]))
    yield from ask(body)  # the first answer finds no cache, and may be batched with another
    vram_before: int | None = yield LookAtVram()
    half = max(2, model.repeats // 2)
    replies = []
    for _ in range(half):
        replies.append((yield from ask(body)))  # noqa: PERF401 - each waits for the one before
    load = yield from _load(model, sentences)
    for _ in range(half):
        replies.append((yield from ask(body)))  # noqa: PERF401 - as above
    vram_after: int | None = yield LookAtVram()
    faults = list(dict.fromkeys(reply.fault for reply in (*replies, *load) if reply.fault))
    answers = {reply.content for reply in replies if not reply.fault}
    if len(answers) > 1:
        faults.append(f"{len(answers)} different answers at temperature 0")
    question, pattern = QUESTIONS[0]
    wrong = [r.content for r in load[::2] if not r.fault and not contains(r.content, pattern)]
    if wrong:
        faults.append(f'under load, "{question}" was answered "{wrong[0][:40]}"')
    # Other users of the CPU make some answers late; a service that degrades makes all of them late.
    early = median(reply.seconds for reply in replies[:half])
    late = min(reply.seconds for reply in replies[half:])
    if late > CREEP * early and late - early > CREEP_SECONDS:
        faults.append(f"answers took {early:.1f} s at first and {late:.1f} s in the end")
    if vram_before is not None and vram_after is not None and vram_after > vram_before + VRAM_CREEP:
        faults.append(f"VRAM in use grew from {vram_before} to {vram_after} MiB")
    evidence = {
        "answers": sorted(answers),
        "seconds": [round(reply.seconds, 3) for reply in replies],
        "load_answers": [reply.content for reply in load],
        "load_seconds": [round(reply.seconds, 3) for reply in load],
        "vram_mib": [vram_before, vram_after],
    }
    unseen = "" if vram_before is not None else "; no VRAM to compare"
    passed = f"{2 * half} equal answers, {len(load)} parallel requests in between{unseen}"
    return decided(faults, passed, evidence)


def _load(model: ServedModel, sentences: int) -> Steps[tuple[ChatReply, ...]]:
    """Send short and long prompts at once, in turn; a long one that does not fit is left out."""
    long = f"{haystack(sentences)}\n\n{NEEDLES[0].question}"
    prompts = [QUESTIONS[0][0], long]
    if _may_be_too_long(long, model):
        probe = yield from ask(chat_body(model, user_message(long)))
        prompts = prompts[:1] if probe.is_refused else prompts
    bodies = [chat_body(model, user_message(prompt)) for prompt in prompts]
    count = max(2, model.parallel)
    return (yield from ask_all(*(bodies[turn % len(bodies)] for turn in range(count))))


def kv_precision(model: ServedModel) -> Steps[GateVerdict]:
    """Compare the answers of a KV cache below FP8 with those of the same model at FP8."""
    twin = model.twin if model.below_fp8 is not None else None
    if model.below_fp8 is not None and twin is None:
        lacking = "no profile with the same model and a cache of FP8 or better has been verified"
        return decided([f"{model.below_fp8} is below FP8, and {lacking}: verify one first"], "")
    sentences = twin.sentences if twin else (yield from _twin_sentences(model))
    text = haystack(sentences)
    asked = [(question, question, pattern) for question, pattern in QUESTIONS]
    asked += [(each.question, f"{text}\n\n{each.question}", each.pattern) for each in NEEDLES]
    answers: dict[str, str] = {}
    for name, prompt, _ in asked:
        reply = yield from ask(chat_body(model, user_message(prompt)))
        if reply.is_refused and name != prompt and _may_be_too_long(prompt, model):
            continue  # the twin has more context
        if reply.fault:
            return decided([f"{name}: {reply.fault}"], "", {"answered": answers})
        answers[name] = reply.content
    if twin is None:
        why = "the KV cache is not below FP8; its answers are kept for a profile whose cache is"
        return skipped(why, {"answers": answers, "sentences": sentences})
    right = [
        (name, pattern)
        for name, _, pattern in asked
        if name in answers and contains(twin.answers.get(name), pattern)
    ]
    faults = [
        f'{name}: "{answers[name][:40]}", at FP8 "{twin.answers[name][:40]}"'
        for name, pattern in right
        if not contains(answers[name], pattern)
    ]
    if not right:
        faults = [f'"{twin.profile}" has no right answer at FP8 to compare with']
    unasked = len(asked) - len(answers)
    short = f"; {unasked} prompts exceed this context" if unasked else ""
    passed = f'{model.below_fp8}: {len(right)} answers that "{twin.profile}" gets right are right'
    fp8: Mapping[str, Any] = {
        "profile": twin.profile,
        "at": twin.at,
        "answers": dict(twin.answers),
    }
    return decided(faults, f"{passed}{short}", {"answers": answers, "fp8": fp8})


def _twin_sentences(model: ServedModel) -> Steps[int]:
    """Return the length of the long prompts that a profile below FP8 will be asked, too."""
    count = yield from _count(model)
    if count.ruler is None:
        return LEAST_SENTENCES
    wanted = min(_room(model) // 2, TWIN_TOKENS)
    return max(LEAST_SENTENCES, count.ruler.length(wanted).sentences)
