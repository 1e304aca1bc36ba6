"""Writes clip_grad_norm.json: what torch.nn.utils.clip_grad_norm_ gives, foreach and not.

Run with Python PyTorch: python make_clip_golden.py. tests/optim/clip_grad_norm_test.cpp compares.
"""

import json
import pathlib
import random

import torch


def number(value):
    return value if abs(value) < float("inf") else str(value)  # JSON knows no inf and nan


def numbers(tensor):
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return [number(v) for v in tensor.reshape(-1).tolist()]


def case(rng, dtype, norm_type, max_norm):
    grads = []
    for shape in ((5,), (3, 7), (), (0, 2), (40,)):
        if norm_type == float("inf") and 0 in shape:
            continue  # an error in Python: the maximum of nothing
        parts = shape + (2,) if dtype.is_complex else shape
        count = torch.Size(parts).numel()
        base = torch.float64 if dtype == torch.float64 else torch.float32
        values = torch.tensor([rng.randint(-999, 999) / 8 for _ in range(count)], dtype=base).reshape(parts)
        grads.append(torch.view_as_complex(values) if dtype.is_complex else values.to(dtype))
    results = {}
    for foreach in (False, True):
        parameters = [torch.zeros_like(g, requires_grad=True) for g in grads]
        for p, g in zip(parameters, grads):
            p.grad = g.clone()
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, foreach=foreach)
        results[foreach] = (number(norm.item()), [numbers(p.grad) for p in parameters])
    assert results[False] == results[True], (dtype, norm_type)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "norm_type": number(norm_type),
        "max_norm": max_norm,
        "shapes": [list(g.shape) for g in grads],
        "gradients": [numbers(g) for g in grads],
        "norm": results[False][0],
        "clipped": results[False][1],
    }


def main():
    rng = random.Random(3)
    cases = []
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex64):
        for norm_type in (2.0, 1.0, float("inf"), 3.0, 0.5):
            for max_norm in (1.0, 1e9):
                cases.append(case(rng, dtype, norm_type, max_norm))
    out = {
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cases": cases,
    }
    path = pathlib.Path(__file__).with_name("clip_grad_norm.json")
    path.write_text(json.dumps(out, separators=(",", ":")) + "\n")


main()
