//! A JWT: its form, its header and its claims. Nothing here knows a key, so nothing that is read here is proven.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

use crate::{authority::unique::Unique, fence::WallMs};

/// How far the clock of an issuer may be ahead.
const LEEWAY_MS: u64 = 60_000;

/// A token that was read, but not checked.
pub(super) struct Token<'a> {
    /// What is signed: header and claims, as they were sent.
    message: &'a str,
    signature: &'a str,
    header: Part,
    claims: Part,
}

/// A JSON object.
struct Part {
    fields: Map<String, Value>,
    /// Whether a key stands in it twice.
    is_repeated: bool,
}

impl<'a> Token<'a> {
    /// Reads a token. `None`: this is no signed JWT.
    pub(super) fn read(bearer: &'a str) -> Option<Self> {
        let (message, signature) = bearer.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        decode(signature)?;
        let token = Self { message, signature, header: Part::read(header)?, claims: Part::read(claims)? };
        token.header.text("alg").is_some().then_some(token)
    }

    pub(super) fn message(&self) -> &str {
        self.message
    }

    /// In base64url.
    pub(super) fn signature(&self) -> &str {
        self.signature
    }

    /// The name of its algorithm.
    pub(super) fn algorithm(&self) -> &str {
        self.header.text("alg").unwrap_or_default()
    }

    /// The issuer that it names.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.claims.text("iss")
    }

    /// A claim that is a text.
    pub(super) fn text(&self, claim: &str) -> Option<&str> {
        self.claims.text(claim)
    }

    /// All claims that are texts.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.claims.fields.iter().filter_map(|(claim, value)| Some((claim.as_str(), value.as_str()?)))
    }

    /// A claim that is a text, or a list of texts. Without it the list is empty.
    ///
    /// # Errors
    /// When it is something else.
    pub(super) fn list(&self, claim: &str) -> Result<Vec<String>, String> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let list = match self.claims.fields.get(claim) {
            None => Some(vec![]),
            Some(Value::Array(items)) => items.iter().map(text).collect(),
            Some(value) => text(value).map(|one| vec![one]),
        };
        list.ok_or_else(|| format!("has a claim {claim:?} that is neither a text nor a list of texts"))
    }

    /// The name of the key that signed it, if it says so.
    ///
    /// # Errors
    /// When the name is no text.
    pub(super) fn key(&self) -> Result<Option<&str>, &'static str> {
        match self.header.fields.get("kid") {
            None => Ok(None),
            Some(Value::String(key)) => Ok(Some(key)),
            Some(_) => Err("has a kid that is no text"),
        }
    }

    /// Checks that each reader reads the same in it.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check_form(&self) -> Result<(), &'static str> {
        if self.header.is_repeated || self.claims.is_repeated {
            return Err("has a key twice in its header or its claims");
        }
        if self.header.fields.contains_key("crit") {
            return Err("has a header crit: it asks for an extension, and this gate knows none");
        }
        Ok(())
    }

    /// Checks that it holds now. Returns when it ends.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check_times(&self, now: WallMs) -> Result<WallMs, &'static str> {
        let until =
            self.time("exp").map_err(|()| "has an exp that is no time")?.ok_or("has no exp: it would never end")?;
        let begin = self.time("nbf").map_err(|()| "has an nbf that is no time")?;
        let made = self.time("iat").map_err(|()| "has an iat that is no time")?;
        let soon = WallMs(now.0.saturating_add(LEEWAY_MS));
        if now >= until {
            return Err("has expired");
        }
        if begin.is_some_and(|begin| begin > soon) {
            return Err("is not valid yet (nbf)");
        }
        if made.is_some_and(|made| made > soon) {
            return Err("was made in the future (iat): is this gate's clock right?");
        }
        Ok(until)
    }

    /// A claim that is a time: seconds since 1970, with or without a fraction.
    fn time(&self, claim: &str) -> Result<Option<WallMs>, ()> {
        let Some(value) = self.claims.fields.get(claim) else { return Ok(None) };
        let whole = value.as_u64().map(Duration::from_secs);
        let since = whole.or_else(|| Duration::try_from_secs_f64(value.as_f64()?).ok()).ok_or(())?;
        u64::try_from(since.as_millis()).map(|ms| Some(WallMs(ms))).map_err(|_| ())
    }

    /// Checks that it is for this audience.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check_audience(&self, wanted: &str) -> Result<(), String> {
        let named = self.list("aud")?;
        let is_named = named.iter().any(|each| each == wanted);
        is_named.then_some(()).ok_or_else(|| "is not for this gate: its aud has not the source's `audience`".to_owned())
    }
}

impl Part {
    fn read(part: &str) -> Option<Self> {
        let bytes = decode(part)?;
        let (value, is_repeated) = match serde_json::from_slice(&bytes) {
            Ok(Unique(value)) => (value, false),
            // The strict reader refuses what is read here only for a key that stands twice.
            Err(_) => (serde_json::from_slice(&bytes).ok()?, true),
        };
        match value {
            Value::Object(fields) => Some(Self { fields, is_repeated }),
            _ => None,
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.fields.get(key)?.as_str()
    }
}

/// A part's bytes. `None`: it is not base64url without padding.
fn decode(part: &str) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(part).ok()
}
