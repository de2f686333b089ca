"""The agents of a chaos run, and behind each an application that knows of no lease: it writes without a token.

Arguments: the run's folder, the port of the log of grants, the seed, the number of agents, the program. Prints a line,
then goes on until its standard input ends; while there is a file `rest` in the folder, nothing new is begun and no
agent is stopped. Agents are stopped past their leases, killed and ended in good order, one after the other, and begun
anew under another name.
"""
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from client import Client, Down, Keyed  # noqa: E402
from grants import Reporter  # noqa: E402
from logs import Log, now  # noqa: E402
from objects import AGENTS as OBJECTS  # noqa: E402
from processes import Failed, die_with_parent, environment, first_line  # noqa: E402
from writers import over, pause, wish  # noqa: E402

TTL_MS = 600
# How long agents go on, and are stopped; and how many writes an application has on their way.
GOES_ON_S, STOPPED_S = (0.2, 0.8), (0.1, 1.6)
THREADS = 2

CONFIG = """\
[agent]
listen = "127.0.0.1:0"
[status]
listen = "127.0.0.1:0"
[gate]
url = "http://127.0.0.1:{gate}"
api = "http://127.0.0.1:{api}"
connect_timeout_ms = 300
response_timeout_ms = 5000
[lease]
holder_id = "{name}"
ttl_ms = {ttl_ms}
wait_ms = 500
[shutdown]
deadline_ms = 1500
[log]
format = "json"
[[route]]
name = "plain"
match = "/o/{{object}}/{{rest...}}"
object = "{{object}}"
"""


class Agent:
    """One agent after another, for one application."""

    def __init__(self, number, folder, ports, binary):
        self.number, self.folder, self.ports, self.binary = number, Path(folder), ports, binary
        self.log = self.folder / f"agent{number}.log"
        self.starts = 0
        self.start()

    def start(self):
        self.starts += 1
        self.name = f"agent{self.number}.{self.starts}"
        config = self.folder / f"agent{self.number}.toml"
        config.write_text(CONFIG.format(name=self.name, ttl_ms=TTL_MS, **self.ports))
        with open(self.log, "ab") as errors:
            self.process = subprocess.Popen(
                [self.binary, "agent", "--config", config], env=environment(), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=errors, preexec_fn=die_with_parent,
            )
        line = first_line(self.process, 20)
        if not line.startswith("ready "):
            raise Failed(f"an agent does not start: {self.log.read_text()[-2000:]}")
        address = dict(part.split("=") for part in line.split()[1:])["agent"]
        self.address = ("127.0.0.1", int(address.rpartition(":")[2]))

    def end(self, number):
        """Ends it with a signal, and waits until it is gone."""
        self.process.send_signal(number)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failed(f"an agent did not end: {self.log.read_text()[-2000:]}") from None
        finally:
            self.process.stdout.close()


class Led:
    """What an application knows of a lease: nothing but the object."""

    seq = token = None

    def __init__(self, object_id):
        self.object = object_id


class Behind(Client):
    """A client behind an agent. Its writes are the agent's."""

    def __init__(self, agent, folder, calls, reporter):
        self.agent = agent
        super().__init__(agent.name, folder, calls, reporter)

    @property
    def name(self):
        return self.agent.name

    @name.setter
    def name(self, _):
        """The agent has one."""

    def addresses(self):
        return super().addresses() | {"gate": self.agent.address}


class Application:
    def __init__(self, agent, thread, folder, port, seed):
        self.random = random.Random(f"{seed}/agent/{agent.number}/{thread}")
        self.client = Behind(agent, folder, Log(Path(folder) / "calls.jsonl"), Reporter(port))
        self.rest = Path(folder) / "rest"

    def run(self):
        while not over.is_set():
            if self.rest.exists():
                pause(5)
                continue
            try:
                self.act()
            except Down:
                pause(10)

    def act(self):
        chosen, led = self.random.random(), Led(self.random.choice(OBJECTS))
        if chosen < 0.02:
            # A revocation by an operator.
            self.client.revoke(led.object)
            return
        if chosen < 0.07:
            self.client.read(led.object)
            return
        streams = self.random.random() < 0.3
        body = bytes(self.random.randint(4_000, 40_000)) if streams else b"x" * self.random.randint(0, 1_500)
        wishes = [wish(self.random, streams) for _ in range(2)]
        if chosen < 0.2:
            keyed = Keyed(self.client, led.object, body)
            outcomes = [self.client.write(led, each, key=keyed) for each in wishes]
        else:
            outcomes = [self.client.write(led, wishes[0], body)]
        if "refused" in outcomes:
            pause(self.random.randint(5, 40))


def play(agents, folder, seed):
    """Does things to one agent after another."""
    random_, rest, log = random.Random(f"{seed}/agents"), Path(folder) / "rest", Log(Path(folder) / "calls.jsonl")
    while not over.wait(random_.uniform(*GOES_ON_S)):
        if rest.exists():
            continue
        agent, chosen, begun = random_.choice(agents), random_.random(), now()
        name = agent.name
        if chosen < 0.5:
            until = begun + random_.uniform(*STOPPED_S)
            agent.process.send_signal(signal.SIGSTOP)
            while now() < until and not rest.exists() and not over.wait(0.01):
                pass
            agent.process.send_signal(signal.SIGCONT)
            what = "stopped"
        else:
            what, number = ("killed", signal.SIGKILL) if chosen < 0.75 else ("ended", signal.SIGTERM)
            agent.end(number)
            agent.start()
        log.note(now(), "agent", name=name, begun=begun, what=what, ttl_s=TTL_MS / 1000)


def main():
    folder, port, seed, number, binary = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
    addresses = Client("agents", folder, None, None).addresses()
    ports = {name: addresses[name][1] for name in ("gate", "api")}
    agents = [Agent(n, folder, ports, binary) for n in range(number)]
    applications = [Application(agent, n, folder, port, seed) for agent in agents for n in range(THREADS)]
    threads = [threading.Thread(target=each.run, daemon=True) for each in applications]
    threads.append(threading.Thread(target=play, args=(agents, folder, seed), daemon=True))
    for thread in threads:
        thread.start()
    print(0, flush=True)
    sys.stdin.buffer.read()
    over.set()
    for thread in threads:
        thread.join(8)
    for agent in agents:
        agent.end(signal.SIGKILL)
        if "panicked" in agent.log.read_text():
            print(f"an agent has panicked: {agent.log.read_text()[-2000:]}", file=sys.stderr, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
