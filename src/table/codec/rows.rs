//! The values of the larger rows, field by field in their stored order.

use std::sync::Arc;

use super::{
    CodecFault,
    bytes::{Reader, Writer},
};
use crate::barrier::flight::DrainReport;
use crate::fence::{
    BootMs, Certified, Ended, Fence, How, Incarnation, Lease, LeaseId, LeaseRow, LeaseSeq, ObjectId, Record, RequestId,
    State, TableKey, Ttl, WallMs,
    authority::FenceProof,
    elected::{Elected, Floor},
    election::{Election, LeaseName, Uid},
    lease::Start,
    record::{AdvanceId, Numbers},
    time::Frame,
};
use crate::{route::RouteFingerprint, table::lineage::Lineage};

/// What is needed to read a stored record: this run's clocks, the table's incarnation and its key.
#[derive(Clone, Debug)]
pub struct Context {
    pub frame: Frame,
    pub incarnation: Incarnation,
    pub key: TableKey,
}

/// The table's row about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    pub incarnation: Incarnation,
    /// How often a gate has been started on the table.
    pub run: u64,
    /// The last run ended in good order.
    pub clean: bool,
    /// The fingerprint of the key that the table's tokens are made with.
    pub key_fingerprint: [u8; 16],
    /// The routes and the bound of all writes that may still land if this run ends badly.
    pub fingerprint: RouteFingerprint,
    /// The last run that did not end in good order; 0 if there was none.
    pub broken_run: u64,
    /// Which table this is; `None` in tables and backups of earlier versions.
    pub lineage: Option<Lineage>,
}

const HAS_BROKEN: u8 = 2;
/// The incarnation does not have the lowest floor of its number.
const HAS_OFFSET: u8 = 4;
const HAS_LINEAGE: u8 = 8;

impl Meta {
    /// The row of a table that has no name, and on which no gate has run yet.
    #[must_use]
    pub fn new(key: &TableKey, clean: bool) -> Self {
        let (incarnation, fingerprint) = (Incarnation::default(), RouteFingerprint::default());
        Self {
            incarnation,
            run: 0,
            clean,
            key_fingerprint: key.fingerprint(),
            fingerprint,
            broken_run: 0,
            lineage: None,
        }
    }

    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let offset = self.incarnation.offset();
        let flags = u8::from(self.clean)
            | if self.broken_run == 0 { 0 } else { HAS_BROKEN }
            | if offset == 0 { 0 } else { HAS_OFFSET }
            | self.lineage.map_or(0, |_| HAS_LINEAGE);
        let row = Writer::row()
            .u32(self.incarnation.number())
            .u64(self.run)
            .u8(flags)
            .bytes(&self.key_fingerprint)
            .bytes(&self.fingerprint.routes)
            .u64(self.fingerprint.bound_ms);
        // Absent where there was none, and in tables of versions that did not have it. A flag beside the clean flag
        // says which.
        let row = if self.broken_run == 0 { row } else { row.u64(self.broken_run) };
        let row = if offset == 0 { row } else { row.u32(offset) };
        match &self.lineage {
            None => row.done(),
            Some(lineage) => row.bytes(lineage.bytes()).done(),
        }
    }

    /// Reads the meta row.
    ///
    /// # Errors
    /// When the bytes are not a meta row.
    pub fn decode(value: &[u8]) -> Result<Self, CodecFault> {
        let mut reader = Reader::row(value)?;
        let (number, run, flags) = (reader.u32()?, reader.u64()?, reader.u8()?);
        if flags > 1 | HAS_BROKEN | HAS_OFFSET | HAS_LINEAGE {
            return Err(CodecFault("flags that are not known"));
        }
        let mut meta = Self {
            incarnation: Incarnation::new(number),
            run,
            clean: flags & 1 != 0,
            key_fingerprint: reader.array()?,
            fingerprint: RouteFingerprint { routes: reader.array()?, bound_ms: reader.u64()? },
            broken_run: if flags & HAS_BROKEN == 0 { 0 } else { reader.u64()? },
            lineage: None,
        };
        if flags & HAS_BROKEN != 0 && meta.broken_run == 0 {
            return Err(CodecFault("a broken run that is none"));
        }
        if flags & HAS_OFFSET != 0 {
            meta.incarnation = incarnation(number, reader.u32()?);
            if meta.incarnation.offset() == 0 {
                return Err(NO_OFFSET);
            }
        }
        if flags & HAS_LINEAGE != 0 {
            meta.lineage = Some(Lineage::from_bytes(reader.array()?));
        }
        reader.end()?;
        Ok(meta)
    }
}

/// What one `request_id` of one holder was granted: a lease, or a batch of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRow {
    pub leases: Vec<(ObjectId, LeaseId, DrainReport)>,
}

impl RequestRow {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let count = u32::try_from(self.leases.len()).expect("a batch is bounded");
        let head = Writer::row().u32(count);
        let add = |row: Writer, (object, lease, drain): &(ObjectId, LeaseId, DrainReport)| {
            let row = row.text(object.as_str()).text(lease.as_str());
            row.u64(drain.settled).u64(drain.cancelled).u64(drain.unknown).u64(drain.waited_ms)
        };
        self.leases.iter().fold(head, add).done()
    }

    /// Reads a request row.
    ///
    /// # Errors
    /// When the bytes are not a request row.
    pub fn decode(value: &[u8]) -> Result<Self, CodecFault> {
        let mut reader = Reader::row(value)?;
        let count = reader.u32()?;
        let leases = (0..count).map(|_| {
            let (object, lease) = (reader.object()?, reader.lease_id()?);
            let (settled, cancelled, unknown) = (reader.u64()?, reader.u64()?, reader.u64()?);
            Ok((object, lease, DrainReport { settled, cancelled, unknown, waited_ms: reader.u64()? }))
        });
        let leases = leases.collect::<Result<_, CodecFault>>()?;
        reader.end()?;
        Ok(Self { leases })
    }
}

const NO_OFFSET: CodecFault = CodecFault("an offset that is none");

fn incarnation(number: u32, offset: u32) -> Incarnation {
    Incarnation::at(Incarnation::new(number).floor().raised(offset.into()).get())
}

const FREE: u8 = 0;
const FREE_AFTER: u8 = 1;
const DRAINING: u8 = 2;
const OPEN: u8 = 3;
/// Draining, and then open by itself for the holder of the number.
const DRAINING_TO_OPEN: u8 = 4;

pub(super) fn write_record(record: &Record, run: u64) -> Vec<u8> {
    let head = Writer::row().u64(record.fence.get()).u32(record.incarnation.number()).hlc(record.changed);
    let (start, certified) = (record.lease().and_then(|(lease, _)| lease.start), record.certified.as_deref());
    let numbers = match record.numbers {
        Numbers::Gate => 0,
        Numbers::External => IS_EXTERNAL,
    };
    let elected = record.elected.as_deref();
    let flags = start.map_or(0, |_| HAS_START)
        | certified.map_or(0, |_| HAS_CERTIFIED)
        | elected.map_or(0, |_| IS_ELECTED)
        | if has_offsets(record.incarnation, elected) { HAS_OFFSETS } else { 0 }
        | numbers;
    let row = match &record.state {
        State::Free { last: None } => head.u8(FREE | flags),
        State::Free { last: Some((lease, ended)) } => {
            write_ended(write_lease(head.u8(FREE_AFTER | flags), lease, run), ended)
        }
        State::Draining { advance, opens: None } => head.u8(DRAINING | flags).hlc(advance.0),
        State::Draining { advance, opens: Some(silence) } => {
            head.u8(DRAINING_TO_OPEN | flags).hlc(advance.0).u64(silence.0)
        }
        State::Open { lease } => write_lease(head.u8(OPEN | flags), lease, run),
    };
    let row = write_elected(write_signed_part(row, start, certified), elected);
    if flags & HAS_OFFSETS == 0 {
        return row.done();
    }
    let row = row.u32(record.incarnation.offset());
    match elected {
        None => row.done(),
        Some(elected) => row.u32(elected.incarnation.offset()).done(),
    }
}

/// Flags beside the state, for fields that only objects with certificates or signed grants have.
const HAS_START: u8 = 0x40;
const HAS_CERTIFIED: u8 = 0x80;
/// The object's numbers are an outside lock service's.
const IS_EXTERNAL: u8 = 0x20;
/// A Kubernetes Lease says, or has said, who may write the object.
const IS_ELECTED: u8 = 0x10;
/// The object's incarnations do not have the lowest floors of their numbers. How far they are above them comes
/// last.
const HAS_OFFSETS: u8 = 0x08;

fn has_offsets(incarnation: Incarnation, elected: Option<&Elected>) -> bool {
    incarnation.offset() != 0 || elected.is_some_and(|elected| elected.incarnation.offset() != 0)
}

/// Reads the offsets of a record's incarnations.
fn read_offsets(
    reader: &mut Reader<'_>,
    incarnation: &mut Incarnation,
    elected: Option<&mut Arc<Elected>>,
) -> Result<(), CodecFault> {
    *incarnation = self::incarnation(incarnation.number(), reader.u32()?);
    let mut is_offset = incarnation.offset() != 0;
    if let Some(elected) = elected {
        let elected = Arc::make_mut(elected);
        elected.incarnation = self::incarnation(elected.incarnation.number(), reader.u32()?);
        is_offset |= elected.incarnation.offset() != 0;
    }
    if is_offset { Ok(()) } else { Err(NO_OFFSET) }
}

fn write_elected(row: Writer, elected: Option<&Elected>) -> Writer {
    let Some(Elected { lease, election, seq, holder, incarnation, confirmed, floors }) = elected else { return row };
    let row = row.text(&lease.namespace).text(&lease.name).u8((*confirmed).into());
    let row =
        row.bytes(&election.uid.0.to_be_bytes()).u32(election.transitions).u64(seq.get()).u32(incarnation.number());
    let row = match holder {
        None => row.u8(0),
        Some(holder) => row.u8(1).text(holder.as_str()),
    };
    let count = u32::try_from(floors.len()).expect("so many are never kept");
    let write = |row: Writer, floor: &Floor| row.bytes(&floor.uid.0.to_be_bytes()).u32(floor.first);
    floors.iter().fold(row.u32(count), write)
}

fn read_elected(reader: &mut Reader<'_>, flags: u8) -> Result<Option<Arc<Elected>>, CodecFault> {
    if flags & IS_ELECTED == 0 {
        return Ok(None);
    }
    let uid = |reader: &mut Reader<'_>| Ok(Uid(u128::from_be_bytes(reader.array()?)));
    let lease = Arc::new(LeaseName { namespace: reader.text()?.to_owned(), name: reader.text()?.to_owned() });
    let confirmed = reader.flag()?;
    let election = Election { uid: uid(reader)?, transitions: reader.u32()? };
    let (seq, incarnation) = (reader.seq()?, Incarnation::new(reader.u32()?));
    let holder = if reader.flag()? { Some(reader.holder()?) } else { None };
    let count = reader.u32()?;
    let floor = |_| Ok(Floor { uid: uid(reader)?, first: reader.u32()? });
    let floors = (0..count).map(floor).collect::<Result<_, CodecFault>>()?;
    Ok(Some(Arc::new(Elected { lease, election, seq, holder, incarnation, confirmed, floors })))
}

fn write_signed_part(mut row: Writer, start: Option<Start>, certified: Option<&Certified>) -> Writer {
    if let Some(start) = start {
        row = row.u64(start.at.0).u64(start.boot.0);
    }
    match certified {
        None => row,
        Some(Certified { lease_id, seq, issuer, time, proof }) => {
            row.text(lease_id.as_str()).u64(seq.get()).text(issuer.as_str()).hlc(*time).bytes(&proof.0)
        }
    }
}

/// The start of a lease, as it was written, and the newest certificate.
type SignedPart = (Option<Start>, Option<Arc<Certified>>);

fn read_signed_part(reader: &mut Reader<'_>, flags: u8) -> Result<SignedPart, CodecFault> {
    let start = (flags & HAS_START != 0).then(|| Ok(Start { at: WallMs(reader.u64()?), boot: BootMs(reader.u64()?) }));
    let start = start.transpose()?;
    let certified = (flags & HAS_CERTIFIED != 0).then(|| {
        let (lease_id, seq, issuer) = (reader.lease_id()?, reader.seq()?, reader.issuer()?);
        Ok(Arc::new(Certified { lease_id, seq, issuer, time: reader.hlc()?, proof: FenceProof(reader.array()?) }))
    });
    Ok((start, certified.transpose()?))
}

pub(super) fn read_record(object: ObjectId, value: &[u8], context: &Context) -> Result<Record, CodecFault> {
    let mut reader = Reader::row(value)?;
    let fence = Fence::new(reader.u64()?);
    let mut incarnation = Incarnation::new(reader.u32()?);
    let changed = reader.hlc()?;
    let mut run = context.frame.run;
    let said = reader.u8()?;
    let numbers = if said & IS_EXTERNAL == 0 { Numbers::Gate } else { Numbers::External };
    let mut state = match said & !(HAS_START | HAS_CERTIFIED | IS_EXTERNAL | IS_ELECTED | HAS_OFFSETS) {
        FREE => State::Free { last: None },
        FREE_AFTER => {
            let lease = read_lease(&mut reader, &object, fence, context, &mut run)?;
            State::Free { last: Some((lease, read_ended(&mut reader)?)) }
        }
        DRAINING => State::Draining { advance: AdvanceId(reader.hlc()?), opens: None },
        DRAINING_TO_OPEN if said & (IS_EXTERNAL | IS_ELECTED) != 0 => {
            State::Draining { advance: AdvanceId(reader.hlc()?), opens: Some(Ttl(reader.u64()?)) }
        }
        OPEN => State::Open { lease: read_lease(&mut reader, &object, fence, context, &mut run)? },
        _ => return Err(CodecFault("a record in no known state")),
    };
    let (start, certified) = read_signed_part(&mut reader, said)?;
    let mut elected = read_elected(&mut reader, said)?;
    if said & HAS_OFFSETS != 0 {
        read_offsets(&mut reader, &mut incarnation, elected.as_mut())?;
    }
    reader.end()?;
    match &mut state {
        State::Free { last: Some((lease, _)) } | State::Open { lease } => {
            let boot =
                |start: Start| if run == context.frame.run { start.boot } else { context.frame.instant(start.at) };
            lease.start = start.map(|start| Start { boot: boot(start), ..start });
            let is_outside = numbers == Numbers::External || elected.is_some() && lease.ttl >= Ttl::FOR_EVER;
            if is_outside && run != context.frame.run {
                // It is unknown when the holder last wrote: it gets its full time again, or its Lease is read.
                lease.deadline = context.frame.start.boot.after(lease.ttl);
            }
        }
        State::Free { last: None } | State::Draining { .. } if start.is_some() => {
            return Err(CodecFault("a start without a lease"));
        }
        State::Free { last: None } | State::Draining { .. } => {}
    }
    if incarnation > context.incarnation {
        return Err(CodecFault("a record of an incarnation that is yet to come"));
    }
    let record = Record { object, fence, state, incarnation, changed, certified, numbers, elected, lost: 0 };
    Ok(record.rebased(context.incarnation))
}

/// The lease's number is the record's fence: it is not stored twice.
fn write_lease(row: Writer, lease: &Lease, run: u64) -> Writer {
    let row = row
        .text(lease.lease_id.as_str())
        .text(lease.holder.as_str())
        .u64(lease.acquired_at.0)
        .u64(lease.expires_at.0)
        .u64(lease.ttl.0)
        .u64(lease.deadline.0)
        .u64(run)
        .u8(lease.used.into())
        .u8(lease.tainted.into());
    write_request(row, lease.request.as_ref())
}

fn read_lease(
    reader: &mut Reader<'_>,
    object: &ObjectId,
    fence: Fence,
    context: &Context,
    written_in: &mut u64,
) -> Result<Lease, CodecFault> {
    let seq = LeaseSeq::new(fence.get()).ok_or(CodecFault("a lease at fence 0"))?;
    let lease_id = reader.lease_id()?;
    let holder = reader.holder()?;
    let (acquired_at, expires_at, ttl) = (WallMs(reader.u64()?), WallMs(reader.u64()?), Ttl(reader.u64()?));
    let (deadline, run) = (BootMs(reader.u64()?), reader.u64()?);
    let frame = &context.frame;
    *written_in = run;
    Ok(Lease {
        proof: context.key.proof(object, seq, &lease_id),
        lease_id,
        seq,
        holder,
        acquired_at,
        expires_at,
        deadline: if run == frame.run { deadline } else { frame.deadline(expires_at, ttl) },
        ttl,
        used: reader.flag()?,
        tainted: reader.flag()?,
        request: reader.request()?,
        start: None,
    })
}

fn write_request(row: Writer, request: Option<&RequestId>) -> Writer {
    match request {
        None => row.u8(0),
        Some(request) => row.u8(1).text(request.as_str()),
    }
}

fn write_ended(row: Writer, ended: &Ended) -> Writer {
    let row = match &ended.how {
        How::Expired => row.u8(0),
        How::Released => row.u8(1),
        How::Fenced { reason } => row.u8(2).text(reason),
    };
    row.u64(ended.at.0).hlc(ended.stamp)
}

fn read_ended(reader: &mut Reader<'_>) -> Result<Ended, CodecFault> {
    let how = match reader.u8()? {
        0 => How::Expired,
        1 => How::Released,
        2 => How::Fenced { reason: reader.text()?.to_owned() },
        _ => return Err(CodecFault("a lease that ended in no known way")),
    };
    Ok(Ended { how, at: WallMs(reader.u64()?), stamp: reader.hlc()? })
}

pub(super) fn write_lease_row(row: &LeaseRow) -> Vec<u8> {
    let value = Writer::row()
        .text(row.lease_id.as_str())
        .text(row.holder.as_str())
        .u64(row.acquired_at.0)
        .u64(row.expires_at.0)
        .u64(row.ttl.0)
        .u8(row.tainted.into());
    let value = write_request(value, row.request.as_ref());
    match &row.ended {
        None => value.u8(0),
        Some(ended) => write_ended(value.u8(1), ended),
    }
    .done()
}

pub(super) fn read_lease_row(object: ObjectId, seq: LeaseSeq, value: &[u8]) -> Result<LeaseRow, CodecFault> {
    let mut reader = Reader::row(value)?;
    let row = LeaseRow {
        object,
        seq,
        lease_id: reader.lease_id()?,
        holder: reader.holder()?,
        acquired_at: WallMs(reader.u64()?),
        expires_at: WallMs(reader.u64()?),
        ttl: Ttl(reader.u64()?),
        tainted: reader.flag()?,
        request: reader.request()?,
        ended: if reader.flag()? { Some(read_ended(&mut reader)?) } else { None },
    };
    reader.end()?;
    Ok(row)
}
