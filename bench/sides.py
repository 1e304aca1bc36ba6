"""The sides of each comparison: which program does what, and what of it must agree."""

import dataclasses
import fnmatch
import math
import pathlib
import shutil
import sysconfig

MODELS = ("mlp", "cnn", "resnet18", "gpt")
PRECISIONS = ("fp32", "bf16", "fp16")
SIZES = {"8": 20_000_000, "160": 20_000_000, "1000x64": 64_000}  # parameters in all
# Runs in a turn and turns: a turn takes tens to hundreds of milliseconds, so that a slow second falls on every side.
STEP_TURNS = {"mlp": (3, 14), "cnn": (12, 14), "resnet18": (2, 12), "gpt": (2, 12)}
PHASE_TURNS = {"8": (5, 20), "160": (5, 20), "1000x64": (50, 20)}
PEERS = pathlib.Path(__file__).resolve().parent / "peers"
# Bytes a parameter that the phase moves at the least: gradient twice, parameter and two moments in and out; with bf16
# masters a 16-bit gradient twice, 16-bit weight and rest in and out, the moments.
BYTES = {"": 32, "/bf16-master": 28}
# Ratios that issue 5 and design section 6 ask for.
ASKED = {
    ("step/mlp/bf16", "pytorch"): 1.5, ("step/resnet18/bf16", "pytorch"): 1.3,
    ("step/resnet18/bf16", "pytorch-compile"): 1.1, ("step/gpt/bf16", "pytorch"): 1.25,
    **{(f"step/{model}/fp16", "fp32"): 0.9 for model in MODELS},
    ("phase/optimizer/8", "libtorch"): 10, ("phase/optimizer/160", "libtorch"): 7,
    ("phase/optimizer/8", "pytorch"): 1.8, ("phase/optimizer/160", "pytorch"): 2.2,
    ("phase/optimizer/8/bf16-master", "pytorch"): 2.5, ("phase/optimizer/160/bf16-master", "pytorch"): 2.5,
    ("phase/optimizer/1000x64", "libtorch"): 5,
    ("phase/bandwidth/8", "mul_"): 0.9, ("phase/bandwidth/160", "mul_"): 0.9,
    ("phase/bandwidth/8/bf16-master", "mul_"): 0.9, ("phase/bandwidth/160/bf16-master", "mul_"): 0.9,
}
ASKED_PEAK = {("step/mlp/bf16", "pytorch"): 0.87, ("step/mlp/bf16/bf16-moments", "pytorch"): 0.65}


@dataclasses.dataclass
class SideSpec:
    name: str       # of the peer in the rows; "" and what begins with "/" are ours
    program: str    # "c++" or a file of bench/peers
    settings: dict
    checked: str = "all"  # "all", or "first": only the loss of the first run must agree

    @property
    def is_ours(self):
        return self.name == "" or self.name.startswith("/")

    @property
    def is_memory(self):
        return self.name == "mul_" or self.name.startswith("traffic")

    def is_peer_of(self, ours):
        """Whether a row compares the two: memory traffic with the side that has the same storage."""
        return not self.name.startswith("traffic") or self.name == "traffic" + ours.name.removesuffix("/ieee")


@dataclasses.dataclass
class Work:
    name: str
    settings: dict  # what all sides share
    sides: list
    runs: int
    turns: int
    slow: str = ""  # why it is left out unless asked for

    @property
    def is_step(self):
        return self.settings["work"] == "step"


def why_not_compile():
    if not shutil.which("g++"):
        return "g++ is not on PATH"
    header = pathlib.Path(sysconfig.get_path("include")) / "Python.h"
    return "" if header.exists() else f"there is no {header.name} for this Python (Debian package python3-dev)"


def has_fast_fp16():
    flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return "avx512_fp16" in flags or "amx_fp16" in flags


def step_work(model, precision):
    sides = [SideSpec("", "c++", {"side": "ours"}), SideSpec("/ieee", "c++", {"side": "ours", "roots": "ieee"})]
    if (model, precision) == ("mlp", "bf16"):
        sides.append(SideSpec("/bf16-moments", "c++", {"side": "ours", "moments": "bf16"}, "first"))
    sides.append(SideSpec("pytorch", "step.py", {"side": "pytorch"}))
    if not why_not_compile():
        sides.append(SideSpec("pytorch-compile", "step.py", {"side": "pytorch-compile"}))
    sides.append(SideSpec("libtorch", "c++", {"side": "libtorch"}))
    if precision != "fp32":
        sides.append(SideSpec("fp32", "c++", {"side": "ours", "precision": "fp32"}, "first"))
    name, settings = f"step/{model}/{precision}", {"work": "step", "model": model, "precision": precision}
    if precision != "fp16" or has_fast_fp16():
        return [Work(name, settings, sides, *STEP_TURNS[model])]
    slow = "this CPU has no fp16 arithmetic, and a step of LibTorch's takes up to half a minute"
    return [Work(name, settings, [side for side in sides if side.name in ("", "fp32")], *STEP_TURNS[model]),
            Work(name + "/peers", settings, [side for side in sides if side.name in ("", "pytorch", "libtorch")], 1, 1, slow)]


def allocator_work(model, precision):
    """What the caching allocator alone gives: the same step with and without it; not part of a run of all works."""
    sides = [SideSpec("", "c++", {"side": "ours"}), SideSpec("malloc", "c++", {"side": "ours", "allocator": "off"})]
    settings = {"work": "step", "model": model, "precision": precision}
    return Work(f"allocator/{model}/{precision}", settings, sides, *STEP_TURNS[model])


def phase_work(size):
    sides = [SideSpec("", "c++", {"side": "ours", "weights": "fp32"}),
             SideSpec("/ieee", "c++", {"side": "ours", "weights": "fp32", "roots": "ieee"}),
             SideSpec("/bf16-master", "c++", {"side": "ours", "weights": "bf16-master"}),
             SideSpec("/bf16-master/ieee", "c++", {"side": "ours", "weights": "bf16-master", "roots": "ieee"}),
             SideSpec("pytorch", "phase.py", {"side": "pytorch"}),
             SideSpec("libtorch", "c++", {"side": "libtorch"})]
    if SIZES[size] > 1_000_000:  # else everything lies in the cache
        sides += [SideSpec("mul_", "c++", {"side": "mul_"}, "nothing"),
                  SideSpec("traffic", "c++", {"side": "traffic", "weights": "fp32"}, "nothing"),
                  SideSpec("traffic/bf16-master", "c++", {"side": "traffic", "weights": "bf16-master"}, "nothing")]
    return Work(f"phase/optimizer/{size}", {"work": "phase", "size": size}, sides, *PHASE_TURNS[size])


def all_works():
    return [phase_work(size) for size in SIZES] + [
        work for precision in ("bf16", "fp32", "fp16") for model in MODELS for work in step_work(model, precision)]


def more_works():
    """Run only when they are asked for."""
    return [allocator_work(model, precision) for precision in ("bf16", "fp32") for model in MODELS]


def matches(name, pattern):
    return fnmatch.fnmatch(name, pattern) or name.startswith(pattern.rstrip("/") + "/")


def compare_steps(ours, theirs, start, only_first, with_weights):
    """A sentence when losses or weights differ by more than rounding explains, else None.

    The sides round at different places (order of AdamW's arithmetic; compiled: fused kernels), and Adam's first steps
    turn a gradient's sign into a step of the learning rate, so single weights part; what must agree is the way that all
    weights went in a few runs, and the losses. The GPT's weights of two sides that differ by the rounding of a square root
    are apart by 0.17 of their way after 16 runs, by 0.35 after 27 and by 0.45 after 39, with LibTorch's ops, too."""
    a, b = ours["losses"], theirs["losses"]
    if len(a) != len(b):
        return f"{len(a)} runs against {len(b)}"
    for i, (x, y) in enumerate(zip(a.tolist(), b.tolist())):
        bound = 0.02 * abs(y) if i == 0 else 0.1 * max(abs(y), 0.2)
        if not abs(x - y) <= bound:
            return f"the loss of run {i + 1} is {x:.5f} against {y:.5f}"
        if only_first:
            return None
    if not with_weights:
        return None
    apart = gone = 0.0
    for name, begin in start["model"].items():
        if begin.is_floating_point():
            x, y = ours["model"][name].double(), theirs["model"][name].double()
            apart += float((x - y).square().sum())
            gone += float((y - begin.double()).square().sum())
    part = math.sqrt(apart / gone)
    return None if part <= 0.35 else f"the weights are apart by {part:.3f} of the way they went"


def compare_phases(ours, theirs, runs):
    """Each run rounds the weight once on each side, by up to half a unit in its last place, and makes a dozen roundings
    in a move of about the learning rate."""
    difference = float((ours["weights"] - theirs["weights"]).abs().max())
    bound = runs * (float(theirs["weights"].abs().max()) * 2**-23 + 1e-3 * 2**-18)
    return None if difference <= bound else f"a weight differs by {difference:.3g}; {bound:.3g} is what rounding explains"
