"""Where the weights of drafters are found: in the checkpoint, beside it, in the library, in the catalogue, or nowhere."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
import toys

from outrider.core.base import paths
from outrider.core.base.errors import DrafterError, ModelError
from outrider.core.base.protocol import DrafterChoice, DrafterRow, Generate, Message, ModelChoice, Sampling, Where
from outrider.core.drafting import Fit, Match, ModelInfo, registry
from outrider.core.formats.checkpoint import describe
from outrider.core.library import discovery, library
from outrider.core.session.engine import Engine

LARGE = b"x" * 1000


class Always:
    """Needs no weights."""

    api = 1

    def matches(self, model: ModelInfo) -> Match:
        return Match(Fit.ANY, "always fits")

    def load(self, target, match, options):
        return toys.Anything(target.vocab)


class Own(Always):
    """Its weights lie in the target's own files."""

    def matches(self, model: ModelInfo) -> Match:
        return Match(Fit.EXACT, "heads of its own", weights=model.path)


class Eagle(Always):
    """Takes a folder that a file `eagle` marks; the name of its load goes into `loaded`."""

    mark, fit = "eagle", Fit.EXACT
    loaded: list[str | None] = []  # noqa: RUF012 - read by the tests

    def matches(self, model: ModelInfo) -> Match:
        return Match(self.fit, "needs weights", ready=False)

    def check(self, model: ModelInfo, weights: str) -> Match:
        if not (Path(weights) / self.mark).exists():
            raise ModelError(f"{Path(weights).name} is nothing for {self.mark}.", "Take another.")
        if (Path(weights) / "other").exists():
            return Match(Fit.NO, "it was made for another model", weights=weights)
        return Match(self.fit, f"{Path(weights).name} fits", nbytes=7, weights=weights)

    def load(self, target, match, options):
        self.loaded.append(match.weights)
        return super().load(target, match, options)


class Draft_Model(Eagle):
    """Fits less well."""

    mark, fit = "small", Fit.FAMILY


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """These methods and no other; an empty home."""
    points = [
        importlib.metadata.EntryPoint(method.__name__.lower(), f"{__name__}:{method.__name__}", registry.GROUP)
        for method in (Always, Eagle, Draft_Model)
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    Eagle.loaded.clear()


def weights(folder: Path, *marks: str, size: int = 10) -> Path:
    """A folder that a toy method takes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(LARGE[:size])
    for mark in marks:
        (folder / mark).touch()
    return folder


def model(folder: Path) -> ModelInfo:
    """A target of 1000 bytes at that place."""
    weights(folder, size=1000)
    return ModelInfo(folder.name, "llama", 48, 32, 2, "toy", path=str(folder))


def by_name(rows: list[DrafterRow]) -> dict[str, DrafterRow]:
    return {row.name: row for row in rows}


def test_nothing_is_found_where_nothing_lies(tmp_path: Path) -> None:
    rows = by_name(discovery.survey(model(tmp_path / "target"), "target"))
    assert [(row.where, row.usable) for row in rows.values()] == [("train", False), ("train", False), ("", True)]
    assert list(rows) == ["eagle", "draft_model", "always"]


def test_weights_in_the_checkpoint_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = importlib.metadata.EntryPoint("own", f"{__name__}:Own", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [own])
    (row,) = discovery.near(model(tmp_path / "target"))
    assert (row.where, row.usable) == ("checkpoint", True)


@pytest.mark.parametrize("place", ["target/drafter", "target-eagle3"])
def test_weights_inside_or_beside_the_model_ride_by_themselves(tmp_path: Path, place: str) -> None:
    info = model(tmp_path / "target")
    path = weights(tmp_path / place, "eagle")
    weights(tmp_path / "something-else", "small")
    rows = by_name(discovery.near(info))
    assert (rows["eagle"].where, rows["eagle"].usable, rows["eagle"].weights) == ("beside", True, str(path))
    assert rows["eagle"].nbytes == 7
    assert rows["draft_model"].where == "train"
    assert discovery.automatic(list(rows.values())) == ("always", "eagle")


def test_of_drafters_made_for_the_model_some_compete() -> None:
    def row(name: str, gain: float, where: Where, free: bool = False) -> DrafterRow:
        fit = "any" if free else "exact"
        return DrafterRow(name=name, usable=True, fit=fit, gain=gain, where=where, free=free)

    free, best = row("free", 1.2, "", True), row("best", 1.9, "trained")
    shipped = [row(name, gain, "shipped") for name, gain in (("a", 1.7), ("b", 1.6), ("c", 1.5))]
    assert discovery.automatic([free, best, *shipped]) == ("free", "b", "a", "best")
    assert discovery.automatic([free, row("beside", 1.9, "beside"), *shipped]) == ("free", "b", "a", "beside")
    others = [row("beside", 1.5, "beside"), row("large", 1.4, "library")]  # they may be as large as they like
    assert discovery.automatic([free, best, *others]) == ("free", "best")


def test_weights_in_the_library_ride_when_they_are_asked_for(tmp_path: Path) -> None:
    info = model(tmp_path / "target")
    path = weights(paths.models_dir() / "org--draft", "eagle")
    assert by_name(discovery.near(info))["eagle"].where == "train"
    rows = discovery.survey(info, "target")
    assert (by_name(rows)["eagle"].where, by_name(rows)["eagle"].usable) == ("library", True)
    assert discovery.automatic(rows) == ("always",)
    assert discovery.weights_for("eagle", info) == str(path)
    assert discovery.weights_for("always", info) is None


def test_what_does_not_fit_or_is_as_large_as_the_target_is_passed_over(tmp_path: Path) -> None:
    info = model(tmp_path / "target")
    weights(tmp_path / "target" / "a", "eagle", "other")
    weights(tmp_path / "target" / "b", "eagle", size=501)
    assert by_name(discovery.survey(info, "target"))["eagle"].where == "train"
    fitting = weights(tmp_path / "target" / "c", "eagle", size=499)
    assert by_name(discovery.survey(info, "target"))["eagle"].weights == str(fitting)


@pytest.mark.parametrize(
    ("folder", "size", "taken"), [("small", 249, True), ("small", 251, False), ("target-4bit", 9, False)]
)
def test_another_form_of_the_target_is_no_draft_model(tmp_path: Path, folder: str, size: int, taken: bool) -> None:
    info = model(tmp_path / "org--target")
    weights(paths.models_dir() / folder, "small", size=size)
    assert by_name(discovery.survey(info, "target"))["draft_model"].usable == taken


@pytest.mark.parametrize("folder", ["Qwen--Qwen3-8B", "models--Qwen--Qwen3-8B/snapshots/abc"])
def test_the_catalogue_knows_the_published_ones(tmp_path: Path, folder: str) -> None:
    info = model(tmp_path / folder)
    for name in ("qwen3-8b", str(info.path)):
        row = by_name(discovery.survey(info, name))["eagle"]
        assert (row.where, row.usable) == ("catalogue", False)
        assert {one.method for one in row.known} == {"eagle"}
        assert all(one.repo and one.path is None for one in row.known)
    repo = row.known[0].repo
    path = weights(paths.models_dir() / repo.replace("/", "--"))
    row = by_name(discovery.survey(info, "qwen3-8b"))["eagle"]
    assert row.known[0].path == str(path)


def test_weights_that_are_given_are_judged_by_who_takes_weights(tmp_path: Path) -> None:
    info = model(tmp_path / "target")
    path = weights(tmp_path / "w", "small")
    rows = by_name(discovery.survey(info, "target", str(path)))
    assert {name: (row.where, row.usable) for name, row in rows.items()} == {
        "draft_model": ("given", True),
        "always": ("", True),
        "eagle": ("given", False),
    }
    assert discovery.accepting(info, str(path)) == "draft_model"
    assert (rows["eagle"].fit, rows["eagle"].reason) == ("no", "w is nothing for eagle.")
    both = weights(tmp_path / "both", "small", "eagle")
    assert discovery.accepting(info, str(both)) == "eagle"


def test_weights_that_nobody_takes_are_told_with_the_reason_of_each(tmp_path: Path) -> None:
    info = model(tmp_path / "target")
    path = weights(tmp_path / "w", "eagle", "other")
    with pytest.raises(DrafterError) as caught:
        discovery.accepting(info, str(path))
    assert caught.value.message == (
        "No drafter takes w. draft_model: w is nothing for small. eagle: it was made for another model."
    )


@pytest.mark.parametrize(
    ("name", "repo"),
    [
        ("qwen3-8b_EAGLE3", "AngelSlim/Qwen3-8B_eagle3"),
        ("Qwen3-8B_eagle3@main", "AngelSlim/Qwen3-8B_eagle3@main"),
        ("no such drafter", ""),
        ("", ""),
    ],
)
def test_drafters_are_called_by_their_bare_names(name: str, repo: str) -> None:
    assert discovery.catalogue.drafter_repo(name) == repo


def test_a_drafter_in_the_library_is_found_by_its_bare_name() -> None:
    path = weights(paths.models_dir() / "AngelSlim--Qwen3-8B_eagle3")
    assert library.resolve("Qwen3-8B_eagle3") == path
    assert library.row("Qwen3-8B_eagle3").path == str(path)


# ---------------------------------------------------------------------------------------------------- in the engine


class Unmoved:
    """Control of an answer that nobody disturbs."""

    def cancelled(self) -> bool:
        return False

    def switched(self) -> None:
        return None

    def switch_done(self, name: str, error: object) -> None:
        """Never called."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.checkpoint(tmp_path_factory.mktemp("models") / "tiny")


def generate(folder: Path, drafter: DrafterChoice) -> list[str]:
    """The notices of one answer."""
    notes: list[str] = []
    request = Generate(
        1,
        ModelChoice(model=str(folder), dtype="fp32", device="cpu"),
        messages=[Message("user", "abcabc")],
        sampling=Sampling(temperature=0, max_tokens=4),
        drafter=drafter,
    )
    Engine().generate(request, lambda event: notes.append(getattr(event, "text", "")), Unmoved())  # type: ignore[arg-type]
    return [note for note in notes if note]


def test_a_method_that_waits_takes_what_lies_in_the_library(folder: Path) -> None:
    path = weights(paths.models_dir() / "org--draft", "eagle")
    assert describe(folder).path == str(folder)
    assert generate(folder, DrafterChoice(name="eagle")) == []
    assert Eagle.loaded == [str(path)]


def test_auto_with_weights_takes_the_method_that_they_are_for(folder: Path, tmp_path: Path) -> None:
    path = weights(tmp_path / "w", "small")
    assert generate(folder, DrafterChoice(weights=str(path))) == []
    assert Eagle.loaded == [str(path)]


def test_auto_with_weights_that_nobody_takes_is_an_error(folder: Path, tmp_path: Path) -> None:
    path = weights(tmp_path / "w")
    with pytest.raises(DrafterError, match="No drafter takes w"):
        generate(folder, DrafterChoice(weights=str(path)))
    with pytest.raises(ModelError, match="There is no model"):
        generate(folder, DrafterChoice(weights="no such thing"))
    assert Eagle.loaded == []
