"""What the driver asks of the shim in the gate: a file that both map into memory (see shim.c)."""
import mmap
import struct
from pathlib import Path

FIELDS = ["wall_offset_ms", "wall_reads", "fail_syncs", "failed_syncs", "hold_sync", "held_syncs"]


class Control:
    """Its attributes are the fields of the shim's `struct control`."""

    def __init__(self, path):
        Path(path).write_bytes(bytes(4096))
        with open(path, "r+b") as file:
            self.__dict__["_map"] = mmap.mmap(file.fileno(), 4096)

    def __getattr__(self, name):
        if name not in FIELDS:
            raise AttributeError(name)
        return struct.unpack_from("=q", self._map, 8 * FIELDS.index(name))[0]

    def __setattr__(self, name, value):
        struct.pack_into("=q", self._map, 8 * FIELDS.index(name), value)
