#!/usr/bin/env python3
"""Writes the TorchScript modules of tests/amp/script_module_test.cpp and, beside them, what the same modules give in
Python without TorchScript: output, gradients, and the weights after three steps of SGD with GradScaler.

usage: make_script_golden.py [FOLDER]      (run with PyTorch 2.11.0, the oldest supported, whose files 2.15 reads too)
"""
import contextlib
import copy
import io
import json
import pathlib
import sys
import warnings
import zipfile

import torch

FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
warnings.filterwarnings("ignore")


class ConvNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.bn = torch.nn.BatchNorm2d(4)
        self.up = torch.nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.fc = torch.nn.Linear(2 * 16, 3)

    def forward(self, x):
        return self.fc(torch.relu(self.up(torch.relu(self.bn(self.conv(x))))).flatten(1))


class Control(torch.nn.Module):
    """A loop, a branch on a value and a shared weight."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)
        self.b = torch.nn.Linear(4, 2)

    def forward(self, x, rounds: int = 3):
        for i in range(rounds):
            if i % 2 == 0:
                x = torch.relu(self.a(x))
            else:
                x = self.a(x) + x
        if float(x.sum()) > 0:
            x = x * 2
        return self.b(x)


class OwnRegion(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.a(x)


def region(name):
    if name == "float32":
        return contextlib.nullcontext()
    return torch.autocast("cpu", getattr(torch, name))


def values(tensor):
    return [float(f"{value:.9g}") for value in tensor.detach().double().flatten().tolist()]


def run(module, x, name):
    module = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, foreach=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=name == "float16")
    result = {}
    for step in range(3):
        optimizer.zero_grad()
        with region(name):
            output = module(x)
        loss = output.float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if step == 0:
            result["dtype"] = str(output.dtype).removeprefix("torch.")
            result["output"] = values(output)
            result["grads"] = {key: values(p.grad) for key, p in module.named_parameters()}
            result["grad_dtypes"] = {key: str(p.grad.dtype).removeprefix("torch.") for key, p in module.named_parameters()}
        scaler.step(optimizer)
        scaler.update()
    result["weights"] = {key: values(p) for key, p in module.named_parameters()}
    return result


def save(script, path):
    """Writes the module without the records that name source files of this machine."""
    buffer = io.BytesIO()
    torch.jit.save(script, buffer)
    with zipfile.ZipFile(buffer) as full, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as small:
        for name in full.namelist():
            if not name.endswith(".debug_pkl"):
                small.writestr(zipfile.ZipInfo(name), full.read(name))


def main():
    torch.manual_seed(0)
    modules = {"conv_script": (ConvNet(), torch.randn(4, 1, 4, 4)), "control_script": (Control(), torch.randn(3, 4))}
    modules["conv_trace"] = modules["conv_script"]
    expected = {"torch": torch.__version__.split("+")[0], "modules": {}}
    for name, (module, x) in modules.items():
        saved = copy.deepcopy(module)
        script = torch.jit.script(saved) if name.endswith("script") else torch.jit.trace(saved, x, check_trace=False)
        with torch.no_grad():  # tracing ran the module once: its statistics are put back
            for mine, original in zip(script.buffers(), module.buffers()):
                mine.copy_(original)
        save(script, FOLDER / f"{name}.pt")
        expected["modules"][name] = {"shape": list(x.shape), "input": values(x),
                                     **{dtype: run(module, x, dtype) for dtype in ("float32", "bfloat16", "float16")}}
    save(torch.jit.script(OwnRegion()), FOLDER / "own_region.pt")
    (FOLDER / "expected.json").write_text(json.dumps(expected) + "\n")


main()
