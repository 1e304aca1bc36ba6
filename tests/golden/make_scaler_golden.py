"""Writes scaler_trajectories.json: what torch.amp.GradScaler(device="cpu") does over random iterations.

Run with Python PyTorch: python make_scaler_golden.py. tests/amp/grad_scaler_golden_test.cpp replays it.
Left out is where torch.amp is wrong (an interval below the running count, a scale near 0, a gradient
that changes after unscale_): those have tests of their own.
"""

import json
import pathlib
import random

import numpy
import torch


def number(value):
    return value if numpy.isfinite(value) else str(value)  # JSON knows no inf and nan


def gradient(rng, kind):
    values = numpy.float32([rng.randint(-4000, 4000) / 4 for _ in range(3)])
    if kind != "good":
        values[rng.randrange(3)] = {"inf": numpy.inf, "-inf": -numpy.inf, "nan": numpy.nan}[kind]
    return values


def trajectory(seed):
    rng = random.Random(seed)
    options = {
        "init_scale": rng.choice([16.0, 1024.0, 1000.0, 65536.0, 12345.678]),
        "growth_factor": rng.choice([2.0, 1.5, 3.0]),
        "backoff_factor": rng.choice([0.5, 0.25, 0.9]),
        "growth_interval": rng.choice([1, 2, 3, 5]),
    }
    scaler = torch.amp.GradScaler(device="cpu", **options)
    optimizers, parameters = [], []
    for index in range(rng.choice([1, 2, 3])):
        parameters.append([torch.zeros(3, requires_grad=True) for _ in range(index + 1)])
        optimizers.append(torch.optim.SGD(parameters[-1], lr=0.5, foreach=False))
    scaler.scale(torch.zeros(()))
    saved = scaler.state_dict()
    events = []
    for _ in range(40):
        # Torch's own fault with an interval at or below the count is not recorded.
        tracker = scaler.state_dict()["_growth_tracker"]
        what = rng.choices(["iterate", "set", "new_scale", "save", "load"], [50, 4, 2, 2, 2])[0]
        event = {"op": what}
        if what == "iterate":
            event["optimizers"] = []
            for optimizer, owned in zip(optimizers, parameters):
                kinds = [rng.choices(["good", "inf", "-inf", "nan"], [20, 1, 1, 1])[0] for _ in owned]
                gradients = [gradient(rng, kind) for kind in kinds]
                for p, g in zip(owned, gradients):
                    p.grad = torch.from_numpy(g.copy())
                unscale, step = rng.random() < 0.3, rng.random() < 0.9
                if unscale or not step:
                    scaler.unscale_(optimizer)
                if step:
                    scaler.step(optimizer)
                event["optimizers"].append({
                    "gradients": [[number(float(v)) for v in g] for g in gradients],
                    "unscale": unscale or not step,
                    "step": step,
                })
            scaler.update()
        elif what == "set":
            event["growth_factor"] = rng.choice([2.0, 1.25])
            event["backoff_factor"] = rng.choice([0.5, 0.75])
            event["growth_interval"] = tracker + rng.choice([1, 2, 4])
            scaler.set_growth_factor(event["growth_factor"])
            scaler.set_backoff_factor(event["backoff_factor"])
            scaler.set_growth_interval(event["growth_interval"])
        elif what == "new_scale":
            event["value"] = rng.choice([64.0, 777.25])
            scaler.update(event["value"])
        elif what == "save":
            saved = scaler.state_dict()
        else:
            scaler.load_state_dict(saved)
        event["state"] = scaler.state_dict()
        event["parameters"] = [[[number(v) for v in p.tolist()] for p in owned] for owned in parameters]
        events.append(event)
    return {"seed": seed, "options": options, "sizes": [len(p) for p in parameters], "events": events}


def main():
    out = {"torch": torch.__version__, "trajectories": [trajectory(seed) for seed in range(10)]}
    path = pathlib.Path(__file__).with_name("scaler_trajectories.json")
    path.write_text(json.dumps(out, separators=(",", ":")) + "\n")


main()
