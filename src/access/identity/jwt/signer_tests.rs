//! What the tests of tokens share: keys of an issuer, and tokens that are signed by them.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use jsonwebtoken::{Algorithm as Signing, EncodingKey, crypto, jwk::Jwk};
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, SignatureAlgorithm,
};
use serde_json::{Value, json};

pub(super) const ISSUER: &str = "https://issuer.example/realm";
/// In seconds.
pub(super) const NOW: u64 = 1_800_000_000;

/// A key of an issuer.
pub(super) struct Signer {
    pub(super) kid: &'static str,
    pub(super) by: Signing,
    pub(super) private: EncodingKey,
    /// The public key, as a JWK without `alg` and `use`.
    pub(super) jwk: Value,
}

/// A key pair: its private key in PKCS #8, and its public key.
fn pair(kind: &'static SignatureAlgorithm) -> (Vec<u8>, Vec<u8>) {
    let pair = KeyPair::generate_for(kind).unwrap();
    (pair.serialize_der(), pair.public_key_raw().to_vec())
}

impl Signer {
    pub(super) fn es256(kid: &'static str) -> Self {
        Self::elliptic(kid, Signing::ES256, "P-256", &PKCS_ECDSA_P256_SHA256)
    }

    pub(super) fn es384(kid: &'static str) -> Self {
        Self::elliptic(kid, Signing::ES384, "P-384", &PKCS_ECDSA_P384_SHA384)
    }

    fn elliptic(kid: &'static str, by: Signing, curve: &str, made_by: &'static SignatureAlgorithm) -> Self {
        let (private, public) = pair(made_by);
        let (x, y) = public[1..].split_at((public.len() - 1) / 2);
        let jwk = json!({"kty": "EC", "crv": curve, "kid": kid, "x": BASE64.encode(x), "y": BASE64.encode(y)});
        Self { kid, by, private: EncodingKey::from_ec_der(&private), jwk }
    }

    pub(super) fn eddsa(kid: &'static str) -> Self {
        let (private, public) = pair(&PKCS_ED25519);
        let jwk = json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": BASE64.encode(public)});
        Self { kid, by: Signing::EdDSA, private: EncodingKey::from_ed_der(&private), jwk }
    }

    pub(super) fn rsa(kid: &'static str) -> Self {
        // The library wants the key in PKCS #1, which is what stands behind the first 26 bytes of PKCS #8.
        let private = EncodingKey::from_rsa_der(&pair(&PKCS_RSA_SHA256).0[26..]);
        let jwk = Jwk::from_encoding_key(&private, Signing::RS256).unwrap();
        let Value::Object(mut jwk) = serde_json::to_value(jwk).unwrap() else { panic!("an object") };
        jwk.remove("alg");
        jwk.insert("kid".to_owned(), json!(kid));
        Self { kid, by: Signing::RS256, private, jwk: Value::Object(jwk) }
    }

    pub(super) fn with_alg(mut self, alg: &str) -> Self {
        self.jwk["alg"] = json!(alg);
        self
    }

    pub(super) fn by(mut self, by: Signing) -> Self {
        self.by = by;
        self
    }

    pub(super) fn header(&self) -> Value {
        json!({"typ": "JWT", "alg": format!("{:?}", self.by), "kid": self.kid})
    }

    /// A token with these texts as its header and its claims.
    pub(super) fn sign_text(&self, header: &str, claims: &str) -> String {
        let message = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
        let signature = crypto::sign(message.as_bytes(), &self.private, self.by).unwrap();
        format!("{message}.{signature}")
    }

    pub(super) fn sign(&self, claims: &Value) -> String {
        self.sign_text(&self.header().to_string(), &claims.to_string())
    }
}

/// Claims that every check lets pass. No text of a refusal may have "hush" in it.
pub(super) fn claims() -> Value {
    json!({"iss": ISSUER, "aud": "fencegate", "sub": "hush|7", "exp": NOW + 600, "iat": NOW, "email": "hush@x.example"})
}

/// The same with one claim changed, or without it where the value is null.
pub(super) fn with(claim: &str, value: Value) -> Value {
    let mut claims = claims();
    match (value, claims.as_object_mut().unwrap()) {
        (Value::Null, claims) => drop(claims.remove(claim)),
        (value, claims) => drop(claims.insert(claim.to_owned(), value)),
    }
    claims
}
