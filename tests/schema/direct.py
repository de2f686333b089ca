"""Checks without schemathesis: what the description says about proofs, and what callers without one get."""
import http.client
import json
from urllib.parse import urlsplit

from gates import Failed

PATIENCE_S = 10
DESCRIPTION = "/v1/openapi.json"
PROBLEM = "application/problem+json"
# Below the limit of a body, and more than one record of TLS.
LONG_KB, TRIES = 60, 20
EVENTS = ["granted", "renewed", "released", "granted", "fenced", "reset"]
SCHEMES = {"bearer": {"type": "http", "scheme": "bearer"}, "certificate": {"type": "mutualTLS"}}
# No proof, proofs that no source takes, and one that is no bearer token.
UNPROVEN = {
    "without a proof": {},
    "with an unknown token": {"Authorization": "Bearer fga1.AAAAAAAAAAAA.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},
    "with another issuer's token": {"Authorization": "Bearer e30.e30.e30"},
    "with a password": {"Authorization": "Basic ZXZlcnl0aGluZzpsb3Vk"},
}


def ask(url, trusts, method, path, headers=None, body=None):
    """Status, headers and body of one call."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=PATIENCE_S, context=trusts)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        # A stream has no end: a call that should have been refused is not read.
        is_stream = answer.getheader("Content-Type", "").startswith("text/event-stream")
        return answer.status, answer.headers, b"" if is_stream else answer.read()
    finally:
        connection.close()


def description(url, trusts=None, token=None):
    status, _, body = ask(url, trusts, "GET", DESCRIPTION, bearing(token))
    if status != 200:
        raise Failed(f"GET {DESCRIPTION}: {status} {body[:500]!r}")
    return json.loads(body)


def bearing(token):
    return {"Authorization": f"Bearer {token}"} if token else {}


def operations(described):
    """Method, path and content of every operation."""
    for path, item in described["paths"].items():
        for method, operation in item.items():
            if method in ("get", "put", "post", "delete", "options", "head", "patch", "trace"):
                yield method.upper(), path, operation


def faults_of_security(described):
    """Where the description does not say how callers prove who they are."""
    found = []
    schemes = described.get("components", {}).get("securitySchemes", {})
    for name, wanted in SCHEMES.items():
        if {key: schemes.get(name, {}).get(key) for key in wanted} != wanted:
            found.append(f"securitySchemes: {name} is {schemes.get(name)}, not {wanted}")
    for method, path, operation in operations(described):
        said = operation.get("security", described.get("security"))
        missing = [name for name in SCHEMES if {name: []} not in (said or [])]
        if missing:
            found.append(f"{method} {path}: security has no {' and no '.join(missing)}: {said}")
    return found


def faults_of_refusals_described(described):
    """Calls whose description lacks the refusals that every call can get."""
    found = []
    for method, path, operation in operations(described):
        missing = [status for status in ("4XX", "503")
                   if PROBLEM not in operation["responses"].get(status, {}).get("content", {})]
        if missing:
            found.append(f"{method} {path}: the description has no refusal with {' and none with '.join(missing)}")
    return found


def events(url, trusts, token, after, count):
    """The first events of a stream that resumes behind this id: names, and what their data are."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    found, name = [], None
    connection = kind(parts.hostname, parts.port, timeout=PATIENCE_S, **({"context": trusts} if trusts else {}))
    try:
        connection.request("GET", f"/v1/watch?after={after}", headers=bearing(token))
        answer = connection.getresponse()
        while len(found) < count:
            field, _, value = answer.readline().decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                found.append((name, json.loads(value)))
        return found
    except TimeoutError:
        return found
    finally:
        connection.close()


def faults_of_events(url, trusts, token, holder, described):
    """Events that are not as described: those that a holder causes, and the one of a watcher that missed some."""
    import jsonschema_rs

    stream = described["paths"]["/v1/watch"]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    schema = jsonschema_rs.validator_for(stream | {"components": described["components"]})
    headers = bearing(token) | {"Content-Type": "application/json"}

    def call(method, path, body=None, **more):
        status, _, answer = ask(url, trusts, method, path, headers | more, body and json.dumps(body).encode())
        if status not in (200, 201):
            raise Failed(f"{method} {path}: {status} {answer[:500]!r}")
        return json.loads(answer)

    lease = call("POST", "/v1/leases", {"object_id": "events", "holder_id": holder})
    after = call("GET", "/v1/objects/events")["changed"]
    mine = {"fence_token": lease["fence_token"], "holder_id": holder}
    call("POST", f"/v1/leases/{lease['lease_id']}/renew", mine)
    call("DELETE", f"/v1/leases/{lease['lease_id']}", **{"Fence-Token": lease["fence_token"]})
    call("POST", "/v1/leases", {"object_id": "events", "holder_id": holder})
    call("POST", "/v1/objects/events/revoke", {"reason": "schema"})
    seen = events(url, trusts, token, after, 5) + events(url, trusts, token, "1:0", 1)
    names = [name for name, _ in seen]
    found = [] if names == EVENTS else [f"GET /v1/watch: the events are {names}, not {EVENTS}"]
    for name, data in seen:
        wrong = [error.message for error in schema.iter_errors(data)]
        if wrong:
            found.append(f"GET /v1/watch: the event {name} is {data}, not as described: {'; '.join(wrong)}")
    return found


def faults_of_refusals(url, trusts, described):
    """Calls without a proof that are not refused with 401 and WWW-Authenticate."""
    found = []
    calls = [(method, path) for method, path, _ in operations(described)] + [("GET", DESCRIPTION)]
    for method, path in calls:
        to = "/".join("x" if part.startswith("{") else part for part in path.split("/"))
        body = b"{}" if method in ("POST", "PUT", "PATCH") else None
        for what, proof in UNPROVEN.items():
            headers = proof | ({"Content-Type": "application/json"} if body else {})
            status, answered, problem = ask(url, trusts, method, to, headers, body)
            wrong = wrong_with(status, answered, problem)
            if wrong:
                found.append(f"{method} {path} {what}: {status}, {wrong}")
    return found


def faults_of_lost_answers(url, trusts, proofs):
    """Callers that are refused by their head alone, and get no answer because their body is long."""
    body = json.dumps({"object_ids": ["x" * 1_000] * LONG_KB, "holder_id": "h"}).encode()
    found = []
    for what, proof in proofs.items():
        lost = []
        for _ in range(TRIES):
            try:
                ask(url, trusts, "POST", "/v1/lease-batches", proof | {"Content-Type": "application/json"}, body)
            except OSError as error:
                lost.append(error)
        if lost:
            found.append(f"POST /v1/lease-batches with {what} and {len(body)} bytes: {len(lost)} of {TRIES} calls got "
                         f"no answer: {lost[0]}")
    return found


def wrong_with(status, headers, body):
    """What is wrong with a refusal of an unknown caller, or nothing."""
    if status != 401:
        return "not 401"
    if not headers.get("WWW-Authenticate", "").startswith("Bearer"):
        return f"WWW-Authenticate: {headers.get('WWW-Authenticate')}"
    if headers.get("Fence-Error") != "IDENTITY_REQUIRED":
        return f"Fence-Error: {headers.get('Fence-Error')}"
    if headers.get("Content-Type") != PROBLEM:
        return f"Content-Type: {headers.get('Content-Type')}"
    return "" if json.loads(body).get("code") == "IDENTITY_REQUIRED" else f"the body is {body[:200]!r}"
