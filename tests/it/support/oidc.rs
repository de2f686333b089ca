//! An OIDC issuer of signed tokens, with a key that is made when a test starts.

use std::path::{Path, PathBuf};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use fencegate::config::{IdentityKind, IdentitySettings};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PKCS_ED25519};
use serde_json::json;

use super::gate::START;

const NAME: &str = "https://issuer.test";
const AUDIENCE: &str = "the-gate";

pub struct Oidc {
    key: EncodingKey,
    set: PathBuf,
}

impl Oidc {
    /// An issuer whose JWK set is a file of this folder.
    pub fn new(folder: &Path) -> Self {
        let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let public = BASE64_URL_SAFE_NO_PAD.encode(pair.public_key_raw());
        let set = folder.join("jwks.json");
        let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "k-1", "x": public });
        std::fs::write(&set, json!({ "keys": [jwk] }).to_string()).unwrap();
        Self { key: EncodingKey::from_ed_der(&pair.serialize_der()), set }
    }

    /// The source of identities in a gate's settings.
    pub fn source(&self) -> IdentitySettings {
        IdentitySettings {
            name: "idp".to_owned(),
            kind: IdentityKind::Jwt,
            file: self.set.clone(),
            audience: AUDIENCE.to_owned(),
            issuer: NAME.to_owned(),
            algorithms: vec!["EdDSA".to_owned()],
            ..IdentitySettings::default()
        }
    }

    /// A token that names this principal, for an hour from the start of a driven clock.
    pub fn token(&self, name: &str) -> String {
        let header = Header { kid: Some("k-1".to_owned()), ..Header::new(Algorithm::EdDSA) };
        let ends = START.wall.0 / 1_000 + 3_600;
        encode(&header, &json!({ "iss": NAME, "aud": AUDIENCE, "sub": name, "exp": ends }), &self.key).unwrap()
    }
}
