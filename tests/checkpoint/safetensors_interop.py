"""Compares FOLDER/ours.safetensors, as the reference implementation reads it, with the tensors of FOLDER/ours.pt, and what
it writes with what C++ wrote; and reads FOLDER/lenient*:
safetensors_interop.py FOLDER. Exit code 77 where safetensors is not installed."""
import pathlib
import sys

import torch

try:
    import safetensors
    from safetensors.torch import save
except ImportError:
    sys.exit(77)

folder = pathlib.Path(sys.argv[1])
expected = torch.load(folder / "ours.pt", weights_only=True)
with safetensors.safe_open(folder / "ours.safetensors", framework="pt") as file:
    assert file.metadata() == {"format": "pt"}, file.metadata()
    assert set(file.keys()) == set(expected), file.keys()
    for name, tensor in expected.items():
        read = file.get_tensor(name)
        assert read.dtype == tensor.dtype and read.shape == tensor.shape, name
        assert torch.equal(read.reshape(-1).view(torch.uint8), tensor.contiguous().reshape(-1).view(torch.uint8)), name
contiguous = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in expected.items()}
assert save(contiguous, {"format": "pt"}) == (folder / "ours.safetensors").read_bytes()
lenient = list(folder.glob("lenient*"))
assert lenient
for path in lenient:
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.keys() == ["w"] and not file.metadata(), path.read_bytes()
        assert torch.equal(file.get_tensor("w"), torch.ones(1)), path.read_bytes()
