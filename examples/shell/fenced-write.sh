#!/bin/sh
# A fenced writer with nothing but curl: takes a lease, renews it in the background, writes with its token, and gives
# it back. For real work, `fencegate lock` does this and more: it also stops the writer when the lease is lost.
#
#   fenced-write.sh OBJECT PATH VALUE...      writes each value to PATH, one after the other
#
# API and GATE say where the gate is; HOLDER, who this is; TTL, how long the lease lasts, in milliseconds. The token
# goes to curl by its standard input: every user of the machine may read the arguments of a process.
set -eu

API=${API:-http://127.0.0.1:8081}
GATE=${GATE:-http://127.0.0.1:8080}
HOLDER=${HOLDER:-$(uname -n)-$$}
TTL=${TTL:-15000}
OBJECT=$1 TARGET=$2
shift 2
case $OBJECT$HOLDER in *[\"\\]*) echo "no quotes or backslashes in names, please" >&2; exit 2 ;; esac

field() { # the text of a field of a flat JSON object
    sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"
}

# The same request_id again, after a lost answer, gets the same lease: no lease is left behind. wait_ms queues.
request="{\"object_id\":\"$OBJECT\",\"holder_id\":\"$HOLDER\",\"ttl_ms\":$TTL,\"wait_ms\":60000,\"request_id\":\"$HOLDER-$$-$(date +%s)\"}"
lease=$(curl -sS --fail-with-body --retry 5 --retry-all-errors --max-time 90 "$API/v1/leases" --json "$request")
id=$(printf %s "$lease" | field lease_id)
token=$(printf %s "$lease" | field fence_token)
echo "acquired $OBJECT"

renew() {
    curl -sS -o /dev/null -w '%{http_code}' --max-time $((TTL / 3000 + 1)) "$API/v1/leases/$id/renew" \
        --json @- <<END
{"fence_token":"$token","holder_id":"$HOLDER","ttl_ms":$TTL}
END
}

# At a third of the ttl. A refusal (4xx) is definite: the lease is gone, and this script with it. No answer is not: it
# is tried again, and the gate refuses what comes too late.
# It ends with this script, however that ends.
main=$$ renewer=
give_back() {
    [ -z "$renewer" ] || kill "$renewer" 2>/dev/null || true
    printf 'Fence-Token: %s\n' "$token" | curl -sS -o /dev/null --max-time 5 -X DELETE "$API/v1/leases/$id" -H @- || true
}
trap give_back EXIT
trap 'exit 1' TERM INT
(
    trap - EXIT TERM INT
    while sleep "$((TTL / 3000)).$((TTL / 3 % 1000 / 100))" >/dev/null 2>&1 && kill -0 $main 2>/dev/null; do
        case $(renew || true) in 4??) echo "lost $OBJECT" >&2; kill -TERM $main; exit 1 ;; esac
    done
) >/dev/null &
renewer=$!

for value in "$@"; do
    # 412 says that the lease has changed hands, or is over: this value was not written.
    status=$(printf 'Fence-Token: %s\n' "$token" |
        curl -sS -o /dev/null -w '%{http_code}' --max-time 60 -X PUT "$GATE$TARGET" -H @- --data-raw "$value")
    echo "$status $value"
    case $status in 2??) ;; *) exit 1 ;; esac
done
