"""What a file is that should hold weights and does not. Loads no torch."""

from __future__ import annotations


def disguise(head: bytes) -> str:
    """What the first bytes of a file show it to be, as errors say it; empty where they show nothing of the kind."""
    start = head[:64].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "a web page that was saved under this name"
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the file that it points to"
    return ""
