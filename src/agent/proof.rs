//! The agent's proof of who it is, for routes with `bind_holder`: the bearer token that it shows to the gate's api. A
//! write carries it in a header of its own, since `Authorization` is the store's.

use http::{HeaderMap, HeaderValue};

use crate::{
    client::http::{bearer, is_this_machine},
    config::GateWay,
    route::classify::FENCE_IDENTITY,
    tls::renewed::{Renewed, Wrong},
    upstream::Address,
};

/// What is shown to the gate with a write. Nothing, without a token or where others could read it on the way.
pub struct Proof(Option<Renewed<HeaderValue>>);

impl Proof {
    /// The proof for a gate's own port.
    ///
    /// # Errors
    /// The wrong key, and what is wrong with it; never the text of the file.
    pub fn of(gate: &GateWay) -> Result<Self, Wrong> {
        let file = gate.token_file.clone();
        if file.as_os_str().is_empty() || !is_private(gate)? {
            return Ok(Self(None));
        }
        let paths = vec![file.clone()];
        let read = move || bearer(&file).map_err(|fault| ("token_file", fault.to_string()));
        Renewed::new("bearer tokens", paths, read).map(|proof| Self(Some(proof)))
    }

    /// Adds the present token to a write.
    pub fn put(&self, headers: &mut HeaderMap) {
        if let Some(proof) = &self.0 {
            headers.insert(FENCE_IDENTITY, HeaderValue::clone(&proof.get()));
        }
    }
}

/// Whether only the gate reads what is sent to its own port.
fn is_private(gate: &GateWay) -> Result<bool, Wrong> {
    Ok(match Address::parse(&gate.url).map_err(|what| ("url", what))? {
        Address::Tls { .. } => true,
        Address::Tcp { host, .. } => is_this_machine(&host),
        Address::Unix(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_present_token_is_shown_over_https_and_on_this_machine_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, "one\n").unwrap();
        let gate = |url: &str| GateWay { url: url.to_owned(), token_file: file.clone(), ..GateWay::default() };
        let shown = |proof: &Proof| {
            let mut headers = HeaderMap::new();
            proof.put(&mut headers);
            headers.get(FENCE_IDENTITY).map(|value| (value.to_str().unwrap().to_owned(), value.is_sensitive()))
        };
        for (url, is_shown) in [
            ("http://127.0.0.1:8080", true),
            ("http://[::1]:8080", true),
            ("http://localhost:8080", true),
            ("https://gate.example:8080", true),
            ("http://gate.example:8080", false),
            ("http://10.0.0.7:8080", false),
        ] {
            let expected = is_shown.then(|| ("Bearer one".to_owned(), true));
            assert_eq!(shown(&Proof::of(&gate(url)).unwrap()), expected, "{url}");
        }
        let proof = Proof::of(&gate("http://127.0.0.1:8080")).unwrap();
        fs::write(&file, "another").unwrap();
        assert_eq!(shown(&proof), Some(("Bearer another".to_owned(), true)));
        let none = GateWay { token_file: "".into(), ..gate("http://127.0.0.1:8080") };
        assert_eq!(shown(&Proof::of(&none).unwrap()), None);
    }
}
