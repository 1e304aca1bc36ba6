"""Writes ema.json: averages that torch.optim.swa_utils.AveragedModel keeps with get_ema_multi_avg_fn.

Run with Python PyTorch: python make_ema_golden.py. tests/optim/ema_test.cpp compares.
"""

import json
import pathlib

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Inner(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, 3, dtype=dtype))
        self.register_buffer("mean", torch.zeros(4, dtype=dtype))


class Model(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(5, dtype=dtype))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.inner = Inner(dtype)


def numbers(state):
    return {name: tensor.reshape(-1).tolist() for name, tensor in state.items()}


def fill(model, generator):
    with torch.no_grad():
        for tensor in (model.weight, model.inner.weight, model.inner.mean):
            tensor.copy_(torch.randn(tensor.shape, dtype=torch.float64, generator=generator))


def case(dtype, decay, use_buffers, generator):
    model = Model(dtype)
    fill(model, generator)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=use_buffers)
    begin = numbers(model.state_dict())
    steps = []
    for _ in range(4):
        fill(model, generator)
        averaged.update_parameters(model)
        steps.append({"model": numbers(model.state_dict()), "averaged": numbers(averaged.state_dict())})
    return {"dtype": str(dtype).removeprefix("torch."), "decay": decay, "use_buffers": use_buffers,
            "begin": begin, "steps": steps}


def main():
    generator = torch.Generator().manual_seed(11)
    cases = [case(dtype, decay, use_buffers, generator)
             for dtype in (torch.float32, torch.float64)
             for decay in (0.999, 0.3, 1.0)
             for use_buffers in (False, True)]
    path = pathlib.Path(__file__).with_name("ema.json")
    path.write_text(json.dumps({"torch": torch.__version__, "cases": cases}, separators=(",", ":")) + "\n")


main()
