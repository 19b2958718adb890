"""Render every template of $GOLDEN/chat_templates with transformers and write expected.json.

    python make_expected.py        (needs transformers and jinja2)

The clock is frozen (see NOW) because some templates print today's date.
"""

import datetime as dt
import glob
import json
import os

import jinja2
import transformers
from transformers.utils import chat_template_utils as ct

HERE = os.path.join(os.environ["GOLDEN"], "chat_templates")
NOW = dt.datetime(2026, 1, 15, 12, 0, 0)


class Frozen(dt.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


ct.datetime = Frozen

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "City name"}},
            "required": ["city"],
        },
    },
}
SYS = {"role": "system", "content": "You are a terse assistant."}
U1 = {"role": "user", "content": 'Name a prime <number> & say "hi".'}
A1 = {"role": "assistant", "content": "Seven. Hi!"}
U2 = {"role": "user", "content": "Now an even one, déjà vu 🙂?"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "abcdef123", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    ],
}
CALL_STR = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "abcdef123", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    ],
}
RES = {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": '{"temp_c": 3}'}
THINK = {"role": "assistant", "reasoning_content": "7 is prime.", "content": "Seven. Hi!"}
PARTS = [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in (SYS, U1, A1, U2)]
CASES = {
    "chat": dict(messages=[SYS, U1, A1, U2]),
    "chat_gen": dict(messages=[SYS, U1, A1, U2], add_generation_prompt=True),
    "no_system_gen": dict(messages=[U1, A1, U2], add_generation_prompt=True),
    "one_user_gen": dict(messages=[U1], add_generation_prompt=True),
    "no_thinking_gen": dict(messages=[SYS, U1], add_generation_prompt=True, enable_thinking=False),
    "thinking_gen": dict(messages=[SYS, U1], add_generation_prompt=True, enable_thinking=True),
    "past_reasoning_gen": dict(messages=[SYS, U1, THINK, U2], add_generation_prompt=True),
    "think_tags_gen": dict(
        messages=[SYS, U1, {"role": "assistant", "content": "<think>\n7 is prime.\n</think>\n\nSeven."}, U2],
        add_generation_prompt=True,
    ),
    "parts_gen": dict(messages=PARTS, add_generation_prompt=True),
    "tools_gen": dict(messages=[SYS, U1], tools=[TOOL], add_generation_prompt=True),
    "tool_loop_gen": dict(messages=[SYS, U1, CALL, RES], tools=[TOOL], add_generation_prompt=True),
    "tool_loop_str_args_gen": dict(messages=[SYS, U1, CALL_STR, RES], tools=[TOOL], add_generation_prompt=True),
    "system_only_gen": dict(messages=[SYS], add_generation_prompt=True),
    "two_users_gen": dict(messages=[SYS, U1, U2], add_generation_prompt=True),
    "late_system_gen": dict(messages=[U1, A1, SYS, U2], add_generation_prompt=True),
    "continue": dict(messages=[SYS, U1, A1], continue_final_message=True),
}
LLAMA3 = ("<|begin_of_text|>", "<|eot_id|>")
DS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
SP = ("<s>", "</s>")
TOKENS = [  # (name prefix, bos, eos): what the model's tokenizer has, where known; else a stand-in
    ("meta-llama", *LLAMA3),
    ("NousResearch", "<|begin_of_text|>", "<|im_end|>"),
    ("meetkai", *LLAMA3),
    ("fireworks", *LLAMA3),
    ("deepseek-ai", *DS),
    ("llama-cpp-deepseek", *DS),
    ("StepFun", *DS),
    ("Mistral", *SP),
    ("mistral", *SP),
    ("unsloth-mistral", *SP),
    ("axolotl-mistral", *SP),
    ("google-gemma-2", "<bos>", "<eos>"),
    ("axolotl-gemma3", "<bos>", "<eos>"),
    ("google-gemma-4", "<bos>", "<turn|>"),
    ("Qwen", None, "<|im_end|>"),
    ("HuggingFaceTB-SmolLM3", None, "<|im_end|>"),
    ("HuggingFaceTB-SmolLM2", "<|im_start|>", "<|im_end|>"),
    ("axolotl-chatml", None, "<|im_end|>"),
    ("axolotl-phi_4", "<|endoftext|>", "<|im_end|>"),
    ("microsoft-Phi-3.5", "<s>", "<|endoftext|>"),
    ("microsoft-Phi-4-mini", "<|endoftext|>", "<|endoftext|>"),
    ("openai-gpt-oss", "<|startoftext|>", "<|return|>"),
    ("GLM", None, "<|endoftext|>"),
    ("LFM2", "<|startoftext|>", "<|im_end|>"),
    ("MiMo", None, "<|im_end|>"),
    ("CohereForAI", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    ("Cohere2", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    ("ibm-granite", None, "<|end_of_text|>"),
    ("NVIDIA", "<s>", "<|im_end|>"),
    ("moonshotai", "[BOS]", "[EOS]"),
    ("Kimi", "[BOS]", "[EOS]"),
]


def special_tokens(name):
    for prefix, bos, eos in TOKENS:
        if name.startswith(prefix):
            return {k: v for k, v in (("bos_token", bos), ("eos_token", eos)) if v is not None}
    return {"bos_token": "<s>", "eos_token": "</s>"}


def render(template, case, special):
    case = dict(case)
    messages = ct._normalize_chat_messages(case.pop("messages"))
    # apply_chat_template passes the tokenizer's special tokens as template variables, and the caller's kwargs over them
    out, _ = ct.render_jinja_template([messages], chat_template=template, **{**special, **case})
    return out[0]


def main():
    out = {
        "meta": {
            "transformers": transformers.__version__,
            "jinja2": jinja2.__version__,
            "now": NOW.isoformat(),
            "how": "see make_expected.py",
        },
        "cases": CASES,
        "templates": {},
    }
    for f in sorted(glob.glob(os.path.join(HERE, "*.jinja"))):
        name = os.path.basename(f)
        t = open(f, encoding="utf-8", newline="").read()
        sp = special_tokens(name)
        res = {}
        for c, case in CASES.items():
            try:
                res[c] = {"text": render(t, case, sp)}
            except Exception as e:
                res[c] = {"error": f"{type(e).__name__}: {e}"[:300]}
        out["templates"][name] = {"special_tokens": sp, "expected": res}
    json.dump(out, open(os.path.join(HERE, "expected.json"), "w", encoding="utf-8"), ensure_ascii=False, indent=1)
    return out


if __name__ == "__main__":
    main()
