"""Every figure of the chat by its id: its short label and what it means, in one sentence. Panels, help and exports share them."""

from __future__ import annotations

from typing import NamedTuple


class Term(NamedTuple):
    """A figure's label and its definition."""

    label: str
    definition: str


TERMS: dict[str, Term] = {
    "tok_s": Term("tok/s", "Tokens written per second of decoding, over the last 2 seconds."),
    "tok_s_mean": Term(
        "mean", "Tokens per second over the whole reply, its first token left out: (tokens - 1) / decode time."
    ),
    "first_token": Term("first token", "Seconds from sending the message to the first token of the reply."),
    "prefill": Term(
        "prefill",
        "Tokens of the prompt read per second before the first token, without those kept from the turn before.",
    ),
    "seconds": Term("s", "Seconds from sending the message to the last token."),
    "pass": Term("pass", "One forward run of the target model, which checks all proposed tokens at once."),
    "tokens_per_pass": Term("tokens/pass", "Tokens written per pass of the target; without drafting it is 1."),
    "proposed": Term("proposed", "Draft tokens that the target has checked."),
    "accepted": Term("accepted", "Share of the checked draft tokens that the target agreed with: accepted / checked."),
    "ignored": Term(
        "ignored",
        "Draft tokens that decided nothing, because one before them in the same draft was wrong; they count as checked.",
    ),
    "depth": Term(
        "per depth",
        "Of the passes whose draft was right up to here, the share in which this token was right too; hollow below 20 passes.",
    ),
    "draft_length": Term("depth", "How many tokens ahead the drafter guesses in a pass."),
    "draft_ms": Term("draft", "Milliseconds of a pass in which the drafter guesses."),
    "verify_ms": Term("verify", "Milliseconds of a pass in which the target checks the guesses."),
    "host_ms": Term("host", "Milliseconds of a pass for everything else: sampling, accepting, text."),
    "speedup": Term(
        "x plain",
        "Tokens per second against plain passes among the drafted ones; not shown where it may as well be 1.",
    ),
    "speedup_error": Term("+-", "Standard error of the speed-up."),
    "speedup_n": Term("n", "How many plain passes the speed-up was measured against."),
    "drafter": Term(
        "drafter", "Who guesses the next tokens: the method, and whether it was chosen by you or by the engine (auto)."
    ),
    "state": Term(
        "state",
        "running, or ready between replies; parked: plain passes are faster; off: by you; unavailable: it cannot ride here.",
    ),
    "memory": Term(
        "memory",
        "What the engine holds: the target's weights, keys and values of the context, the drafter, and what is free.",
    ),
    "memory_target": Term("target", "Bytes of the target's weights in memory."),
    "memory_context": Term("KV", "Bytes of the keys and values of the context, at its full length."),
    "memory_drafter": Term("drafter", "Bytes of the drafter's weights."),
    "memory_reserve": Term("reserve", "Bytes kept back for what a pass needs on its way."),
    "memory_free": Term("free", "Bytes that the device had left after loading."),
    "context": Term("context", "Tokens of the conversation that the model holds, of those it can hold."),
    "phase": Term("phases", "Tokens per pass apart for prose, code and thinking."),
    "phase_prose": Term("prose", "Tokens per pass outside code blocks and thoughts."),
    "phase_code": Term("code", "Tokens per pass inside code blocks."),
    "phase_thinking": Term("thinking", "Tokens per pass while the model thinks."),
    "sparkline": Term("60 s", "Tokens per pass over the last 60 seconds, one column for every few seconds."),
    "kind_A": Term("accepted", "A token that the drafter guessed and the target agreed with."),
    "kind_C": Term("correction", "A token of the target where it overruled the drafter's guess."),
    "kind_B": Term("bonus", "The target's own token after a draft that was accepted to its end."),
    "kind_P": Term("plain", "A token of a pass in which nothing was proposed."),
    "probability": Term("p", "The probability that the target gave to the token, before temperature and filters."),
    "gutter": Term(
        "gutter", "The column right of a reply: for each line the share of characters that were accepted drafts."
    ),
    "exact": Term("exact", "Exact mode: the text is equal bit for bit with drafting on or off."),
    "lossy": Term(
        "lossy", "The rule `typical` lets tokens pass that the target would not have drawn, so the text may differ."
    ),
    "session": Term("session", "Sums and means over all replies since the program was started."),
    "replies": Term("replies", "How many finished replies the figure is taken over."),
    "trend": Term("trend", "The figure week by week, oldest first."),
    "identical": Term("identical", "Whether the texts are the same token by token."),
    "gap": Term(
        "gap",
        "How far apart the target's two best choices lay where two texts first differ: the smaller, the nearer to a tie.",
    ),
    "lead": Term("lead", "How many tokens one run is ahead of another at the same time."),
}


def label(term: str) -> str:
    """The short label of a figure."""
    return TERMS[term].label


def definition(term: str) -> str:
    """What a figure means, in one sentence."""
    return TERMS[term].definition
