#!/usr/bin/env python3
"""Predicted against reported cache hits on a real vLLM 0.32, on a CPU.

    python3 e2e/real_kv_vllm.py MODEL_DIR [NAME...]

MODEL_DIR holds a model small enough for a CPU (random weights will do) with tokenizer and chat template.
`TANDEM_VLLM_PYTHON` names an interpreter that has vLLM; else it is downloaded at the first run.
"""
import sys

from real_kv import main
from real_vllm import vllm_python

if __name__ == "__main__":
    sys.exit(main("vllm", vllm_python, __doc__))
