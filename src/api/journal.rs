//! Journals: what was written to an object, as digests. Bodies are not kept.

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    caller::Caller,
    extract::{InPath, Query},
};
use crate::{
    authority::json::hash_text,
    fence::{Code, LeaseSeq, ObjectId},
    gate::Shared,
    problem::Problem,
    table::{
        TableFault,
        codec::{Family, JournalEntry, JournalHead, Key, Wrote},
        ledger::journal,
        records::Records,
    },
    wire::{schema, time},
};

/// `GET /v1/objects/{object_id}/journal`
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub struct JournalQuery {
    /// Entries behind this number; 0 if absent.
    #[param(value_type = Option<schema::Whole>)]
    pub after: Option<u64>,
    /// 1 to 1,000; 1,000 if absent.
    #[param(value_type = Option<schema::Limit>)]
    pub limit: Option<usize>,
}

/// A part of a journal. Its entries have digests of what was written, never the bodies themselves.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct JournalBody {
    pub object_id: String,
    /// How many entries there are in all.
    pub writes: u64,
    /// The hash over all of them.
    pub state_hash: String,
    pub entries: Vec<EntryBody>,
    /// The first entry behind `after` is gone: only the newest `journal.keep` are kept.
    pub trimmed: bool,
    /// Where to go on; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_after: Option<u64>,
}

/// One entry: a settled write, one whose outcome is unknown, or a gap.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct EntryBody {
    pub number: u64,
    /// `settled`, `unknown` (it may have landed or not) or `gap` (the gate ended badly here; what was on its
    /// way then may have landed).
    pub outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Path and query, as they went to the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// SHA-256 of the body, 64 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    pub at: String,
    /// The hash over this entry and all before it.
    pub hash: String,
}

const LIMIT_MAX: usize = 1_000;

/// What was written to an object, as digests without bodies. A new holder compares it with what it has.
///
/// # Errors
/// `JOURNAL_OFF` where no route of this object keeps one.
#[utoipa::path(get, operation_id = "getJournal", path = "/v1/objects/{object_id}/journal", tag = "authority",
    params(("object_id" = schema::ObjectId, Path), JournalQuery), responses(
    (status = 200, body = JournalBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn list(
    State(gate): State<Shared>,
    caller: Caller,
    InPath(object): InPath,
    Query(query): Query<JournalQuery>,
) -> Result<Json<JournalBody>, Problem> {
    let object = caller.object("object_id", &object)?;
    let (after, limit) = (query.after.unwrap_or(0), query.limit.unwrap_or(LIMIT_MAX));
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Problem::invalid("limit", format!("must be from 1 to {LIMIT_MAX}, this is {limit}")));
    }
    let wanted = object.clone();
    let (head, entries) = gate.read(move |records| read(records, &wanted, after, limit)).await?;
    if head.count == 0 && !gate.routes.load().keeps_journal(&object) {
        let what = "no route of this object keeps a journal; set journal = true on it";
        return Err(Problem::new(Code::JournalOff, what).with_object(&object));
    }
    let last = entries.last().map(|entry| entry.number);
    Ok(Json(JournalBody {
        object_id: object.to_string(),
        writes: head.count,
        state_hash: hash_text(&head.hash),
        trimmed: after < head.count && entries.first().is_none_or(|first| first.number > after + 1),
        next_after: last.filter(|last| *last < head.count),
        entries,
    }))
}

fn read(
    records: &Records,
    object: &ObjectId,
    after: u64,
    limit: usize,
) -> Result<(JournalHead, Vec<EntryBody>), TableFault> {
    // Read the head first: entries that are added meanwhile come after it, and are left out.
    let head = journal::head(&*records.table, object)?;
    let (mut from, until) = Family::JournalEntry.range_of(object);
    from.extend_from_slice(&after.saturating_add(1).to_be_bytes());
    let rows = records.table.scan(&from, &until, limit)?;
    let entries = rows.into_iter().map(|(key, value)| match Key::decode(&key)? {
        Key::JournalEntry(_, number) => Ok(body(number, &JournalEntry::decode(&value)?)),
        _ => Err(TableFault::Corrupt("a foreign key in a journal".to_owned())),
    });
    let entries: Vec<EntryBody> = entries.collect::<Result<_, _>>()?;
    Ok((head, entries.into_iter().filter(|entry| entry.number <= head.count).collect()))
}

fn body(number: u64, entry: &JournalEntry) -> EntryBody {
    let (outcome, method, target, digest, status) = match &entry.wrote {
        Wrote::Settled { method, target, digest, status } => {
            ("settled", Some(method), Some(target), Some(digest), Some(*status))
        }
        Wrote::Unknown { method, target } => ("unknown", Some(method), Some(target), None, None),
        Wrote::Gap => ("gap", None, None, None, None),
    };
    EntryBody {
        number,
        outcome: outcome.to_owned(),
        lease_seq: entry.seq.map(LeaseSeq::get),
        method: method.cloned(),
        target: target.cloned(),
        body_sha256: digest.map(hex::encode),
        status,
        at: time(entry.at),
        hash: hash_text(&entry.hash),
    }
}

impl EntryBody {
    /// What the entry records, in the form that is hashed.
    ///
    /// # Errors
    /// When a field that its outcome needs is missing.
    pub fn wrote(&self) -> Result<Wrote, &'static str> {
        let text = |field: &Option<String>| field.clone().ok_or("an entry without its method or target");
        match self.outcome.as_str() {
            "settled" => {
                let mut digest = [0; 32];
                let hex = self.body_sha256.as_deref().unwrap_or("");
                hex::decode_to_slice(hex, &mut digest).map_err(|_| "an entry without its digest")?;
                let status = self.status.ok_or("an entry without its status")?;
                Ok(Wrote::Settled { method: text(&self.method)?, target: text(&self.target)?, digest, status })
            }
            "unknown" => Ok(Wrote::Unknown { method: text(&self.method)?, target: text(&self.target)? }),
            "gap" => Ok(Wrote::Gap),
            _ => Err("an entry of no known outcome"),
        }
    }
}
