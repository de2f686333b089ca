//! Tokens: in one place, once, for the very object. `cases` is a table of cases, and is not split for its length.

use super::{Case, case, caught, caught_with, hold, request};

pub(super) fn cases() -> Vec<Case> {
    let body = "Content-Length: 5\r\n\r\nvalue";
    let with = |fields: &str| request("PUT /users/1", &format!("{fields}{body}"));
    let mut cases = vec![
        case("no token", with("")).refused(428, "WRITE_UNFENCED"),
        case("a valid one", with("Fence-Token: {users}\r\n")).stores("PUT /users/1", "value"),
        case("another object's", with("Fence-Token: {other}\r\n")).refused(409, "LEASE_OBJECT_MISMATCH"),
        case("a valid one twice", with("Fence-Token: {users}\r\nFence-Token: {users}\r\n")).refused(400, "FENCE_TOKEN_MALFORMED"),
        case("two of two objects", with("Fence-Token: {users}\r\nFence-Token: {other}\r\n")).refused(400, "FENCE_TOKEN_MALFORMED"),
        case("a list of two", with("Fence-Token: {users}, {other}\r\n")).refused(400, "FENCE_TOKEN_MALFORMED"),
        case("the same in a list", with("Fence-Token: {users}, {users}\r\n")).refused(400, "FENCE_TOKEN_MALFORMED"),
        case("named in Connection", with("Connection: Fence-Token\r\nFence-Token: {users}\r\n")).refused(400, "FENCE_TOKEN_MALFORMED"),
        case("announced as a trailer", with("Trailer: Fence-Token\r\nFence-Token: {users}\r\n")).refused(400, "FENCE_TOKEN_MALFORMED"),
        case(
            "signed by SigV4",
            with("Fence-Token: {users}\r\nAuthorization: AWS4-HMAC-SHA256 Credential=x, SignedHeaders=host;fence-token, Signature=x\r\n"),
        )
        .refused(400, "FENCE_TOKEN_MALFORMED"),
        case("with an underscore", with("Fence_Token: {users}\r\n")).refused(428, "WRITE_UNFENCED"),
        case("in the query", request("PUT /users/1?Fence-Token={users}", body)).refused(428, "WRITE_UNFENCED"),
        case("in a cookie", with("Cookie: Fence-Token={users}\r\n")).refused(428, "WRITE_UNFENCED"),
        case("with a Fence-Seq of the client's own", with("Fence-Token: {users}\r\nFence-Seq: 99\r\nFence-Object: other\r\n"))
            .stores("PUT /users/1", "value"),
        case("with Fence_Object of the client's own", with("Fence-Token: {users}\r\nFence_Object: other\r\n"))
            .stores("PUT /users/1", "value"),
        case("with FENCE_SEQ of the client's own", with("Fence-Token: {users}\r\nFENCE_SEQ: 99\r\n"))
            .stores("PUT /users/1", "value"),
        case("with a token in Fence_Token, too", with("Fence-Token: {users}\r\nFence_Token: {other}\r\n"))
            .stores("PUT /users/1", "value"),
        case("with a field that begins with fence", with("Fence-Token: {users}\r\nFence-Anything: x\r\nFence_X: y\r\n"))
            .stores("PUT /users/1", "value"),
        case(
            "as a trailer",
            request("PUT /users/1", "Transfer-Encoding: chunked\r\n\r\n5\r\nvalue\r\n0\r\nFence-Token: {users}\r\n\r\n"),
        )
        .refused(428, "WRITE_UNFENCED"),
        case(
            "as a trailer beside a valid one",
            request(
                "PUT /users/1",
                "Fence-Token: {users}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nvalue\r\n0\r\nFence-Token: {users}\r\n\r\n",
            ),
        )
        .refused(400, "FENCE_TOKEN_MALFORMED"),
    ];
    for token in [
        "x",
        "fg1",
        "fg1.1",
        "fg1.1.dXNlcnM",
        "fg1.0.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA",
        "fg1.01.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA",
        "fg1.-1.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA",
        "fg1.18446744073709551616.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA",
        "fg2.1.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA",
        "FG1.1.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA",
        "fg1.1.dXNlcnM=.AAAAAAAAAAAAAAAAAAAAAA",
        "fg1.1.dXNlcnN.AAAAAAAAAAAAAAAAAAAAAA",
        "fg1.1.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAB",
        "fg1.1.dXNlcnM.AAAA",
        "fg1.1.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA.x",
        "{users}x",
        "\"{users}\"",
        "Bearer {users}",
        "{users};a=b",
    ] {
        cases.push(
            case(format!("{token:?} is malformed"), with(&format!("Fence-Token: {token}\r\n")))
                .refused(400, "FENCE_TOKEN_MALFORMED"),
        );
    }
    for (name, token, status, code) in [
        ("a wrong secret", "fg1.1.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA", 403, "FENCE_TOKEN_INVALID"),
        ("a number ahead", "fg1.2.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA", 412, "WRITE_FENCE_AHEAD"),
        ("an empty one", "", 400, "FENCE_TOKEN_MALFORMED"),
    ] {
        cases.push(case(name, with(&format!("Fence-Token: {token}\r\n"))).refused(status, code));
    }
    cases
}

#[test]
fn a_token_is_for_its_very_object() {
    hold(&cases(), |_| {});
}

#[test]
fn a_gate_that_only_audits_is_caught() {
    let audits = |settings: &mut fencegate::config::Settings| {
        let mode = fencegate::config::Mode::Audit;
        settings.route = vec![fencegate::config::RouteSettings { mode, ..Default::default() }];
    };
    caught(&cases(), audits, &["no token", "a wrong secret", "another object's"]);
}

#[test]
fn a_gate_that_passes_underscores_on_is_caught() {
    caught_with(
        &cases(),
        "pass-underscores",
        &[
            "with Fence_Object of the client's own",
            "with FENCE_SEQ of the client's own",
            "with a token in Fence_Token, too",
            "with a field that begins with fence",
        ],
    );
}
