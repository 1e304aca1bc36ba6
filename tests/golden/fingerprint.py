"""What decides the bits of a CPU computation: LibTorch and its math libraries, the instruction sets they choose, the
processor (MKL and oneDNN choose kernels and block sizes by model and cache) and the threads. tests/support/fingerprint.h
is the same in C++."""

import os
import re
import subprocess
import sys

import torch

CPUINFO = ("vendor_id", "cpu family", "model", "stepping", "cache size")
FLAGS = ("avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16",
         "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16")
# Each makes one of the libraries choose other kernels.
VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "MKL_ENABLE_INSTRUCTIONS",
             "MKL_CBWR", "MKL_DEBUG_CPU_TYPE")


def onednn_isa():
    """oneDNN tells its choice only in its log, which it writes when ONEDNN_VERBOSE was set at its start."""
    program = "import torch; torch.conv2d(torch.zeros(16, 3, 32, 32), torch.zeros(8, 3, 5, 5))"
    child = subprocess.run([sys.executable, "-c", program], env={**os.environ, "ONEDNN_VERBOSE": "1"},
                           stdout=subprocess.PIPE, check=True, encoding="utf-8")
    found = re.search(r"cpu,isa:(.*)", child.stdout)
    return found[1] if found else "unknown"


def fingerprint():
    config = torch.__config__.show()
    versions = re.findall(r"^  - (Intel\(R\) .*|GCC .*)$", config, re.MULTILINE)
    info = {}
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            info.setdefault(key.strip(), value.strip())
    present = info.get("flags", "").split()
    return {
        "libtorch": torch.__version__.split("+")[0],
        "libraries": versions,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "onednn_isa": onednn_isa(),
        "cpu": [f"{key}: {info.get(key, '')}" for key in CPUINFO],
        "cpu_flags": [flag for flag in FLAGS if flag in present],
        "environment": [f"{name}={os.environ[name]}" for name in VARIABLES if os.environ.get(name)],
        "threads": torch.get_num_threads(),
    }
