//! The fence token `fg1.<lease_seq>.<base64url object_id>.<base64url secret>`.
//!
//! One token has one spelling: a decimal number without sign or leading zero, unpadded canonical base64url, and
//! nothing before or after. The secret proves that the table granted exactly this lease: it is derived from the
//! table's key, never stored, and never printed.

use std::{fmt, sync::Arc};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;

use super::{LeaseId, LeaseSeq, ObjectId};

const PREFIX: &[u8] = b"fg1";

/// Why a string is not a fence token. The message says what is wrong and never repeats the text.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TokenFault {
    #[error("a fence token is at most {max} bytes", max = FenceToken::MAX_BYTES)]
    TooLong,
    #[error("a fence token has four parts: fg1.<lease_seq>.<object_id>.<secret>")]
    Shape,
    #[error("the lease_seq must be a decimal number from 1 to 2^64-1, without sign or leading zero")]
    Seq,
    #[error("the fence token of this route is a decimal number from 1 to 2^64-1, without sign or leading zero")]
    Number,
    #[error("the fence token of this route is k8s.<uid>.<leaseTransitions>, both as the Lease has them")]
    Election,
    #[error("this route wants a Fence-Holder: the holderIdentity that the Lease names, in one header")]
    Holder,
    #[error("the object_id must be unpadded base64url of a valid object id")]
    Object,
    #[error("the secret must be 16 bytes as unpadded base64url")]
    Secret,
    #[error("a write carries one fence token; this one came with several")]
    Twice,
    #[error("this write goes to several objects, and came with a token twice, or with one for another object")]
    TooMany,
    #[error("the fence token is named in Connection, so the next hop would drop it")]
    InConnection,
    #[error("the fence token is announced as a trailer; it must be a header")]
    InTrailer,
    #[error(
        "the fence token is among the SignedHeaders; the store does not get to see it, so the signature would break"
    )]
    Signed,
}

/// The unguessable part of a token. Compares in constant time and prints as `***`.
#[derive(Clone, Copy)]
pub struct Secret([u8; Secret::BYTES]);

impl Secret {
    pub const BYTES: usize = 16;

    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        u128::from_ne_bytes(self.0).ct_eq(&u128::from_ne_bytes(other.0)).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// What proves that a lease was granted: its secret, and the one spelling of the token that carries it. A presented
/// token is compared with that spelling as it came. Prints as `***`.
#[derive(Clone)]
pub struct Proof {
    secret: Secret,
    spelling: Arc<str>,
}

impl Proof {
    /// The proof of the lease with this number.
    #[must_use]
    pub fn new(object: &ObjectId, seq: LeaseSeq, secret: Secret) -> Self {
        let token = FenceToken { seq, object: object.clone(), secret };
        Self { secret, spelling: token.expose().into() }
    }

    #[must_use]
    pub fn secret(&self) -> Secret {
        self.secret
    }

    /// Whether `text` is this token. Compares the secret in constant time.
    #[must_use]
    pub fn is_spelled(&self, text: &str) -> bool {
        let (own, text) = (self.spelling.as_bytes(), text.as_bytes());
        let parts = |token| -> Option<(&[u8], &[u8; SECRET_CHARS])> { <[u8]>::split_last_chunk(token) };
        let (Some((own, secret)), Some((text, shown))) = (parts(own), parts(text)) else { return false };
        own == text && is_same(secret, shown)
    }
}

/// Compares two secrets in their base64url spelling, in constant time.
fn is_same(one: &[u8; SECRET_CHARS], other: &[u8; SECRET_CHARS]) -> bool {
    // The two halves overlap.
    let halves = |text: &[u8; SECRET_CHARS]| {
        let (Some(first), Some(last)) = (text.first_chunk(), text.last_chunk()) else { unreachable!() };
        (u128::from_ne_bytes(*first), u128::from_ne_bytes(*last))
    };
    let ((first, last), (other_first, other_last)) = (halves(one), halves(other));
    (first.ct_eq(&other_first) & last.ct_eq(&other_last)).into()
}

impl PartialEq for Proof {
    fn eq(&self, other: &Self) -> bool {
        self.is_spelled(&other.spelling)
    }
}

impl Eq for Proof {}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The key that token secrets are made with. It is kept beside the table and never leaves the process.
#[derive(Clone)]
pub struct TableKey {
    bytes: [u8; TableKey::BYTES],
    /// The state with which every secret begins.
    mac: Hmac<Sha256>,
}

impl TableKey {
    pub const BYTES: usize = 32;

    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self { bytes, mac: Hmac::new_from_slice(&bytes).expect("HMAC takes any key length") }
    }

    /// The secret of one lease: bound to the object, the number and the grant.
    #[must_use]
    pub fn secret(&self, object: &ObjectId, seq: LeaseSeq, lease: &LeaseId) -> Secret {
        let mut mac = self.mac.clone();
        let object = object.as_str().as_bytes();
        mac.update(&(object.len() as u64).to_be_bytes());
        mac.update(object);
        mac.update(&seq.get().to_be_bytes());
        mac.update(lease.as_str().as_bytes());
        let digest = mac.finalize().into_bytes();
        let mut secret = [0; Secret::BYTES];
        secret.copy_from_slice(&digest[..Secret::BYTES]);
        Secret(secret)
    }

    /// The proof of one lease.
    #[must_use]
    pub fn proof(&self, object: &ObjectId, seq: LeaseSeq, lease: &LeaseId) -> Proof {
        Proof::new(object, seq, self.secret(object, seq, lease))
    }

    /// What the table remembers of its key, to notice another table's key. This is a hash, not the key.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 16] {
        let mut hash = Sha256::new();
        hash.update(b"fencegate table key fingerprint v1");
        hash.update(self.bytes);
        let digest = hash.finalize();
        let mut print = [0; 16];
        print.copy_from_slice(&digest[..16]);
        print
    }
}

impl fmt::Debug for TableKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TableKey(***)")
    }
}

/// A token as a writer presents it: well-formed, and not judged yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceToken {
    pub seq: LeaseSeq,
    pub object: ObjectId,
    pub secret: Secret,
}

impl FenceToken {
    /// More than the length of any token whose object id is within its limit.
    pub const MAX_BYTES: usize = 1536;

    /// Reads a token.
    ///
    /// # Errors
    /// When the text is not the one spelling of a token.
    pub fn parse(text: &str) -> Result<Self, TokenFault> {
        read(text, |id| ObjectId::new(id).ok()).map(|(seq, object, secret)| Self { seq, object, secret })
    }

    /// The token's text. The secret leaves the process only here, in the answer to its holder.
    #[must_use]
    pub fn expose(&self) -> String {
        let mut text = String::with_capacity(SPELLED_BYTES + self.object.as_str().len().div_ceil(3) * 4);
        text.push_str("fg1.");
        text.push_str(itoa::Buffer::new().format(self.seq.get()));
        text.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(self.object.as_str(), &mut text);
        text.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(self.secret.0, &mut text);
        text
    }
}

/// What a token claims about the object that a write goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClaim {
    pub seq: LeaseSeq,
    pub secret: Secret,
    /// The object that the token is for, where it is not the write's.
    pub other: Option<ObjectId>,
}

impl TokenClaim {
    /// What a token claims about `target`.
    #[must_use]
    pub fn of(token: &FenceToken, target: &ObjectId) -> Self {
        let other = Some(&token.object).filter(|object| *object != target).cloned();
        Self { seq: token.seq, secret: token.secret, other }
    }

    /// Reads a token against the object that is to be written, whose id is valid. Allocates only where the token is
    /// for another object.
    ///
    /// # Errors
    /// As [`FenceToken::parse`].
    pub fn parse(text: &str, target: &str) -> Result<Self, TokenFault> {
        let other = |id: &str| if id == target { Some(None) } else { ObjectId::new(id).ok().map(Some) };
        read(text, other).map(|(seq, other, secret)| Self { seq, secret, other })
    }
}

/// The length of a secret in a token.
const SECRET_CHARS: usize = 22;

/// Room for all parts of a token except the object.
const SPELLED_BYTES: usize = 48;

/// Reads the parts of a token. `object` converts the object's name, or refuses it.
fn read<T>(text: &str, object: impl FnOnce(&str) -> Option<T>) -> Result<(LeaseSeq, T, Secret), TokenFault> {
    if text.len() > FenceToken::MAX_BYTES {
        return Err(TokenFault::TooLong);
    }
    let mut parts = text.as_bytes().split(|byte| *byte == b'.');
    let (Some(PREFIX), Some(seq), Some(id), Some(secret), None) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(TokenFault::Shape);
    };
    let seq = parse_seq(seq)?;
    let mut buffer = [0; (ObjectId::MAX_BYTES).next_multiple_of(3) + 3];
    let length = BASE64_URL_SAFE_NO_PAD.decode_slice(id, &mut buffer).map_err(|_| TokenFault::Object)?;
    let id = std::str::from_utf8(&buffer[..length]).ok().and_then(object).ok_or(TokenFault::Object)?;
    Ok((seq, id, parse_secret(secret)?))
}

pub(super) fn parse_seq(text: &[u8]) -> Result<LeaseSeq, TokenFault> {
    if text.is_empty() || text[0] == b'0' {
        return Err(TokenFault::Seq);
    }
    let digit = |number: u64, byte: &u8| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    };
    text.iter().try_fold(0, digit).and_then(LeaseSeq::new).ok_or(TokenFault::Seq)
}

fn parse_secret(text: &[u8]) -> Result<Secret, TokenFault> {
    // The decoder asks for room by its estimate; a secret has 16 of these bytes.
    let mut buffer = [0; 18];
    match BASE64_URL_SAFE_NO_PAD.decode_slice(text, &mut buffer) {
        Ok(Secret::BYTES) => {
            let mut secret = [0; Secret::BYTES];
            secret.copy_from_slice(&buffer[..Secret::BYTES]);
            Ok(Secret(secret))
        }
        Ok(_) | Err(_) => Err(TokenFault::Secret),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn object(id: &str) -> ObjectId {
        ObjectId::new(id).unwrap()
    }

    fn any_token() -> impl Strategy<Value = FenceToken> {
        (1..=u64::MAX, "[^\\p{Cc}]{1,40}", any::<[u8; 16]>()).prop_map(|(seq, id, secret)| FenceToken {
            seq: LeaseSeq::new(seq).unwrap(),
            object: object(&id),
            secret: Secret::from_bytes(secret),
        })
    }

    proptest! {
        #[test]
        fn parse_of_expose_is_identity(token in any_token()) {
            prop_assert_eq!(FenceToken::parse(&token.expose()), Ok(token));
        }

        #[test]
        fn whatever_parses_is_spelled_in_the_one_way(
            text in "fg1\\.[0-9+]{1,3}\\.[A-Za-z0-9_=-]{1,8}\\.[A-Za-z0-9_=-]{21,24}"
        ) {
            if let Ok(token) = FenceToken::parse(&text) {
                prop_assert_eq!(token.expose(), text);
            }
        }

        #[test]
        fn read_against_an_object_it_claims_the_same(token in any_token(), id in "[^\\p{Cc}]{1,40}") {
            let (text, target) = (token.expose(), object(&id));
            prop_assert_eq!(TokenClaim::parse(&text, &id), Ok(TokenClaim::of(&token, &target)));
            let own = TokenClaim { seq: token.seq, secret: token.secret, other: None };
            prop_assert_eq!(TokenClaim::parse(&text, token.object.as_str()), Ok(own));
        }

        #[test]
        fn any_text_is_refused_or_read_without_a_panic(text in ".{0,200}") {
            let _ = FenceToken::parse(&text);
        }
    }

    #[test]
    fn every_unusual_spelling_is_refused_with_its_reason() {
        let secret = "AAAAAAAAAAAAAAAAAAAAAA";
        let seq = |seq: &str| FenceToken::parse(&format!("fg1.{seq}.dXNlcnM.{secret}"));
        assert!(seq("1").is_ok());
        assert!(seq("18446744073709551615").is_ok());
        for bad in ["", "0", "-1", "+1", "01", "0x1", "1e3", " 1", "1 ", "18446744073709551616", "١"] {
            assert_eq!(seq(bad), Err(TokenFault::Seq), "{bad:?}");
        }
        let object = |object: &str| FenceToken::parse(&format!("fg1.1.{object}.{secret}"));
        // padded, foreign alphabet, bits left over, empty, a control character, bad UTF-8
        for bad in ["dXNlcnM=", "dXNl+/M", "dXNlcnN", "", "AA", "_w", "dXNlcnM "] {
            assert_eq!(object(bad), Err(TokenFault::Object), "{bad:?}");
        }
        let tail = |tail: &str| FenceToken::parse(&format!("fg1.1.dXNlcnM.{tail}"));
        for bad in ["", "AAAA", "AAAAAAAAAAAAAAAAAAAAAB", "AAAAAAAAAAAAAAAAAAAAAA=="] {
            assert_eq!(tail(bad), Err(TokenFault::Secret), "{bad:?}");
        }
        for bad in ["", "fg1", "fg2.1.dXNlcnM.x", "1.0", "fg1.1.dXNlcnM", "fg1.1.dXNlcnM.a.b", "FG1.1.a.b"] {
            assert_eq!(FenceToken::parse(bad), Err(TokenFault::Shape), "{bad:?}");
        }
        assert_eq!(FenceToken::parse(&"a".repeat(9 * 1024)), Err(TokenFault::TooLong));
    }

    #[test]
    fn the_longest_object_id_still_fits_into_a_token() {
        let token = FenceToken {
            seq: LeaseSeq::new(u64::MAX).unwrap(),
            object: object(&"x".repeat(ObjectId::MAX_BYTES)),
            secret: Secret::from_bytes([255; 16]),
        };
        assert_eq!(FenceToken::parse(&token.expose()), Ok(token));
    }

    #[test]
    fn a_secret_is_bound_to_key_object_seq_and_lease() {
        let key = TableKey::from_bytes([7; 32]);
        let lease = LeaseId::new("l-1").unwrap();
        let one = LeaseSeq::new(1).unwrap();
        let secret = key.secret(&object("users"), one, &lease);
        assert_eq!(secret, key.secret(&object("users"), one, &lease));
        let others = [
            TableKey::from_bytes([8; 32]).secret(&object("users"), one, &lease),
            key.secret(&object("user"), one, &lease),
            key.secret(&object("users"), LeaseSeq::new(2).unwrap(), &lease),
            key.secret(&object("users"), one, &LeaseId::new("l-2").unwrap()),
        ];
        assert!(others.iter().all(|other| *other != secret));
    }

    #[test]
    fn no_secret_is_ever_printed() {
        let token = FenceToken {
            seq: LeaseSeq::new(3).unwrap(),
            object: object("users"),
            secret: Secret::from_bytes(*b"hunter2hunter2!!"),
        };
        let printed = format!("{token:?} {:?}", TableKey::from_bytes([65; 32]));
        assert!(printed.contains("***") && !printed.contains("104, 117") && !printed.contains("65, 65"), "{printed}");
    }
}
