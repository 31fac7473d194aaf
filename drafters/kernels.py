"""`product.cpp`, compiled once for this machine and kept in the user's cache, or null where no compiler makes it.

The file's name holds a hash of source, compiler and processor, so a home directory shared by unlike machines keeps one each.
OpenMP's threads are torch's own: torch has loaded the runtime of that name by the time this library asks for it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from drafters.embedded import cache_root

SOURCE = Path(__file__).with_name("product.cpp")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
COMPILE_LIMIT_S = 120

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProductLibrary:
    """The compiled product, and how many outputs a block of its weights holds."""

    columns: int
    _product: ctypes._NamedFuncPointer

    def __call__(self, packed: Tensor, x_NI: Tensor, y_NO: Tensor, threads: int) -> None:
        """Write `x W^T` into `y`; all float32 and contiguous, `packed` shaped [blocks, I, columns]."""
        rows, inputs = x_NI.shape
        self._product(packed.data_ptr(), x_NI.data_ptr(), y_NO.data_ptr(), rows, inputs, y_NO.shape[1], threads)


@functools.cache
def product_library() -> ProductLibrary | None:
    """Compiled on the first call of a machine (seconds), loaded afterwards. Null, with a line in the log, where that fails."""
    if (compiler := _compiler()) is None:
        log.warning("no C++ compiler (c++, g++ or clang++): products of few rows run in torch, which takes longer")
        return None
    try:
        library = ctypes.CDLL(str(_compiled(compiler)))
    except (OSError, subprocess.SubprocessError) as problem:
        told = getattr(problem, "stderr", None) or str(problem)
        log.warning("%s does not make %s: %s; products of few rows run in torch", compiler, SOURCE.name, told.strip()[-300:])
        return None
    library.product.argtypes = [*[ctypes.c_void_p] * 3, *[ctypes.c_long] * 3, ctypes.c_int]
    library.product.restype = None
    return ProductLibrary(library.columns(), library.product)


def _compiler() -> str | None:
    asked = os.environ.get("CXX")
    return shutil.which(asked) if asked else next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def _compiled(compiler: str) -> Path:
    """The library's path. Two processes may compile at once: each into its own file, moved into place whole."""
    version = subprocess.run((compiler, "--version"), capture_output=True, text=True, check=True).stdout
    parts = (SOURCE.read_text(encoding="utf-8"), *FLAGS, version, _processor())
    path = cache_root() / f"product-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".product-", dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = (compiler, *FLAGS, str(SOURCE), "-o", str(made))
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=COMPILE_LIMIT_S)
            made.rename(path)
    return path


def _processor() -> str:
    """What `-march=native` looks at: the model and its instruction sets, as Linux tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
