"""Child process: brings files of a model repository with the hub's own client.

    python -m outrider.core.weights.hubget REPO REVISION FOLDER [FILE ...]

Without FILE it asks the hub which files the model has. What it is going to bring stands in FOLDER/plan.json before the
first byte comes; the files go to FOLDER/files. Whatever is wrong ends it with a message on stderr.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

_BESIDE = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
}
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")


def choose(names: Iterable[str]) -> list[str]:
    """The files of a repository that make up its model. Raises SystemExit with a message if that is not clear."""
    names = list(names)
    weights = [name for name in names if _WEIGHTS.fullmatch(name)]
    if "model.safetensors" in weights:
        weights = ["model.safetensors"]
    if weights and "config.json" in names:
        return [name for name in names if name in _BESIDE] + weights
    packed = [name for name in names if name.endswith(".gguf") and "/" not in name]
    if len(packed) == 1:
        return packed
    if packed:
        raise SystemExit(f"it holds {len(packed)} GGUF files; download one and give its path with --model")
    raise SystemExit("it holds neither safetensors with a config.json nor a GGUF file")


def _file(sibling: RepoSibling) -> dict[str, Any]:
    """Name, size and hash; small files have no hash of their own there."""
    sha256 = sibling.lfs.sha256 if sibling.lfs else ""
    return {"name": sibling.rfilename, "bytes": sibling.size or 0, "sha256": sha256}


def main(arguments: list[str]) -> None:
    """Plan, then download. `arguments` as above."""
    from huggingface_hub import HfApi, hf_hub_download

    repo, revision, folder, *wanted = arguments
    if not wanted:
        found = HfApi().model_info(repo, revision=revision or None, files_metadata=True)
        siblings = {sibling.rfilename: sibling for sibling in found.siblings or []}
        wanted = choose(siblings)
        revision = found.sha or revision
        plan: dict[str, Any] = {
            "revision": revision,
            "license": str(getattr(found.card_data, "license", None) or ""),
            "files": [_file(siblings[name]) for name in wanted],
        }
        draft = Path(folder, "plan.partial")
        draft.write_text(json.dumps(plan), "utf-8")
        draft.replace(Path(folder, "plan.json"))
    for name in wanted:
        hf_hub_download(repo, name, revision=revision or None, local_dir=Path(folder, "files"))


if __name__ == "__main__":
    main(sys.argv[1:])
