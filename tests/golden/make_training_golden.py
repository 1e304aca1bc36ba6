#!/usr/bin/env python3
"""Writes the losses of 200 training steps in Python PyTorch, which tests/models/training_test.cpp repeats in C++.

  python make_training_golden.py training_2.15.0.json          everything; a minute
  python make_training_golden.py --losses-only FILE            only what another process on this machine compares bits with

Models: MLP 64-128-128-10 and the CNN on 1x16x16, batch 16, cross entropy, SGD with momentum 0.9 (foreach=False), one
thread; in fp32 and in bf16 autocast. Weights and data come from recipe.py.

On the machine of the fingerprint the C++ losses are equal, bit for bit. Elsewhere sums run in another order, so the
losses wander off, as far as rounding errors of that size carry through the training. How far that is, is measured here:
  reference[t]  the same training in float64, where rounding does not count
  wander[t]     the largest |loss - reference| up to step t, over this training and 8 whose hidden units, channels, input
                features and examples within each batch are permuted, which is equal in exact arithmetic but sums in
                another order, and whose initial weights are off by up to 4 ulps of float32, which makes it likelier
                than any order of summation that a ReLU or a maximum falls the other way
  bound[t] = 4 wander[t] + 2^-22 |reference[t]|
The largest of 9 draws estimates the spread itself from below (about 1.5 to 1.8 standard deviations for a normal
one), hence the 4; the last term is 2 ulps of float32 at a step where all nine agree.
"""

import argparse
import json
import os

import torch
from torch import nn

from fingerprint import fingerprint
from python_models import Cnn, Mlp
from recipe import fill_parameters, fnv1a, integers, uniform

STEPS = 200
BATCH = 16
CLASSES = 10
PERMUTED_RUNS = 8
SIDE = 16  # of the CNN's images
MODELS = {
    "mlp": {"make": lambda: Mlp(64, [128, 128], CLASSES), "shape": [64], "lr": 0.02},
    "cnn": {"make": lambda: Cnn(1, CLASSES), "shape": [1, SIDE, SIDE], "lr": 0.002},
}


def data(shape):
    """All batches: a fixed pattern for each class under noise of the same size."""
    count = STEPS * BATCH
    target = integers(10, count) % CLASSES
    pattern = uniform(11, [CLASSES, *shape])
    return pattern[target] / 2 + uniform(12, [count, *shape]), target


def permute(name, model, inputs, target, seed):
    """The same training in exact arithmetic, in another order of summation."""
    generator = torch.Generator().manual_seed(seed)

    def shuffle(n):
        return torch.randperm(n, generator=generator)

    state = model.state_dict()
    if name == "mlp":
        features = shuffle(inputs.size(1))
        inputs = inputs[:, features]
        state["fc1.weight"] = state["fc1.weight"][:, features]
        for layer, following in (("fc1", "fc2"), ("fc2", "fc3")):
            order = shuffle(state[f"{layer}.bias"].numel())
            state[f"{layer}.weight"] = state[f"{layer}.weight"][order]
            state[f"{layer}.bias"] = state[f"{layer}.bias"][order]
            state[f"{following}.weight"] = state[f"{following}.weight"][:, order]
    else:
        inputs = inputs.transpose(2, 3)  # rows become columns, in images and kernels
        for i in (1, 2, 3):
            order = shuffle(state[f"bn{i}.weight"].numel())
            state[f"conv{i}.weight"] = state[f"conv{i}.weight"][order].transpose(2, 3)
            for part in ("weight", "bias"):
                state[f"bn{i}.{part}"] = state[f"bn{i}.{part}"][order]
            if i < 3:
                state[f"conv{i + 1}.weight"] = state[f"conv{i + 1}.weight"][:, order]
        fc = state["fc.weight"].view(CLASSES, 48, 3, 3)[:, order].transpose(2, 3)
        state["fc.weight"] = fc.reshape(CLASSES, -1)
    model.load_state_dict(state)
    order = torch.cat([step * BATCH + shuffle(BATCH) for step in range(STEPS)])
    return inputs[order].contiguous(), target[order]


def train(name, precision, seed=None):
    settings = MODELS[name]
    model = settings["make"]()
    fill_parameters(model)
    inputs, target = data(settings["shape"])
    if seed is not None:
        inputs, target = permute(name, model, inputs, target, seed)
    if precision == "fp64":
        model.double()
        inputs = inputs.double()
    elif seed is not None:
        with torch.no_grad():
            for i, parameter in enumerate(model.parameters()):
                parameter.mul_(1 + uniform(100 * (seed + 1) + i, parameter.shape) * 2**-21)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"], momentum=0.9, foreach=False)
    losses = []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = nn.functional.cross_entropy(model(inputs[rows].clone()), target[rows].clone())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, fnv1a([*model.parameters(), *model.buffers()])


def hexadecimal(values):
    return [value.hex() for value in values]


def trajectory(name, precision, reference):
    losses, weights = train(name, precision)
    entry = {"losses": hexadecimal(losses), "final_weights": weights}
    if reference:
        wander, bound = 0.0, []
        runs = [losses] + [train(name, precision, seed)[0] for seed in range(PERMUTED_RUNS)]
        for step in range(STEPS):
            wander = max([wander] + [abs(run[step] - reference[step]) for run in runs])
            bound.append(float(f"{4 * wander + 2**-22 * abs(reference[step]):.3g}"))
        entry["bound"] = bound
    return entry


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--losses-only", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    golden = {"generator": "tests/golden/make_training_golden.py", "fingerprint": fingerprint(), "models": {}}
    for name, settings in MODELS.items():
        reference = None if arguments.losses_only else train(name, "fp64")[0]
        entry = {"learning_rate": settings["lr"]}
        if reference:
            again = train(name, "fp64", seed=0)[0]  # proves that permuting changes nothing but rounding
            assert max(abs(a - b) for a, b in zip(reference, again)) < 1e-9
            entry["reference"] = hexadecimal(reference)
        for precision in ("fp32", "bf16"):
            entry[precision] = trajectory(name, precision, reference)
        golden["models"][name] = entry
    temporary = arguments.file + ".part"
    with open(temporary, "w", encoding="ascii") as file:
        json.dump(golden, file, indent=None, separators=(",", ":"))
        file.write("\n")
    os.replace(temporary, arguments.file)


if __name__ == "__main__":
    main()
