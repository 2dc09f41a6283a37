"""Files laid out as safetensors are: 8 bytes with the length of a JSON header, the header, the tensors' bytes. Nothing but the standard
library. The layout: https://github.com/huggingface/safetensors#format"""

import json
import math
import os
import pathlib
import zlib

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1}
INDEX = "model.safetensors.index.json"
# A header that claims to be longer is damaged.
HEADER_BYTES_MAX = 100 << 20


class Damaged(Exception):
    """A file is not what its header or the index says."""


def read_header(file):
    """Name -> (dtype, shape, begin, end) of the tensors of an open file, in the order of their bytes, counted from the file's start."""
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= HEADER_BYTES_MAX:
        raise Damaged(f"{file.name}: a header of {length} bytes")
    header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    tensors = {}
    for name, told in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = told["data_offsets"]
        if end - begin != math.prod(told["shape"]) * SIZES[told["dtype"]]:
            raise Damaged(f"{file.name}: {name} has other bytes than its shape says")
        tensors[name] = (told["dtype"], told["shape"], 8 + length + begin, 8 + length + end)
    return tensors


def load(folder):
    """All tensors of a model, file by file as the index names them: name -> bytes. Each is compared with its checksum in the index."""
    folder = pathlib.Path(folder)
    index = json.loads((folder / INDEX).read_text())
    tensors = {}
    for shard in dict.fromkeys(index["weight_map"].values()):
        with open(folder / shard, "rb", buffering=0) as file:
            for name, (_, _, begin, end) in read_header(file).items():
                bytes_ = bytearray(end - begin)
                view, done = memoryview(bytes_), 0
                file.seek(begin)
                while done < len(bytes_):
                    got = file.readinto(view[done:])
                    if not got:
                        raise Damaged(f"{folder / shard}: ends within {name}")
                    done += got
                if zlib.crc32(bytes_) != index["metadata"]["crc32"][name]:
                    raise Damaged(f"{folder / shard}: {name} is not what was written")
                tensors[name] = bytes_
    return tensors


def write(folder, total_bytes, shards, tensors_per_shard):
    """A model of random tensors."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    elements = total_bytes // shards // tensors_per_shard // SIZES["BF16"]
    weight_map, sums = {}, {}
    for number in range(shards):
        shard = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        names = [f"layers.{number}.{tensor}.weight" for tensor in range(tensors_per_shard)]
        size = elements * SIZES["BF16"]
        told = {
            name: {"dtype": "BF16", "shape": [elements], "data_offsets": [at * size, (at + 1) * size]}
            for at, name in enumerate(names)
        }
        header = json.dumps(told).encode()
        header += b" " * (-len(header) % 8)
        with open(folder / shard, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for name in names:
                tensor = os.urandom(size)
                file.write(tensor)
                weight_map[name], sums[name] = shard, zlib.crc32(tensor)
    (folder / INDEX).write_text(json.dumps({"metadata": {"crc32": sums}, "weight_map": weight_map}))
