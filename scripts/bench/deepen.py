"""A stand-in for a larger target: the same function, so many times as deep and as slow.

  scripts/bench/run deepen TARGET.gguf -n 3 -o DEEP.gguf

After each layer come copies of it whose attention-output and feed-forward-down matrices are zero: what they add to the
residual stream is nothing, what they cost is a layer. So real text and real acceptance can be measured at the cost
ratio of a larger target beside the same draft. Wherever such a figure is shown, it says that it is of a stand-in.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

ARCHITECTURES = ("llama", "qwen2", "qwen3")
SILENT = ("attn_output.weight", "ffn_down.weight", "attn_output.bias", "ffn_down.bias")


def plan(names: list[str], times: int) -> list[tuple[str, str, bool]]:
    """(name in the new file, name in the old one, zero or not) of every tensor."""
    found = []
    for name in names:
        layer = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        if layer is None:
            found.append((name, name, False))
            continue
        for copy in range(times):
            new = f"blk.{int(layer[1]) * times + copy}.{layer[2]}"
            found.append((new, name, copy > 0 and layer[2] in SILENT))
    return found


def deepen(source: Path, out: Path, times: int) -> None:
    """Write the deeper file, all of it or nothing. Raises SystemExit with a line where it cannot be."""
    import gguf

    reader: Any = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    if architecture not in ARCHITECTURES:
        raise SystemExit(f"error: {source.name} is of {architecture}; {', '.join(ARCHITECTURES)} can be deepened")
    tensors = {str(tensor.name): tensor for tensor in reader.tensors}
    layers = plan(list(tensors), times)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    writer: Any = gguf.GGUFWriter(part, architecture)
    try:
        for key, field in reader.fields.items():
            if key.startswith("GGUF.") or key == "general.architecture":
                continue
            value, kind = field.contents(), field.types[0]
            if key == f"{architecture}.block_count":
                value *= times
            elif kind == gguf.GGUFValueType.ARRAY and key.startswith(f"{architecture}."):
                raise SystemExit(f"error: {key} differs by layer, which deepening would mix up")
            writer.add_key_value(key, value, kind, sub_type=field.types[-1] if len(field.types) > 1 else None)
        for new, old, _ in layers:
            data = tensors[old].data
            writer.add_tensor_info(new, data.shape, data.dtype, data.nbytes, tensors[old].tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for _, old, silent in layers:
            data = tensors[old].data
            writer.write_tensor_data(np.zeros_like(data) if silent else data)
        writer.close()
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("-n", "--times", type=int, required=True, metavar="N")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT")
    options = parser.parse_args()
    if options.times < 1:
        parser.error("-n must be at least 1")
    deepen(options.target, options.output, options.times)
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
