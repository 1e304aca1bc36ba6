"""Writes the checkpoints that tests/checkpoint and tests/optim read: python make_checkpoints.py

Run it with each PyTorch version to cover; the files go to a folder named by that version. Every
number in them follows from this script, and the tests state it again on their own.
"""
import pathlib
import sys
import warnings
from collections import OrderedDict, defaultdict, deque

import numpy
import torch

here = pathlib.Path(__file__).parent / torch.__version__.split("+")[0]
here.mkdir(exist_ok=True)
(here / "refused").mkdir(exist_ok=True)
warnings.simplefilter("ignore")


def save(value, name, **options):
    torch.save(value, here / f"{name}.pt", **options)


def ramp(*shape):
    """0, 1, 2, ... of this shape."""
    count = 1
    for size in shape:
        count *= size
    return torch.arange(float(count)).reshape(shape)


def model():
    """Parameter number i holds i + 0, i + 1/8, i + 2/8, ..."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with torch.no_grad():
        for i, parameter in enumerate(net.parameters()):
            parameter.copy_(ramp(*parameter.shape) / 8 + i)
        net[1].num_batches_tracked.fill_(7)
    return net


def set_gradients(net, step):
    """Gradient of every parameter at this step: -2, -1, 0, 1, 2, -2, ... times (step + 1) / 8."""
    for parameter in net.parameters():
        values = torch.arange(parameter.numel()) % 5 - 2
        parameter.grad = (values * ((step + 1) / 8)).reshape(parameter.shape).float()


def optimizer_case(name, make):
    """The state after 3 steps, and the weights before and after 2 more."""
    net = model()
    optimizer = make(net)
    for step in range(3):
        set_gradients(net, step)
        optimizer.step()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    torch.save({"model": before, "optimizer": optimizer.state_dict()}, here / f"{name}.pt")
    for step in range(3, 5):
        set_gradients(net, step)
        optimizer.step()
    torch.save(OrderedDict(net.state_dict()), here / f"{name}_after.pt")


def groups(net):
    return [{"params": net[0].parameters(), "weight_decay": 0.25},
            {"params": net[1].parameters(), "lr": 0.0625}]


optimizer_case("adamw", lambda net: torch.optim.AdamW(net.parameters(), lr=0.125, foreach=False))
optimizer_case("adam", lambda net: torch.optim.Adam(groups(net), lr=0.125, amsgrad=True, foreach=False))
optimizer_case("sgd", lambda net: torch.optim.SGD(net.parameters(), lr=0.125, momentum=0.5, foreach=False))

# A bare state_dict: an OrderedDict with the attribute _metadata.
save(model().state_dict(), "model")

# The usual training checkpoint.
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.125), foreach=False)
set_gradients(net, 0)
optimizer.step()
save({"epoch": 3, "model_state_dict": net.state_dict(), "optimizer_state_dict": optimizer.state_dict(),
      "scaler_state_dict": {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5,
                            "growth_interval": 2000, "_growth_tracker": 1},
      "loss": torch.tensor(0.25)}, "training")

shared_list = [1]
save({"none": None, "bools": [True, False],
      "ints": (0, 255, 256, 65535, 65536, -1, -129, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**40,
               2**63 - 1, -2**63),
      "floats": [0.0, -0.0, 1.5, 1e300, float("inf"), float("-inf"), float("nan")],
      "text": "na\u00efve \U0001f600", "empty": ((), [], {}, "", OrderedDict()),
      "nested": {"a": [{"b": (1, [2, (3,)])}]}, 5: "int key", -7: {2**40: 1},
      "ordered": OrderedDict([("z", 1), ("a", 2)]), "size": torch.Size([2, 3]),
      "one": (1,), "two": (1, 2), "three": (1, 2, 3), "four": (1, 2, 3, 4),
      "shared": [shared_list, shared_list], "many": list(range(2001))}, "values")

base = ramp(2, 3, 4)
tensors = {
    "float32": ramp(3), "float64": ramp(3).double(), "float16": ramp(3).half(),
    "bfloat16": ramp(3).bfloat16(), "int64": ramp(3).long(), "int32": ramp(3).int(),
    "int16": ramp(3).short(), "int8": ramp(3).char(), "uint8": ramp(3).byte(),
    "bool": torch.tensor([False, True, True]), "complex64": torch.complex(ramp(3), -ramp(3)),
    "complex128": torch.complex(ramp(3), -ramp(3)).to(torch.complex128),
    "uint16": ramp(3).to(torch.uint16), "uint32": ramp(3).to(torch.uint32),
    "uint64": ramp(3).to(torch.uint64), "complex32": torch.complex(ramp(3), -ramp(3)).to(torch.complex32),
    "float8_e5m2": ramp(3).to(torch.float8_e5m2), "float8_e4m3fn": ramp(3).to(torch.float8_e4m3fn),
    "scalar": torch.tensor(2.5), "empty": torch.empty(0), "empty_2d": torch.empty(3, 0),
    "parameter": torch.nn.Parameter(ramp(2)), "base": base, "view": base[1, :, 1:3],
    "transposed": base.transpose(0, 2), "step": base.reshape(-1)[1::5], "expanded": ramp(3, 1).expand(3, 4),
    "channels_last": ramp(1, 2, 3, 2).contiguous(memory_format=torch.channels_last),
    "conj": torch.complex(ramp(3), -ramp(3)).conj(), "neg": torch.complex(ramp(3), ramp(3)).conj().imag,
    "nan": torch.tensor([float("nan"), float("-inf")]),
}
tensors["same"] = tensors["float32"]
save(tensors, "tensors")

# What checkpoint_test.cpp builds and saves: the files must agree byte for byte, up to the record
# that identifies the writer.
shared = ramp(4)
save({"epoch": 3, "loss": 0.5, "big": 2**40, "minus": -2, "none": None, "yes": True,
      "list": [1, "two", [3.0]], "one": [4], "tuple": (), "pair": (1, 2), "four": (1, 2, 3, 4),
      "weights": {"w": shared, "view": shared[1:3], "half": ramp(2).half(), "u16": ramp(2).to(torch.uint16),
                  "scalar": torch.tensor(1.0), "epoch": "epoch"},
      "keys": {i: None for i in range(300)}, "many": list(range(2001))}, "written")

if sys.argv[1:] == ["--refused"]:
    def refuse(value, name, **options):
        save(value, f"refused/{name}", **options)

    refuse({"a": {"b": {1, 2}}}, "set")
    refuse({"seed": 2**63}, "uint63")
    refuse({"list": [0, -2**63 - 1]}, "int65")
    refuse({"device": torch.device("cpu")}, "device")
    refuse({"dtype": torch.float32}, "dtype")
    refuse({"number": 1j}, "complex")
    refuse({"data": b"abc"}, "bytes")
    refuse({"sparse": ramp(2).to_sparse()}, "sparse")
    refuse({"quantized": torch.quantize_per_tensor(ramp(2), 1.0, 0, torch.quint8)}, "quantized")
    refuse({(1, 2): 3}, "tuple_key")
    refuse(ramp(2), "tensor")
    refuse({"path": pathlib.PurePosixPath("a")}, "path")
    refuse({"value": numpy.float64(1.5)}, "numpy_scalar")
    refuse({"counts": defaultdict(int, a=1)}, "defaultdict")
    refuse({"recent": deque([1, 2])}, "deque")
    refuse({"a": 1}, "protocol4", pickle_protocol=4)
    refuse({"a": ramp(2)}, "legacy", _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), str(here / "refused" / "script.pt"))
