"""The Python side of python_test.cpp: python interop.py FOLDER

Reads what C++ wrote into FOLDER, checks it against what it says here, goes on training, and writes
what C++ then reads. Any warning is an error.
"""
import pathlib
import sys
import warnings
import zipfile

import torch

warnings.simplefilter("error")
folder = pathlib.Path(sys.argv[1])


def check(condition, what):
    if not condition:
        sys.exit(f"interop.py: {what}")


def load(name, **options):
    return torch.load(folder / name, weights_only=True, **options)


def equal(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


# 1. Every kind of value, as the plain Python type.
values = load("values.pt")
check(type(values) is dict, "the file is not a plain dict")
expected = {"none": None, "bools": [True, False],
            "ints": (0, 255, 256, 65536, -1, 2**40, 2**63 - 1, -2**63), "float": 1.5,
            "text": "na\u00efve", "empty": ([], (), {}), 7: {"deep": [(1, [2])]}}
check(values == expected, f"values differ: {values}")
for key, value in values.items():
    check(type(value) is type(expected[key]), f"{key} is a {type(value)}")
check(all(type(v) is bool for v in values["bools"]), "bools are not bool")

# 2. Tensors, also through a memory map.
for options in ({}, {"mmap": True}):
    tensors = load("tensors.pt", **options)
    ramp = torch.arange(24.0).reshape(2, 3, 4)
    check(equal(tensors["base"], ramp), "base differs")
    check(equal(tensors["transposed"], ramp.transpose(0, 2)), "transposed differs")
    check(tensors["transposed"].stride() == (1, 4, 12), "stride differs")
    check(tensors["base"].data_ptr() == tensors["transposed"].data_ptr(), "storage is not shared")
    check(equal(tensors["scalar"], torch.tensor(2.5)), "scalar differs")
    check(equal(tensors["empty"], torch.empty(0, 3)), "empty differs")
    check(not tensors["base"].requires_grad, "requires_grad is set")
    for name in ("float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16",
                 "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"):
        dtype = getattr(torch, name)
        check(tensors[name].dtype == dtype, f"{name} is {tensors[name].dtype}")
        check(torch.equal(tensors[name].to(torch.float64), torch.arange(3.0).double()), f"{name} differs")
    check(equal(tensors["bool"], torch.tensor([False, True])), "bool differs")
    check(equal(tensors["complex64"], torch.complex(torch.arange(3.0), -torch.arange(3.0))), "complex64 differs")

# 3. The archive, by an independent reader.
check(zipfile.ZipFile(folder / "tensors.pt").testzip() is None, "a checksum is wrong")

# 4. Optimizers go on here, and the result goes back.
for name, make in (("adamw", lambda p: torch.optim.AdamW(p, foreach=False)),
                   ("adam", lambda p: torch.optim.Adam(p, foreach=False)),
                   ("sgd", lambda p: torch.optim.SGD(p, lr=1.0, foreach=False))):
    checkpoint = load(f"{name}.pt")
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    net.load_state_dict(checkpoint["model_state_dict"])
    optimizer = make(net.parameters())
    check(optimizer.state_dict()["param_groups"][0].keys()
          == checkpoint["optimizer_state_dict"]["param_groups"][0].keys(), f"{name}: other keys")
    optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    for group in optimizer.param_groups:
        group["foreach"] = False
    for step in range(3, 5):
        for parameter in net.parameters():
            gradient = (torch.arange(parameter.numel()) % 5 - 2) * ((step + 1) / 8)
            parameter.grad = gradient.reshape(parameter.shape).float()
        optimizer.step()
    torch.save({"model_state_dict": net.state_dict(), "optimizer_state_dict": optimizer.state_dict()},
               folder / f"{name}_back.pt")

# 5. Averages are those of an AveragedModel.
averages = load("ema.pt")
net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.75))
check(list(average.state_dict()) == list(averages), f"averages: {list(averages)}")
average.load_state_dict(averages)
check(average.n_averaged.item() == 1, "another number of averages")
average.update_parameters(net)
torch.save(average.state_dict(), folder / "ema_back.pt")

# 6. The CPU generator's state is Python's.
state = load("rng.pt")["cpu"]
torch.set_rng_state(state)
check(equal(torch.get_rng_state(), state), "generator state differs")
numbers = {"numbers": torch.randn(101), "order": torch.randperm(100)}
torch.save({"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all()}, folder / "rng_of_python.pt")
torch.save({**numbers, "later": torch.randn(101)}, folder / "rng_back.pt")
