//! The values that requests may have, for the api's description: one named schema for each kind of value, with the
//! limits of the types that read it. These types exist in the description only.
//!
//! JSON Schema cannot express some rules. It counts characters, but an id's limit is in bytes: `maxLength` is exact
//! for ASCII only. It treats `1.0` and `1` as equal, but whole numbers have no fraction and no exponent here. It
//! cannot say what a cursor or a token means, or which of two fields is greater.

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        OpenApi, RefOr,
        schema::{ObjectBuilder, Schema, Type},
    },
};

use crate::{
    config::LeaseSettings,
    fence::{self, authority::TEXT_MAX},
};

/// The longest reason, in bytes of UTF-8.
pub const REASON_MAX: usize = 1_024;

/// No control characters; C1 has control characters too.
const PLAIN: &str = r"^[^\x00-\x1f\x7f-\x9f]*$";

fn plain(description: &str, min: usize, max: usize) -> ObjectBuilder {
    text(description, PLAIN).min_length(Some(min)).max_length(Some(max))
}

fn text(description: &str, pattern: impl Into<String>) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).description(Some(description)).pattern(Some(pattern))
}

fn whole(description: &str, min: u64, max: u64) -> ObjectBuilder {
    let bound = |number: u64| Some(usize::try_from(number).unwrap_or(usize::MAX));
    let number = ObjectBuilder::new().schema_type(Type::Integer).description(Some(description));
    number.minimum(bound(min)).maximum(bound(max))
}

fn one_of(words: &'static [&'static str]) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words.iter().copied()))
}

/// A pattern of the decimal numbers from 0, or from 1, to `max`, each in its one spelling.
fn decimal(from: u64, max: u64) -> String {
    let digits = max.to_string();
    let mut ways = if from == 0 { vec!["0".to_owned()] } else { vec![] };
    if digits.len() > 1 {
        ways.push(format!("[1-9][0-9]{{0,{}}}", digits.len() - 2));
    }
    for (place, digit) in digits.char_indices() {
        let lowest = if place == 0 { '1' } else { '0' };
        let Some(below) = u32::from(digit).checked_sub(1).and_then(char::from_u32).filter(|below| *below >= lowest)
        else {
            continue;
        };
        let rest = match digits.len() - place - 1 {
            0 => String::new(),
            rest => format!("[0-9]{{{rest}}}"),
        };
        ways.push(format!("{}[{lowest}-{below}]{rest}", &digits[..place]));
    }
    ways.push(digits);
    format!("(?:{})", ways.join("|"))
}

/// A pattern of the gate's own tokens.
fn token() -> String {
    let four = "(?:[A-Za-z0-9_-]{4})";
    let (one_more, two_more) = ("[A-Za-z0-9_-][AQgw]", "[A-Za-z0-9_-]{2}[AEIMQUYcgkosw048]");
    let object = format!("(?:{four}{{1,341}}|{four}{{0,341}}{one_more}|{four}{{0,340}}{two_more})");
    format!(r"fg1\.{}\.{object}\.[A-Za-z0-9_-]{{21}}[AQgw]", decimal(1, u64::MAX))
}

/// A pattern of the tokens of a term of leadership.
fn term() -> String {
    let uid = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
    format!(r"k8s\.{uid}\.{}", decimal(0, u64::from(i32::MAX.unsigned_abs())))
}

macro_rules! described {
    ($($name:ident: $schema:expr;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` in the description.")]
            pub enum $name {}

            impl PartialSchema for $name {
                fn schema() -> RefOr<Schema> {
                    $schema.into()
                }
            }

            impl ToSchema for $name {}
        )*
    };
}

described! {
    ObjectId: plain("What a lease governs: 1 to 1,024 bytes of UTF-8.", 1, fence::ObjectId::MAX_BYTES);
    HolderId: plain("Who holds a lease: 1 to 1,024 bytes of UTF-8, unique per process.", 1, fence::HolderId::MAX_BYTES);
    LeaseId: plain("One grant of one lease: 1 to 128 bytes of UTF-8.", 1, fence::LeaseId::MAX_BYTES);
    IssuerId: plain("An authority: 1 to 128 bytes of UTF-8.", 1, fence::IssuerId::MAX_BYTES);
    MigrationId: plain("A migration: 1 to 64 bytes of UTF-8.", 1, fence::MigrationId::MAX_BYTES);
    RequestId: plain("A caller's own name for one acquire: 1 to 256 bytes of UTF-8.", 1, fence::RequestId::MAX_BYTES);
    Reason: plain("Why: 1 to 1,024 bytes of UTF-8.", 1, REASON_MAX);
    Words: plain("At most 1,024 bytes of UTF-8.", 0, TEXT_MAX);
    Folder: text("An absolute path on the gate's machine.", r"^/[^\x00]*$");
    FenceToken: text("A token as its holder got it.", format!("^{}$", token()));
    AnyToken: text(
        "A token as a write would carry it: the gate's own; where `object_id` is given, also an outside lock service's number or a term of leadership.",
        format!("^(?:{}|{}|{})$", token(), decimal(1, u64::MAX), term())
    );
    TokenText: text(
        "An outside lock service's number as decimal digits, or a term of leadership.",
        format!("^(?:{}|{})$", decimal(1, u64::MAX), term())
    );
    TtlMs: whole("How long a lease lasts, in milliseconds.", 0, u64::MAX);
    WaitMs: whole("How long to queue, in milliseconds.", 0, u64::MAX);
    LeaseSeq: whole("A lease's number.", 1, u64::MAX);
    Whole: whole("A number, or milliseconds since 1970.", 0, u64::MAX);
    KeyEpoch: whole("Which of its issuer's keys signed it.", 0, u64::from(u32::MAX));
    Limit: whole("How many: 1 to 1,000.", 1, 1_000);
    Cursor: text("`next_cursor` of the page before.", "^[A-Za-z0-9_-]+$");
    Stamp: text(
        "A hybrid logical time, `<ms>:<counter>`.",
        format!("^{}:{}$", decimal(0, u64::MAX), decimal(0, u64::from(u32::MAX)))
    );
    Signature: text("A BLS signature.", "^bls:0x[0-9a-f]{192}$");
    StateHash: text("A state's hash.", "^sha256:0x[0-9a-f]{64}$");
    FenceRequestKind: one_of(&["FENCE_REQUEST"]);
    CertificateKind: one_of(&["FENCE_CERTIFICATE"]);
    AcknowledgedKind: one_of(&["FENCE_ACKNOWLEDGED"]);
    GrantKind: one_of(&["LEASE_GRANT"]);
    ActiveKind: one_of(&["LEASE_ACTIVE"]);
    RelayKind: one_of(&["RELAY_FENCE"]);
    Propagation: one_of(&["flood", "direct", "relay"]);
}

/// The objects of a batch; each once.
pub enum ObjectIds {}

impl PartialSchema for ObjectIds {
    fn schema() -> RefOr<Schema> {
        let each = utoipa::openapi::Ref::from_schema_name("ObjectId");
        let all = utoipa::openapi::schema::ArrayBuilder::new().items(RefOr::Ref(each));
        all.description(Some("All of them, or none.")).min_items(Some(1)).unique_items(true).into()
    }
}

impl ToSchema for ObjectIds {}

/// Writes the limits of this gate's settings into the description.
pub fn fit(description: &mut OpenApi, limits: &LeaseSettings) {
    let Some(components) = &mut description.components else { return };
    let mut set = |name: &str, min: u64, max: u64| {
        if let Some(RefOr::T(Schema::Object(object))) = components.schemas.get_mut(name) {
            let bound = |number: u64| Some(usize::try_from(number).unwrap_or(usize::MAX).into());
            (object.minimum, object.maximum) = (bound(min), bound(max));
        }
    };
    set("TtlMs", limits.ttl_ms_min, limits.ttl_ms_max);
    set("WaitMs", 0, limits.wait_ms_max);
    if let Some(RefOr::T(Schema::Array(array))) = components.schemas.get_mut("ObjectIds") {
        array.max_items = Some(limits.batch_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decimal_pattern_has_one_way_for_each_number_and_none_above() {
        assert_eq!(decimal(0, 9), "(?:0|[1-8]|9)");
        assert_eq!(decimal(1, 205), "(?:[1-9][0-9]{0,1}|[1-1][0-9]{2}|20[0-4]|205)");
    }
}
