//! What a token says of itself. Nothing here is checked: it only says whether a server is worth asking, and the token
//! may be sent there.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::{Deserialize, de::IgnoredAny};

use crate::fence::WallMs;

/// The claims of a token that has the form of a JWT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unverified {
    pub(super) audiences: Vec<String>,
    /// `None`: it names no end, or none that is a number.
    pub(super) expires: Option<WallMs>,
}

#[derive(Deserialize)]
struct Claims {
    aud: Option<Audiences>,
    exp: Option<End>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum End {
    Seconds(u64),
    Parts(f64),
    Odd(IgnoredAny),
}

impl Unverified {
    /// The claims of a token. `None`: it is no JWT.
    pub(super) fn of(bearer: &str) -> Option<Self> {
        let mut parts = bearer.split('.').map(|part| BASE64_URL_SAFE_NO_PAD.decode(part).ok());
        let (header, payload, signature) = (parts.next()??, parts.next()??, parts.next()??);
        if parts.next().is_some() || !header.starts_with(b"{") || signature.is_empty() {
            return None;
        }
        let Claims { aud, exp } = serde_json::from_slice(&payload).ok()?;
        let audiences = match aud {
            None => vec![],
            Some(Audiences::One(audience)) => vec![audience],
            Some(Audiences::Several(audiences)) => audiences,
        };
        Some(Self { audiences, expires: exp.and_then(|end| end.in_ms()) })
    }

    pub(super) fn is_for(&self, audience: &str) -> bool {
        self.audiences.iter().any(|each| each == audience)
    }
}

impl End {
    fn in_ms(&self) -> Option<WallMs> {
        match self {
            Self::Seconds(seconds) => Some(WallMs(seconds.saturating_mul(1_000))),
            // The cast ends at 0 and at the largest number.
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a part of a second is left out"
            )]
            Self::Parts(seconds) => Some(WallMs((*seconds as u64).saturating_mul(1_000))),
            Self::Odd(_) => None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A token with this payload. Its signature is none.
    pub(in crate::access::identity) fn token(payload: &str) -> String {
        let part = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.{}", part("{\"alg\":\"RS256\"}"), part(payload), part("signature"))
    }

    fn claims(payload: &Value) -> Option<Unverified> {
        Unverified::of(&token(&payload.to_string()))
    }

    #[test]
    fn the_audience_is_a_text_or_a_list_of_texts() {
        for aud in [json!("gate"), json!(["gate"]), json!(["other", "gate"])] {
            assert!(claims(&json!({ "aud": aud })).unwrap().is_for("gate"), "{aud}");
        }
        for aud in [json!("gates"), json!(["gat", "e"]), json!([]), Value::Null] {
            assert!(!claims(&json!({ "aud": aud })).unwrap().is_for("gate"), "{aud}");
        }
        assert!(!claims(&json!({})).unwrap().is_for(""));
        for aud in [json!(1), json!({ "gate": 1 }), json!(["gate", 1])] {
            assert_eq!(claims(&json!({ "aud": aud })), None, "{aud}");
        }
    }

    #[test]
    fn the_end_is_a_number_of_seconds() {
        let end = |exp: Value| claims(&json!({ "exp": exp })).unwrap().expires;
        assert_eq!(end(json!(1_800_000_000)), Some(WallMs(1_800_000_000_000)));
        assert_eq!(end(json!(1.5)), Some(WallMs(1_000)));
        assert_eq!((end(json!(-1)), end(json!(0))), (Some(WallMs(0)), Some(WallMs(0))));
        assert_eq!((end(json!(u64::MAX)), end(json!(1e300))), (Some(WallMs(u64::MAX)), Some(WallMs(u64::MAX))));
        for odd in [json!("1800000000"), json!([1]), json!(true), Value::Null] {
            assert_eq!(end(odd.clone()), None, "{odd}");
        }
    }

    #[test]
    fn what_is_no_jwt_has_no_claims() {
        let good = token("{}");
        assert!(Unverified::of(&good).is_some());
        let part = good.split('.').next().unwrap();
        for odd in ["", ".", "..", "a.b.c", "fga1.x.y", &format!("{good}.{part}"), &good.replace('.', ""), &token("[]")]
        {
            assert_eq!(Unverified::of(odd), None, "{odd}");
        }
        for payload in ["", "x", "{\"aud\":", "\"gate\"", "{}x"] {
            assert_eq!(Unverified::of(&token(payload)), None, "{payload}");
        }
        assert_eq!(Unverified::of(&format!("{part}.e30.")), None, "it has no signature");
        assert_eq!(Unverified::of(&format!("e.{part}.{part}")), None);
        assert_eq!(Unverified::of(&token(&"[".repeat(10_000))), None);
    }
}
