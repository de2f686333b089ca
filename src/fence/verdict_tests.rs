//! The order of the checks, pair by pair.

use super::*;
use crate::fence::{
    BootMs, Hlc, HolderId, How, Incarnation, Lease, Secret, TableKey, Ttl, WallMs,
    record::{AdvanceId, Numbers},
};

const NOW: Now = Now { wall: WallMs(1_800_000_000_000), boot: BootMs(50_000) };
const SEQ: u64 = 7;

fn object(id: &str) -> ObjectId {
    ObjectId::new(id).unwrap()
}

fn lease() -> Lease {
    let (lease_id, seq) = (LeaseId::new("l").unwrap(), LeaseSeq::new(SEQ).unwrap());
    Lease {
        proof: TableKey::from_bytes([1; 32]).proof(&object("users"), seq, &lease_id),
        lease_id,
        seq,
        holder: HolderId::new("a").unwrap(),
        acquired_at: NOW.wall,
        expires_at: NOW.wall.after(Ttl(10)),
        deadline: NOW.boot.after(Ttl(10)),
        ttl: Ttl(10),
        request: None,
        used: false,
        tainted: false,
        start: None,
    }
}

fn record(state: State) -> Record {
    Record {
        object: object("users"),
        fence: Fence::new(SEQ),
        state,
        incarnation: Incarnation::default(),
        changed: Hlc::default(),
        certified: None,
        numbers: Numbers::Gate,
        elected: None,
        lost: 0,
    }
}

/// The faults a write can have, in the order in which they are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    NoToken,
    Unreadable,
    OtherObject,
    Unusable,
    Stale,
    Ahead,
    WrongSecret,
    Sealed,
    Ended,
    Overdue,
}

const FAULTS: [Fault; 10] = [
    Fault::NoToken,
    Fault::Unreadable,
    Fault::OtherObject,
    Fault::Unusable,
    Fault::Stale,
    Fault::Ahead,
    Fault::WrongSecret,
    Fault::Sealed,
    Fault::Ended,
    Fault::Overdue,
];

fn code_of(fault: Fault) -> Option<Code> {
    Some(match fault {
        Fault::NoToken => Code::WriteUnfenced,
        Fault::Unreadable => Code::FenceTokenMalformed,
        Fault::OtherObject => Code::LeaseObjectMismatch,
        Fault::Unusable => Code::TableUnavailable,
        Fault::Stale => Code::WriteStaleFence,
        Fault::Ahead => Code::WriteFenceAhead,
        Fault::WrongSecret => Code::FenceTokenInvalid,
        Fault::Sealed => Code::FenceDraining,
        Fault::Ended => Code::LeaseExpired,
        Fault::Overdue => return None,
    })
}

/// Judges a write that has all of `faults` at once.
fn judge_with(faults: &[Fault]) -> Result<Permit, Denial> {
    let has = |fault| faults.contains(&fault);
    let good = lease().token(&object("users"));
    let token = FenceToken {
        object: if has(Fault::OtherObject) { object("orders") } else { good.object },
        seq: match (has(Fault::Stale), has(Fault::Ahead)) {
            (true, _) => LeaseSeq::new(SEQ - 1).unwrap(),
            (false, true) => LeaseSeq::new(SEQ + 1).unwrap(),
            (false, false) => good.seq,
        },
        secret: if has(Fault::WrongSecret) { Secret::from_bytes([0; 16]) } else { good.secret },
    };
    let presented = match (has(Fault::NoToken), has(Fault::Unreadable)) {
        (true, _) => Presented::Nothing,
        (false, true) => Presented::Unreadable(TokenFault::Shape),
        (false, false) => Presented::of(&token, &object("users")),
    };
    let state = if has(Fault::Ended) {
        let ended = Ended { how: How::Released, at: NOW.wall, stamp: Hlc::default() };
        State::Free { last: Some((lease(), ended)) }
    } else {
        State::Open { lease: lease() }
    };
    let now = if has(Fault::Overdue) { Now { boot: lease().deadline, ..NOW } } else { NOW };
    let record = record(state);
    let view = if has(Fault::Unusable) {
        View::Unusable(Unusable::Table)
    } else {
        View::Known { record: &record, sealed: has(Fault::Sealed) }
    };
    let judged = judge(view, &presented, now);
    if let (View::Known { record, sealed }, Presented::Token(_)) = (view, &presented) {
        // Its text, as it was presented, is judged in the same way.
        let by_text = judge_text(record, sealed, &token.expose(), now);
        assert_eq!(format!("{by_text:?}"), format!("{judged:?}"), "{faults:?}");
    }
    judged
}

fn assert_denied_for(fault: Fault, denied: Result<Permit, Denial>) {
    match (code_of(fault), denied) {
        (Some(code), Err(Denial::Refused(refusal))) => assert_eq!(refusal.code(), code),
        (None, Err(Denial::Overdue(lease_id))) => assert_eq!(lease_id.as_str(), "l"),
        (_, other) => panic!("{fault:?}: {other:?}"),
    }
}

#[test]
fn a_write_without_fault_gets_a_permit_for_its_object_and_seq() {
    let permit = judge_with(&[]).unwrap();
    assert_eq!((permit.object().as_str(), permit.seq().get(), permit.remaining_ms()), ("users", SEQ, 10));
    assert_eq!(permit.holder(), &lease().holder);
}

#[test]
fn of_two_faults_the_one_checked_first_is_named() {
    for (place, &first) in FAULTS.iter().enumerate() {
        assert_denied_for(first, judge_with(&[first]));
        for &second in &FAULTS[place + 1..] {
            assert_denied_for(first, judge_with(&[first, second]));
        }
    }
}

#[test]
fn the_instant_of_expiry_is_expired() {
    let token = Presented::of(&lease().token(&object("users")), &object("users"));
    let record = record(State::Open { lease: lease() });
    let view = View::Known { record: &record, sealed: false };
    let at = |boot| judge(view, &token, Now { boot: BootMs(boot), ..NOW });
    assert_eq!(at(50_009).unwrap().remaining_ms(), 1);
    assert_eq!(at(50_010).unwrap_err(), Denial::Overdue(LeaseId::new("l").unwrap()));
}

#[test]
fn an_untrusted_clock_refuses_after_linkage_and_before_the_numbers() {
    let record = record(State::Open { lease: lease() });
    let view = View::Known { record: &record, sealed: false };
    let token = |id| Presented::of(&lease().token(&object(id)), &object("users"));
    let unset = Now { wall: WallMs(0), ..NOW };
    let code = |id| match judge(view, &token(id), unset) {
        Err(Denial::Refused(refusal)) => refusal.code(),
        other => panic!("{other:?}"),
    };
    assert_eq!(code("users"), Code::ClockUntrusted);
    assert_eq!(code("orders"), Code::LeaseObjectMismatch);
}

#[test]
fn at_a_fence_without_lease_no_secret_is_right_and_a_draining_one_asks_to_wait() {
    let token = Presented::of(&lease().token(&object("users")), &object("users"));
    for (state, code) in [
        (State::Free { last: None }, Code::FenceTokenInvalid),
        (State::Draining { advance: AdvanceId(Hlc::default()), opens: None }, Code::FenceDraining),
    ] {
        let record = record(state);
        match judge(View::Known { record: &record, sealed: false }, &token, NOW) {
            Err(Denial::Refused(refusal)) => assert_eq!(refusal.code(), code),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_token_as_it_comes_is_known_by_its_one_spelling_or_read() {
    let record = record(State::Open { lease: lease() });
    let judge = |text: &str| judge_text(&record, false, text, NOW);
    let good = lease().token(&object("users")).expose();
    assert_eq!(judge(&good).unwrap().seq().get(), SEQ);
    for place in 0..good.len() {
        // A token with any other character is another token, or none.
        let mut other = good.clone().into_bytes();
        other[place] = if other[place] == b'A' { b'B' } else { b'A' };
        assert!(judge(std::str::from_utf8(&other).unwrap()).is_err(), "{place}");
    }
    for cut in 0..good.len() {
        let denied = judge(&good[..cut]).unwrap_err();
        assert!(matches!(denied, Denial::Refused(Refusal::Malformed(_))), "{cut}: {denied:?}");
    }
    for odd in [format!(" {good}"), format!("{good} "), format!("{good}A"), good.replace("fg1.7", "fg1.07")] {
        assert!(matches!(judge(&odd).unwrap_err(), Denial::Refused(Refusal::Malformed(_))), "{odd}");
    }
}
