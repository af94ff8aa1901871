"""Both projectors in numpy, from the descriptions of C2C and of Mooncake's converter.

    reference.py DIR

writes into DIR a case of each: weights as safetensors (fp32), a source and a target object (bf16), and
what the conversion yields, computed in float64 and rounded to the nearest bf16.
"""

import json
import struct
import sys
from math import erf
from pathlib import Path

import numpy as np

TOKENS, SOURCE_LAYERS, TARGET_LAYERS = 37, 4, 3
SOURCE_HEADS, TARGET_HEADS, HEAD_DIM, HIDDEN, INNER = 2, 3, 16, 40, 56
SOURCE, TARGET = SOURCE_HEADS * HEAD_DIM, TARGET_HEADS * HEAD_DIM
# Two layers of the target are mapped, in an order of their own; one module is used for each.
LAYER_MAP = [(2, 3, 0), (0, 1, 1)]

random = np.random.default_rng(7)


def to_bf16(values):
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def write_safetensors(path, tensors, properties):
    header, data = {"__metadata__": properties}, b""
    for name, tensor in tensors.items():
        part = tensor.astype("<f4").tobytes()
        header[name] = {
            "dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(part)],
        }
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def weights(*shape):
    scale = 1 / np.sqrt(shape[-1])
    return random.normal(0, scale, shape).astype(np.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu_erf(x):
    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def gelu_tanh(x):
    inner = np.clip(0.7978845608 * (x + 0.044715 * x**3), -3, 3)
    return 0.5 * x * (1 + inner * (27 + inner**2) / (27 + 9 * inner**2))


def linear(w, name, x):
    return x @ w[name + ".weight"].T.astype(np.float64) + w[name + ".bias"]


def blocks(w, name, x):
    number = 0
    while f"{name}.{number}.norm.weight" in w:
        block = f"{name}.{number}."
        normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w[block + "norm.weight"]
        x = x + gelu_erf(normed @ w[block + "w1.weight"].T.astype(np.float64)) @ w[block + "w2.weight"].T
        number += 1
    return x


def add_blocks(w, name, count, inner):
    for number in range(count):
        w[f"{name}.{number}.norm.weight"] = 1 + weights(HIDDEN)
        w[f"{name}.{number}.w1.weight"] = weights(inner, HIDDEN)
        w[f"{name}.{number}.w2.weight"] = weights(HIDDEN, inner)


def add_linear(w, name, outputs, inputs):
    w[name + ".weight"] = weights(outputs, inputs)
    w[name + ".bias"] = weights(outputs)


def full(w, prefix, source, target):
    x = linear(w, prefix + "in", np.concatenate([source, target], -1))
    x = blocks(w, prefix + "mlp1", x)
    projected = linear(w, prefix + "proj_out", blocks(w, prefix + "proj_mlp2", x))
    heads = sigmoid(linear(w, prefix + "scalar_head", blocks(w, prefix + "scalar_mlp2", x)))
    gate = float(w[prefix + "gate_logit"] > 0)
    return target + gate * np.repeat(heads, HEAD_DIM, -1) * projected


def simplified(w, prefix, source):
    hidden = gelu_tanh(linear(w, prefix + "in", source))
    hidden = gelu_tanh(linear(w, prefix + "mlp1", hidden))
    return sigmoid(np.float64(w[prefix + "gate_logit"])) * linear(w, prefix + "proj_out", hidden)


def properties(variant, activation, gate, **more):
    return {
        "format": "kv-projector", "version": "1", "variant": variant, "activation": activation, "gate": gate,
        "source_model": "s", "target_model": "t",
        "source_layers": str(SOURCE_LAYERS), "target_layers": str(TARGET_LAYERS),
        "source_kv_heads": str(SOURCE_HEADS), "target_kv_heads": str(TARGET_HEADS), **more,
    }


def main(folder):
    source = to_bf16(random.normal(0, 1, (TOKENS, SOURCE_LAYERS, SOURCE)))
    target = to_bf16(random.normal(0, 1, (TOKENS, TARGET_LAYERS, TARGET)))
    (folder / "source.bf16").write_bytes(source.tobytes())
    (folder / "target.bf16").write_bytes(target.tobytes())
    s, t = from_bf16(source), from_bf16(target)

    w = {}
    for layer in range(TARGET_LAYERS):
        for part in ("key", "value"):
            prefix = f"layers.{layer}.{part}."
            add_linear(w, prefix + "in", HIDDEN, SOURCE)
            add_linear(w, prefix + "mlp1", HIDDEN, HIDDEN)
            add_linear(w, prefix + "proj_out", TARGET, HIDDEN)
            w[prefix + "gate_logit"] = np.float32(random.normal())
    write_safetensors(folder / "simplified.safetensors", w, properties("simplified", "gelu_tanh_pade", "sigmoid"))
    skipped = SOURCE_LAYERS - TARGET_LAYERS
    for part in ("key", "value"):
        rows = [simplified(w, f"layers.{l}.{part}.", s[:, skipped + l]) for l in range(TARGET_LAYERS)]
        (folder / f"simplified.{part}.bf16").write_bytes(to_bf16(np.stack(rows, 1)).tobytes())

    w = {}
    for module in range(len(LAYER_MAP)):
        for part in ("key", "value"):
            prefix = f"layers.{module}.{part}."
            add_linear(w, prefix + "in", HIDDEN, SOURCE + TARGET)
            add_blocks(w, prefix + "mlp1", 1, HIDDEN)
            add_blocks(w, prefix + "proj_mlp2", 2, INNER)
            add_linear(w, prefix + "proj_out", TARGET, HIDDEN)
            add_blocks(w, prefix + "scalar_mlp2", 1, HIDDEN)
            add_linear(w, prefix + "scalar_head", TARGET_HEADS, HIDDEN)
            # One gate is closed.
            w[prefix + "gate_logit"] = np.float32(-1 if (module, part) == (1, "value") else 1)
    text = ",".join(":".join(map(str, triple)) for triple in LAYER_MAP)
    write_safetensors(folder / "full.safetensors", w, properties("c2c", "gelu_erf", "hard", layer_map=text))
    for part in ("key", "value"):
        out = t.copy()
        for target_layer, source_layer, module in LAYER_MAP:
            out[:, target_layer] = full(w, f"layers.{module}.{part}.", s[:, source_layer], t[:, target_layer])
        (folder / f"full.{part}.bf16").write_bytes(to_bf16(out).tobytes())


main(Path(sys.argv[1]))
