//! Idempotency keys: what is remembered of a keyed write, and what a repeated write with the same key gets.
//!
//! A key belongs to one holder's writes of one object. The key is remembered before its write may land, so the gate
//! never runs the write a second time under that key. The same payload gets the answer that was kept. Another
//! payload is refused. Where it is unknown what became of the write, the answer says so.

use std::fmt;

use thiserror::Error;

use super::{BootMs, Code, HolderId, LeaseId, LeaseSeq, Now, ObjectId, WallMs, time::Frame};

/// A client's own name for a write.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(Box<str>);

/// Why a header is not an idempotency key.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum KeyFault {
    #[error("there is more than one")]
    Several,
    #[error("must have from 1 to {max} characters", max = IdempotencyKey::MAX_BYTES)]
    Length,
    #[error("must be a string in double quotes, or a word of visible ASCII without quotes, commas or semicolons")]
    Spelling,
}

impl IdempotencyKey {
    pub const MAX_BYTES: usize = 255;

    /// Reads a header: a quoted string as in the draft, or a bare word as most clients send it. Both are the same
    /// key.
    ///
    /// # Errors
    /// When the header is neither.
    pub fn parse(header: &[u8]) -> Result<Self, KeyFault> {
        let header = header.trim_ascii();
        let text = match header {
            [b'"', inner @ .., b'"'] => unquote(inner)?,
            [b'"', ..] => return Err(KeyFault::Spelling),
            word => bare(word)?,
        };
        Self::new(&text).ok_or(KeyFault::Length)
    }

    /// Makes a key of its own text; `None` where it cannot be a key.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_plain = text.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
        ((1..=Self::MAX_BYTES).contains(&text.len()) && is_plain).then(|| Self(text.into()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

fn unquote(inner: &[u8]) -> Result<String, KeyFault> {
    let (mut text, mut bytes) = (String::with_capacity(inner.len()), inner.iter());
    while let Some(byte) = bytes.next() {
        text.push(match byte {
            b'\\' => match bytes.next() {
                Some(escaped @ (b'"' | b'\\')) => char::from(*escaped),
                Some(_) | None => return Err(KeyFault::Spelling),
            },
            b'"' => return Err(KeyFault::Spelling),
            0x20..=0x7e => char::from(*byte),
            _ => return Err(KeyFault::Spelling),
        });
    }
    Ok(text)
}

fn bare(word: &[u8]) -> Result<String, KeyFault> {
    if word.contains(&b',') {
        // A proxy joins two fields in this way.
        return Err(KeyFault::Several);
    }
    let is_plain = |byte: &u8| matches!(byte, 0x21..=0x7e) && !matches!(byte, b'"' | b';' | b'\\');
    if !word.iter().all(is_plain) {
        return Err(KeyFault::Spelling);
    }
    Ok(word.iter().copied().map(char::from).collect())
}

/// The holder that uses a key, and the object that it writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    pub object: ObjectId,
    pub holder: HolderId,
    pub key: IdempotencyKey,
}

/// A digest over a write's method, target and body.
pub type Payload = [u8; 32];

/// What is remembered of a keyed write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `None` where the body was not known before it was sent, and the outcome of the write is unknown.
    pub payload: Option<Payload>,
    /// The lease that the write was made with.
    pub seq: LeaseSeq,
    pub lease_id: LeaseId,
    /// When the key was remembered; or when the write was answered or lost, if that took long.
    pub at: WallMs,
    /// The same instant by the boot clock, with its run. Rows of earlier versions do not have it.
    pub since: Option<Since>,
    /// Names this one attempt.
    pub attempt: u64,
    pub answer: KeptResponse,
}

/// A moment of one run, which no step of the wall clock moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    pub run: u64,
    pub boot: BootMs,
}

/// What became of a keyed write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptResponse {
    /// There is no answer: the write is on its way, or was when the gate ended.
    None,
    Whole(Response),
    /// The answer was too large to keep.
    Dropped {
        status: u16,
    },
}

/// A store's answer, as the client got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

/// What a write gets whose key is known.
#[derive(Debug, PartialEq, Eq)]
pub enum Again<'a> {
    Replay(&'a Response),
    Refused(KeyRefusal),
}

/// Why a keyed write is not run and gets no kept answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRefusal {
    /// The key was used for another write.
    OtherPayload,
    /// The key's write is on its way, under another lease of the same holder.
    InProgress,
    /// The outcome of the key's write is unknown.
    Unknown,
    /// The key's write was made with another lease than the one that is shown.
    OtherLease,
    /// The write was done, and its answer was too large to keep.
    Dropped { status: u16 },
}

impl KeyRefusal {
    #[must_use]
    pub const fn code(self) -> Code {
        match self {
            Self::OtherPayload => Code::IdempotencyKeyReused,
            Self::InProgress => Code::IdempotencyInProgress,
            Self::Unknown => Code::IdempotencyUnknown,
            Self::OtherLease => Code::IdempotencyOtherLease,
            Self::Dropped { .. } => Code::IdempotencyResponseDropped,
        }
    }
}

impl Entry {
    /// What a write with this payload gets.
    #[must_use]
    pub fn again(&self, payload: &Payload) -> Again<'_> {
        let is_other = self.payload.as_ref().is_some_and(|own| own != payload);
        match &self.answer {
            _ if is_other => Again::Refused(KeyRefusal::OtherPayload),
            KeptResponse::None => Again::Refused(KeyRefusal::Unknown),
            KeptResponse::Whole(response) => Again::Replay(response),
            KeptResponse::Dropped { status } => Again::Refused(KeyRefusal::Dropped { status: *status }),
        }
    }

    /// Whether the write was remembered, or answered, in this run.
    #[must_use]
    pub fn is_of(&self, run: u64) -> bool {
        self.since.is_some_and(|since| since.run == run)
    }

    /// For how many milliseconds the write has been remembered: the lesser of the wall clock's and the boot clock's
    /// count. A wall clock that is set forward must not make the gate forget a write. A write that the last run
    /// left without an answer may have been on its way until that run ended, so its age counts from this run's
    /// start.
    #[must_use]
    pub fn age_ms(&self, now: Now, frame: &Frame) -> u64 {
        let by_boot = match self.since {
            Some(Since { run, boot }) if run == frame.run => now.boot.since(boot),
            Some(Since { run, .. }) if run + 1 == frame.run && self.answer == KeptResponse::None => {
                now.boot.since(frame.start.boot)
            }
            // The age by the clocks when this run began, plus all that has passed since then.
            Some(_) | None => {
                frame.start.wall.0.saturating_sub(self.at.0).saturating_add(now.boot.since(frame.start.boot))
            }
        };
        now.wall.0.saturating_sub(self.at.0).min(by_boot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(header: &str) -> Result<String, KeyFault> {
        IdempotencyKey::parse(header.as_bytes()).map(|key| key.as_str().to_owned())
    }

    #[test]
    fn quoted_and_bare_are_the_same_key() {
        let uuid = "8e03978e-40d5-43e8-bc93-6894a57f9324";
        assert_eq!(read(uuid), Ok(uuid.to_owned()));
        assert_eq!(read(&format!(" \"{uuid}\" ")), Ok(uuid.to_owned()));
        assert_eq!(read(r#""a \"b\" \\ c""#), Ok(r#"a "b" \ c"#.to_owned()));
        assert_eq!(read(&"x".repeat(255)).map(|key| key.len()), Ok(255));
    }

    #[test]
    fn what_is_no_key_is_said() {
        assert_eq!(read(""), Err(KeyFault::Length));
        assert_eq!(read("\"\""), Err(KeyFault::Length));
        assert_eq!(read(&"x".repeat(256)), Err(KeyFault::Length));
        assert_eq!(read("a, b"), Err(KeyFault::Several));
        for wrong in [
            "\"",
            "\"a",
            "a\"",
            "\"a\"b\"",
            "\"a\\n\"",
            "\"a\\\"",
            "a b",
            "\"a\";x=1",
            "\"a\", \"b\"",
            "é",
            "\"é\"",
            "a\tb",
        ] {
            assert_eq!(read(wrong), Err(KeyFault::Spelling), "{wrong:?}");
        }
    }

    #[test]
    fn the_same_write_gets_its_answer_and_another_does_not() {
        let response = Response { status: 201, headers: vec![], body: b"made".to_vec() };
        let mut entry = Entry {
            payload: Some([1; 32]),
            seq: LeaseSeq::new(1).unwrap(),
            lease_id: LeaseId::new("l").unwrap(),
            at: WallMs(1_000),
            since: None,
            attempt: 7,
            answer: KeptResponse::Whole(response.clone()),
        };
        assert_eq!(entry.again(&[1; 32]), Again::Replay(&response));
        assert_eq!(entry.again(&[2; 32]), Again::Refused(KeyRefusal::OtherPayload));
        entry.answer = KeptResponse::Dropped { status: 201 };
        assert_eq!(entry.again(&[1; 32]), Again::Refused(KeyRefusal::Dropped { status: 201 }));
        entry.answer = KeptResponse::None;
        assert_eq!(entry.again(&[1; 32]), Again::Refused(KeyRefusal::Unknown));
        assert_eq!(entry.again(&[2; 32]), Again::Refused(KeyRefusal::OtherPayload));
        entry.payload = None;
        assert_eq!(entry.again(&[2; 32]), Again::Refused(KeyRefusal::Unknown), "the outcome is not known");
    }

    #[test]
    fn an_entry_is_as_old_as_the_clock_says_that_says_less() {
        let start = Now { wall: WallMs(10_000), boot: BootMs(500) };
        let frame = Frame { run: 3, start, behind_mark: false };
        let (seq, lease_id) = (LeaseSeq::new(1).unwrap(), LeaseId::new("l").unwrap());
        let entry = |at, since| Entry {
            payload: None,
            seq,
            lease_id: lease_id.clone(),
            at: WallMs(at),
            since,
            attempt: 1,
            answer: KeptResponse::None,
        };
        let age = |entry: Entry, wall, boot| entry.age_ms(Now { wall: WallMs(wall), boot: BootMs(boot) }, &frame);
        let answered = |entry: Entry| Entry { answer: KeptResponse::Dropped { status: 200 }, ..entry };
        let own = || entry(11_000, Some(Since { run: 3, boot: BootMs(1_500) }));
        assert_eq!(age(own(), 13_000, 3_500), 2_000);
        assert_eq!(age(own(), 90_000_000, 3_500), 2_000, "the wall clock was set forward");
        assert_eq!(age(own(), 5, 3_500), 0, "and back");
        // Rows of an earlier run or an earlier version: a second old when this run began.
        let last = Some(Since { run: 2, boot: BootMs(9) });
        for since in [None, Some(Since { run: 1, boot: BootMs(9) }), last] {
            assert_eq!(age(answered(entry(9_000, since)), 13_000, 3_500), 4_000);
            assert_eq!(age(answered(entry(9_000, since)), 90_000_000, 3_500), 4_000);
            assert_eq!(age(answered(entry(12_000, since)), 90_000_000, 3_500), 3_000, "from a clock that was ahead");
        }
        // A write that the last run left may have been on its way until that run ended.
        assert_eq!(age(entry(9_000, last), 90_000_000, 3_500), 3_000);
    }
}
