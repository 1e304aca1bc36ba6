"""The models of models/ written again in Python, as independently as their definition allows. ResNet-18 comes from
torchvision instead."""

import math

import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self, in_features, hidden, num_classes):
        super().__init__()
        widths = [in_features, *hidden, num_classes]
        self.depth = len(widths) - 1
        for i in range(self.depth):
            setattr(self, f"fc{i + 1}", nn.Linear(widths[i], widths[i + 1]))

    def forward(self, x):
        x = x.flatten(1)
        for i in range(1, self.depth):
            x = getattr(self, f"fc{i}")(x).relu()
        return getattr(self, f"fc{self.depth}")(x)


class Cnn(nn.Module):
    def __init__(self, in_channels, num_classes):
        super().__init__()
        channels = [in_channels, 16, 24, 48]
        for i in range(3):
            setattr(self, f"conv{i + 1}", nn.Conv2d(channels[i], channels[i + 1], 3, padding=1, bias=False))
            setattr(self, f"bn{i + 1}", nn.BatchNorm2d(channels[i + 1]))
        self.fc = nn.Linear(48 * 3 * 3, num_classes)

    def forward(self, x):
        for i in range(1, 4):
            x = nn.functional.max_pool2d(getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x)).relu(), 2)
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 3).flatten(1))


class _Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.c_attn = nn.Linear(d_model, 3 * d_model)
        self.c_proj = nn.Linear(d_model, d_model)

    def forward(self, x):  # softmax(q k' / sqrt(e)) v, head by head
        tokens = x.size(1)
        future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        heads = []
        for q, k, v in zip(*(part.chunk(self.num_heads, -1) for part in self.c_attn(x).chunk(3, -1))):
            scores = q @ k.transpose(1, 2) / math.sqrt(q.size(-1))
            heads.append(scores.masked_fill(future, -math.inf).softmax(-1) @ v)
        return self.c_proj(torch.cat(heads, -1))


class _FeedForward(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.c_fc = nn.Linear(d_model, 4 * d_model)
        self.c_proj = nn.Linear(4 * d_model, d_model)

    def forward(self, x):  # Hendrycks and Gimpel 2016, the tanh form
        x = self.c_fc(x)
        return self.c_proj(0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


class _Block(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(d_model)
        self.attn = _Attention(d_model, num_heads)
        self.ln_2 = nn.LayerNorm(d_model)
        self.mlp = _FeedForward(d_model)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, vocab_size, context, d_model, num_layers, num_heads):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, d_model)
        self.wpe = nn.Embedding(context, d_model)
        self.h = nn.ModuleList(_Block(d_model, num_heads) for _ in range(num_layers))
        self.ln_f = nn.LayerNorm(d_model)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.size(1)]
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))
