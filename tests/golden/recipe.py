"""Values that Python and C++ compute alike, bit for bit: tests/support/recipe.h is the same in C++.

uniform(stream, shape): element i is (splitmix64(stream * 2^32 + i) >> 48) / 32768 - 1, which float32 holds exactly.
"""

import torch


def _wrap(value):  # a 64-bit constant as torch's signed int64
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(z, bits):  # logical, not arithmetic
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def splitmix64(z):
    """Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", figure 13."""
    z = z + _wrap(0x9E3779B97F4A7C15)
    z = (z ^ _shift(z, 30)) * _wrap(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _wrap(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def integers(stream, count):
    """`count` integers in [0, 65536)."""
    return _shift(splitmix64(torch.arange(count, dtype=torch.int64) + (stream << 32)), 48)


def uniform(stream, shape):
    """Multiples of 2^-15 in [-1, 1), float32."""
    count = torch.Size(shape).numel()
    return (integers(stream, count).to(torch.float32) / 32768 - 1).reshape(shape)


def fill_parameters(model, first_stream=1000):
    """Parameter number i from stream first_stream + i: matrices within sqrt(3 / fan_in), rounded down to a power of
    two, so that activations keep their size; norm weights 1 + u/8; biases u/8."""
    with torch.no_grad():
        for i, (name, parameter) in enumerate(model.named_parameters()):
            u = uniform(first_stream + i, parameter.shape)
            if parameter.dim() >= 2:
                fan_in = parameter.numel() // parameter.size(0)
                bound = 1.0
                while bound * bound * fan_in > 3:
                    bound /= 2
                parameter.copy_(u * bound)
            else:
                parameter.copy_(u / 8 + (1 if name.endswith("weight") else 0))


def fill_buffers(model, first_stream=5000):
    """running_mean u/8 and running_var 1 + u/2; the count of batches stays 0."""
    for i, (name, buffer) in enumerate(model.named_buffers()):
        u = uniform(first_stream + i, buffer.shape)
        if name.endswith("running_mean"):
            buffer.copy_(u / 8)
        elif name.endswith("running_var"):
            buffer.copy_(u / 2 + 1)


def fnv1a(tensors):
    """FNV-1a, 64 bits, over the bytes of the tensors, as 16 hexadecimal digits."""
    value = 0xCBF29CE484222325
    for tensor in tensors:
        for byte in bytes(tensor.detach().contiguous().flatten().view(torch.uint8).tolist()):
            value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"
