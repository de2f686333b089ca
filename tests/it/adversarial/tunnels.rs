//! Tunnels: behind one, nothing would be judged.

use super::{Case, case, caught, caught_with, hold, request, write};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for target in ["store:80", "other:443", "127.0.0.1:9000"] {
        let bytes = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nFence-Token: {{users}}\r\n\r\n");
        cases.push(case(format!("CONNECT {target}"), bytes).refused(403, "TUNNEL_REFUSED"));
    }
    cases.push(case("TRACE", write("TRACE /users/1", "\r\n")).refused(403, "TUNNEL_REFUSED"));
    cases.push(case("TRACE *", write("TRACE *", "\r\n")).refused(403, "TUNNEL_REFUSED"));
    for offer in ["websocket", "WebSocket", "h2c, websocket", "HTTP/2.0", "TLS/1.0", "x", "connect-udp"] {
        for method in ["GET", "PUT", "OPTIONS"] {
            let bytes =
                write(&format!("{method} /users/1"), &format!("Connection: Upgrade\r\nUpgrade: {offer}\r\n\r\n"));
            cases.push(case(format!("{method} with Upgrade: {offer}"), bytes).refused(403, "TUNNEL_REFUSED"));
        }
    }
    cases.push(
        case("Upgrade that Connection does not name", write("GET /users/1", "Upgrade: websocket\r\n\r\n"))
            .refused(403, "TUNNEL_REFUSED"),
    );
    let h2c = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n";
    cases.push(case("an offer of h2c is not passed on", request("GET /users/x", h2c)).passes("GET /users/x"));
    cases
}

#[test]
fn no_tunnel_leads_through_a_gate() {
    hold(&cases(), |_| {});
}

#[test]
fn a_gate_that_lets_tunnels_through_is_caught() {
    caught_with(
        &cases(),
        "pass-tunnels",
        &["CONNECT store:80", "TRACE", "PUT with Upgrade: websocket", "Upgrade that Connection does not name"],
    );
}

/// The same cases expect what does not come: a refusal of what is no tunnel.
#[test]
fn a_wrong_expectation_is_caught() {
    let mut cases = cases();
    cases.push(case("a read", request("GET /users/x", "\r\n")).refused(403, "TUNNEL_REFUSED"));
    caught(&cases, |_| {}, &["a read"]);
}
