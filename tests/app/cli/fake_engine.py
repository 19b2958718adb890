"""A stand-in for the engine process: speaks the protocol, answers by a few words in the prompt or the model's name.

Every request is appended to the file `requests` in OUTRIDER_HOME, as JSON, so that a test can read what was asked.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import bench_data
import msgspec
import verify_data

from outrider.core.base import protocol as p

ROWS = [
    p.ModelRow(
        name="starter",
        title="SmolLM2-135M-Instruct",
        nbytes=98_362_432,
        format="gguf",
        family="llama",
        license="Apache-2.0",
        sources=["local library", "PyPI", "hub"],
    ),
    p.ModelRow(name="mine", title="Mine \x1b[31m", path="/models/mine.gguf", nbytes=5, format="gguf", family="llama"),
    p.ModelRow(name="cut", path="/models/cut.gguf", nbytes=5, problem="It is cut off."),
    p.ModelRow(name="org/half", nbytes=20_000_000_000, partial=12_300_000_000, note="Q4_0 was taken."),
]
DRAFTERS = [
    p.DrafterRow(name="prompt_lookup", distribution="outrider", fit="any", reason="works", usable=True),
    p.DrafterRow(name="draft_model", distribution="outrider", fit="no", reason="needs --drafter-weights", nbytes=9),
    p.DrafterRow(name="boom", distribution="boom", version="1", fit="broken", reason="ImportError: \x1b[2Jno"),
]
KNOWN = [
    p.KnownDrafter(method="eagle", repo="org/eagle", license="MIT", nbytes=800_000_000, about=True, note="3 layers"),
    p.KnownDrafter(method="eagle", repo="org/here", path="/models/org--here"),
    p.KnownDrafter(method="eagle", note="in the target's own files"),
]
PUBLISHED = p.DrafterRow(
    name="eagle", distribution="outrider", fit="exact", reason="needs a draft", where="catalogue", known=KNOWN
)
MARKDOWN = "# Title\n\nsome **bold** words\n\n- one\n\n  ```py\n  print(1)\n    x\n  ```\n\nend"
WORDS = {
    "markdown": re.findall(r"\S+|\s+", MARKDOWN),
    "escape": ["Blue", " \x1b[31msky", "\x9b2J", "\r\x7f é\ttab", "\nend"],
    "no answer": [],
}
TRIAL: dict[str, Any] = {
    "reading": {"states": "boundary"},
    **{"prompts": 2, "answers": 2, "tokens": 64, "passes": 40, "rounds": 20, "proposed": 60, "accepted": 30},
    **{"reached": [20, 10], "depths": [0.75, 0.5], "mean_accepted": 1.5, "error": 0.1, "tokens_per_pass": 1.55},
    **{"draft_ms": 1.25, "verify_ms": 9.0, "plain_ms": 8.0, "same_text": 1, "problem": ""},
    "differences": [{"prompt": "chat-tides", "token": 11, "gap": 0.001}],
}
KINDS: tuple[p.Kind, ...] = ("P", "A", "B", "C")


class Fake:
    """One request after another, from stdin to stdout."""

    def __init__(self) -> None:
        self.unpacker = p.Unpacker(p.AnyRequest)
        self.waiting: list[p.AnyRequest] = []
        self.home = Path(os.environ["OUTRIDER_HOME"])
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "pid").write_text(str(os.getpid()))
        self.say(p.Hello(version=p.VERSION, outrider="0.1.0", pid=os.getpid()))

    def say(self, frame: p.Frame) -> None:
        """Send one frame."""
        os.write(1, p.pack(frame))

    def hear(self) -> p.AnyRequest:
        """The next request; ends the process when the client is gone."""
        while not self.waiting:
            data = os.read(0, 1 << 16)
            if not data:
                sys.exit(0)
            self.waiting += self.unpacker.feed(data)
        request = self.waiting.pop(0)
        with (self.home / "requests").open("ab") as file:
            file.write(msgspec.json.encode(request) + b"\n")
        return request

    def serve(self) -> None:
        """Until Quit."""
        while not isinstance(request := self.hear(), p.Quit):
            getattr(self, type(request).__name__.lower(), lambda _request: None)(request)

    def fail(self, number: int, message: str, *, usage: bool) -> None:
        """The last event of a request that cannot be done."""
        trace = "Traceback of the engine"
        self.say(p.Failed(request=number, message=message, hint="Try less.", usage=usage, trace=trace))

    def generate(self, request: p.Generate) -> None:
        text = request.prompt if request.prompt is not None else (request.messages or [])[-1].content
        self.say(p.Progress(request=request.id, phase="weights", done=1, total=2, unit="layers"))
        if "fail" in text:
            trace = "Traceback of the engine"
            self.say(
                p.Failed(request=request.id, message="It failed.", hint="Try less.", usage="usage" in text, trace=trace)
            )
            return
        if "warn" in text:
            self.say(p.Notice(request=request.id, text="boom failed in propose; going on without it."))
        if "load forever" in text:
            self.hear()
            return
        words = next((words for word, words in WORDS.items() if word in text), ["Paris", " is", " nice"])
        finish: p.Finish = "stop"
        thoughts = ["They ask", " \x1b[31mwhere", ".", ""] if "think" in text else []
        for number, word in enumerate(thoughts):
            self.step(request, number, word, KINDS[number % 4], thinking=True)
        for number, word in enumerate(words):
            self.step(request, number, word, KINDS[number % 4])
        if "die" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if "until cancel" in text:
            self.wait_for_cancel()
            finish = "cancelled"
        elif "stubborn" in text:
            self.wait_for_cancel()
            self.step(request, len(words), " never", "A")
            signal.pause()
        while "on and on" in text:
            self.step(request, len(words), text * 100, "A")
        report = p.Report(
            model=request.model.model,
            drafter=request.drafter.name,
            rule=request.rule,
            seed=7 if request.sampling.seed is None else request.sampling.seed,
            text="".join(words),
            thinking="".join(thoughts) + ("!" if "no answer" in text else ""),
            token_ids=list(range(len(words))),
            prompt_tokens=4,
            finish="error" if "broken end" in text else "length" if "cut by" in text else finish,
            limit="tokens" if "cut by tokens" in text else "context" if "cut by context" in text else None,
            loops="circles" in text,
            passes=2,
            proposed=3,
            accepted=1,
            kinds="PABCPABC"[: len(words)],
            timing=p.Timing(load_s=0.1, prefill_s=0.1, first_token_s=0.2, decode_s=0.5, draft_s=0.1, verify_s=0.3),
            tokens_per_second=4.0,
            drafters={"none": 1, "prompt_lookup": 1},
            speedup=None,
        )
        self.say(p.Done(request=request.id, finish=report.finish, report=report))

    def wait_for_cancel(self) -> None:
        """Until the client wants it to end."""
        while not isinstance(self.hear(), p.Cancel):
            pass

    def step(self, request: p.Generate, seq: int, text: str, kind: p.Kind, *, thinking: bool = False) -> None:
        tokens = [p.Token(id=seq, text=text, kind=kind, thinking=thinking)]
        self.say(
            p.Step(
                request=request.id,
                seq=seq,
                t=0.1,
                drafter="none",
                proposed=0,
                accepted=0,
                tokens=tokens,
                draft_ms=0,
                verify_ms=1,
                host_ms=0,
            )
        )

    def models(self, request: p.Models) -> None:
        if request.name is None:
            self.say(p.Result(request=request.id, data=p.plain(ROWS)))
        else:
            self.one_row(request.id, request.name)

    def one_row(self, number: int, name: str) -> None:
        row = next((row for row in ROWS if row.name == name), None)
        if row is None:
            self.fail(number, f"There is no model {name}.", usage=True)
            return
        row.detail = {"layers": 30, "context": 8192, "template": True}
        self.say(p.Result(request=number, data=p.plain(row)))

    def pull(self, request: p.Pull) -> None:
        for done in (0, 50_000_000, 98_362_432):
            progress = p.Progress(request=request.id, phase="download", done=done, total=98_362_432, unit="bytes")
            self.say(progress)
        if request.name == "endless":
            self.hear()
        if request.name == "odd":
            odd = p.ModelRow(
                name="odd", path="/models/odd", nbytes=5, unsupported="the architecture odd is not supported yet"
            )
            self.say(p.Result(request=request.id, data=p.plain(odd)))
            return
        self.one_row(request.id, request.name)

    def remove(self, request: p.Remove) -> None:
        self.one_row(request.id, request.name)

    def drafters(self, request: p.Drafters) -> None:
        rows = [PUBLISHED, *DRAFTERS] if request.model.model == "known" else DRAFTERS
        if request.model.model == "pair":
            rows = [p.DrafterRow(name="draft_model", fit="family", where="given", usable=True), *DRAFTERS[:1]]
        self.say(p.Result(request=request.id, data=p.plain(rows)))

    def draftertest(self, request: p.DrafterTest) -> None:
        name = request.drafter.name
        data: dict[str, Any] = {"model": request.model.model, "drafter": name, "weights": request.drafter.weights}
        data |= {"device": "cpu", "dtype": "float32"}
        self.say(p.Progress(request=request.id, phase="test", done=0, total=1, unit="prompts"))
        if request.conformance:
            verdicts = {"greedy": "ok", "no_trace": "failed" if name == "bad" else "refused"}
            data["checks"] = [{"name": n, "verdict": v, "text": f"It is {v}.\x1b[2J"} for n, v in verdicts.items()]
        else:
            trial = TRIAL | {"problem": "It broke." if name == "bad" else ""}
            other = TRIAL | {"reading": {"states": "output", "sharp": True}}
            accepted = {"twofold": 0.5, "other_way": 2.5, "alike": 1.5}.get(name)
            others = [] if accepted is None else [other | {"mean_accepted": accepted}]
            data |= {"trials": [trial, *others], "best": int(name == "other_way")}
        self.say(p.Result(request=request.id, data=data))

    def load(self, request: p.Load) -> None:
        loaded = p.Loaded(
            model=request.model.model,
            title="SmolLM2-135M-Instruct",
            family="llama",
            parameters=134_515_008,
            nbytes=98_362_432,
            dtype="fp32",
            device="cpu",
            threads=2,
            context=8192,
            chat=True,
            load_s=0.1,
            sampling=p.Sampling(temperature=0.7),
            drafters=DRAFTERS,
        )
        self.say(p.Result(request=request.id, data=p.plain(loaded)))

    def bench(self, request: p.Bench) -> None:
        progress = p.Progress(request=request.id, phase="bench", done=1, total=2, unit="answers", note="one, plain")
        self.say(progress)
        endless = request.model.model == "endless"
        if endless:
            self.wait_for_cancel()
        done = request.prompts[:1] if endless else request.prompts
        self.say(p.Result(request=request.id, data=bench_data.result(request, done, stopped=endless)))

    def verify(self, request: p.Verify) -> None:
        self.say(p.Progress(request=request.id, phase="verify", done=1, total=2, unit="answers", note="one, greedy"))
        endless = request.model.model == "endless"
        if endless:
            self.wait_for_cancel()
        self.say(p.Result(request=request.id, data=verify_data.result(request, stopped=endless)))

    def train(self, request: p.Train) -> None:
        number, order = request.id, request.order
        self.say(p.Progress(number, "answers", 0, 40, "answers", "0 tokens"))
        if request.model is not None and request.model.model == "fails":
            self.fail(number, "The loss of step 3 is nan.", usage=False)
            return
        self.say(p.Notice("Left out: 1 of the prompts.", number, "info"))
        for step in range(1, 9):
            figures = {"loss": 9.0 - step} | ({"tokens_per_pass": 1 + step / 10} if step % 4 == 0 else {})
            self.say(p.Progress(number, "training", step, 8, "steps", "", figures))
        if request.model is not None and request.model.model == "endless":
            self.wait_for_cancel()
            self.fail(number, "stopped", usage=False)
            return
        measured = {"texts": 5, "tokens_per_pass": 1.62, "by_depth": [0.5, 0.25]}
        data = {"method": order.method, "folder": order.folder, "drafter": f"{order.folder}/drafter", "texts": 40}
        data |= {"tokens": 6000, "steps": 8, "loss": 1.25, "parameters": 123456, "measured": measured, "seconds": {}}
        if order.continue_from is not None:
            near = [{"context": 256, "rounds": 9, "tokens_per_pass": 1.5}]
            data["before"] = {"texts": 5, "tokens_per_pass": 1.5, "by_depth": [], "by_context": near}
            measured["by_context"] = [{**near[0], "tokens_per_pass": 1.6}, {**near[0], "context": 512}]
        kept = "worse" in order.options
        data |= {"place": "" if kept else "/data/drafters/m-eagle", "rival": "/data/drafters/m-eagle"}
        data |= {"rival_measured": {"texts": 5, "tokens_per_pass": 1.71 if kept else 1.5, "by_depth": []}}
        self.say(p.Result(number, data))

    def trainexport(self, request: p.TrainExport) -> None:
        files = ["config.json", "model.safetensors"]
        self.say(p.Result(request.id, {"folder": request.to, "files": files, "whole": request.whole}))

    def doctor(self, request: p.Doctor) -> None:
        if os.environ.get("FAKE_DOCTOR") == "dies":
            os._exit(3)
        level = "problem" if os.environ.get("FAKE_DOCTOR") == "problem" else "ok"
        self.say(
            p.Result(request=request.id, data=p.plain([p.Finding(level, "torch", "2.13.0 on the CPU", "Mend it.")]))
        )


if __name__ == "__main__":
    Fake().serve()
