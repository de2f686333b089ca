//! BLS12-381 signatures: min_pk (48-byte public keys, 96-byte signatures), the IETF proof-of-possession
//! scheme. The only import of `blst`.
//!
//! Every point is checked when it is read: on the curve, in the subgroup, not infinity. A public key is accepted only
//! with its proof of possession. Without the proof, an attacker could choose a key that cancels others out.

use std::{fmt, str::FromStr};

use blst::{
    BLST_ERROR, blst_scalar,
    min_pk::{PublicKey as Point1, SecretKey as Scalar, Signature as Point2},
};
use subtle::ConstantTimeEq;
use thiserror::Error;

use super::statement::Kind;

/// The form of a signature: `bls:0x`, then 192 hexadecimal digits.
const PREFIX: &str = "bls:0x";
/// The prefix of keys.
const HEX: &str = "0x";

/// The suffix that the scheme gives every domain separation tag.
const SUITE: &str = "BLS12381G2_XMD:SHA-256_SSWU_RO_POP_";

/// How many random bits each signature of a batch is multiplied with.
const BATCH_BITS: usize = 128;

/// Why bytes are not a key or signature.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PointFault {
    #[error("must begin with {0}")]
    Prefix(&'static str),
    #[error("must be {expected} lower-case hexadecimal digits, this has {found}")]
    Length { expected: usize, found: usize },
    #[error("must be lower-case hexadecimal digits")]
    Hex,
    #[error("is not the encoding of a point")]
    Encoding,
    #[error("is not a point on the curve")]
    OffCurve,
    #[error("is a point outside the subgroup")]
    OffSubgroup,
    #[error("is the point at infinity, which belongs to no key")]
    Infinity,
    #[error("is not a secret key")]
    Scalar,
}

impl PointFault {
    /// Whether the text does not even have the form of one.
    #[must_use]
    pub const fn is_spelling(self) -> bool {
        matches!(self, Self::Prefix(_) | Self::Length { .. } | Self::Hex)
    }
}

fn fault(error: BLST_ERROR) -> PointFault {
    match error {
        BLST_ERROR::BLST_POINT_NOT_ON_CURVE => PointFault::OffCurve,
        BLST_ERROR::BLST_POINT_NOT_IN_GROUP => PointFault::OffSubgroup,
        BLST_ERROR::BLST_PK_IS_INFINITY => PointFault::Infinity,
        _ => PointFault::Encoding,
    }
}

fn unhex<const N: usize>(text: &str, prefix: &'static str) -> Result<[u8; N], PointFault> {
    let digits = text.strip_prefix(prefix).ok_or(PointFault::Prefix(prefix))?;
    if digits.len() != 2 * N {
        return Err(PointFault::Length { expected: 2 * N, found: digits.len() });
    }
    let mut bytes = [0; N];
    hex::decode_to_slice(digits, &mut bytes).map_err(|_| PointFault::Hex)?;
    // Each value has one spelling only.
    if digits.bytes().any(|digit| digit.is_ascii_uppercase()) { Err(PointFault::Hex) } else { Ok(bytes) }
}

/// A public key that is on the curve, in the subgroup and not infinity.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(Point1);

impl PublicKey {
    pub const BYTES: usize = 48;

    /// # Errors
    /// When the bytes are not such a point.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, PointFault> {
        Point1::key_validate(bytes).map(Self).map_err(fault)
    }

    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0.compress()
    }
}

impl FromStr for PublicKey {
    type Err = PointFault;

    fn from_str(text: &str) -> Result<Self, PointFault> {
        Self::from_bytes(&unhex(text, HEX)?)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{HEX}{}", hex::encode(self.to_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A signature that is on the curve, in the subgroup and not infinity. [`Signature::is_by`] checks whose it is.
#[derive(Clone, Copy)]
pub struct Signature {
    point: Point2,
    bytes: [u8; Self::BYTES],
}

impl PartialEq for Signature {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Signature {}

impl Signature {
    pub const BYTES: usize = 96;

    /// # Errors
    /// When the bytes are not such a point.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, PointFault> {
        let point = Point2::sig_validate(bytes, true).map_err(fault)?;
        Ok(Self { point, bytes: *bytes })
    }

    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        self.bytes
    }

    /// Whether this key has signed these bytes as a statement of this kind.
    #[must_use]
    pub fn is_by(&self, key: &PublicKey, kind: Kind, bytes: &[u8]) -> bool {
        self.verifies(key, &tag(kind), bytes)
    }

    fn verifies(&self, key: &PublicKey, tag: &str, bytes: &[u8]) -> bool {
        // Both points were checked when they were read.
        self.point.verify(false, bytes, tag.as_bytes(), &[], &key.0, false) == BLST_ERROR::BLST_SUCCESS
    }
}

impl FromStr for Signature {
    type Err = PointFault;

    fn from_str(text: &str) -> Result<Self, PointFault> {
        Self::from_bytes(&unhex(text, PREFIX)?)
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", hex::encode(self.bytes))
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A signature as grants name it. It is not checked as a point, since it is compared with one that was.
///
/// # Errors
/// When the text does not have the form of a signature.
pub fn proof_from_str(text: &str) -> Result<[u8; Signature::BYTES], PointFault> {
    unhex(text, PREFIX)
}

/// The text of a signature given as bytes.
#[must_use]
pub fn proof_to_string(bytes: &[u8; Signature::BYTES]) -> String {
    format!("{PREFIX}{}", hex::encode(bytes))
}

/// The domain separation tag of a kind of statement: a signature of one kind does not hold for another.
fn tag(kind: Kind) -> String {
    format!("FENCEGATE_{}_V1_BLS_SIG_{SUITE}", kind.name())
}

fn tag_of_possession() -> String {
    format!("BLS_POP_{SUITE}")
}

/// A secret key. Prints as `***`, and is erased when it is dropped.
#[derive(Clone)]
pub struct SecretKey(Scalar);

impl SecretKey {
    pub const BYTES: usize = 32;

    /// Makes a new key from the system's random numbers.
    ///
    /// # Errors
    /// When the system has none.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut seed = [0; Self::BYTES];
        getrandom::fill(&mut seed)?;
        Ok(Self::from_seed(&seed))
    }

    /// The key that the IETF's KeyGen derives from 32 bytes. For tests and [`SecretKey::generate`].
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(Scalar::key_gen(seed, &[]).expect("32 bytes are enough"))
    }

    /// # Errors
    /// When the bytes are not a number from 1 to the group's order.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, PointFault> {
        Scalar::from_bytes(bytes).map(Self).map_err(|_| PointFault::Scalar)
    }

    /// The key's text. Only this function reveals the key, for a key file.
    #[must_use]
    pub fn expose(&self) -> String {
        format!("{HEX}{}", hex::encode(self.0.to_bytes()))
    }

    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.sk_to_pk())
    }

    /// Signs bytes as a statement of this kind.
    #[must_use]
    pub fn sign(&self, kind: Kind, bytes: &[u8]) -> Signature {
        self.sign_tagged(&tag(kind), bytes)
    }

    fn sign_tagged(&self, tag: &str, bytes: &[u8]) -> Signature {
        let point = self.0.sign(bytes, tag.as_bytes(), &[]);
        Signature { point, bytes: point.compress() }
    }

    /// Proves that the owner of the public key has the secret key.
    #[must_use]
    pub fn prove_possession(&self) -> Signature {
        self.sign_tagged(&tag_of_possession(), &self.public().to_bytes())
    }
}

impl PublicKey {
    /// Whether the proof of possession is for this key.
    #[must_use]
    pub fn is_possessed(&self, proof: &Signature) -> bool {
        proof.verifies(self, &tag_of_possession(), &self.to_bytes())
    }
}

impl FromStr for SecretKey {
    type Err = PointFault;

    fn from_str(text: &str) -> Result<Self, PointFault> {
        Self::from_bytes(&unhex(text, HEX)?)
    }
}

impl PartialEq for SecretKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bytes().ct_eq(&other.0.to_bytes()).into()
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// One of many signatures that are checked together.
#[derive(Clone, Copy, Debug)]
pub struct Claimed<'a> {
    pub key: &'a PublicKey,
    pub bytes: &'a [u8],
    pub signature: &'a Signature,
}

/// Whether all of these signatures hold. Each is multiplied with its own random number, so that wrong ones cannot
/// cancel each other out. To find a wrong one, check one by one.
///
/// # Errors
/// When the system has no random numbers.
pub fn are_all_by(kind: Kind, claimed: &[Claimed<'_>]) -> Result<bool, getrandom::Error> {
    are_all_tagged(&tag(kind), claimed)
}

fn are_all_tagged(tag: &str, claimed: &[Claimed<'_>]) -> Result<bool, getrandom::Error> {
    if claimed.is_empty() {
        return Ok(true);
    }
    let mut weights = vec![blst_scalar::default(); claimed.len()];
    for weight in &mut weights {
        getrandom::fill(&mut weight.b[..BATCH_BITS / 8])?;
        // The weight must not be zero.
        weight.b[0] |= 1;
    }
    let messages: Vec<&[u8]> = claimed.iter().map(|each| each.bytes).collect();
    let keys: Vec<&Point1> = claimed.iter().map(|each| &each.key.0).collect();
    let signatures: Vec<&Point2> = claimed.iter().map(|each| &each.signature.point).collect();
    let verified = Point2::verify_multiple_aggregate_signatures(
        &messages,
        tag.as_bytes(),
        &keys,
        false,
        &signatures,
        false,
        &weights,
        BATCH_BITS,
    );
    Ok(verified == BLST_ERROR::BLST_SUCCESS)
}

#[cfg(test)]
#[path = "bls_tests.rs"]
mod tests;
