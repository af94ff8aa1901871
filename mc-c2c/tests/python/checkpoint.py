"""Checkpoints of C2C and other state dicts, saved by PyTorch itself.

    checkpoint.py DIR            all that tests/it/torch_python.rs compares
    checkpoint.py DIR --sample   the sample in tests/data/checkpoint

A checkpoint is written as C2C's trainer does. `C2CProjector` is written from the description of the
published class. Beside each there are a source and a target object (bf16, page first) and what the
conversion yields, computed by PyTorch in fp32 and rounded to the nearest bf16.
"""

import json
import sys
from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn


class RmsNorm(nn.Module):
    def __init__(self, dim, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim, dtype=dtype))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Block(nn.Module):
    def __init__(self, hidden, inner, dtype):
        super().__init__()
        self.norm = RmsNorm(hidden, dtype)
        self.w1 = nn.Linear(hidden, inner, bias=False, dtype=dtype)
        self.act = nn.GELU()
        self.w2 = nn.Linear(inner, hidden, bias=False, dtype=dtype)

    def forward(self, x):
        return x + self.w2(self.act(self.w1(self.norm(x))))


class RegularMLP(nn.Module):
    def __init__(self, hidden, inner, layers, dtype):
        super().__init__()
        self.blocks = nn.ModuleList(Block(hidden, inner, dtype) for _ in range(layers))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class C2CProjector(nn.Module):
    def __init__(self, source_dim, target_dim, source_num_heads, target_num_heads, intermediate_dim, hidden_dim,
                 num_layers, dtype):
        super().__init__()
        both = source_dim * source_num_heads + target_dim * target_num_heads
        self.heads, self.head_dim = target_num_heads, target_dim
        for part in ("key", "value"):
            setattr(self, f"{part}_in", nn.Linear(both, hidden_dim, dtype=dtype))
            setattr(self, f"{part}_mlp1", RegularMLP(hidden_dim, intermediate_dim, 1, dtype))
            setattr(self, f"{part}_scalar_mlp2", RegularMLP(hidden_dim, hidden_dim, 1, dtype))
            setattr(self, f"{part}_scalar_head", nn.Linear(hidden_dim, target_num_heads, dtype=dtype))
            setattr(self, f"{part}_proj_mlp2", RegularMLP(hidden_dim, intermediate_dim, num_layers - 2, dtype))
            setattr(self, f"{part}_proj_out", nn.Linear(hidden_dim, target_dim * target_num_heads, dtype=dtype))
            setattr(self, f"{part}_gate_logit", nn.Parameter(torch.tensor(0.5, dtype=dtype)))
        self.register_buffer("gate_temperature", torch.tensor(1.0, dtype=dtype))

    def forward(self, part, source, target):
        """(tokens, heads, dim) of both; the result has the target's shape."""
        of = lambda name: getattr(self, f"{part}_{name}")
        x = of("mlp1")(of("in")(torch.cat([source.flatten(1), target.flatten(1)], -1)))
        projected = of("proj_out")(of("proj_mlp2")(x)).view(-1, self.heads, self.head_dim)
        scalar = torch.sigmoid(of("scalar_head")(of("scalar_mlp2")(x)))[..., None]
        gate = (of("gate_logit") > 0).float()
        return target + gate * scalar * projected


def save_checkpoint(folder, dtype, layer_map, source_layers, target_layers, tokens, **dims):
    folder.mkdir(parents=True, exist_ok=True)
    modules = []
    for index in range(1 + max(module for pairs in layer_map.values() for _, module in pairs)):
        module = C2CProjector(**dims, dtype=dtype)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if "norm" in name:
                    parameter.add_(torch.randn_like(parameter.float()).to(dtype) * 0.1)
        if index == 1:
            module.value_gate_logit.data.fill_(-0.25)
        torch.save(module.state_dict(), folder / f"projector_{index}.pt")
        arguments = dims | {"dropout": 0.1, "dtype": {"__type__": "torch.dtype", "value": str(dtype)}}
        text = json.dumps({"class": "C2CProjector", "init_args": arguments})
        (folder / f"projector_{index}.json").write_text(text)
        modules.append(module.eval().float())
    (folder / "projector_config.json").write_text(json.dumps({0: {1: layer_map}}))

    row = {side: (dims[f"{side}_num_heads"], dims[f"{side}_dim"]) for side in ("source", "target")}
    source = torch.randn(tokens, source_layers, *row["source"]).bfloat16()
    target = torch.randn(tokens, target_layers, *row["target"]).bfloat16()
    write(folder / "source.bf16", source)
    write(folder / "target.bf16", target)
    for part in ("key", "value"):
        out = target.clone()
        for layer, pairs in layer_map.items():
            source_layer, module = pairs[0]
            with torch.no_grad():
                new = modules[module](part, source[:, source_layer].float(), target[:, layer].float())
            out[:, layer] = new.bfloat16()
        write(folder / f"{part}.bf16", out)


def write(path, tensor):
    # Not every numpy and PyTorch go together, and numpy has no bf16.
    path.write_bytes(bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()))


def raw(tensor):
    """An element after the other, little-endian."""
    tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
    if tensor.dim() == 0:
        tensor = tensor[None]
    return bytes(tensor.view(torch.uint8).flatten().tolist()) if tensor.numel() else b""


def save_state_dicts(folder):
    folder.mkdir(parents=True, exist_ok=True)
    base = torch.arange(24, dtype=torch.float32)
    matrix = base.view(4, 6)
    tensors = OrderedDict(
        whole=base, rows=matrix, transposed=matrix.t(), column=matrix[:, 2], part=matrix[1:3, 1:5], odd=base[1::3],
        last=base[23], none=base[:0], cube=base.view(2, 3, 4).permute(2, 0, 1), parameter=nn.Parameter(torch.ones(3)),
        f64=torch.tensor([1.5, -2.0], dtype=torch.float64), f16=torch.tensor([0.1, 65504.0]).half(),
        bf16=torch.tensor([0.1, 3e38]).bfloat16(), i64=torch.tensor([-1, 1 << 40]), i32=torch.tensor([-7]).int(),
        i16=torch.tensor([300]).short(), i8=torch.tensor([-3]).char(), u8=torch.tensor([200]).byte(),
        bool=torch.tensor([True, False]),
    )
    tensors["\u00fc" * 200] = torch.ones(1)
    for protocol in (2, 3, 4, 5):
        torch.save(tensors, folder / f"protocol_{protocol}.pt", pickle_protocol=protocol)
    values = {name: [list(tensor.shape), raw(tensor).hex()] for name, tensor in tensors.items()}
    (folder / "values.json").write_text(json.dumps(values))
    torch.save({f"layer.{number}": torch.full((2,), float(number)) for number in range(3000)}, folder / "many.pt")
    torch.save(tensors, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({"state": tensors}, folder / "nested.pt")
    torch.save(torch.ones(2), folder / "tensor.pt")
    torch.save(nn.Linear(2, 2), folder / "module.pt")
    torch.save(OrderedDict(repeated=torch.ones(1).expand(1000)), folder / "expanded.pt")


def main(folder, *flags):
    torch.manual_seed(7)
    if flags:
        save_checkpoint(folder, torch.float32, {0: [[0, 0]], 1: [[1, 0]]}, 2, 2, 3, source_dim=2, target_dim=2,
                        source_num_heads=1, target_num_heads=2, intermediate_dim=4, hidden_dim=4, num_layers=3)
        return
    dims = dict(source_dim=16, target_dim=16, source_num_heads=2, target_num_heads=3, intermediate_dim=40,
                hidden_dim=40, num_layers=4)
    # The order of modules is none of layers; the second source of a layer is not used.
    layer_map = {0: [[1, 1], [3, 0]], 2: [[3, 2]], 1: [[2, 0]]}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        save_checkpoint(folder / name, dtype, layer_map, 4, 3, 37, **dims)
    wide = dims | dict(intermediate_dim=56)
    save_checkpoint(folder / "wide", torch.float32, {1: [[0, 0]]}, 4, 3, 5, **wide)
    save_state_dicts(folder / "state_dicts")


main(Path(sys.argv[1]), *sys.argv[2:])
