//! What one line says, and how it is written.

use std::{net::IpAddr, sync::Arc};

use serde::Serialize;
use serde_json::{Map, Value};

use super::chain::{Link, Torn};
use crate::{config::Operation, fence::WallMs, wire::time};

/// Lines of the log about itself, by their `call`.
pub const START: &str = "audit.start";
pub const STOP: &str = "audit.stop";
pub const TORN: &str = "audit.torn";
pub const LOST: &str = "audit.lost";
pub const LEFT_OUT: &str = "audit.leftOut";
/// What the gate itself does, without a caller: the `source` of these lines, and their `call`.
pub const GATE: &str = "gate";
pub const MIGRATION_CERTIFICATE: &str = "migration.certificate";
pub const MIGRATION_GRANT: &str = "migration.grant";
pub const UNPARKED: &str = "fence.unparked";
/// The `call` of a reload.
pub const RELOAD: &str = "reload";
/// The `outcome` of a reload whose settings were faulty.
pub const FAULTY: &str = "faulty";
/// The `outcome` of what was done.
pub const OK: &str = "ok";

/// The longest text of a caller that has no limit of its own, in bytes.
const TEXT_MAX: usize = 1_024;

/// What one line says, before it has its place in the chain.
#[derive(Clone, Debug)]
pub struct Entry {
    pub time: WallMs,
    /// Who called; `None`: that is not known, or it was no caller.
    pub principal: Option<String>,
    /// The principal's identity source.
    pub source: Option<String>,
    pub operation: Option<Operation>,
    /// The call's operation id.
    pub call: Arc<str>,
    pub objects: Vec<String>,
    pub holder: Option<String>,
    pub lease_seq: Option<u64>,
    pub outcome: &'static str,
    pub request_id: Option<String>,
    pub peer: Option<IpAddr>,
    /// What else is worth knowing of some calls.
    pub detail: Map<String, Value>,
}

/// A line, in the order of its fields.
#[derive(Serialize)]
struct Line<'a> {
    n: u64,
    time: String,
    principal: Option<&'a str>,
    source: Option<&'a str>,
    operation: &'a str,
    call: &'a str,
    object: Object<'a>,
    holder: Option<&'a str>,
    lease_seq: Option<u64>,
    outcome: &'a str,
    request_id: Option<&'a str>,
    peer: Option<IpAddr>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    detail: &'a Map<String, Value>,
    prev: String,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Object<'a> {
    None,
    One(&'a str),
    Several(&'a [String]),
}

impl Entry {
    /// A line about no call of the api.
    #[must_use]
    pub fn of_gate(call: &str, outcome: &'static str, time: WallMs) -> Self {
        Self {
            time,
            principal: None,
            source: None,
            operation: None,
            call: Arc::from(call),
            objects: vec![],
            holder: None,
            lease_seq: None,
            outcome,
            request_id: None,
            peer: None,
            detail: Map::new(),
        }
    }

    /// With one more detail.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.detail.insert(name.to_owned(), value.into());
        self
    }

    /// The line that says what was torn.
    #[must_use]
    pub fn of_torn(torn: &Torn, time: WallMs) -> Self {
        Self::of_gate(TORN, OK, time).with("bytes", torn.bytes).with("sha256", torn.sha256.as_str())
    }

    /// The line behind `last`, without its end.
    ///
    /// # Errors
    /// Never with these fields; the line's writer passes errors on.
    pub fn line(&self, last: Link) -> Result<Vec<u8>, serde_json::Error> {
        let object = match self.objects.as_slice() {
            [] => Object::None,
            [one] => Object::One(one),
            several => Object::Several(several),
        };
        serde_json::to_vec(&Line {
            n: last.n.saturating_add(1),
            time: time(self.time),
            principal: self.principal.as_deref(),
            source: self.source.as_deref(),
            operation: self.operation.map_or("-", Operation::as_str),
            call: &self.call,
            object,
            holder: self.holder.as_deref(),
            lease_seq: self.lease_seq,
            outcome: self.outcome,
            request_id: self.request_id.as_deref(),
            peer: self.peer,
            detail: &self.detail,
            prev: last.hex(),
        })
    }
}

/// A caller's text, cut to a length that a line may have.
#[must_use]
pub fn bounded(text: &str) -> String {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_fields_in_order_and_escapes_texts() {
        let mut entry = Entry::of_gate("revokeObject", OK, WallMs(1_800_000_000_250)).with("reason", "a\"\n\u{1}");
        entry.operation = Some(Operation::Operate);
        entry.objects = vec!["/a\"b".to_owned()];
        let line = String::from_utf8(entry.line(Link { n: 6, hash: [7; 32] }).unwrap()).unwrap();
        let prev = "07".repeat(32);
        let wanted = format!(
            r#"{{"n":7,"time":"2027-01-15T08:00:00.250Z","principal":null,"source":null,"operation":"operate","call":"revokeObject","object":"/a\"b","holder":null,"lease_seq":null,"outcome":"ok","request_id":null,"peer":null,"detail":{{"reason":"a\"\n\u0001"}},"prev":"{prev}"}}"#
        );
        assert_eq!(line, wanted);
        entry.objects.push("/c".to_owned());
        entry.detail = Map::new();
        let line = String::from_utf8(entry.line(Link::START).unwrap()).unwrap();
        assert!(line.contains(r#""object":["/a\"b","/c"]"#) && !line.contains("detail"), "{line}");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(bounded("short"), "short");
        let cut = bounded(&"ä".repeat(TEXT_MAX));
        assert_eq!((cut.len(), cut.chars().all(|each| each == 'ä')), (TEXT_MAX, true));
        assert_eq!(bounded(&format!("x{}", "ä".repeat(TEXT_MAX))).len(), TEXT_MAX - 1);
    }
}
