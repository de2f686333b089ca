//! An issuer's public keys, from a JWK set (RFC 7517), and signatures by them.
//!
//! A key that is not public, not for signatures, or of a kind that no algorithm here uses is left out. So a token
//! cannot have its signature checked as if a public key were a shared secret.

use jsonwebtoken::{
    Algorithm as Signing, DecodingKey, DecodingKeyKind, crypto,
    jwk::{AlgorithmParameters, CommonParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse},
};
use serde_json::Value;

use crate::authority::unique::Unique;

/// The shortest modulus of an RSA key, in bytes: 2,048 bits. aws-lc refuses shorter ones as well.
const MODULUS_BYTES_MIN: usize = 256;

/// A signature algorithm with a public key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Algorithm(&'static str, Signing, Shape);

/// What a public key consists of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Rsa,
    P256,
    P384,
    Ed25519,
}

/// All of them. Those with a shared secret, and `none`, are not among them.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm("RS256", Signing::RS256, Shape::Rsa),
    Algorithm("RS384", Signing::RS384, Shape::Rsa),
    Algorithm("RS512", Signing::RS512, Shape::Rsa),
    Algorithm("PS256", Signing::PS256, Shape::Rsa),
    Algorithm("PS384", Signing::PS384, Shape::Rsa),
    Algorithm("PS512", Signing::PS512, Shape::Rsa),
    Algorithm("ES256", Signing::ES256, Shape::P256),
    Algorithm("ES384", Signing::ES384, Shape::P384),
    Algorithm("EdDSA", Signing::EdDSA, Shape::Ed25519),
];

impl Algorithm {
    pub(super) const fn name(self) -> &'static str {
        self.0
    }
}

/// The algorithms with these names.
///
/// # Errors
/// When there is none, or one is not an algorithm with a public key.
pub(super) fn algorithms(names: &[String]) -> Result<Vec<Algorithm>, String> {
    let known = || ALGORITHMS.map(Algorithm::name).join(", ");
    if names.is_empty() {
        return Err(format!("must name what the issuer signs with, such as [\"RS256\"]; there are {}", known()));
    }
    let by_name = |name: &String| {
        let found = ALGORITHMS.into_iter().find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| format!("{name:?} is no signature algorithm with a public key; there are {}", known()))
    };
    names.iter().map(by_name).collect()
}

/// The usable keys of a set.
pub(super) struct Keys(Vec<Key>);

/// A public key.
pub(super) struct Key {
    id: Option<String>,
    shape: Shape,
    /// The only algorithm that it is for, if the set says so.
    only: Option<KeyAlgorithm>,
    public: DecodingKey,
}

/// What a set has for a token.
pub(super) enum Found<'a> {
    Key(&'a Key),
    /// No key has this name.
    Unknown,
    /// The key is not for this algorithm.
    Unfit,
    /// The token names no key, and there are several.
    Unnamed,
}

impl Keys {
    /// Reads a set.
    ///
    /// # Errors
    /// When it is no JWK set, or has no key that can be used; the text never quotes it.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let Unique(set) = serde_json::from_slice(bytes)
            .map_err(|error| format!("is not a JWK set: wrong JSON in line {}", error.line()))?;
        let given = set.get("keys").and_then(Value::as_array).ok_or("is not a JWK set: it has no list of `keys`")?;
        let keys: Vec<Key> = given.iter().filter_map(Key::read).collect();
        if keys.is_empty() {
            return Err(format!("holds no key that can be used, among {}", given.len()));
        }
        Ok(Self(keys))
    }

    /// The key with this name, for a signature by this algorithm. Without a name: the only one.
    pub(super) fn find(&self, id: Option<&str>, by: Algorithm) -> Found<'_> {
        if id.is_none() && self.0.len() > 1 {
            return Found::Unnamed;
        }
        let mut named = self.0.iter().filter(|key| id.is_none() || key.id.as_deref() == id).peekable();
        if named.peek().is_none() {
            return Found::Unknown;
        }
        named.find(|key| key.is_for(by)).map_or(Found::Unfit, Found::Key)
    }
}

impl Key {
    /// `None`: it cannot be used here.
    fn read(value: &Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
        let shape = shape(&jwk.algorithm).filter(|_| is_for_signatures(&jwk.common))?;
        let public = DecodingKey::from_jwk(&jwk).ok()?;
        let is_short =
            matches!(public.kind(), DecodingKeyKind::RsaModulusExponent { n, .. } if n.len() < MODULUS_BYTES_MIN);
        let key = Self { id: jwk.common.key_id, shape, only: jwk.common.key_algorithm, public };
        (!is_short && ALGORITHMS.into_iter().any(|algorithm| key.is_for(algorithm))).then_some(key)
    }

    fn is_for(&self, by: Algorithm) -> bool {
        self.shape == by.2 && self.only.is_none_or(|only| only == KeyAlgorithm::from(by.1))
    }

    /// Whether this key has made a signature, in base64url, of a message.
    pub(super) fn has_signed(&self, signature: &str, message: &str, by: Algorithm) -> bool {
        self.is_for(by) && crypto::verify(signature, message.as_bytes(), &self.public, by.1).unwrap_or(false)
    }
}

/// `None`: no algorithm here uses such a key.
fn shape(parameters: &AlgorithmParameters) -> Option<Shape> {
    match parameters {
        AlgorithmParameters::RSA(_) => Some(Shape::Rsa),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => Some(Shape::P256),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => Some(Shape::P384),
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => Some(Shape::Ed25519),
        // Also a shared secret (`oct`): who can check a signature by it can make one.
        _ => None,
    }
}

fn is_for_signatures(key: &CommonParameters) -> bool {
    let by_use = key.public_key_use.as_ref().is_none_or(|given| *given == PublicKeyUse::Signature);
    by_use && key.key_operations.as_ref().is_none_or(|given| given.contains(&KeyOperations::Verify))
}
