#!/usr/bin/env python3
"""Writes low_precision_<version>.json: 200 training steps in bf16 and in fp16, which tests/parity/training_test.cpp repeats.

  python make_low_precision_golden.py FOLDER       a minute or two

bf16 runs without, fp16 with a GradScaler whose first scale is too large, so that steps are skipped. Weights and data come
from recipe.py; one thread; optimizers with foreach=False. The bits hold on the machine of the fingerprint.
"""

import json
import os
import pathlib
import sys

import torch
from torch import nn

from fingerprint import fingerprint
from python_models import Cnn, Mlp
from recipe import fill_parameters, fnv1a, integers, uniform
from twin_models import TwinGpt, TwinResNet18

STEPS = 200
CLASSES = 10
SCALER = {"init_scale": 2.0**24, "growth_interval": 40}
VOCABULARY, CONTEXT = 64, 16
MODELS = {
    "mlp": {"make": lambda: Mlp(64, [128, 128], CLASSES), "shape": [64], "batch": 16},
    "cnn": {"make": lambda: Cnn(1, CLASSES), "shape": [1, 16, 16], "batch": 8},
    "resnet18": {"make": lambda: TwinResNet18(CLASSES), "shape": [3, 33, 33], "batch": 1},
    "gpt": {"make": lambda: TwinGpt(VOCABULARY, CONTEXT, 32, 2, 4), "batch": 8},
}
RUNS = [("mlp", "sgd", 0.02), ("mlp", "adamw", 0.001), ("cnn", "sgd", 0.002), ("resnet18", "sgd", 0.0005),
        ("gpt", "sgd", 0.02), ("gpt", "adamw", 0.002)]


def data(name):
    """All batches. Images: a fixed pattern for each class under noise of the same size. Text: tokens that go up by the
    same step modulo the vocabulary, and the token that follows each."""
    count = STEPS * MODELS[name]["batch"]
    if name == "gpt":
        start, step = integers(10, count) % VOCABULARY, integers(11, count) % 4 + 1
        tokens = (start[:, None] + step[:, None] * torch.arange(CONTEXT + 1)) % VOCABULARY
        return tokens[:, :-1], tokens[:, 1:]
    shape = MODELS[name]["shape"]
    target = integers(10, count) % CLASSES
    return uniform(11, [CLASSES, *shape])[target] / 2 + uniform(12, [count, *shape]), target


def train(name, optimizer_name, learning_rate, precision):
    model, batch = MODELS[name]["make"](), MODELS[name]["batch"]
    fill_parameters(model)
    inputs, target = data(name)
    if optimizer_name == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, foreach=False)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01, foreach=False)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "float16", **SCALER)
    losses, skipped = [], []
    for step in range(STEPS):
        rows = slice(step * batch, (step + 1) * batch)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=getattr(torch, precision)):
            logits = model(inputs[rows].clone())
            loss = nn.functional.cross_entropy(logits.flatten(0, -2), target[rows].flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() < before:
            skipped.append(step)
        losses.append(loss.item())
    return {"model": name, "optimizer": optimizer_name, "learning_rate": learning_rate, "precision": precision,
            "losses": [loss.hex() for loss in losses], "skipped": skipped, "scale": scaler.get_scale(),
            "final_weights": fnv1a([*model.parameters(), *model.buffers()])}


def main():
    torch.set_num_threads(1)
    out = {"generator": "tests/golden/make_low_precision_golden.py", "fingerprint": fingerprint(), "scaler": SCALER,
           "runs": [train(*run, precision) for run in RUNS for precision in ("bfloat16", "float16")]}
    path = pathlib.Path(sys.argv[1]) / f"low_precision_{out['fingerprint']['libtorch']}.json"
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(out, separators=(",", ":")).replace('{"model"', '\n{"model"') + "\n", encoding="ascii")
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
