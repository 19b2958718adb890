"""Settings of the whole test run."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # toys are too small for a second thread, and the machine may be busy
os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run where there is no GPU

collect_ignore = ["fixtures"]  # what others would write; `core/test_conformance.py` runs their test on a toy
