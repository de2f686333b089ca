"""An object's journal, as a new holder pulls it: the hash over it is computed here, not believed."""
import hashlib
import struct
import threading

HASH = "sha256:0x"
NOTHING = bytes(32)


def text_of(hash_):
    return HASH + hash_.hex()


def chain(before, entry):
    """The hash over an entry and all before it."""
    def words(text):
        return struct.pack(">Q", len(text.encode())) + text.encode()

    bytes_ = before + struct.pack(">Q", entry.get("lease_seq") or 0) + words(entry["outcome"])
    if entry["outcome"] != "gap":
        bytes_ += words(entry["method"]) + words(entry["target"])
    if entry["outcome"] == "settled":
        bytes_ += bytes.fromhex(entry["body_sha256"]) + struct.pack(">H", entry["status"])
    return hashlib.sha256(bytes_).digest()


class Journal:
    """As far as it was pulled in this process: by whichever holder, so that nothing is pulled twice."""

    all = {}
    lock_of_all = threading.Lock()

    @classmethod
    def of(cls, folder, object_id):
        with cls.lock_of_all:
            return cls.all.setdefault((str(folder), object_id), cls())

    def __init__(self):
        self.lock = threading.Lock()
        self.count, self.hash = 0, NOTHING

    def pull(self, page, until):
        """Pulls up to the entry `until`. `page(after)` is a part of the journal, or None where it cannot be had.

        Returns (hash, from where on, entries behind that), or None. The part that is known already is pulled again
        where it is another one by now: a lost tail has taken it."""
        with self.lock:
            begun = self.count if self.count <= until and self._is_same(page) else 0
            count, hash_ = (self.count, self.hash) if begun else (0, NOTHING)
            new = []
            while count < until:
                found = page(count)
                if not found or not found["entries"]:
                    return None
                for entry in found["entries"][: until - count]:
                    hash_ = chain(hash_, entry)
                    count += 1
                    new.append(entry)
            self.count, self.hash = count, hash_
            return hash_, begun, new

    def _is_same(self, page):
        if not self.count:
            return True
        found = page(self.count - 1)
        return bool(found and found["entries"]) and found["entries"][0]["hash"] == text_of(self.hash)
