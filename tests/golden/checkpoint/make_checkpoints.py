"""Writes the checkpoints that tests/checkpoint and tests/optim read: python make_checkpoints.py [--after] [--refused]

Run it once with each PyTorch version to cover, 1.13.1 to 2.15.0, each in a virtual environment of its own:

    python3 -m venv v && v/bin/pip install torch==1.13.1 'numpy<2' && v/bin/python make_checkpoints.py && rm -r v

numpy<2 up to PyTorch 2.2, any numpy after it. The files go to a folder named by the version. --after (2.11.0 and 2.15.0)
adds what tests/optim and byte-for-byte comparisons read, --refused (2.15.0) the files that are refused. Every number in
them follows from this script, and the tests state it again on their own.
"""
import argparse
import io
import pathlib
import warnings
from collections import Counter, OrderedDict, defaultdict, deque

import numpy
import torch

options = argparse.ArgumentParser()
options.add_argument("--after", action="store_true")
options.add_argument("--refused", action="store_true")
options = options.parse_args()
here = pathlib.Path(__file__).parent / torch.__version__.split("+")[0]
(here / "legacy").mkdir(exist_ok=True, parents=True)
warnings.simplefilter("ignore")


def save(value, name, **how):
    torch.save(value, here / f"{name}.pt", **how)


def save_legacy(value, name, **how):
    """In the format before PyTorch 1.6."""
    save(value, f"legacy/{name}", _use_new_zipfile_serialization=False, **how)


def save_both(value, name):
    save(value, name)
    save_legacy(value, name)


def ramp(*shape):
    """0, 1, 2, ... of this shape."""
    count = 1
    for size in shape:
        count *= size
    return torch.arange(float(count)).reshape(shape)


def in_new_dtypes(names, values):
    """`values` in each of these dtypes that this version saves: of those here, 2.2.2 is the first for float8, 2.4.1 for
    complex32 and the fnuz kinds, 2.6.0 for unsigned ints, 2.9.1 for float8_e8m0fnu.

    Not for the older format, which takes them and then cannot be read by any PyTorch.
    """
    found = {}
    for name in names:
        if not hasattr(torch, name):
            continue
        tensor = values.to(getattr(torch, name))
        try:
            torch.save(tensor, io.BytesIO())
        except KeyError as error:
            print("left out:", error)
            continue
        found[name] = tensor
    return found


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
    save({"model": before, "optimizer": optimizer.state_dict()}, name)
    if not options.after:
        return
    for step in range(3, 5):
        set_gradients(net, step)
        optimizer.step()
    save(OrderedDict(net.state_dict()), f"{name}_after")


def groups(net):
    return [{"params": net[0].parameters(), "weight_decay": 0.25},
            {"params": net[1].parameters(), "lr": 0.0625}]


optimizer_case("adamw", lambda net: torch.optim.AdamW(net.parameters(), lr=0.125, foreach=False))
optimizer_case("adam", lambda net: torch.optim.Adam(groups(net), lr=0.125, amsgrad=True, foreach=False))
optimizer_case("sgd", lambda net: torch.optim.SGD(net.parameters(), lr=0.125, momentum=0.5, foreach=False))

# A bare state_dict: an OrderedDict with the attribute _metadata.
save_both(model().state_dict(), "model")

# The usual training checkpoint.
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.125, foreach=False)
set_gradients(net, 0)
optimizer.step()
optimizer.param_groups[0]["lr"] = torch.tensor(0.125)  # as newer versions accept it from the start
save_both({"epoch": 3, "model_state_dict": net.state_dict(), "optimizer_state_dict": optimizer.state_dict(),
           "scaler_state_dict": {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5,
                                 "growth_interval": 2000, "_growth_tracker": 1},
           "loss": torch.tensor(0.25)}, "training")

# A GradScaler after two steps without overflow; before PyTorch 2.3 only one that is off works without a GPU.
if hasattr(torch.amp, "GradScaler"):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    for _ in range(2):
        net = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.125)
        scaler.scale(net(torch.ones(1, 1)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    off = torch.amp.GradScaler("cpu", enabled=False)
else:
    scaler = None
    off = torch.cuda.amp.GradScaler(enabled=False)
save({"on": scaler.state_dict() if scaler else None, "off": off.state_dict()}, "scaler")

shared_list = [1]
values = {
    "none": None, "bools": [True, False],
    "ints": (0, 255, 256, 65535, 65536, -1, -129, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**40,
             2**63 - 1, -2**63),
    "floats": [0.0, -0.0, 1.5, 1e300, float("inf"), float("-inf"), float("nan")],
    "text": "na\u00efve \U0001f600", "empty": ((), [], {}, "", OrderedDict()),
    "nested": {"a": [{"b": (1, [2, (3,)])}]}, 5: "int key", -7: {2**40: 1},
    "ordered": OrderedDict([("z", 1), ("a", 2)]), "size": torch.Size([2, 3]),
    "one": (1,), "two": (1, 2), "three": (1, 2, 3), "four": (1, 2, 3, 4),
    "shared": [shared_list, shared_list]}
save_legacy(values, "values")
if options.after:
    values["many"] = list(range(2001))
save(values, "values")

# What is rarer, of Python and of PyTorch.
kinds = {
    "big": [2**63, -2**63 - 1, 10**30, -10**30, 2**64, 2**2040],
    "complex": 1.5 - 2j,
    "bytes": [b"", b"abc", bytes(range(256))], "bytearray": bytearray(b"\x00\xffz"),
    "set": {1, 2, 3}, "empty_set": set(), "frozenset": frozenset([7]), "set_of_text": {"one"},
    "dtypes": [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64],
    "devices": [torch.device("cpu"), torch.device("cuda"), torch.device("cuda", 1)],
    "sizes": [torch.Size([]), torch.Size([4])],
    "defaultdict": defaultdict(int, a=1), "of_lists": defaultdict(list, {3: [1, 2]}),
    "without_default": defaultdict(None, z=0), "counter": Counter("aab"),
}
save_both(kinds, "kinds")
numpy_scalars = {
    "float64": numpy.float64(1.5), "float32": numpy.float32(0.1), "float16": numpy.float16(-2.5),
    "int64": numpy.int64(-2**63), "int32": numpy.int32(-5), "int16": numpy.int16(300), "int8": numpy.int8(-128),
    "uint8": numpy.uint8(255), "uint16": numpy.uint16(65535), "uint32": numpy.uint32(2**32 - 1),
    "uint64": numpy.uint64(2**64 - 1), "true": numpy.bool_(True), "false": numpy.bool_(False),
    "nan": numpy.float64("nan"), "complex128": numpy.complex128(1 - 2j), "complex64": numpy.complex64(0.5 + 3j),
    "big_endian": numpy.array([1.5], ">f8")[0],
}
save_both(numpy_scalars, "numpy_scalars")
matrix = numpy.arange(6.0, dtype=numpy.float32).reshape(2, 3)
save_both({"matrix": matrix, "fortran": numpy.asfortranarray(matrix), "ints": numpy.arange(3), "scalar": numpy.array(2.5),
           "empty": numpy.zeros((0, 2)), "bools": numpy.array([True, False])}, "numpy_arrays")

base = ramp(2, 3, 4)
z = torch.complex(ramp(3), -ramp(3))
tensors = {
    "float32": ramp(3), "float64": ramp(3).double(), "float16": ramp(3).half(),
    "bfloat16": ramp(3).bfloat16(), "int64": ramp(3).long(), "int32": ramp(3).int(),
    "int16": ramp(3).short(), "int8": ramp(3).char(), "uint8": ramp(3).byte(),
    "bool": torch.tensor([False, True, True]), "complex64": z, "complex128": z.to(torch.complex128)}
more_dtypes = {**in_new_dtypes(["uint16", "uint32", "uint64"], ramp(3)), **in_new_dtypes(["complex32"], z),
               **in_new_dtypes(["float8_e5m2", "float8_e4m3fn"], ramp(3))}
strided = {
    "scalar": torch.tensor(2.5), "empty": torch.empty(0), "empty_2d": torch.empty(3, 0),
    "parameter": torch.nn.Parameter(ramp(2)), "base": base, "view": base[1, :, 1:3],
    "transposed": base.transpose(0, 2), "step": base.reshape(-1)[1::5], "expanded": ramp(3, 1).expand(3, 4),
    "channels_last": ramp(1, 2, 3, 2).contiguous(memory_format=torch.channels_last),
    "conj": torch.complex(ramp(3), -ramp(3)).conj(), "neg": torch.complex(ramp(3), ramp(3)).conj().imag,
    "nan": torch.tensor([float("nan"), float("-inf")]),
    "same": tensors["float32"]}
save({**tensors, **more_dtypes, **strided}, "tensors")
save_legacy({**tensors, **strided}, "tensors")

# More of tensors: the float8 kinds that came later, and what Python hangs on a tensor.
frozen = torch.nn.Parameter(ramp(2).bfloat16(), requires_grad=False)
more = {"with_attribute": ramp(2), "parameter_with_attribute": torch.nn.Parameter(ramp(2)), "tied": [frozen, frozen],
        "overlapping": ramp(4).as_strided((2, 3), (1, 1)), "bits": ramp(4).view(torch.int32)}
more["with_attribute"].note = "text"
more["parameter_with_attribute"].note = "text"
later = in_new_dtypes(["float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu"], torch.tensor([1.0, 2.0, 0.5]))
save({**later, **more}, "more_tensors")
save_legacy(more, "more_tensors")

# The pickle protocols beside the default, 2, that torch.save takes.
for protocol in (3, 4, 5):
    everything = {"text": "na\u00efve", "long": "x" * 300, "bytes": b"abc", "big": 2**70, "set": {1, 2}, "frozen": frozenset([3]),
                  "list": [1, 2.5, None, True], "pair": (1, "two"), "dict": {1: {2: 3}}, "ordered": OrderedDict(a=1),
                  "weight": torch.nn.Parameter(ramp(2, 2)), "view": base[0, 1], "base": base, "u8": ramp(3).byte(),
                  "default": defaultdict(list, a=[1]), "dtype": torch.float16, "size": torch.Size([5])}
    save(everything, f"protocol{protocol}", pickle_protocol=protocol)
    if protocol == 4:
        save_legacy(everything, "protocol4", pickle_protocol=4)

# What checkpoint_test.cpp builds and saves: the files must agree byte for byte, up to the record
# that identifies the writer.
if options.after:
    shared = ramp(4)
    save({"epoch": 3, "loss": 0.5, "big": 2**40, "minus": -2, "none": None, "yes": True,
          "list": [1, "two", [3.0]], "one": [4], "tuple": (), "pair": (1, 2), "four": (1, 2, 3, 4),
          "weights": {"w": shared, "view": shared[1:3], "half": ramp(2).half(), "u16": ramp(2).to(torch.uint16),
                      "scalar": torch.tensor(1.0), "epoch": "epoch"},
          "keys": {i: None for i in range(300)}, "many": list(range(2001))}, "written")

if options.refused:
    (here / "refused").mkdir(exist_ok=True)

    def refuse(value, name):
        save(value, f"refused/{name}")

    refuse({"sparse": ramp(2).to_sparse()}, "sparse")
    refuse({"quantized": torch.quantize_per_tensor(ramp(2), 1.0, 0, torch.quint8)}, "quantized")
    refuse({(1, 2): 3}, "tuple_key")
    refuse(ramp(2), "tensor")
    refuse({"path": pathlib.PurePosixPath("a")}, "path")
    refuse({"recent": deque([1, 2])}, "deque")
    refuse({"args": argparse.Namespace(lr=0.1)}, "namespace")
    refuse(torch.nn.Linear(1, 1), "module")
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), str(here / "refused" / "script.pt"))
