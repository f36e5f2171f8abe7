#!/usr/bin/env python3
"""Predicted against reported cache hits on a real SGLang 0.5.23, on a CPU.

    python3 e2e/real_kv_sglang.py MODEL_DIR [NAME...]

MODEL_DIR holds a model small enough for a CPU (random weights will do) with tokenizer and chat template.
`TANDEM_SGLANG_PYTHON` names an interpreter that has SGLang; else it is downloaded at the first run.
"""
import os
import pathlib
import subprocess
import sys

from lib import CACHE, install, python_env
from real_kv import main

# Parts that need a GPU or sources, and that a CPU never calls.
ABSENT = ["flash-attn-4", "flashinfer_python", "humming-kernels", "nvidia-cutlass-dsl", "nvidia-mathdx",
          "nvshmem4py-cu13", "quack-kernels", "sgl-deep-ep", "sgl-deep-gemm", "sgl-flash-mla", "tilelang",
          "sglang-kernel", "cuda-python", "torchcodec", "torchaudio", "decord2"]


def sglang_python():
    if os.environ.get("TANDEM_SGLANG_PYTHON"):
        return pathlib.Path(os.environ["TANDEM_SGLANG_PYTHON"])
    uv = python_env("uv", ["uv"]).with_name("uv")
    venv = CACHE / "sglang"

    def work():
        overrides = CACHE / "sglang.override"
        overrides.write_text("\n".join(f"{name}; sys_platform == 'never'" for name in ABSENT))
        subprocess.run([str(uv), "venv", "-q", str(venv)], check=True)
        subprocess.run([str(uv), "pip", "install", "-q", "--python", str(venv / "bin" / "python"), "--override",
                        str(overrides), "sglang==0.5.23"], check=True)

    install("sglang", "0.5.23", work)
    return venv / "bin" / "python"


if __name__ == "__main__":
    sys.exit(main("sglang", sglang_python, __doc__))
