//! Decode of encode is identity, and every row has one encoding only.

use std::sync::Arc;

use proptest::{option, prelude::*};

use super::*;
use crate::barrier::flight::DrainReport;
use crate::fence::{
    BootMs, Certified, Ended, Fence, How, Incarnation, IssuerId, Lease, MigrationId, Now, State, TableKey, Ttl, WallMs,
    authority::{FenceProof, MigrationState},
    lease::Start,
    record::AdvanceId,
    time::Frame,
};
use crate::fence::{
    elected::{Elected, Floor},
    election::{Election, LeaseName, Uid},
    idempotency::{Entry, KeptResponse, Response, Since},
    record::Numbers,
};
use crate::{route::RouteFingerprint, table::lineage::Lineage};

const RUN: u64 = 7;

fn context() -> Context {
    let start = Now { wall: WallMs(1_800_000_000_000), boot: BootMs(90_000) };
    let frame = Frame { run: RUN, start, behind_mark: false };
    Context { frame, incarnation: Incarnation::new(3), key: TableKey::from_bytes([5; 32]) }
}

fn text(max: usize) -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::char::any().prop_filter("control", |c| !c.is_control()), 1..max)
        .prop_map(|chars| chars.into_iter().collect())
}

fn object_id() -> impl Strategy<Value = ObjectId> {
    text(40).prop_map(|id| ObjectId::new(&id).unwrap())
}

fn holder_id() -> impl Strategy<Value = HolderId> {
    text(40).prop_map(|id| HolderId::new(&id).unwrap())
}

fn lease_id() -> impl Strategy<Value = LeaseId> {
    text(20).prop_map(|id| LeaseId::new(&id).unwrap())
}

fn request_id() -> impl Strategy<Value = RequestId> {
    text(20).prop_map(|id| RequestId::new(&id).unwrap())
}

fn seq() -> impl Strategy<Value = LeaseSeq> {
    (1..=u64::MAX).prop_map(|seq| LeaseSeq::new(seq).unwrap())
}

fn hlc() -> impl Strategy<Value = Hlc> {
    any::<(u64, u32)>().prop_map(|(ms, logical)| Hlc { ms, logical })
}

fn ended() -> impl Strategy<Value = Ended> {
    let how =
        prop_oneof![Just(How::Expired), Just(How::Released), ".{0,30}".prop_map(|reason| How::Fenced { reason }),];
    (how, any::<u64>(), hlc()).prop_map(|(how, at, stamp)| Ended { how, at: WallMs(at), stamp })
}

fn lease(object: ObjectId, seq: LeaseSeq) -> impl Strategy<Value = Lease> {
    let ids = (lease_id(), holder_id(), option::of(request_id()));
    let start = option::of(any::<(u64, u64)>());
    (ids, any::<[u64; 4]>(), any::<[bool; 2]>(), start).prop_map(move |(ids, times, flags, start)| {
        let (lease_id, holder, request) = ids;
        Lease {
            proof: context().key.proof(&object, seq, &lease_id),
            lease_id,
            seq,
            holder,
            acquired_at: WallMs(times[0]),
            expires_at: WallMs(times[1]),
            deadline: BootMs(times[2]),
            ttl: Ttl(times[3]),
            request,
            used: flags[0],
            tainted: flags[1],
            start: start.map(|(at, boot)| Start { at: WallMs(at), boot: BootMs(boot) }),
        }
    })
}

fn certified() -> impl Strategy<Value = Certified> {
    (lease_id(), seq(), text(20), hlc(), any::<[u8; 32]>()).prop_map(|(lease_id, seq, issuer, time, third)| {
        let proof = FenceProof([third; 3].as_flattened().try_into().unwrap());
        Certified { lease_id, seq, issuer: IssuerId::new(&issuer).unwrap(), time, proof }
    })
}

fn wrote() -> impl Strategy<Value = Wrote> {
    prop_oneof![
        (text(8), text(40), any::<[u8; 32]>(), any::<u16>())
            .prop_map(|(method, target, digest, status)| Wrote::Settled { method, target, digest, status }),
        (text(8), text(40)).prop_map(|(method, target)| Wrote::Unknown { method, target }),
        Just(Wrote::Gap),
    ]
}

fn migration() -> impl Strategy<Value = MigrationRow> {
    let names = (object_id(), holder_id(), holder_id(), ".{0,20}");
    let state = || prop::sample::select(&MigrationState::ALL[..]);
    let blob = || proptest::collection::vec(any::<u8>(), 0..40);
    let parts = (option::of((lease_id(), seq())), option::of(any::<([u8; 32], u64)>()));
    let reached = proptest::collection::vec((state(), any::<u64>().prop_map(WallMs)), 0..5);
    (names, (any::<u64>(), hlc()), state(), parts, [blob(), blob(), blob()], reached).prop_map(
        |((domain, next_holder, requester, reason), (ttl_ms, asked), state, (fenced, left), blobs, reached)| {
            let [certificate, acknowledged, grant] = blobs;
            MigrationRow {
                domain,
                next_holder,
                requester,
                reason,
                ttl_ms,
                asked,
                state,
                fenced,
                certificate,
                left,
                acknowledged,
                grant,
                reached,
            }
        },
    )
}

/// An incarnation with the lowest floor of its number, as all were in earlier versions, or with another floor.
fn incarnation() -> impl Strategy<Value = Incarnation> {
    prop_oneof![any::<u32>().prop_map(Incarnation::new), any::<u64>().prop_map(Incarnation::at)]
}

fn elected() -> impl Strategy<Value = Elected> {
    let floor = (any::<u128>(), any::<u32>()).prop_map(|(uid, first)| Floor { uid: Uid(uid), first });
    let floors = proptest::collection::vec(floor, 0..4);
    let lease = ("[a-z]{1,9}", "[a-z.]{1,9}", any::<bool>());
    (any::<u128>(), any::<u32>(), seq(), option::of(holder_id()), incarnation(), floors, lease).prop_map(
        |(uid, transitions, seq, holder, incarnation, floors, (namespace, name, confirmed))| Elected {
            lease: Arc::new(LeaseName { namespace, name }),
            confirmed,
            election: Election { uid: Uid(uid), transitions },
            seq,
            holder,
            incarnation,
            floors,
        },
    )
}

fn record() -> impl Strategy<Value = Record> {
    (object_id(), seq(), hlc()).prop_flat_map(|(object, seq, changed)| {
        let state = prop_oneof![
            Just(State::Free { last: None }),
            (lease(object.clone(), seq), ended()).prop_map(|pair| State::Free { last: Some(pair) }),
            (hlc(), option::of(any::<u64>().prop_map(Ttl)))
                .prop_map(|(stamp, opens)| State::Draining { advance: AdvanceId(stamp), opens }),
            lease(object.clone(), seq).prop_map(|lease| State::Open { lease }),
        ];
        (state, option::of(certified()), any::<bool>(), option::of(elected())).prop_map(
            move |(state, certified, is_external, elected)| {
                let opens = matches!(state, State::Draining { opens: Some(_), .. });
                Record {
                    object: object.clone(),
                    fence: Fence::from(seq),
                    state,
                    incarnation: context().incarnation,
                    changed,
                    certified: certified.map(Arc::new),
                    numbers: if is_external || (opens && elected.is_none()) {
                        Numbers::External
                    } else {
                        Numbers::Gate
                    },
                    elected: elected.map(Arc::new),
                    lost: 0,
                }
            },
        )
    })
}

fn lease_row() -> impl Strategy<Value = LeaseRow> {
    let ids = (object_id(), lease_id(), holder_id(), option::of(request_id()));
    (ids, seq(), any::<[u64; 3]>(), any::<bool>(), option::of(ended())).prop_map(
        |((object, lease_id, holder, request), seq, times, tainted, ended)| LeaseRow {
            object,
            lease_id,
            seq,
            holder,
            acquired_at: WallMs(times[0]),
            expires_at: WallMs(times[1]),
            ttl: Ttl(times[2]),
            request,
            tainted,
            ended,
        },
    )
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![
        Just(Key::Meta),
        Just(Key::Mark),
        object_id().prop_map(Key::Record),
        (object_id(), seq()).prop_map(|(object, seq)| Key::Lease(object, seq)),
        lease_id().prop_map(Key::LeaseIndex),
        (holder_id(), request_id()).prop_map(|(holder, request)| Key::Request(holder, request)),
        (object_id(), seq()).prop_map(|(object, seq)| Key::Certificate(object, seq)),
        (object_id(), seq()).prop_map(|(object, seq)| Key::Parked(object, seq)),
        text(20).prop_map(|id| Key::Migration(MigrationId::new(&id).unwrap())),
        object_id().prop_map(Key::Journal),
        (object_id(), any::<u64>()).prop_map(|(object, number)| Key::JournalEntry(object, number)),
        (object_id(), holder_id(), "[ -~]{1,40}").prop_map(|(object, holder, key)| {
            Key::Keyed(Scope { object, holder, key: IdempotencyKey::new(&key).unwrap() })
        }),
        (any::<u64>(), object_id(), holder_id(), "[ -~]{1,40}").prop_map(|(at, object, holder, key)| {
            Key::KeyedAt(at, Scope { object, holder, key: IdempotencyKey::new(&key).unwrap() })
        }),
    ]
}

/// Every shortened, lengthened or otherwise changed value either fails to decode, or decodes to something that
/// encodes to the same bytes.
fn assert_one_encoding(bytes: &[u8], flip: (usize, u8), recode: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    for cut in 0..bytes.len() {
        assert_ne!(recode(&bytes[..cut]).as_deref(), Some(bytes), "{cut} bytes of {bytes:?}");
    }
    let longer = [bytes, &[0]].concat();
    let mut flipped = bytes.to_vec();
    let place = flip.0 % flipped.len();
    flipped[place] ^= flip.1.max(1);
    for other in [longer, flipped] {
        if let Some(again) = recode(&other) {
            assert_eq!(again, other);
        }
    }
}

fn drain_report() -> impl Strategy<Value = DrainReport> {
    any::<(u64, u64, u64, u64)>().prop_map(|(settled, cancelled, unknown, waited_ms)| DrainReport {
        settled,
        cancelled,
        unknown,
        waited_ms,
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    let blob = || proptest::collection::vec(any::<u8>(), 0..40);
    let headers = proptest::collection::vec(("[a-z-]{1,10}", blob()), 0..4);
    let whole = (100..600_u16, headers, blob());
    let answer = prop_oneof![
        Just(KeptResponse::None),
        (100..600_u16).prop_map(|status| KeptResponse::Dropped { status }),
        whole.prop_map(|(status, headers, body)| KeptResponse::Whole(Response { status, headers, body })),
    ];
    let since = option::of(any::<(u64, u64)>().prop_map(|(run, boot)| Since { run, boot: BootMs(boot) }));
    (option::of(any::<[u8; 32]>()), seq(), lease_id(), any::<(u64, u64)>(), since, answer).prop_map(
        |(payload, seq, lease_id, (at, attempt), since, answer)| Entry {
            payload,
            seq,
            lease_id,
            at: WallMs(at),
            since,
            attempt,
            answer,
        },
    )
}

proptest! {
    #[test]
    fn keyed_writes(entry in entry(), flip in any::<(usize, u8)>()) {
        let bytes = encode_entry(&entry);
        prop_assert_eq!(decode_entry(&bytes), Ok(entry));
        assert_one_encoding(&bytes, flip, |bytes| decode_entry(bytes).ok().map(|entry| encode_entry(&entry)));
    }

    #[test]
    fn keys(key in key(), flip in any::<(usize, u8)>()) {
        let bytes = key.encode();
        prop_assert_eq!(bytes[0], key.family().byte());
        prop_assert_eq!(Key::decode(&bytes), Ok(key));
        assert_one_encoding(&bytes, flip, |bytes| Key::decode(bytes).ok().map(|key| key.encode()));
    }

    #[test]
    fn records(record in record()) {
        let bytes = encode_record(&record, RUN);
        prop_assert_eq!(decode_record(record.object.clone(), &bytes, &context()), Ok(record.clone()));
        for cut in 0..bytes.len() {
            prop_assert!(decode_record(record.object.clone(), &bytes[..cut], &context()).is_err());
        }
        prop_assert!(decode_record(record.object.clone(), &[&bytes[..], &[0]].concat(), &context()).is_err());
    }

    #[test]
    fn lease_rows(row in lease_row(), flip in any::<(usize, u8)>()) {
        let bytes = encode_lease(&row);
        let decode = |bytes: &[u8]| decode_lease(row.object.clone(), row.seq, bytes);
        prop_assert_eq!(decode(&bytes), Ok(row.clone()));
        assert_one_encoding(&bytes, flip, |bytes| decode(bytes).ok().map(|row| encode_lease(&row)));
    }

    #[test]
    fn signed_statements_migrations_and_journals(
        (row, wrote, seq) in (migration(), wrote(), option::of(seq())),
        (count, hash, run) in any::<(u64, [u8; 32], u64)>(),
        flip in any::<(usize, u8)>(),
    ) {
        prop_assert_eq!(MigrationRow::decode(&row.encode()), Ok(row.clone()));
        assert_one_encoding(&row.encode(), flip, |bytes| MigrationRow::decode(bytes).ok().map(|row| row.encode()));
        let head = JournalHead { count, hash, run };
        prop_assert_eq!(JournalHead::decode(&head.encode()), Ok(head));
        assert_one_encoding(&head.encode(), flip, |bytes| JournalHead::decode(bytes).ok().map(|head| head.encode()));
        let entry = JournalEntry { seq, wrote, at: WallMs(count), hash };
        prop_assert_eq!(JournalEntry::decode(&entry.encode()), Ok(entry.clone()));
        assert_one_encoding(&entry.encode(), flip, |bytes| {
            JournalEntry::decode(bytes).ok().map(|entry| entry.encode())
        });
        let kept = vec![row.grant.clone(), row.certificate.clone()];
        prop_assert_eq!(decode_signed(&encode_signed(&kept)), Ok(kept.clone()));
        assert_one_encoding(&encode_signed(&kept), flip, |bytes| decode_signed(bytes).ok().map(|all| encode_signed(&all)));
    }

    #[test]
    fn index_rows_marks_and_requests(
        (object, seq, mark) in (object_id(), seq(), hlc()),
        leases in proptest::collection::vec((object_id(), lease_id(), drain_report()), 0..4),
        flip in any::<(usize, u8)>(),
    ) {
        prop_assert_eq!(decode_index(&encode_index(&object, seq)), Ok((object.clone(), seq)));
        assert_one_encoding(&encode_index(&object, seq), flip, |bytes| {
            decode_index(bytes).ok().map(|(object, seq)| encode_index(&object, seq))
        });
        prop_assert_eq!(decode_mark(&encode_mark(mark)), Ok(mark));
        assert_one_encoding(&encode_mark(mark), flip, |bytes| decode_mark(bytes).ok().map(encode_mark));
        let row = RequestRow { leases };
        prop_assert_eq!(RequestRow::decode(&row.encode()), Ok(row.clone()));
        assert_one_encoding(&row.encode(), flip, |bytes| RequestRow::decode(bytes).ok().map(|row| row.encode()));
    }

    #[test]
    fn meta_rows(
        incarnation in incarnation(),
        (run, clean) in any::<(u64, bool)>(),
        (key_fingerprint, routes, bound_ms) in any::<([u8; 16], [u8; 16], u64)>(),
        lineage in any::<Option<[u8; 16]>>(),
        flip in any::<(usize, u8)>(),
    ) {
        let fingerprint = RouteFingerprint { routes, bound_ms };
        let broken_run = run / 2;
        let lineage = lineage.map(Lineage::from_bytes);
        let meta = Meta { incarnation, run, clean, key_fingerprint, fingerprint, broken_run, lineage };
        prop_assert_eq!(Meta::decode(&meta.encode()), Ok(meta.clone()));
        assert_one_encoding(&meta.encode(), flip, |bytes| Meta::decode(bytes).ok().map(|meta| meta.encode()));
    }

    #[test]
    fn any_bytes_are_refused_or_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let object = ObjectId::new("users").unwrap();
        let _ = (Key::decode(&bytes), Meta::decode(&bytes), RequestRow::decode(&bytes), decode_mark(&bytes));
        let _ = (decode_index(&bytes), decode_record(object.clone(), &bytes, &context()));
        let _ = decode_lease(object, LeaseSeq::new(1).unwrap(), &bytes);
    }
}

#[test]
fn leases_of_one_object_lie_together_in_the_order_of_their_numbers() {
    let key = |object: &str, seq| Key::Lease(ObjectId::new(object).unwrap(), LeaseSeq::new(seq).unwrap()).encode();
    let sorted = [key("a", 1), key("a", 2), key("a", 255), key("a", 256), key("aa", 1), key("b", 1)];
    assert!(sorted.is_sorted());
    let (from, until) = Family::Lease.range("a");
    let inside: Vec<_> = sorted.iter().filter(|key| **key >= from && **key < until).collect();
    assert_eq!(inside.len(), 5);
}

#[test]
fn a_lease_of_an_earlier_run_is_read_by_this_runs_clocks() {
    let context = context();
    let object = ObjectId::new("users").unwrap();
    let seq = LeaseSeq::new(4).unwrap();
    let lease_id = LeaseId::new("l").unwrap();
    let lease = Lease {
        proof: context.key.proof(&object, seq, &lease_id),
        lease_id,
        seq,
        holder: HolderId::new("a").unwrap(),
        acquired_at: WallMs(0),
        expires_at: WallMs(context.frame.start.wall.0 + 500),
        deadline: BootMs(123),
        ttl: Ttl(1_000),
        request: None,
        used: false,
        tainted: false,
        start: None,
    };
    let record = Record {
        object: object.clone(),
        fence: Fence::from(seq),
        state: State::Open { lease },
        incarnation: context.incarnation,
        changed: Hlc::default(),
        certified: None,
        numbers: Numbers::Gate,
        elected: None,
        lost: 0,
    };
    let read = |run| decode_record(object.clone(), &encode_record(&record, run), &context).unwrap();
    assert_eq!(read(RUN).open_lease().unwrap().deadline, BootMs(123));
    assert_eq!(read(RUN - 1).open_lease().unwrap().deadline, BootMs(context.frame.start.boot.0 + 500));
}

#[test]
fn a_record_of_an_earlier_incarnation_is_raised_and_one_of_a_later_is_refused() {
    let object = ObjectId::new("users").unwrap();
    let mut record = Record::unknown(object.clone(), Incarnation::new(1));
    record.fence = Fence::new((1 << 32) + 9);
    let read = |record: &Record| decode_record(object.clone(), &encode_record(record, RUN), &context());
    assert_eq!(read(&record).unwrap().fence, Fence::new((3 << 32) + 9));
    // Written after a restore, which draws its floor.
    record.incarnation = Incarnation::at((1 << 32) + 4);
    assert_eq!(read(&record).unwrap().fence, Fence::new((3 << 32) + 5));
    record.incarnation = Incarnation::new(4);
    assert!(read(&record).is_err());
}

#[test]
fn rows_of_before_the_offsets_and_names_read_as_ever() {
    // As earlier versions wrote them: format, number, run, flags, fingerprint, routes, bound, broken run.
    let meta = [&[2, 0, 0, 30, 34][..], &9_u64.to_be_bytes(), &[3], &[7; 16], &[8; 16], &[0, 0, 0, 0, 0, 0, 0, 5]];
    let meta = [&meta.concat()[..], &4_u64.to_be_bytes()].concat();
    let read = Meta::decode(&meta).unwrap();
    assert_eq!((read.incarnation, read.run, read.clean, read.broken_run), (Incarnation::new(7_714), 9, true, 4));
    assert_eq!((read.lineage, read.encode()), (None, meta));
    // Fence, number, stamp, free.
    let record = [&[2][..], &[0, 0, 0, 3, 0, 0, 0, 9], &[0, 0, 0, 3], &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0], &[0]];
    let record = record.concat();
    let read = decode_record(ObjectId::new("users").unwrap(), &record, &context()).unwrap();
    assert_eq!((read.fence, read.incarnation), (Fence::new((3 << 32) + 9), Incarnation::new(3)));
    assert_eq!(encode_record(&read, RUN), record);
}
