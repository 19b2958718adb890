"""The catalogue: its data hold together, names lead to entries, what cannot run is told before it is brought."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from outrider.core.base.errors import ModelError
from outrider.core.base.protocol import ModelChoice
from outrider.core.library import catalogue, model_rows
from outrider.core.library import library as shelf
from outrider.core.library.catalogue import Entry
from outrider.core.model.families import READERS

METHODS = {"eagle", "dflash", "mtp", "medusa", "layerskip", "draft_model"}  # those whose drafters have weights
HUB = [entry for entry in catalogue.entries() if not entry.files]


def test_pinned_models_come_first_and_every_name_and_folder_is_there_once() -> None:
    entries = catalogue.entries()
    assert [entry.name for entry in entries[:2]] == ["starter", "starter (bf16)"]
    assert len({entry.name for entry in entries}) == len({entry.path for entry in entries}) == len(entries) > 90


@pytest.mark.parametrize("entry", HUB, ids=lambda entry: entry.name)
def test_a_hub_model_is_told_as_far_as_a_list_needs(entry: Entry) -> None:
    assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", entry.name)
    assert catalogue.is_hub_id(entry.repo)
    assert entry.path == entry.repo.replace("/", "--")
    assert entry.title == entry.repo.split("/")[1]
    assert entry.family and entry.series
    assert 1 <= entry.tier <= 3
    assert 1e8 < entry.parameters < 41e9
    assert entry.active < entry.parameters
    assert entry.kv % 2 == 0
    assert not entry.gguf or catalogue.is_hub_id(entry.gguf)
    bits = 8 * entry.nbytes / entry.parameters
    assert {"bf16": 15.9, "fp8": 7.9, "mxfp4": 4.2}[entry.form] < bits < {"bf16": 21, "fp8": 13, "mxfp4": 6}[entry.form]


def test_the_families_of_every_tier_are_there() -> None:
    families = {tier: {entry.family for entry in HUB if entry.tier == tier} for tier in (1, 2, 3)}
    assert families[1] == {"qwen3_5", "qwen3_5_moe", "gemma4", "gemma4_unified", "qwen3", "qwen3_moe", "gpt_oss"}
    assert {"llama", "mistral", "ministral3", "glm4_moe_lite", "gemma3", "qwen2"} < families[2]
    assert {"muse_glimmer", "nemotron_h"} < families[2]
    assert {"phi3", "smollm3", "granite", "granitemoehybrid", "lfm2", "olmo3", "cohere2", "mimo"} < families[3]


def test_sizes_follow_from_parameters() -> None:
    assert catalogue.find("qwen3-8b").nbytes == 2 * 8_190_735_360  # type: ignore[union-attr]
    oss = catalogue.find("gpt-oss-20b")
    assert oss is not None
    layers, width, vocab, experts = 24, 2880, 201088, 32
    inside = layers * experts * 3 * width * width  # stored in blocks of 32 with 17 bytes
    attention = 2 * width * 4096 + 4096 + width + 2 * (512 * width + 512) + 64
    router = experts * (width + 1) + experts * 3 * width  # and the experts' biases
    outside = 2 * vocab * width + width + layers * (attention + router + 2 * width)
    assert (oss.parameters, oss.nbytes) == (inside + outside, 2 * outside + inside * 17 // 32)


def test_drafters_name_models_that_are_there() -> None:
    by_name = {entry.name: entry for entry in catalogue.entries()}
    by_repo = {entry.repo: entry for entry in catalogue.entries()}
    seen = set()
    for drafter in catalogue.drafters():
        assert drafter.method in METHODS
        assert drafter.targets and set(drafter.targets) <= set(by_name), drafter
        assert catalogue.is_hub_id(drafter.repo) if drafter.repo else drafter.method in ("mtp", "layerskip")
        if drafter.method == "draft_model" and not by_repo[drafter.repo].files:
            small = by_repo[drafter.repo]
            assert (drafter.size, drafter.license) == (small.nbytes, small.license)
            assert all(by_name[target].parameters > small.parameters for target in drafter.targets)
        if drafter.repo:
            assert (drafter.method, drafter.repo) not in seen
            seen.add((drafter.method, drafter.repo))


@pytest.mark.parametrize("name", ["gpt-oss-20b", "openai/gpt-oss-20b", "ggml-org/gpt-oss-20b-GGUF:MXFP4@main"])
def test_drafters_are_found_by_every_name_of_a_model(name: str) -> None:
    found = catalogue.drafters_for(name)
    assert [one.repo for one in found if one.method == "dflash"] == ["z-lab/gpt-oss-20b-DFlash"]
    assert len(found) == 3


@pytest.mark.parametrize("name", ["", "nothing", "some/toy", ":x"])
def test_no_drafters_for_what_the_catalogue_does_not_know(name: str) -> None:
    assert catalogue.drafters_for(name) == ()


def test_a_catalogue_name_and_its_hub_id_are_one_entry() -> None:
    entry = catalogue.find("qwen3-8b")
    assert entry is not None and entry is catalogue.find("Qwen/Qwen3-8B")
    assert [(source.kind, source.repo, source.revision) for source in entry.sources] == [("hub", "Qwen/Qwen3-8B", "")]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (catalogue._Pinned, {"model": [{"name": "x", "path": "x", "colour": "red"}]}),
        (catalogue._Pinned, {"model": [{"name": "x", "path": "x", "files": [{"name": "f", "bytes": 1, "md5": ""}]}]}),
        (catalogue._Targets, {"series": [{"title": "x", "tier": 1, "family": "llama", "models": [], "size": 1}]}),
        (catalogue._Drafters, {"method": [{"name": "x", "drafters": [{"targets": [], "speed": 2}]}]}),
    ],
)
def test_a_key_that_is_not_known_is_an_error(kind: type, data: dict) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert(data, kind)


def test_what_the_engine_cannot_run_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = catalogue.find("qwen3-8b")
    assert entry is not None and entry.unsupported == ""
    monkeypatch.delitem(READERS, "qwen3")
    assert entry.unsupported == "the architecture qwen3 is not supported yet"


def test_an_unsupported_model_is_not_brought_by_its_name(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(READERS, "qwen3")
    asked: list[str] = []
    monkeypatch.setattr(shelf, "fetch", lambda folder, entry, job: asked.append(entry.name))
    for bring in (shelf.pull, shelf.resolve):
        with pytest.raises(ModelError, match="architecture qwen3 is not supported yet") as caught:
            bring("qwen3-8b")
        assert "models pull Qwen/Qwen3-8B" in caught.value.hint
    assert not asked
    shelf.resolve("Qwen/Qwen3-8B")  # named by its repository
    assert asked == ["qwen3-8b"]


def test_rows_are_what_is_here_and_the_starter_or_everything(library: Path) -> None:
    assert [row.name for row in model_rows.rows(False, ModelChoice())] == ["starter", "starter (bf16)"]
    (library / "mine").mkdir(parents=True)
    (library / "Qwen--Qwen3-8B").mkdir()
    listed = model_rows.rows(False, ModelChoice(device="cpu"))
    assert [row.name for row in listed] == ["starter", "starter (bf16)", "qwen3-8b", "mine"]
    assert listed[2].problem and not any(row.plan for row in listed)
    rows = {row.name: row for row in model_rows.rows(True, ModelChoice(device="cpu"))}
    assert set(rows) == {entry.name for entry in catalogue.entries()} | {"mine"}
    small = rows["qwen3-0.6b"]
    assert (small.series, small.tier, small.parameters, small.context) == ("Qwen3", 1, 596_049_920, 40_960)
    assert small.plan is not None and small.plan.weights == 2 * 596_049_920
    assert len(rows["qwen3-8b"].drafters) == len(catalogue.drafters_for("qwen3-8b"))


def test_a_local_model_that_cannot_be_run_has_no_plan(library: Path, monkeypatch: pytest.MonkeyPatch, tiny) -> None:
    path = str(tiny.write())
    assert model_rows.row(path, ModelChoice(device="cpu")).plan is not None
    monkeypatch.delitem(READERS, "llama")
    row = model_rows.row(path, ModelChoice(device="cpu"))
    assert row.plan is None and "architecture 'llama' is not known" in row.unsupported


def test_a_drafter_is_counted_in(library: Path) -> None:
    alone = model_rows.row("qwen3-8b", ModelChoice(device="cpu", dtype="bf16")).plan
    both = model_rows.row("qwen3-8b", ModelChoice(device="cpu", dtype="bf16"), "qwen3-0.6b").plan
    assert alone is not None and both is not None and alone.drafter == 0
    assert both.drafter == 2 * 596_049_920 + 57_344 * 2 * (8192 + 64)
    assert both.total == alone.total + both.drafter
