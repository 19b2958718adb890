"""Child process: one wheel of a package index over the hub's own client, for environments without pip.

    python -m outrider.core.library.wheelget PACKAGE VERSION FOLDER

The index is that of PIP_INDEX_URL or UV_DEFAULT_INDEX, else PyPI. What fails is said as pip says it, `ERROR: …`, on stderr. What
the wheel holds is checked by whoever unpacks it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from .hubget import _end_with_parent

_INDEX = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"
_TIMEOUT = 30.0  # seconds without an answer or a byte


class _NoWheelError(Exception):
    pass


def command(package: str, version: str, folder: Path) -> list[str]:
    """The command that puts the wheel into a folder."""
    return [sys.executable, "-m", "outrider.core.library.wheelget", package, version, str(folder)]


def fetch(package: str, version: str, folder: Path) -> Path:
    """The wheel of that version for any system, in a folder. Raises _NoWheelError, the client's errors, OSError."""
    from huggingface_hub import get_session

    session = get_session()
    index = os.environ.get("PIP_INDEX_URL") or os.environ.get("UV_DEFAULT_INDEX") or _INDEX
    page = f"{index.rstrip('/')}/{package}/"
    answer = session.get(page, headers={"Accept": _JSON}, timeout=_TIMEOUT, follow_redirects=True)
    if answer.status_code != 200:
        raise _NoWheelError(f"{package}: the index answers {answer.status_code}")
    file = _pick(answer.json()["files"], package, version)
    path, digest = folder / Path(file["filename"]).name, hashlib.sha256()
    url = urljoin(str(answer.url), file["url"])
    with (
        session.stream("GET", url, timeout=_TIMEOUT, follow_redirects=True) as response,
        path.with_suffix(".part").open("wb") as out,
    ):
        if response.status_code != 200:
            raise _NoWheelError(f"{path.name}: the index answers {response.status_code}")
        for chunk in response.iter_bytes():
            digest.update(chunk)
            out.write(chunk)
    if file.get("hashes", {}).get("sha256", digest.hexdigest()) != digest.hexdigest():
        raise _NoWheelError(f"{path.name} is not what the index says it is")
    return path.with_suffix(".part").rename(path)


def _pick(files: list[dict[str, Any]], package: str, version: str) -> dict[str, Any]:
    start = f"{package.replace('-', '_')}-{version}-"
    for file in files:
        if file["filename"].startswith(start) and file["filename"].endswith("-none-any.whl"):
            return file
    raise _NoWheelError(f"there is no wheel of {package} {version}")


def main(arguments: list[str]) -> int:
    """The exit status."""
    _end_with_parent()
    package, version, folder = arguments
    try:
        fetch(package, version, Path(folder))
    except Exception as error:  # noqa: BLE001 - whatever the client raises is the reason
        kind = "" if isinstance(error, _NoWheelError | OSError) else "ConnectionError: "
        sys.stderr.write(f"ERROR: {kind}{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
