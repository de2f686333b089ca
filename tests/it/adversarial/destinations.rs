//! The Destination of a COPY or MOVE: a second path that is written, and so judged like the first. `cases` is a table of
//! cases, and is not split for its length.

use super::{Case, case, caught, caught_with, hold, request};

/// A write of a second path. `{path}` is written from, by the token or tokens.
fn to(method: &str, tokens: &str, destination: &str) -> String {
    request(&format!("{method} /users/1"), &format!("Fence-Token: {tokens}\r\nDestination: {destination}\r\n\r\n"))
}

const BOTH: &str = "{users}, {other}";

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for method in ["COPY", "MOVE"] {
        let line = format!("{method} /users/1");
        for destination in ["/users/2", "http://store/users/2", "HTTP://STORE/users/2", "/%75sers/2", "/users"] {
            cases.push(
                case(format!("{method} to {destination}, the same object"), to(method, "{users}", destination))
                    .passes(&line),
            );
        }
        for destination in ["/other/2", "http://store/other/2", "/%6fther/2"] {
            for tokens in [BOTH, "{other}, {users}", "{other},{users}"] {
                cases.push(
                    case(format!("{method} to {destination} by {tokens}"), to(method, tokens, destination))
                        .passes(&line),
                );
            }
            let name = |what: &str| format!("{method} to {destination} {what}");
            let lone = |tokens: &str| to(method, tokens, destination);
            cases.push(case(name("by the first token"), lone("{users}")).refused(428, "WRITE_UNFENCED"));
            cases.push(case(name("by the second token"), lone("{other}")).refused(428, "WRITE_UNFENCED"));
            cases.push(case(name("by the first token twice"), lone("{users}, {users}")).refused(428, "WRITE_UNFENCED"));
            let none = request(&line, &format!("Destination: {destination}\r\n\r\n"));
            cases.push(case(name("without a token"), none).refused(428, "WRITE_UNFENCED"));
        }
        let rest = format!("Fence-Token: {BOTH}, {{users}}\r\nDestination: /other/2\r\n\r\n");
        cases.push(
            case(format!("{method} by three tokens"), request(&line, &rest)).refused(400, "FENCE_TOKEN_MALFORMED"),
        );
        let rest = "Fence-Token: {users}\r\nFence-Token: {other}\r\nDestination: /other/2\r\n\r\n";
        cases.push(
            case(format!("{method} by tokens in two fields"), request(&line, rest))
                .refused(400, "FENCE_TOKEN_MALFORMED"),
        );
        for destination in [
            "",
            "users/2",
            "other",
            "//other/2",
            "/users/../other/2",
            "/users/%2e%2e/other/2",
            "/users//2",
            "/users/a%2fb",
            "/users%2f..%2fother/2",
            "/users/a%5cb",
            "/users\\..\\other/2",
            "/users/..;/other/2",
            "/users/%252e%252e/2",
            "/users/%zz",
            "/users/%ff",
            "/users/2?x",
            "/users/2#/../other/2",
            "http://store@evil/users/2",
            "http://user@store/users/2",
            "http://evil/users/2",
            "http://store:81/users/2",
            "/users/2, /other/2",
            "/users/\u{e4}",
            "*",
        ] {
            cases.push(
                case(format!("{method} to {destination:?}, in two ways"), to(method, BOTH, destination))
                    .refused(422, "PATH_AMBIGUOUS"),
            );
        }
        for (name, second) in [("the same", "/users/2"), ("another object's", "/other/2")] {
            let rest = format!("Fence-Token: {BOTH}\r\nDestination: /users/2\r\nDestination: {second}\r\n\r\n");
            cases.push(
                case(format!("{method} to two Destinations, {name}"), request(&line, &rest))
                    .refused(422, "PATH_AMBIGUOUS"),
            );
        }
        cases.push(
            case(format!("{method} to what no route has"), to(method, BOTH, "/")).refused(409, "LEASE_OBJECT_MISMATCH"),
        );
        let rest = "Fence-Token: {users}\r\n\r\n";
        cases.push(case(format!("{method} without a Destination"), request(&line, rest)).passes(&line));
    }
    for method in ["PUT", "DELETE", "PROPPATCH"] {
        let line = format!("{method} /users/1");
        cases.push(
            case(format!("{method} with a Destination by one token"), to(method, "{users}", "/other/2"))
                .refused(428, "WRITE_UNFENCED"),
        );
        cases.push(
            case(format!("{method} with a Destination by both tokens"), to(method, BOTH, "/other/2")).passes(&line),
        );
    }
    let read = request("GET /users/1", "Destination: /other/2\r\n\r\n");
    cases.push(case("a read with a Destination", read).passes("GET /users/1"));
    cases
}

#[test]
fn both_paths_of_a_write_are_judged() {
    hold(&cases(), |_| {});
}

#[test]
fn a_gate_that_does_not_look_at_the_destination_is_caught() {
    caught_with(
        &cases(),
        "no-destination",
        &[
            "COPY to /other/2 by the first token",
            "MOVE to http://store/other/2 by the first token",
            "PUT with a Destination by one token",
        ],
    );
}

#[test]
fn a_gate_that_only_audits_two_objects_is_caught() {
    let audits = |settings: &mut fencegate::config::Settings| {
        let mode = fencegate::config::Mode::Audit;
        settings.route = vec![fencegate::config::RouteSettings { mode, ..Default::default() }];
    };
    caught(&cases(), audits, &["COPY to /other/2 by the first token", "MOVE to /other/2 without a token"]);
}
