-- What wrk sends: a PUT of 256 bytes with the fence token, always the same, so wrk formats it once.
-- Usage: wrk -s put.lua URL -- TOKEN

function init(args)
    wrk.method = "PUT"
    wrk.body = string.rep("x", 256)
    wrk.headers["Fence-Token"] = args[1]
end

-- One line that load.py reads; the names are the keys of a round.
function done(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        "counted requests=%d duration_us=%d connect=%d read=%d write=%d status=%d timeout=%d\n",
        summary.requests, summary.duration,
        errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
