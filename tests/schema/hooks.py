"""Loaded by schemathesis: keeps calls within the run's own folder, lets them meet each other, and notes every answer.

The environment names the folder of backups, the file of notes, and the principal that calls.
"""
import json
import os
import zlib
from urllib.parse import quote

import schemathesis
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation import GenerationMode

BACKUPS, NOTES = os.environ["SCHEMA_BACKUPS"], os.environ["SCHEMA_NOTES"]
HOLDER = os.environ.get("SCHEMA_PRINCIPAL") or "holder"
OBJECTS = ["users", "j-users", "x-users", "/few/users", "orders", "carts"]
# Of so many calls of an operation, one keeps what was generated for it.
KEPT = 4
LASTING_MS = 60_000


class World:
    """How many calls of each operation there were, and the leases that were granted."""

    def __init__(self):
        self.made, self.leases = {}, []

    def turn(self, label):
        self.made[label] = self.made.get(label, -1) + 1
        return self.made[label]


WORLD = World()


def is_valid(case, location):
    """Whether a part of the request was generated as the description allows."""
    component = case.meta.components.get(location) if case.meta else None
    return component is not None and component.mode == GenerationMode.POSITIVE


def meet(case, turn):
    """Random names never meet. Most calls get one of a few objects, one holder, and a lease that was granted."""
    if case.meta is None or case.meta.phase.name.value == "stateful":
        return
    name = OBJECTS[turn % len(OBJECTS)]
    lease = WORLD.leases[-1] if WORLD.leases else None
    body = case.body if is_valid(case, ParameterLocation.BODY) and isinstance(case.body, dict) else {}
    wanted = {"object_id": name, "holder_id": HOLDER} | ({"ttl_ms": LASTING_MS} if turn % 2 else {})
    if lease and "fence_token" in body:
        wanted |= {field: lease[field] for field in ("fence_token", "holder_id", "object_id")}
    body.update({field: value for field, value in wanted.items() if field in body})
    if is_valid(case, ParameterLocation.PATH):
        known = {"object_id": quote(name, safe="")} | ({"lease_id": lease["lease_id"]} if lease else {})
        case.path_parameters.update({each: known[each] for each in known if each in case.path_parameters})
    if lease and is_valid(case, ParameterLocation.HEADER) and "Fence-Token" in case.headers:
        case.headers["Fence-Token"] = lease["fence_token"]


def remember(case, response):
    """Notes a lease that was granted or given back."""
    if case.method == "POST" and response.status_code in (200, 201):
        answer = response.json()
        if case.path.endswith("/revoke"):
            WORLD.leases = [each for each in WORLD.leases if each["object_id"] != answer["object_id"]]
        WORLD.leases += [each for each in answer.get("leases", [answer]) if "fence_token" in each]
    elif case.method == "DELETE" and response.status_code == 200:
        given_back = case.path_parameters["lease_id"]
        WORLD.leases = [each for each in WORLD.leases if quote(each["lease_id"], safe="") != given_back]


@schemathesis.hook
def before_call(context, case, kwargs):
    turn = WORLD.turn(case.operation.label)
    if turn % KEPT:
        meet(case, turn)
    body = case.body
    # A backup goes to any absolute path. None leaves this folder.
    if isinstance(body, dict) and isinstance(body.get("folder"), str) and body["folder"].startswith("/"):
        body["folder"] = f"{BACKUPS}/{zlib.crc32(body['folder'].encode(errors='replace'))}"


@schemathesis.hook
def after_call(context, case, response):
    header = response.headers.get("fence-error", [""])
    note = {"call": case.operation.label, "method": case.method, "status": response.status_code, "code": header[0],
            "type": response.headers.get("content-type", [""])[0]}
    with open(NOTES, "a", encoding="utf-8") as notes:
        notes.write(json.dumps(note) + "\n")
    remember(case, response)
