#!/usr/bin/env python3
"""Writes the names, shapes and dtypes in the state_dict of each module of torch.nn that has a state, in their order:

  python make_module_names.py module_names.json

tests/train/module_state_test.cpp makes the same modules in C++ under the same keys.
"""
import collections
import json
import sys

import torch
from torch import nn


def named():
    return nn.Sequential(collections.OrderedDict(first=nn.Linear(2, 3), act=nn.ReLU(), second=nn.Linear(3, 2)))


ones = torch.ones(3)
MODULES = {
    "Linear": nn.Linear(2, 3),
    "Linear, no bias": nn.Linear(2, 3, bias=False),
    "Bilinear": nn.Bilinear(2, 3, 4),
    "Conv1d": nn.Conv1d(2, 4, 3, groups=2),
    "Conv2d": nn.Conv2d(2, 4, 3),
    "Conv3d": nn.Conv3d(2, 4, 3, bias=False),
    "ConvTranspose1d": nn.ConvTranspose1d(2, 4, 3),
    "ConvTranspose2d": nn.ConvTranspose2d(2, 4, 3),
    "ConvTranspose3d": nn.ConvTranspose3d(2, 4, 3),
    "BatchNorm1d": nn.BatchNorm1d(3),
    "BatchNorm2d, not affine": nn.BatchNorm2d(3, affine=False),
    "BatchNorm3d, no statistics": nn.BatchNorm3d(3, track_running_stats=False),
    "InstanceNorm1d": nn.InstanceNorm1d(3),
    "InstanceNorm2d, affine": nn.InstanceNorm2d(3, affine=True),
    "InstanceNorm3d, affine and statistics": nn.InstanceNorm3d(3, affine=True, track_running_stats=True),
    "LayerNorm": nn.LayerNorm([2, 3]),
    "GroupNorm": nn.GroupNorm(2, 4),
    "Embedding": nn.Embedding(5, 2),
    "EmbeddingBag": nn.EmbeddingBag(5, 2),
    "RNN": nn.RNN(2, 3, num_layers=2),
    "LSTM, bidirectional": nn.LSTM(2, 3, num_layers=2, bidirectional=True),
    "LSTM, projected": nn.LSTM(2, 4, num_layers=2, proj_size=3, bidirectional=True),
    "GRU, no bias": nn.GRU(2, 3, bias=False, bidirectional=True),
    "RNNCell": nn.RNNCell(2, 3),
    "LSTMCell": nn.LSTMCell(2, 3),
    "GRUCell": nn.GRUCell(2, 3, bias=False),
    "MultiheadAttention": nn.MultiheadAttention(4, 2),
    "MultiheadAttention, kdim and vdim": nn.MultiheadAttention(4, 2, kdim=3, vdim=5),
    "MultiheadAttention, bias_kv": nn.MultiheadAttention(4, 2, add_bias_kv=True),
    "MultiheadAttention, no bias": nn.MultiheadAttention(4, 2, bias=False),
    "TransformerEncoderLayer": nn.TransformerEncoderLayer(4, 2, 6),
    "TransformerDecoderLayer": nn.TransformerDecoderLayer(4, 2, 6),
    "TransformerEncoder": nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 6), 2, nn.LayerNorm(4)),
    "TransformerDecoder": nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 6), 2),
    "Transformer": nn.Transformer(4, 2, 1, 1, 6),
    "PReLU": nn.PReLU(3),
    "AdaptiveLogSoftmaxWithLoss": nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10], div_value=2.0, head_bias=True),
    "Sequential": nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)),
    "Sequential, named": named(),
    "ModuleList": nn.ModuleList([nn.Linear(2, 3), nn.PReLU()]),
    "ModuleDict": nn.ModuleDict(collections.OrderedDict(b=nn.Linear(2, 3), a=nn.PReLU())),
    "ParameterList": nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1, 3))]),
    "ParameterDict": nn.ParameterDict(collections.OrderedDict(b=nn.Parameter(torch.ones(2)),
                                                              a=nn.Parameter(torch.ones(3)))),
    "CrossEntropyLoss": nn.CrossEntropyLoss(weight=ones),
    "NLLLoss": nn.NLLLoss(weight=ones),
    "BCELoss": nn.BCELoss(weight=ones),
    "BCEWithLogitsLoss": nn.BCEWithLogitsLoss(weight=ones, pos_weight=ones),
    "MultiLabelSoftMarginLoss": nn.MultiLabelSoftMarginLoss(weight=ones),
    "MultiMarginLoss": nn.MultiMarginLoss(weight=ones),
}

names = {key: [[name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
               for name, tensor in module.state_dict().items()] for key, module in MODULES.items()}
lines = [f' {json.dumps(key)}: {json.dumps(entries)}' for key, entries in names.items()]
with open(sys.argv[1], "w", encoding="utf-8") as file:
    file.write("{\n" + ",\n".join(lines) + "\n}\n")
