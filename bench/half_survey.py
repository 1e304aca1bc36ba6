#!/usr/bin/env python3
"""Times every module of torch.nn, and the ops beside them, in float16 against float32 on CPU, forward and forward with backward.

  bench/half_survey.py [--ops LIBRARY] [--only WORD] [--threads 1] [--slower-than 1.05] [--dtype float16]

LIBRARY is TorchAmp as a shared library, whose kernels are installed before the timing (the same LibTorch as this Python's):
  cmake --preset release -B build/shared -DBUILD_SHARED_LIBS=ON -DTorch_ROOT=... && ninja -C build/shared torchamp
Both dtypes run in turns in one process; the numbers are medians in milliseconds. A module of torch.nn that no row names is
an error, so that the table stays whole.
"""

import argparse
import ctypes
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

from half_survey_cases import module_cases, not_timed, op_cases

ROUNDS = 5
SECONDS_A_TURN = 0.012


def to_dtype(value, dtype):
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().to(dtype)
    return value


class Side:
    """One case in one dtype."""

    def __init__(self, make, inputs, dtype):
        torch.manual_seed(0)
        self.function = make()
        if isinstance(self.function, nn.Module):
            self.function.to(dtype)
        self.leaves = list(self.function.parameters()) if isinstance(self.function, nn.Module) else []
        self.inputs = []
        for value in inputs:
            fixed = isinstance(value, Fixed)
            value = to_dtype(value.value if fixed else value, dtype)
            if isinstance(value, torch.Tensor) and value.is_floating_point() and not fixed:
                value.requires_grad_()
                self.leaves.append(value)
            self.inputs.append(value)
        self.seed = None
        self.has_backward = True
        self.backward()  # fails here where there is no kernel

    def forward(self):
        output = self.function(*self.inputs)
        while isinstance(output, (tuple, list)):
            output = output[0]
        return output

    def backward(self):
        output = self.forward()
        if not output.requires_grad:
            self.has_backward = False
            return
        if self.seed is None:
            self.seed = torch.ones_like(output)
        torch.autograd.grad(output, self.leaves, self.seed, allow_unused=True)


class Fixed:
    """A tensor that needs no gradient."""

    def __init__(self, value):
        self.value = value


def turn(function):
    begin = time.perf_counter()
    function()
    once = time.perf_counter() - begin
    count = max(1, min(200, int(SECONDS_A_TURN / max(once, 1e-6))))
    begin = time.perf_counter()
    for _ in range(count):
        function()
    return 1000 * (time.perf_counter() - begin) / count


def compare(single, half):
    times = ([], [])
    for _ in range(ROUNDS):
        for side, kept in ((single, times[0]), (half, times[1])):
            kept.append(turn(side))
    return [statistics.median(kept) for kept in times]


def install(library):
    loaded = ctypes.CDLL(library)
    if not getattr(loaded, "_ZN8torchamp3ops7installEv")():
        raise SystemExit("half_survey: nothing was installed; is TORCHAMP_OPS off?")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ops")
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--slower-than", type=float, default=0.0)
    parser.add_argument("--dtype", default="float16")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    low = getattr(torch, arguments.dtype)
    if arguments.ops:
        install(arguments.ops)
    cases = {**module_cases(Fixed), **op_cases(Fixed)}
    named = {name.split()[0] for name in cases} | not_timed()
    missing = [name for name in dir(nn) if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
               and name not in named]
    if missing:
        raise SystemExit(f"half_survey: no row for {missing}")
    print(f"| op | fp32 forward | {arguments.dtype} | ratio | fp32 f+b | {arguments.dtype} | ratio |\n|---|---|---|---|---|---|---|")
    for name, (make, inputs) in cases.items():
        if not any(word in name for word in arguments.only.split(",")):
            continue
        try:
            single = Side(make, inputs, torch.float32)
        except Exception as error:  # pylint: disable=broad-except
            print(f"| {name} | fails in float32 too: {str(error).splitlines()[0][:80]} |", flush=True)
            continue
        try:
            half = Side(make, inputs, low)
        except Exception as error:  # pylint: disable=broad-except
            print(f"| {name} |  | absent: {str(error).splitlines()[0][:80]} |  |  |  |  |", flush=True)
            continue
        with torch.no_grad():
            forward = compare(single.forward, half.forward)
        both = compare(single.backward, half.backward) if single.has_backward else (0, 0)
        ratios = [half / single if single else 0 for single, half in (forward, both)]
        if max(ratios) < arguments.slower_than:
            continue
        print(f"| {name} | {forward[0]:.3f} | {forward[1]:.3f} | {ratios[0]:.2f} | {both[0]:.3f} | {both[1]:.3f} | {ratios[1]:.2f} |",
              flush=True)


if __name__ == "__main__":
    main()
