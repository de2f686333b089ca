"""The lock service of a run: a real Redis, and the lock that people make of it (a script that counts and takes).

What counts for the gate: no number is given twice, and a later holder's is higher. The service lives as long as the run
and forgets nothing; a lock runs out by Redis's own clock, whatever its holder thinks."""
import shutil
import socket
import subprocess
from pathlib import Path

from gate import wait_until
from processes import Failed, die_with_parent, environment

# The number counts up also where the lock is another's.
TAKE = """\
local token = redis.call('INCR', KEYS[2])
if redis.call('SET', KEYS[1], token, 'PX', ARGV[1], 'NX') then return token else return nil end
"""
RELEASE = """\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end
"""


def socket_of(folder):
    return Path(folder) / "redis.sock"


class Redis:
    """The service, in its own process."""

    def __init__(self, folder):
        program = shutil.which("redis-server")
        if not program:
            raise Failed("missing: redis-server; run `make setup-test` first")
        command = [program, "--port", "0", "--unixsocket", socket_of(folder), "--dir", folder, "--save", "",
                   "--appendonly", "no"]
        with open(Path(folder) / "redis.log", "ab") as log:
            self.process = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, preexec_fn=die_with_parent)
        wait_until("Redis", lambda: self._listens(folder))

    def _listens(self, folder):
        if self.process.poll() is not None:
            raise Failed(f"Redis has ended: {(Path(folder) / 'redis.log').read_text()[-2000:]}")
        try:
            Locks(folder).close()
        except OSError:
            return False
        return True

    def stop(self):
        self.process.kill()
        self.process.wait()


class Lock:
    """A lock that a writer has, or had: the counterpart of a lease."""

    def __init__(self, object_id, seq, ttl_ms):
        self.object, self.seq, self.ttl_ms = object_id, seq, ttl_ms
        self.token = str(seq)


class Locks:
    """A connection to the service. Not for several threads at once."""

    def __init__(self, folder):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.connect(str(socket_of(folder)))
        except OSError:
            self.sock.close()
            raise
        self.answers = self.sock.makefile("rb")

    def close(self):
        self.answers.close()
        self.sock.close()

    def call(self, *words):
        """What Redis says, where that is a number or nothing."""
        words = [str(word).encode() for word in words]
        text = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        self.sock.sendall(b"*%d\r\n%s" % (len(words), text))
        said = self.answers.readline().decode().strip()
        if said == "$-1":
            return None
        if not said.startswith(":"):
            raise Failed(f"Redis says {said!r} to {words[0].decode()}")
        return int(said[1:])

    def take(self, object_id, ttl_ms):
        """A lock with the next number, or None where it is another's."""
        seq = self.call("EVAL", TAKE, 2, f"lock:{object_id}", f"token:{object_id}", ttl_ms)
        return None if seq is None else Lock(object_id, seq, ttl_ms)

    def release(self, lock):
        self.call("EVAL", RELEASE, 1, f"lock:{lock.object}", lock.seq)

    def next(self, object_id):
        """A number above all earlier ones, without a holder."""
        return self.call("INCR", f"token:{object_id}")
