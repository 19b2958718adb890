"""`outrider verify`: the text of every drafter against the plain one, on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from outrider.app import render
from outrider.app.command import Command
from outrider.app.commands import _measured, _prompts
from outrider.app.options import EngineOptions, engine_options
from outrider.core.base import protocol

if TYPE_CHECKING:
    from outrider.app.commands._engine import Session

_TOKENS, _QUICK_TOKENS = 128, 32
_HELPS = {
    "temperature": "How freely sampled answers are drawn; at 0 only greedy ones are compared.  [default: 0.8]",
    "max_tokens": f"Tokens of an answer.  [default: {_TOKENS}; {_QUICK_TOKENS} with --quick]",
    "seed": "What sampled answers are drawn with.  [default: 0]",
}
_FLOWS = {"turn": "turns", "regenerate": "regenerated", "edit": "edited"}
_EPILOG = f"""\b
Examples:
  outrider verify                                 all drafters of the starter, a few minutes
  outrider verify --exact                         the same, and nothing may differ
  outrider verify --model qwen.gguf --drafter suffix --drafter lookahead --quick
  outrider verify --prompts mine.jsonl --temperature 0 --json result.json

\b
A line of a prompts file:
  {_prompts.EXAMPLE}"""


@click.command(cls=Command, epilog=_EPILOG)
@engine_options(without=("drafter", "system"), helps=_HELPS, measuring=True)
@_measured.drafters_option
@click.option("--prompts", metavar="FILE", help="Own prompts, one JSON object a line.  [default: a few bundled ones]")
@_measured.categories_option
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="At most N prompts of each category.  [default: 1 of the bundled ones, all of a file]",
)
@click.option("--json", "json_to", metavar="FILE|-", help="Write everything as JSON; - prints it instead of the table.")
@click.option("--quick", is_flag=True, help=f"Answers of {_QUICK_TOKENS} tokens in place of {_TOKENS}.")
def verify(
    options: EngineOptions,
    names: list[str],
    prompts: str | None,
    categories: tuple[str, ...],
    limit: int | None,
    json_to: str | None,
    quick: bool,
) -> None:
    """Check on this machine that drafted text is the text the model writes alone.

    Every prompt is answered plainly and with each drafter, greedy and sampled (temperature 0.8, no filters and seed 0 unless
    options say otherwise). Then a short chat compares answers behind the cached turns, one made again and an edited question
    with plain ones that read the whole chat anew. The first token that differs is told with how far the two best were apart.
    Where that is next to nothing in fp32 too, it is a near-tie that rounding decided, and no error; anything else ends with
    exit code 1. With --exact nothing may differ at all. Ctrl-C ends it early with what was compared by then.
    """
    if names and set(names) == {"none"}:
        raise render.WrongUsage(
            "--drafter none leaves nothing to compare: plain decoding is what drafters are compared with.",
            "Name a drafter of `outrider drafters list`, or leave --drafter out.",
        )
    if options.rule == "typical":
        raise render.WrongUsage(
            "--rule typical is lossy by design: it keeps tokens that the model alone would not have written.",
            "Verify --rule match or --rule rejection.",
        )
    if limit is None and prompts is None:
        limit = 1
    chosen = _prompts.choose(_prompts.read(prompts), _measured.words(*categories), limit)
    _measured.check_writable("json", json_to)
    sampling = options.sampling
    sampling.max_tokens = sampling.max_tokens or (_QUICK_TOKENS if quick else _TOKENS)
    if options.rule == "rejection":
        render.say(
            "Note: Under rejection sampled text follows the model's law, but is not promised to be the same; only greedy "
            "answers are compared."
        )
    from outrider.app.commands import _engine

    async def work(session: Session) -> dict[str, Any]:
        request = protocol.Verify(
            id=session.client.number(),
            model=options.model,
            prompts=chosen,
            drafters=await _measured.riders(session, options, names),
            sampling=sampling,
            rule=options.rule,
        )
        session.cancel_first(request.id, _measured.PATIENCE)
        data = await session.ask(request)
        if json_to == "-":
            render.echo_json(data)
        else:
            click.echo(_told(data))
        if json_to not in (None, "-"):
            _measured.write(str(json_to), render.json_text(data) + b"\n")
        return data

    _judge(_engine.with_engine(work))


def _told(data: dict[str, Any]) -> str:
    """Table, differences in words, and the sum of it."""
    head = f"{data['model']} · {data['dtype']} · {data['device']}, {data['threads']} thread{'' if data['threads'] == 1 else 's'}"
    columns = ("DRAFTER", "MODE", "ANSWERS", "IDENTICAL", "NEAR-TIES", "DIFFERENCES", "TOKENS", "TOK/PASS")
    table = render.table(columns, map(_line, data["drafters"]), right=range(2, 8))
    parts = [render.printable(head) + (" · exact mode" if data["exact"] else ""), table]
    if _chat(data)["drafters"]:
        columns = ("DRAFTER", "CHAT", "ANSWERS", "IDENTICAL", "NEAR-TIES", "DIFFERENCES")
        rows = (_counted(row["drafter"], _FLOWS[row["flow"]], row) for row in _chat(data)["drafters"])
        parts.append(render.table(columns, rows, right=range(2, 6)))
        parts.append(_share(_chat(data)["drafters"], "answers behind a cached chat are identical to freshly read ones"))
    partings = [*data["partings"], *_chat(data)["partings"]]
    parts += ["\n".join(_parting(one) for one in partings)] if partings else []
    return "\n\n".join([*parts, _sum(data)])


def _line(tally: dict[str, Any]) -> tuple[str, ...]:
    counted = _counted(tally["drafter"], tally["mode"], tally)
    return *counted, str(tally["tokens"]), f"{tally['tokens_per_pass']:.2f}"


def _counted(drafter: str, kind: str, tally: dict[str, Any]) -> tuple[str, ...]:
    wrong = tally["differences"] + tally["unchecked"]
    counts = (tally["answers"], tally["identical"], tally["near_ties"], wrong)
    return "plain" if drafter == "none" else drafter, kind, *map(str, counts)


def _parting(one: dict[str, Any]) -> str:
    """One difference in words."""
    turn = f", turn {one['turn'] + 1}" if one["turn"] else ""
    where = f"{one['drafter']}, {one['mode']}, prompt {one['prompt']}{turn}, token {one['token'] + 1}"
    said = f"plain {_said(one['plain'])}, drafted {_said(one['drafted'])}"
    if one.get("flow"):
        where = f"{one['drafter']}, {_FLOWS[one['flow']]} of the chat{turn}, token {one['token'] + 1}"
        said = f"read anew {_said(one['plain'])}, behind the cached chat {_said(one['drafted'])}"
    verdict = {"near-tie": "a near-tie", "difference": "a DIFFERENCE", "unchecked": "a difference, not checked in fp32"}
    text = f"{where}: {verdict[one['verdict']]}. {said}."
    if one["gap"] is not None:
        text += f" In fp32 the two best are {one['gap']:.2g} apart."
    return render.printable(" ".join([text, one["why"]]).strip())


def _said(said: dict[str, Any]) -> str:
    what = "ended" if said["id"] is None else f"said {said['text']!r}"
    return what if said["gap"] is None else f"{what} (gap {said['gap']:.2g})"


def _sum(data: dict[str, Any]) -> str:
    text = _share(data["drafters"], "drafted answers are identical to the plain ones")
    return text if data["finished"] else f"Stopped early. {text}"


def _chat(data: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What the chat came to; nothing where it was not reached."""
    return data.get("chat", {"drafters": [], "partings": []})


def _share(rows: list[dict[str, Any]], what: str) -> str:
    answers, identical, near = (sum(one[key] for one in rows) for key in ("answers", "identical", "near_ties"))
    return f"{identical} of {answers} {what}" + (f", {near} part at a near-tie." if near else ".")


def _judge(data: dict[str, Any]) -> None:
    """Raises Failure where something differs that should not."""
    rows = [*data["drafters"], *_chat(data)["drafters"]]
    wrong, unchecked = (sum(one[key] for one in rows) for key in ("differences", "unchecked"))
    if wrong:
        hint = "This is a mistake of Outrider or of the drafter: please report it with what --json writes."
        if not data["exact"]:
            hint += " --exact tells whether rounding has to do with it."
        raise render.Failure(f"{_differ(wrong)}.", hint)
    if unchecked:
        raise render.Failure(
            f"{_differ(unchecked)}, and whether that is rounding could not be checked.",
            "Use --exact, where nothing may differ, or a smaller --context.",
        )


def _differ(count: int) -> str:
    return (
        f"{count} drafted answers differ from the plain ones"
        if count > 1
        else "1 drafted answer differs from the plain one"
    )
