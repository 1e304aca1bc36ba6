#!/usr/bin/env python3
"""Writes scaler_programs.json: random programs of GradScaler calls, and what torch.amp.GradScaler(device="cpu") answers.

  python make_scaler_golden.py FOLDER       tests/parity/scaler_program_test.cpp runs the same programs

40 programs of 60 calls, on one to three SGD optimizers whose parameters have several dtypes and shapes. A call is a list:
  ["grads", o, "gi-"]        one letter for each parameter of optimizer o: a good gradient, i with inf, j with -inf, n with
                             nan, - none; numbers as _gradient() makes them
  ["scale", dtype]           a loss; the answer is the result's dtype and bits
  ["unscale", o] ["step", o] ["update"] ["update_to", value] ["update_to_tensor", value]
  ["growth_factor", value] ["backoff_factor", value] ["growth_interval", value] ["save"] ["load"]
An answer is an object of what the call changed: "state" (scale, growth factor, backoff factor, growth interval, growth
tracker), "bits" (of all parameters and gradients), "scaled"; "error" is true for a call that Python refuses.
Calls where TorchAmp differs on purpose (docs/differences.md) do not occur: no gradient changes between unscale_ and step,
no interval at or below the running count, no scale near 0, no optimizer without any gradient.
"""

import json
import os
import pathlib
import random
import sys

import torch

from recipe import fnv1a, uniform

PROGRAMS = 40
CALLS = 60
BAD = {"i": float("inf"), "j": -float("inf"), "n": float("nan")}
PARAMETERS = [("float32", [3]), ("float32", []), ("float64", [2, 5]), ("bfloat16", [7]), ("float32", [4, 10])]


def _gradient(letter, parameter, stream):
    gradient = uniform(stream, parameter.shape) * 1024
    if letter in BAD:
        gradient.view(-1)[stream % gradient.numel()] = BAD[letter]
    return gradient.to(parameter.dtype)


class Program:
    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.seed = seed
        self.options = {
            "init_scale": rng.choice([16.0, 1024.0, 1000.0, 65536.0, 12345.678]),
            "growth_factor": rng.choice([2.0, 1.5, 3.0]),
            "backoff_factor": rng.choice([0.5, 0.25, 0.9]),
            "growth_interval": rng.choice([1, 2, 3, 5]),
        }
        self.optimizers = []
        for index in range(rng.choice([1, 2, 2, 3])):
            kinds = [rng.choice(PARAMETERS) for _ in range(rng.choice([1, 2, 4]))]
            # C++ multiplies a bf16 buffer by the momentum through mul_.Scalar, Python through mul_.Tensor, which rounds
            # otherwise (58.75 * 0.9 is 52.75 and 53); nothing of the scaler's.
            momentum = 0.0 if any(dtype == "bfloat16" for dtype, _ in kinds) else rng.choice([0.0, 0.9])
            self.optimizers.append({"parameters": kinds, "lr": rng.choice([0.5, 0.01]), "momentum": momentum,
                                    "weight_decay": rng.choice([0.0, 0.1])})
        self.scaler = torch.amp.GradScaler(device="cpu", **self.options)
        self.parameters = [[torch.zeros(shape, dtype=getattr(torch, dtype)).requires_grad_()
                            for dtype, shape in entry["parameters"]] for entry in self.optimizers]
        self.sgd = [torch.optim.SGD(owned, lr=entry["lr"], momentum=entry["momentum"],
                                    weight_decay=entry["weight_decay"], foreach=False)
                    for entry, owned in zip(self.optimizers, self.parameters)]
        self.scaler.scale(torch.zeros(()))
        self.saved = self.scaler.state_dict()
        self.stage = ["ready"] * len(self.sgd)

    def state(self):
        return list(self.scaler.state_dict().values())

    def bits(self):
        tensors = [p for owned in self.parameters for p in owned]
        return fnv1a(tensors + [p.grad for p in tensors if p.grad is not None])

    def choose(self):
        rng, o = self.rng, self.rng.randrange(len(self.sgd))
        scale, tracker = self.scaler.get_scale(), self.scaler.state_dict()["_growth_tracker"]
        if not 4 <= scale < 2**100:
            return ["update_to", rng.choice([64.0, 777.25, 65536.0])]
        without = [i for i, owned in enumerate(self.parameters) if all(p.grad is None for p in owned)]
        if without:
            return ["grads", without[0], "".join(rng.choice("ggggginj") for _ in self.parameters[without[0]])]
        what = rng.choices(["grads", "scale", "unscale", "step", "update", "set", "update_to", "save", "load"],
                           [20, 8, 12, 22, 18, 6, 3, 3, 3])[0]
        if what == "grads":
            free = [i for i, stage in enumerate(self.stage) if stage != "unscaled"]
            if not free:
                return ["update"]
            o = rng.choice(free)
            kinds = "".join(rng.choice("gggggggggggggginj-") for _ in self.parameters[o])
            return ["grads", o, kinds if kinds.strip("-") else "g" * len(kinds)]
        if what == "scale":
            return ["scale", rng.choice(["float32", "float64", "bfloat16", "float16", "int64"])]
        if what in ("unscale", "step", "update") and rng.random() < 0.93:  # else perhaps a mistake
            if what == "update":
                return ["update"] if set(self.stage) != {"ready"} else ["step", o]
            legal = [i for i, stage in enumerate(self.stage) if stage == "ready" or what == "step" and stage == "unscaled"]
            return [what, rng.choice(legal)] if legal else ["update"]
        if what in ("unscale", "step"):
            return [what, o]
        if what == "set":
            return rng.choice([["growth_factor", rng.choice([2.0, 1.25])], ["backoff_factor", rng.choice([0.5, 0.75])],
                               ["growth_interval", tracker + rng.choice([1, 2, 4])]])
        if what == "update_to":
            return [rng.choice(["update_to", "update_to_tensor"]), rng.choice([64.0, 777.25, 4096.0])]
        return [what]

    def call(self, number, call):
        what, scaler, answer = call[0], self.scaler, {}
        if what == "grads":
            for i, (letter, parameter) in enumerate(zip(call[2], self.parameters[call[1]])):
                stream = self.seed * 10000 + number * 10 + i
                parameter.grad = None if letter == "-" else _gradient(letter, parameter, stream)
        elif what == "scale":
            loss = (uniform(self.seed * 10000 + number, []) * 8).to(getattr(torch, call[1]))
            scaled = scaler.scale(loss)
            answer["scaled"] = [str(scaled.dtype).removeprefix("torch."), fnv1a([scaled])]
        elif what == "unscale":
            scaler.unscale_(self.sgd[call[1]])
            self.stage[call[1]] = "unscaled"
        elif what == "step":
            scaler.step(self.sgd[call[1]])
            self.stage[call[1]] = "stepped"
        elif what.startswith("update"):
            scaler.update(*(torch.tensor(v) if what == "update_to_tensor" else v for v in call[1:]))
            self.stage = ["ready"] * len(self.sgd)
        elif what == "save":
            self.saved = scaler.state_dict()
        elif what == "load":
            scaler.load_state_dict(self.saved)
        else:
            getattr(scaler, f"set_{what}")(call[1])
        return answer

    def run(self):
        calls, answers, before = [], [], {}
        for number in range(CALLS):
            call = self.choose()
            try:
                answer = self.call(number, call)
            except (RuntimeError, AssertionError):  # called twice, or nothing to update from
                answer = {"error": True}
            for key, value in (("state", self.state()), ("bits", self.bits())):
                if before.get(key) != value:
                    answer[key] = before[key] = value
            calls.append(call)
            answers.append(answer)
        return {"seed": self.seed, "options": self.options, "optimizers": self.optimizers, "calls": calls,
                "answers": answers}


def main():
    torch.set_num_threads(1)
    out = {"generator": "tests/golden/make_scaler_golden.py", "torch": torch.__version__.split("+")[0],
           "programs": [Program(seed).run() for seed in range(PROGRAMS)]}
    path = pathlib.Path(sys.argv[1]) / "scaler_programs.json"
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(out, separators=(",", ":")).replace('{"seed"', '\n{"seed"') + "\n", encoding="ascii")
    os.replace(temporary, path)


main()
