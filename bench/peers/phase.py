#!/usr/bin/env python3
"""What follows backward(), as bench/sides/phase.cpp does it, in Python PyTorch: GradScaler's unscale_, clip_grad_norm_ to 1,
AdamW(fused=True) through GradScaler's step, update; on weights and gradients that are given.

    python phase.py side=pytorch size=160 start=FILE threads=2       FILE is written by bench_side
"""

import torch
from torch import nn

import serve

SHAPES = {"8": (8, 1250), "160": (160, 250), "1000x64": (1000, 8)}  # tensors, rows of each
NUM_GRADIENTS = 2


class Phase:
    def __init__(self, settings):
        count, rows = SHAPES[settings["size"]]
        start = torch.load(settings["start"], weights_only=True)

        def parts(name):
            return [start[name][i * rows:(i + 1) * rows].clone() for i in range(count)]

        self.parameters = [nn.Parameter(part) for part in parts("weights")]
        self.given = [parts(f"gradients{i}") for i in range(NUM_GRADIENTS)]
        self.gradients = [torch.empty_like(parameter) for parameter in self.parameters]
        self.optimizer = torch.optim.AdamW(self.parameters, 1e-3, fused=True)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
        self.runs = 0

    def run(self):
        with torch.no_grad():  # the same copies on every side, into the same memory every time
            for parameter, gradient, given in zip(self.parameters, self.gradients,
                                                  self.given[self.runs % NUM_GRADIENTS]):
                parameter.grad = gradient.copy_(given)
        self.runs += 1
        self.scaler.scale(torch.ones(()))
        with serve.Clock() as clock:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return clock.ms

    def result(self):
        return {"weights": torch.cat([parameter.detach() for parameter in self.parameters])}


if __name__ == "__main__":
    serve.main(Phase)
