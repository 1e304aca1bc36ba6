#!/usr/bin/env python3
"""Writes models.json: what tests/models/golden_test.cpp expects of models/.

  python make_models_golden.py models.json      needs torch and the torchvision of the same release

Per model: names and shapes in order; with weights from recipe.py, in float64, the logits in evaluation and in training
mode, the buffers after that, and the absolute sum of every gradient. For ResNet-18 also the first values of every
parameter of torchvision's own initialisation after torch.manual_seed(0).
"""

import json
import sys

import torch
import torchvision

from python_models import Cnn, Gpt, Mlp
from recipe import fill_buffers, fill_parameters, integers, uniform


def describe(model, inputs):
    entry = {
        "parameters": [[name, list(p.shape)] for name, p in model.named_parameters()],
        "buffers": [[name, list(b.shape)] for name, b in model.named_buffers()],
        "input_shape": list(inputs.shape),
    }
    fill_parameters(model)
    fill_buffers(model)
    model.double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    model.eval()
    with torch.no_grad():
        entry["logits_eval"] = [v.hex() for v in model(inputs).flatten().tolist()]
    model.train()
    logits = model(inputs)
    (logits * uniform(2, logits.shape).double()).sum().backward()
    entry["logits_train"] = [v.hex() for v in logits.flatten().tolist()]
    entry["gradient_abs_sum"] = [p.grad.abs().sum().item().hex() for p in model.parameters()]
    entry["buffer_sum"] = [b.double().sum().item().hex() for b in model.buffers()]
    return entry


def main():
    golden = {"generator": "tests/golden/make_models_golden.py", "torch": torch.__version__,
              "torchvision": torchvision.__version__}
    golden["mlp"] = describe(Mlp(12, [16, 16], 10), uniform(1, (4, 3, 2, 2)))
    golden["cnn"] = describe(Cnn(3, 10), uniform(1, (4, 3, 32, 28)))
    golden["resnet18"] = describe(torchvision.models.resnet18(num_classes=10), uniform(1, (4, 3, 40, 36)))
    golden["gpt"] = describe(Gpt(64, 16, 32, 2, 4), (integers(1, 3 * 12) % 64).reshape(3, 12))

    torch.manual_seed(0)
    fresh = torchvision.models.resnet18()
    golden["resnet18_1000"] = {
        "parameters": [[name, list(p.shape)] for name, p in fresh.named_parameters()],
        "buffers": [[name, list(b.shape)] for name, b in fresh.named_buffers()],
        "seed_0": [[v.hex() for v in p.flatten()[:4].tolist()] for p in fresh.parameters()],
    }
    with open(sys.argv[1], "w", encoding="ascii") as file:
        json.dump(golden, file, indent=None, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
