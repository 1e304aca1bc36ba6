#!/usr/bin/env python3
"""The training step of bench/sides/step.cpp in Python PyTorch: same models call for call, weights, data, layout, clipping.

Autocast, GradScaler in fp16, clip_grad_norm_ to 1, AdamW(fused=True). side=pytorch-compile runs the model through
torch.compile.

    python step.py side=pytorch model=mlp precision=bf16 start=FILE threads=2       FILE is written by bench_side
"""

import pathlib
import sys

import torch
from torch import nn

import serve

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"))
from python_models import Cnn, Mlp  # noqa: E402
from twin_models import TwinGpt, TwinResNet18  # noqa: E402

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
NUM_BATCHES = 4
MODELS = {
    "mlp": lambda: Mlp(1024, [4096, 4096], 10),
    "cnn": lambda: Cnn(1, 10),
    "resnet18": lambda: TwinResNet18(1000),
    "gpt": lambda: TwinGpt(8192, 256, 512, 6, 8),
}


class Step:
    def __init__(self, settings):
        self.dtype = DTYPES[settings["precision"]]
        start = torch.load(settings["start"], weights_only=True)
        self.model = MODELS[settings["model"]]()
        self.model.load_state_dict(start["model"])
        images = settings["model"] in ("cnn", "resnet18")
        layout = torch.channels_last if images else torch.contiguous_format
        if images:
            self.model.to(memory_format=layout)
        self.batches = [(start[f"input{i}"].clone(memory_format=layout), start[f"target{i}"].clone())
                        for i in range(NUM_BATCHES)]
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, 1e-3, fused=True)
        self.scaler = torch.amp.GradScaler("cpu", enabled=self.dtype == torch.float16)
        self.forward = torch.compile(self.model) if settings["side"] == "pytorch-compile" else self.model
        self.losses = []

    def step(self, x, target):
        with torch.autocast("cpu", self.dtype, enabled=self.dtype is not None):
            loss = nn.functional.cross_entropy(self.forward(x).flatten(0, -2), target.flatten())
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()

    def run(self):
        batch = self.batches[len(self.losses) % NUM_BATCHES]
        with serve.Clock() as clock:
            loss = self.step(*batch)
        self.losses.append(loss.item())
        return clock.ms

    def result(self):
        return {"losses": torch.tensor(self.losses, dtype=torch.double), "model": dict(self.model.state_dict())}


if __name__ == "__main__":
    serve.main(Step)
