"""The Python side of PythonGoesOn in python_test.cpp, and what writes the golden files of mixed training.

  python interop_mixed.py FOLDER            goes on from the files that C++ wrote into FOLDER, and trains by itself
  python interop_mixed.py --golden FOLDER   writes two optimizers after 5 and after 10 steps, and the machine they hold for;
                                            tests/golden/mixed_training/VERSION is made so

The training is that of mixed_training.h, step for step. Any warning is an error.
"""
import json
import pathlib
import sys
import warnings

import torch

warnings.simplefilter("error")
torch.set_num_threads(1)
OPTIMIZERS = ("adamw", "adam", "amsgrad", "sgd", "nesterov", "libtorch_sgd")


def ramp(count, factor, scale):
    return ((torch.arange(count) * factor * scale) % 13 - 6).float()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(6, 16)
        self.fc2 = torch.nn.Linear(16, 3)

    def forward(self, inputs):
        return self.fc2(torch.relu(self.fc1(inputs)))


def make_optimizer(name, parameters):
    loops = {"foreach": False, "fused": False}
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=0.0625, **loops)
    if name in ("adam", "amsgrad"):
        return torch.optim.Adam(parameters, lr=0.0625, weight_decay=0.125, amsgrad=name == "amsgrad", **loops)
    if name == "nesterov":
        return torch.optim.SGD(parameters, lr=0.125, momentum=0.9, nesterov=True, weight_decay=0.125, **loops)
    return torch.optim.SGD(parameters, lr=0.125, momentum=0.9, **loops)


class Training:
    def __init__(self, name, dtype):
        self.dtype = dtype
        self.net = Net()
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.copy_(ramp(parameter.numel(), 7, 3).reshape(parameter.shape) / 16)
        self.optimizer = make_optimizer(name, self.net.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19, growth_interval=2,
                                           enabled=dtype == torch.float16)

    def steps(self, first, last):
        for step in range(first, last):
            inputs = ramp(5 * 6, 11, step + 1).reshape(5, 6) / 4
            target = (torch.arange(5) + step) % 3
            self.optimizer.zero_grad()
            with torch.autocast("cpu", self.dtype):
                loss = torch.nn.functional.cross_entropy(self.net(inputs), target)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.loss = loss.detach()

    def save(self, path):
        torch.save({"epoch": 1, "model_state_dict": self.net.state_dict(),
                    "optimizer_state_dict": self.optimizer.state_dict(),
                    "scaler_state_dict": self.scaler.state_dict(),
                    "loss": self.loss if self.dtype == torch.float16 else self.loss.item()}, path)

    def load(self, path):
        checkpoint = torch.load(path, weights_only=True)
        if checkpoint.keys() != {"epoch", "model_state_dict", "optimizer_state_dict", "scaler_state_dict", "loss"}:
            sys.exit(f"interop_mixed.py: {path} has the keys {list(checkpoint)}")
        self.net.load_state_dict(checkpoint["model_state_dict"])
        self.optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
        self.scaler.load_state_dict(checkpoint["scaler_state_dict"])
        for group in self.optimizer.param_groups:
            group.update(foreach=False, fused=False)


def cases():
    for name in OPTIMIZERS:
        for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            yield f"{name}_{precision}", lambda name=name, dtype=dtype: Training(name, dtype)


def go_on(folder):
    for case, make in cases():
        training = make()
        training.load(folder / f"{case}_here_5.pt")
        training.steps(5, 10)
        training.save(folder / f"{case}_python_10_from_here.pt")
        straight = make()
        straight.steps(0, 5)
        straight.save(folder / f"{case}_python_5.pt")
        straight.steps(5, 10)
        straight.save(folder / f"{case}_python_10.pt")
    torch.save({"version": str(torch.__version__)}, folder / "version.pt")


def write_golden(folder):
    sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "golden"))
    from fingerprint import fingerprint
    folder.mkdir(parents=True, exist_ok=True)
    for case, make in cases():
        if not case.startswith(("adamw", "nesterov")):  # small, and the live test has all
            continue
        training = make()
        training.steps(0, 5)
        training.save(folder / f"{case}_5.pt")
        training.steps(5, 10)
        training.save(folder / f"{case}_10.pt")
    (folder / "fingerprint.json").write_text(json.dumps(fingerprint(), indent=1) + "\n")


if sys.argv[1] == "--golden":
    write_golden(pathlib.Path(sys.argv[2]))
else:
    go_on(pathlib.Path(sys.argv[1]))
