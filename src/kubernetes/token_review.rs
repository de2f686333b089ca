//! Asks the API server about a bearer token (TokenReview, authentication.k8s.io/v1).
//!
//! A token is a secret of its bearer. The answer of the API server repeats it, so the answer is read here and not by
//! `kube`, which logs an answer that it cannot read. No error has the token in its text.

use http::{Request, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};

use super::api::{Away, Cluster, away};

const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// What the API server adds about the pod that a token is bound to.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// What the API server says of a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reviewed {
    pub authenticated: bool,
    pub username: String,
    pub groups: Vec<String>,
    /// `None`: the token is not bound to a pod.
    pub pod_name: Option<String>,
    pub pod_uid: Option<String>,
    /// Those of the audiences in the question that the token is for. Empty from a server that knows no audiences.
    pub audiences: Vec<String>,
    /// Why the token is not taken, in the API server's words.
    pub error: String,
}

/// Asks whether a token is valid for this audience, and whose it is. Takes no longer than the cluster's time limit.
///
/// # Errors
/// When the API server does not answer this.
pub async fn review(cluster: &Cluster, audience: &str, token: &str) -> Result<Reviewed, Away> {
    let request = request(audience, token)?;
    let answer = cluster.within(cluster.client().request_text(request)).await;
    match answer {
        Ok(text) => read(&text, token),
        Err(failed) => Err(hide(away(failed), token)),
    }
}

fn request(audience: &str, token: &str) -> Result<Request<Vec<u8>>, Away> {
    let spec = TokenReviewSpec { audiences: Some(vec![audience.to_owned()]), token: token.to_owned() };
    let body = serde_json::to_vec(&TokenReview { spec, ..TokenReview::default() });
    let body = body.map_err(|_| Away::Odd("the token cannot be sent".to_owned()))?;
    let request = Request::post(PATH).header(header::CONTENT_TYPE, "application/json").body(body);
    request.map_err(|error| Away::Odd(error.to_string()))
}

fn read(text: &str, token: &str) -> Result<Reviewed, Away> {
    // The text of serde's error may quote the answer.
    let odd = |at: serde_json::Error| Away::Odd(format!("no TokenReview (line {}, column {})", at.line(), at.column()));
    let status = serde_json::from_str::<TokenReview>(text).map_err(odd)?.status.unwrap_or_default();
    let UserInfo { username, groups, extra, uid: _ } = status.user.unwrap_or_default();
    let extra = extra.unwrap_or_default();
    let only = |key: &str| match extra.get(key).map(Vec::as_slice) {
        Some([one]) => Some(one.clone()),
        _ => None,
    };
    Ok(Reviewed {
        authenticated: status.authenticated.unwrap_or(false),
        username: username.unwrap_or_default(),
        groups: groups.unwrap_or_default(),
        pod_name: only(POD_NAME),
        pod_uid: only(POD_UID),
        audiences: status.audiences.unwrap_or_default(),
        error: without(&status.error.unwrap_or_default(), token),
    })
}

/// The same without the token in its text, if a server has put it there.
fn hide(away: Away, token: &str) -> Away {
    match away {
        Away::Unreachable(what) => Away::Unreachable(without(&what, token)),
        Away::Refused { status, what, asked_ms } => Away::Refused { status, what: without(&what, token), asked_ms },
        Away::Odd(what) => Away::Odd(without(&what, token)),
    }
}

fn without(text: &str, token: &str) -> String {
    if token.is_empty() { text.to_owned() } else { text.replace(token, "(the token)") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_question_names_the_token_and_the_audience() {
        let request = request("fencegate", "a.b.c").unwrap();
        assert_eq!((request.method().as_str(), request.uri().path()), ("POST", PATH));
        let body: serde_json::Value = serde_json::from_slice(request.body()).unwrap();
        assert_eq!((&body["kind"], &body["apiVersion"]), (&json!("TokenReview"), &json!("authentication.k8s.io/v1")));
        assert_eq!(body["spec"], json!({ "token": "a.b.c", "audiences": ["fencegate"] }));
    }

    #[test]
    fn the_answer_says_whose_the_token_is() {
        let answer = |status: serde_json::Value| {
            let review = json!({
                "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
                "spec": { "token": "a.b.c" }, "status": status,
            });
            read(&review.to_string(), "a.b.c").unwrap()
        };
        let user = json!({
            "username": "system:serviceaccount:shop:api", "uid": "1", "groups": ["g"],
            "extra": { POD_NAME: ["api-0"], POD_UID: ["x", "y"] },
        });
        let found = answer(json!({ "authenticated": true, "user": user, "audiences": ["fencegate"] }));
        let expected = Reviewed {
            authenticated: true,
            username: "system:serviceaccount:shop:api".to_owned(),
            groups: vec!["g".to_owned()],
            pod_name: Some("api-0".to_owned()),
            pod_uid: None,
            audiences: vec!["fencegate".to_owned()],
            error: String::new(),
        };
        assert_eq!(found, expected, "a pod has one uid");
        let refused = answer(json!({ "user": {}, "error": "no: a.b.c" }));
        assert_eq!(refused, Reviewed { error: "no: (the token)".to_owned(), ..Reviewed::default() });
    }

    #[test]
    fn no_error_shows_the_token() {
        let odd = read("{\"spec\": {\"token\": 1, \"audiences\": \"secret\"}}", "secret").unwrap_err();
        assert!(matches!(&odd, Away::Odd(what) if !what.contains("secret")), "{odd}");
        let refused = Away::Refused { status: 422, what: "bad: secret".to_owned(), asked_ms: None };
        assert_eq!(hide(refused, "secret").to_string(), "the API server refuses with 422: bad: (the token)");
    }
}
