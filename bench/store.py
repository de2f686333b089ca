"""The store behind every proxy: an nginx that reads a body, answers 200 and counts."""
import re

import http1
import nginx
from processes import Failed, free_port

ANSWER = b"ok\n"

# /bench/echo says what reached the store; the checks look at it. `return` reads the body and drops it.
SERVER = """\
    server {{
        listen 127.0.0.1:{port};
        location = /count {{ stub_status; }}
        location = /bench/echo {{
            return 200 "$request_method $content_length seq=$http_fence_seq token=$http_fence_token\\n";
        }}
        location / {{ return 200 "ok\\n"; }}
    }}
"""


class Store:
    def __init__(self, processes, core, name="store"):
        self.name, self.port = name, free_port()
        self.asked = 0
        nginx.start(processes, name, core, self.port, SERVER.format(port=self.port))

    def count(self):
        """Requests so far, those for this number left out."""
        status, _, body = http1.once(self.port, "GET", "/count", {"Connection": "close"})
        # "server accepts handled requests" and, below it, the three numbers.
        found = re.search(rb"requests\s+\d+ \d+ (\d+)", body)
        if status != 200 or not found:
            raise Failed(f"the store does not say its count: {status} {body!r}")
        self.asked += 1
        return int(found[1]) - self.asked
