"""A reply that was gone on with: the figures of all its parts as one report, so that they tell of the whole reply.

A later part begins with a pass over the prompt that also brings a token. Its time is prefill, but it is counted as a pass, so
that tokens per pass are those of the whole reply; the speed is that of the parts, each without its first token.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from outrider.app.chat.meter import plain_time
from outrider.app.store.records import Pass
from outrider.core.base.protocol import PlainTime, Report, Timing


def joined(first: Report, then: Report) -> Report:
    """One report of two parts; texts are those of the first and the second, joined."""
    decode_s, plain = first.timing.decode_s + then.timing.decode_s, _plain(first, then)
    counted = first.tokens_per_second * first.timing.decode_s + then.tokens_per_second * then.timing.decode_s
    drafters = dict(first.drafters)
    for name, passes in (*then.drafters.items(), ("none", 1)):
        drafters[name] = drafters.get(name, 0) + passes
    return replace(
        then,
        rule=first.rule if first.rule == "typical" else then.rule,  # what was lossy stays so
        text=first.text + then.text,
        thinking=first.thinking + then.thinking,
        token_ids=[*first.token_ids, *then.token_ids],
        kinds=first.kinds + then.kinds,
        prompt_tokens=first.prompt_tokens,
        passes=first.passes + 1 + then.passes,
        proposed=first.proposed + then.proposed,
        accepted=first.accepted + then.accepted,
        timing=_sum(first.timing, then.timing),
        tokens_per_second=counted / decode_s if decode_s > 0 else 0.0,
        drafters=drafters,
        speedup=plain.speedup(decode_s) if plain is not None else None,
        plain=plain,
        loops=first.loops or then.loops,
    )


def told_by(passes: Sequence[Pass], parts: Sequence[int], ids: Sequence[int], kinds: str, like: Report) -> Report:
    """What the passes tell of a reply that came without a report; the rest is as in `like`. `parts`: where later ones begin."""
    prefills = {0, *parts}
    decoding = [one for number, one in enumerate(passes) if number not in prefills]
    decode_s = sum(one.draft_ms + one.verify_ms + one.host_ms for one in decoding) / 1000
    drafters: dict[str, int] = {}
    for one in decoding:
        drafters[one.drafter] = drafters.get(one.drafter, 0) + 1
    if parts:
        drafters["none"] = drafters.get("none", 0) + len(parts)
    return replace(
        like,
        text="",
        thinking="",
        token_ids=list(ids),
        kinds=kinds,
        finish="error",
        passes=sum(drafters.values()),
        proposed=sum(one.proposed for one in passes),
        accepted=sum(one.accepted for one in passes),
        timing=Timing(
            prefill_s=sum(passes[number].verify_ms / 1000 for number in prefills if number < len(passes)),
            first_token_s=passes[0].t if passes else 0.0,
            decode_s=decode_s,
            draft_s=sum(one.draft_ms for one in decoding) / 1000,
            verify_s=sum(one.verify_ms for one in decoding) / 1000,
        ),
        tokens_per_second=sum(one.tokens for one in decoding) / decode_s if decode_s > 0 else 0.0,
        drafters=drafters,
        speedup=None,
        plain=None,
        limit=None,
    )


def _sum(first: Timing, then: Timing) -> Timing:
    return Timing(
        load_s=first.load_s + then.load_s,
        prefill_s=first.prefill_s + then.prefill_s,
        first_token_s=first.first_token_s,
        decode_s=first.decode_s + then.decode_s,
        draft_s=first.draft_s + then.draft_s,
        verify_s=first.verify_s + then.verify_s,
    )


def _plain(first: Report, then: Report) -> PlainTime | None:
    """Plain decoding's time for both, with both errors; None if that of one is not known."""
    one, other = plain_time(first), plain_time(then)
    if one is None or other is None:
        return None
    return PlainTime(one.seconds + other.seconds, one.error + other.error, one.n + other.n)
