"""The gate's disk: a small one of its own, which can be full, lose what was not synced, and be damaged."""
import ctypes
import errno
import os
from pathlib import Path

from processes import LIBC

MS_REMOUNT = 32
# Less than RocksDB would like to reserve for a log: it then takes what it needs as it goes.
ROOM_BYTES = 12 << 20


class Disk:
    """A tmpfs. Only processes in our mount namespace see it, and it ends with them."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir()
        self.data = self.folder / "data"
        self.table = self.data / "table"
        self._mount(0, ROOM_BYTES)

    def _mount(self, flags, size):
        options = f"size={-(-size // 4096) * 4096}".encode()
        if LIBC.mount(b"tmpfs", os.fsencode(self.folder), b"tmpfs", flags, options) != 0:
            raise OSError(ctypes.get_errno(), f"a tmpfs cannot be mounted on {self.folder}")

    def used(self):
        found = os.statvfs(self.folder)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def make_room(self):
        self._mount(MS_REMOUNT, self.used() + ROOM_BYTES)

    def fill(self):
        """Leaves no room at all."""
        while True:
            try:
                return self._mount(MS_REMOUNT, self.used())
            except OSError as error:
                # More was written in between than there would be room for.
                if error.errno != errno.EINVAL:
                    raise

    def files(self):
        return [path for path in self.data.rglob("*") if path.is_file()]

    def sorted(self, pattern):
        """The table's files of a kind, the newest last."""
        return sorted(self.table.glob(pattern), key=lambda path: path.name)

    def tear(self, mark):
        """Cuts the log off in the middle of the first record that holds these bytes; says how much was lost.

        What a disk does that loses synced bytes: the record was acknowledged.
        """
        for log in self.sorted("*.log"):
            text = log.read_bytes()
            at = text.find(mark)
            if at >= 0:
                os.truncate(log, at)
                return len(text) - at
        return 0


class Synced:
    """What the shim has noted, and the power cut that throws the rest away."""

    def __init__(self, disk, path):
        self.disk, self.path = disk, Path(path)

    def begin(self):
        """What is there when a run begins has survived: it is durable."""
        lines = []
        for path in self.disk.files():
            lines.append(f"C {path}\nS {path.stat().st_size} {path}\nD {path.parent}\n")
        self.path.write_text("".join(lines))

    def _durable(self):
        """By file: how much of it is durable, and whether its name is."""
        files = {}
        for line in self.path.read_text().splitlines():
            what, _, rest = line.partition(" ")
            if what == "C":
                files.setdefault(rest, [0, False])
            elif what == "S":
                size, _, path = rest.partition(" ")
                files.setdefault(path, [0, False])[0] = int(size)
            elif what == "D":
                for path, file in files.items():
                    file[1] |= os.path.dirname(path) == rest
            elif what == "R":
                old, _, new = rest.partition("\t")
                files[new] = [files.pop(old, [0, True])[0], True]
        return files

    def cut(self):
        """The power goes away. Returns how many bytes of logs and tables were lost."""
        files, lost = self._durable(), 0
        for path in self.disk.files():
            synced, is_named = files.get(str(path), (0, False))
            size = path.stat().st_size
            # RocksDB never syncs its own diary, so losing that shows nothing.
            counts = not path.name.startswith("LOG")
            if not is_named:
                path.unlink()
                lost += size * counts
            elif size > synced:
                os.truncate(path, synced)
                lost += (size - synced) * counts
        return lost


class Flip:
    """One flipped bit, which can be flipped back."""

    def __init__(self, path, at, bit):
        self.path, self.at, self.bit = path, at, bit
        self.before = path.read_bytes()

    def do(self):
        changed = bytearray(self.before)
        changed[self.at] ^= 1 << self.bit
        self.path.write_bytes(changed)

    def undo(self):
        self.path.write_bytes(self.before)
