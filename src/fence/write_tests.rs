//! The life of a write, path by path, and a check that its rules hold in every order of events.

use super::*;

fn write(options: WriteOptions) -> Write {
    Write::new(options)
}

fn admitted(options: WriteOptions) -> Write {
    let mut write = write(options);
    assert_eq!(write.on(Event::Arrived { whole: false }), Effect::Judge(Stage::Waiting));
    assert_eq!(write.on(Event::Permitted(Stage::Waiting)), Effect::Nothing);
    write
}

fn committed(options: WriteOptions) -> Write {
    let mut write = admitted(options);
    assert_eq!(write.on(Event::Connected { whole: true }), Effect::Judge(Stage::Committed));
    assert_eq!(write.on(Event::Permitted(Stage::Committed)), Effect::Send(Release(())));
    write
}

fn streaming(options: WriteOptions) -> Write {
    let mut write = admitted(options);
    assert_eq!(write.on(Event::Connected { whole: false }), Effect::Judge(Stage::Streaming));
    assert_eq!(write.on(Event::Permitted(Stage::Streaming)), Effect::Send(Release(())));
    write
}

#[test]
fn a_write_that_is_here_with_a_connection_is_judged_once() {
    let mut write = write(WriteOptions::default());
    assert_eq!(write.on(Event::Arrived { whole: true }), Effect::Judge(Stage::Committed));
    assert_eq!(write.on(Event::Permitted(Stage::Committed)), Effect::Nothing);
    assert!(!write.is_at_risk(), "nothing was sent");
    assert_eq!(write.on(Event::Connected { whole: true }), Effect::Send(Release(())));
    assert!(write.is_at_risk());
    assert_eq!(write.on(Event::Answered { settles: true }), Effect::End(Outcome::Settled));
    assert_eq!(write.on(Event::Ended), Effect::Nothing);
    assert!(!write.is_at_risk());
}

#[test]
fn a_long_body_is_judged_again_before_its_end() {
    let mut write = streaming(WriteOptions::default());
    assert_eq!(write.on(Event::Complete), Effect::Judge(Stage::Committed));
    assert_eq!(write.on(Event::Denied(Obstacle::Overdue)), Effect::Close, "part of it was sent");
    assert_eq!(write.on(Event::Closed { left: true }), Effect::End(Outcome::Unknown));
}

#[test]
fn what_is_in_the_way_is_cleared_before_a_write_is_refused() {
    for obstacle in [Obstacle::NotInMemory, Obstacle::Overdue, Obstacle::Behind, Obstacle::Unconfirmed] {
        let mut write = write(WriteOptions::default());
        let _ = write.on(Event::Arrived { whole: true });
        assert_eq!(write.on(Event::Denied(obstacle)), Effect::Clear(obstacle));
        assert_eq!(write.on(Event::Cleared(true)), Effect::Judge(Stage::Committed));
        assert_eq!(write.on(Event::Denied(Obstacle::Refused)), Effect::Refuse);
    }
    // The source of a lease is asked once for each judgement.
    let mut write = admitted(WriteOptions::default());
    let _ = write.on(Event::Connected { whole: true });
    assert_eq!(write.on(Event::Denied(Obstacle::Unconfirmed)), Effect::Clear(Obstacle::Unconfirmed));
    assert_eq!(write.on(Event::Cleared(true)), Effect::Judge(Stage::Committed));
    assert_eq!(write.on(Event::Denied(Obstacle::Unconfirmed)), Effect::End(Outcome::Cancelled));
}

#[test]
fn nothing_that_left_may_be_tried_again() {
    let mut write = committed(WriteOptions::default());
    assert_eq!(write.on(Event::Closed { left: false }), Effect::BackOut);
    assert_eq!(write.on(Event::Connected { whole: true }), Effect::Judge(Stage::Committed));
    let _ = write.on(Event::Permitted(Stage::Committed));
    assert_eq!(write.on(Event::Closed { left: true }), Effect::End(Outcome::Unknown));
    assert_eq!(write.on(Event::Connected { whole: true }), Effect::Nothing);
}

#[test]
fn a_store_that_discards_partial_bodies_cancels_them() {
    let options = WriteOptions { discards: true, ..WriteOptions::default() };
    let mut write = streaming(options);
    assert_eq!(write.on(Event::Interrupted), Effect::Close);
    assert_eq!(write.on(Event::Closed { left: true }), Effect::End(Outcome::Cancelled));
    let mut write = committed(options);
    assert_eq!(write.on(Event::Closed { left: true }), Effect::End(Outcome::Unknown), "all of it may have left");
}

#[test]
fn a_journal_hears_of_every_outcome_before_the_end() {
    let options = WriteOptions { journaled: true, ..WriteOptions::default() };
    let mut write = committed(options);
    assert_eq!(write.on(Event::Answered { settles: true }), Effect::Record(Outcome::Settled));
    assert_eq!(write.on(Event::Recorded(true)), Effect::End(Outcome::Settled));
    let mut write = committed(options);
    assert_eq!(write.on(Event::Closed { left: true }), Effect::Record(Outcome::Unknown));
    assert_eq!(write.on(Event::Recorded(false)), Effect::End(Outcome::Unknown), "it ends all the same");
    let mut write = committed(options);
    let _ = write.on(Event::Answered { settles: true });
    assert_eq!(
        write.on(Event::Recorded(false)),
        Effect::Close,
        "a settled write that is not in the journal is unknown"
    );
    assert_eq!(write.on(Event::Closed { left: true }), Effect::Record(Outcome::Unknown));
}

#[test]
fn a_key_is_claimed_before_anything_is_sent_and_its_answer_kept_behind_the_end() {
    let options = WriteOptions { keyed: true, ..WriteOptions::default() };
    let mut write = admitted(options);
    assert_eq!(write.on(Event::Connected { whole: true }), Effect::ClaimKey);
    assert_eq!(write.on(Event::Prepared), Effect::ClaimKey);
    assert_eq!(write.on(Event::Claimed(true)), Effect::Connect);
    let _ = write.on(Event::Connected { whole: true });
    let _ = write.on(Event::Permitted(Stage::Committed));
    assert_eq!(write.on(Event::Answered { settles: true }), Effect::End(Outcome::Settled));
    assert_eq!(write.on(Event::Ended), Effect::KeepAnswer);
    let mut write = admitted(options);
    assert_eq!(write.on(Event::Claimed(false)), Effect::End(Outcome::Cancelled), "another write has the key");
}

#[test]
fn a_route_that_only_looks_sends_without_a_judge() {
    let mut write = write(WriteOptions { unfenced: true, ..WriteOptions::default() });
    assert_eq!(write.on(Event::Arrived { whole: true }), Effect::Nothing);
    assert_eq!(write.on(Event::Connected { whole: false }), Effect::Send(Release(())));
    assert_eq!(write.stage(), Stage::Streaming);
    assert_eq!(write.on(Event::Complete), Effect::Send(Release(())));
    assert_eq!(write.on(Event::Closed { left: true }), Effect::End(Outcome::Unknown));
}

#[test]
fn a_dropped_write_is_unknown_if_something_may_have_left() {
    for (mut write, outcome) in [
        (admitted(WriteOptions::default()), Outcome::Cancelled),
        (streaming(WriteOptions::default()), Outcome::Unknown),
        (committed(WriteOptions::default()), Outcome::Unknown),
    ] {
        assert_eq!(write.on(Event::Dropped), Effect::End(outcome));
        assert_eq!(write.on(Event::Dropped), Effect::Nothing, "once");
    }
}

/// Every event in every reachable state: the rules hold whatever a driver does.
#[test]
fn no_order_of_events_breaks_the_rules() {
    use std::collections::HashSet;
    let flags = [false, true];
    let mut events = vec![
        Event::Arrived { whole: true },
        Event::Prepared,
        Event::Complete,
        Event::Interrupted,
        Event::Ended,
        Event::Dropped,
    ];
    for yes in flags {
        events.extend([Event::Connected { whole: yes }, Event::Closed { left: yes }, Event::Answered { settles: yes }]);
        events.extend([Event::Cleared(yes), Event::Claimed(yes), Event::Recorded(yes)]);
    }
    let obstacles =
        [Obstacle::Refused, Obstacle::NotInMemory, Obstacle::Overdue, Obstacle::Behind, Obstacle::Unconfirmed];
    events.extend(obstacles.map(Event::Denied));
    for bits in 0..16 {
        let is = |bit: u8| bits & (1 << bit) != 0;
        let options = WriteOptions { unfenced: is(0), discards: is(1), journaled: is(2), keyed: is(3) };
        for whole in flags {
            let mut begun = write(options);
            let first = begun.on(Event::Arrived { whole });
            let (mut seen, mut open) = (HashSet::new(), vec![(begun, judged(&first))]);
            while let Some((before, asked)) = open.pop() {
                if !seen.insert((before, asked)) {
                    continue;
                }
                // A judge permits only the stage that it was asked about.
                for event in events.iter().copied().chain(asked.map(Event::Permitted)) {
                    let mut after = before;
                    let effect = after.on(event);
                    holds(before, event, &effect, after);
                    open.push((after, judged(&effect)));
                }
            }
        }
    }
}

fn judged(effect: &Effect) -> Option<Stage> {
    match effect {
        Effect::Judge(stage) => Some(*stage),
        _ => None,
    }
}

fn holds(before: Write, event: Event, effect: &Effect, after: Write) {
    let about = format!("{before:?} on {event:?}: {effect:?}, then {after:?}");
    let is_over = |write: Write| matches!(write.stage, Stage::Over(_));
    if is_over(before) {
        assert_eq!(after.stage, before.stage, "what is over stays over: {about}");
        assert!(!matches!(effect, Effect::Send(_) | Effect::End(_) | Effect::Judge(_)), "{about}");
    }
    if let Effect::Send(_) = effect {
        assert!(after.sent, "{about}");
        let is_permitted = matches!(event, Event::Permitted(_));
        let was_committed = before.stage == Stage::Committed && !before.sent;
        assert!(is_permitted || was_committed || before.options.unfenced, "sent without a judge: {about}");
        assert!(!after.options.keyed || after.claimed, "sent before its key was claimed: {about}");
    }
    if after.stage == Stage::Committed && before.stage != Stage::Committed {
        let is_commit_point = event == Event::Permitted(Stage::Committed);
        let is_unrecorded = matches!(before.stage, Stage::Recording(Outcome::Settled));
        assert!(is_commit_point || is_unrecorded || before.options.unfenced, "{about}");
    }
    if before.sent && is_over(after) && after.stage == Stage::Over(Outcome::Cancelled) && !is_over(before) {
        let is_discarded = before.stage == Stage::Streaming && before.options.discards;
        assert!(is_discarded, "something may have left: {about}");
    }
    if is_over(after) && !is_over(before) {
        assert!(matches!(effect, Effect::End(_)), "an end is counted: {about}");
        let is_recorded = matches!(before.stage, Stage::Recording(outcome) if after.stage == Stage::Over(outcome));
        let needs_record = before.options.journaled && after.stage != Stage::Over(Outcome::Cancelled);
        assert!(!needs_record || is_recorded || event == Event::Dropped, "not in the journal: {about}");
    }
}
