"""How byte-level tokenizers split a text before merging: the rules by the names that GGUF files give them."""

from __future__ import annotations

from outrider.core.text.vocabulary import Splitting

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"|\s+(?!\S)|\s+"
_LINES = r"|\s*[\r\n]+" + _SPACE
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _LINES
_WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+" + _SPACE
_LLAMA3 = _CONTRACTION + _WORD + r"|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTION + _WORD + r"|\p{N}" + _TAIL
_QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}" + r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _LINES
_LEAD, _UPPER, _LOWER = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASHED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _LINES
_CASED = f"{_LEAD}{_UPPER}*{_LOWER}+{{0}}|{_LEAD}{_UPPER}+{_LOWER}*{{0}}"
_O200K = _CASED.replace("{0}", _CONTRACTION + "?") + r"|\p{N}{1,3}" + _SLASHED
_TEKKEN = _CASED.replace("{0}", "") + r"|\p{N}" + _SLASHED
_NO_HAN_UPPER, _NO_HAN_LOWER = (group[:-1] + r"&&[^\p{Han}]]" for group in (_UPPER, _LOWER))
_KIMI = (
    r"[\p{Han}]+|"
    + _CASED.replace(_UPPER, _NO_HAN_UPPER).replace(_LOWER, _NO_HAN_LOWER).replace("{0}", _CONTRACTION + "?")
    + r"|\p{N}{1,3}"
    + _TAIL
)
_CJK = r"[一-龥぀-ゟ゠-ヿ]+"
_SIGN_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = (r"\p{N}{1,3}", _CJK, _SIGN_WORD + r"| ?[\p{P}\p{S}]+[\r\n]*" + _LINES)
_SPARK = (r"\p{N}{1,3}", _CJK, _SIGN_WORD + r"| ?[\p{P}\p{S}]+|[\r\n]" + _SPACE, r"\p{N}")
_HAN = "[一-龥ࠀ-一가-퟿]+"
# Letters of the scripts that have two cases.
_BICAMERAL = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-"
    "\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-"
    "\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-"
    "\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-"
    "\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-"
    "\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-"
    "\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-"
    "\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (r"[\r\n]", rf"\s?[{_BICAMERAL}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _HAN, r"\p{N}")
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}")
_FALCON = (r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")
_EXAONE_MOE = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]" + _SPACE
)
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]" + _SPACE
_SEED = _CONTRACTION + _WORD + r"|\p{N}| ?[^\s\p{L}\p{N}\r\n]+" + _LINES
_YOUTU = (
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _CJK,
    _CASED.replace("{0}", _CONTRACTION + "?") + r"|\p{N}" + _SLASHED,
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

# rules, whether words that are tokens stay whole, the names
_TABLE: tuple[tuple[tuple[str, ...], bool, str], ...] = (
    ((_LLAMA3,), True, "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 glm4 glm5 chatglm-bpe"),
    ((_LLAMA3,), False, "dbrx smaug-bpe"),
    ((_QWEN2,), False, "qwen2 deepseek-r1-qwen megrez kormo stablelm2 hunyuan solar-open grok-2"),
    ((_QWEN35,), False, "qwen35"),
    ((_O200K,), True, "gpt-4o llama4 kanana2 minimax-m2"),
    ((_TEKKEN,), True, "tekken"),
    ((_KIMI,), True, "kimi-k2"),
    (_DEEPSEEK3, False, "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (_DEEPSEEK_LLM, False, "deepseek-llm"),
    (_DEEPSEEK_CODER, False, "deepseek-coder"),
    (_SPARK, False, "spark2_5"),
    (_YOUTU, True, "youtu"),
    (_FALCON, False, "falcon"),
    ((_BAILING,), False, "bailingmoe bailingmoe2 llada-moe"),
    ((_SEED,), False, "seed-coder"),
    ((_EXAONE_MOE,), False, "exaone-moe"),
    ((r"\d{1,3}(?=(?:\d{3})*\b)", _O200K), False, "tiny_aya cohere2moe"),
    ((r"\p{N}{1,3}", _CONTRACTION + _WORD + r"|\p{N}+" + _TAIL), True, "minicpm5"),
    ((r"\n+", _QWEN2), False, "laguna"),
    ((_BLOOM,), False, "bloom poro-chat gpt3-finnish"),
    ((_BLOOM, r"\p{N}"), False, "viking"),
    ((r"\p{N}", _GPT2), False, "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    ((_GPT2,), False, "gpt-2 mpt olmo phi-2 jais exaone4 gigachat a.x-4.0 mellum trillion granite-docling default"),
)
_COMPOSED = {"qwen2", "qwen35", "deepseek-r1-qwen"}  # their original tokenizers compose accents first
_SPLITTINGS = {
    name: Splitting(rules, whole, name in _COMPOSED) for rules, whole, names in _TABLE for name in names.split()
}
NAMES = frozenset(_SPLITTINGS)
"""All names that `splitting` knows."""


def splitting(name: str) -> Splitting | None:
    """The rule of that name; None if it is not known."""
    return _SPLITTINGS.get(name)
