"""Writes the safetensors files that tests/checkpoint/safetensors_test.cpp reads: python make_safetensors.py

They are those of safetensors 0.8.0, the reference implementation; the test states every value again on its own.
"""
import pathlib

import torch
from safetensors.torch import save_file

here = pathlib.Path(__file__).parent / "safetensors"
here.mkdir(exist_ok=True)

DTYPES = """bool uint8 int8 float8_e5m2 float8_e4m3fn float8_e8m0fnu float8_e4m3fnuz float8_e5m2fnuz int16 uint16 float16
            bfloat16 int32 uint32 float32 complex64 float64 int64 uint64""".split()


def ramp(dtype, *shape):
    """A tensor whose bytes are 0, 1, 2, ...; of bool 0, 1, 0, 1, ..."""
    dtype = getattr(torch, dtype)
    count = torch.Size(shape).numel()
    data = torch.arange(count * dtype.itemsize, dtype=torch.uint8)
    return (data % 2).bool().reshape(shape) if dtype == torch.bool else data.view(dtype).reshape(shape)


save_file({name: ramp(name, 2, 3) for name in DTYPES}, here / "dtypes.safetensors")
save_file(
    {
        "scalar": ramp("float32"),
        "empty": ramp("float32", 0),
        "empty_matrix": ramp("int64", 3, 0),
        'quote " backslash \\ slash / line \n tab \t bell \x07 delete \x7f': ramp("uint8", 1),
        "\u00fcber.\u6f22.\U0001f600": ramp("uint8", 2),
        "": ramp("uint8", 3),
        "b": ramp("float32", 5),
        "B": ramp("float32", 4),
        "a.weight": ramp("bfloat16", 3, 1, 2),
    },
    here / "names.safetensors",
    metadata={"for\u00eat": 'pt "\n'},
)
save_file({}, here / "empty.safetensors")
