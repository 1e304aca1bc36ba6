#!/usr/bin/env python3
"""The training step of `torchamp bench` in Python PyTorch: same models, sizes, options and phases.

Precisions take turns in one process, as in torchamp bench. Prints one JSON object with the same keys (no memory by
tensor; peak_process_bytes is this process's, with all precisions in it).

    python bench/peers/step.py --model resnet18 --precision fp32,bf16 --rounds 10
"""

import argparse
import json
import resource
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

BATCH = {"mlp": 256, "cnn": 128, "resnet18": 16, "gpt": 8}
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
PHASES = ("data", "forward", "backward", "optimizer")
NUM_BATCHES = 4  # as many as torchamp bench goes round


def mlp():
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [1, 16, 24, 48]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in zip(widths, widths[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        self.fc = nn.Linear(48 * 3 * 3, 10)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms):
            x = functional.max_pool2d(functional.relu(norm(conv(x))), 2)
        return self.fc(functional.adaptive_avg_pool2d(x, 3).flatten(1))


class BasicBlock(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False),
                                            nn.BatchNorm2d(channels))

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """He et al. 2015, table 1."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
                                  nn.MaxPool2d(3, 2, 1))
        stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        blocks = [[BasicBlock(a, b, stride), BasicBlock(b, b, 1)] for a, b, stride in stages]
        self.body = nn.Sequential(*(block for pair in blocks for block in pair))
        self.fc = nn.Linear(512, 1000)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        return self.fc(functional.adaptive_avg_pool2d(self.body(self.stem(x)), 1).flatten(1))


class GptBlock(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.num_heads, width // self.num_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary=8192, context=256, width=512, num_layers=6, num_heads=8):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(GptBlock(width, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0, 0.02)

    def forward(self, x):
        y = self.tokens(x) + self.positions(torch.arange(x.size(1), device=x.device))
        return self.head(self.norm(self.blocks(y)))


MODELS = {"mlp": mlp, "cnn": Cnn, "resnet18": ResNet18, "gpt": Gpt}


def make_batch(model, batch):
    if model == "gpt":
        return torch.randint(8192, (batch, 256)), torch.randint(8192, (batch, 256))
    shape = {"mlp": (1024,), "cnn": (1, 28, 28), "resnet18": (3, 224, 224)}[model]
    return torch.randn(batch, *shape), torch.randint(1000 if model == "resnet18" else 10, (batch,))


class Runner:
    def __init__(self, options, precision):
        torch.manual_seed(options.seed)
        self.device = torch.device(options.device)
        self.dtype = DTYPES[precision]
        self.clip = options.clip
        self.channels_last = options.channels_last
        self.model = MODELS[options.model]().to(self.device)
        if self.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        self.parameters = list(self.model.parameters())
        if options.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(self.parameters, 0.01, 0.9, fused=options.fused)
        else:
            self.optimizer = torch.optim.AdamW(self.parameters, 1e-3, fused=options.fused)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self.steps, self.losses = [], []

    def now(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def step(self, batch, timed):
        times = [self.now()]
        x, target = (part.to(self.device) for part in batch)
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        times.append(self.now())
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            loss = functional.cross_entropy(self.model(x).flatten(0, -2), target.flatten())
        times.append(self.now())
        self.scaler.scale(loss).backward()
        times.append(self.now())
        if self.clip > 0:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        times.append(self.now())
        self.losses.append(loss.item())
        if timed:
            self.steps.append([1000 * (b - a) for a, b in zip(times, times[1:])])

    def result(self, precision, batch):
        totals = [sum(step) for step in self.steps]
        median = statistics.median(totals)
        return {"precision": precision, "examples_per_s": 1000 * batch / median, "step_ms_median": median,
                "step_ms_min": min(totals),
                "phase_ms": {name: statistics.median(step[i] for step in self.steps) for i, name in enumerate(PHASES)},
                "peak_process_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                "loss_first": self.losses[0], "loss_last": self.losses[-1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="resnet18")
    parser.add_argument("--batch", type=int, default=0, help="0: the default of torchamp bench")
    parser.add_argument("--precision", default="fp32,bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--layout", choices=("channels_last", "contiguous"), default="channels_last")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--fused", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--clip", type=float, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.threads > 0:
        torch.set_num_threads(options.threads)
    options.channels_last = options.layout == "channels_last" and options.model in ("cnn", "resnet18")
    batch = options.batch or BATCH[options.model]
    torch.manual_seed(options.seed)
    batches = [make_batch(options.model, batch) for _ in range(NUM_BATCHES)]
    runners = {name: Runner(options, name) for name in options.precision.split(",")}
    names = list(runners)
    for i in range(options.warmup + options.rounds):
        turn = i % len(names)  # the first of a round changes
        for name in names[turn:] + names[:turn]:
            runners[name].step(batches[i % NUM_BATCHES], timed=i >= options.warmup)
    print(json.dumps({"torch": torch.__version__, "model": options.model, "batch": batch,
                      "threads": torch.get_num_threads(),
                      "results": [runner.result(name, batch) for name, runner in runners.items()]}))


if __name__ == "__main__":
    main()
