//! The order of a Lease's reads and of what the ledger and the callers get. Each test reports events and names what
//! follows.

use std::time::Duration;

use super::*;
use crate::fence::{WallMs, election::Uid};

const T0: u64 = 1_800_000_000_000;
const TTL_MS: u64 = 15_000;

fn away() -> Away {
    Away::late(Duration::from_secs(1))
}

fn term(transitions: u32) -> Election {
    Election { uid: Uid(7), transitions }
}

fn object(name: &str) -> ObjectId {
    ObjectId::new(name).unwrap()
}

/// A Lease in its term of this number; 0: deleted.
fn seen(transitions: u32, renewed_ms: u64) -> Option<Seen> {
    (transitions > 0).then(|| Seen {
        election: term(transitions),
        holder: Some(format!("h{transitions}")),
        duration: Duration::from_millis(TTL_MS),
        renewed_us: i64::try_from((T0 + renewed_ms) * 1_000).unwrap(),
    })
}

fn number(observation: &LeaseObservation) -> u32 {
    match observation {
        LeaseObservation::Gone { .. } => 0,
        LeaseObservation::Held { election, .. } => election.transitions,
    }
}

/// What a test compares an effect with.
fn named(effect: Effect<&'static str, ()>) -> String {
    match effect {
        Effect::WaitForTurn(id) => format!("turn {id}"),
        Effect::Read { not_before, permit: Some(()) } => format!("read from {} on", not_before.0),
        Effect::Read { not_before, permit: None } => format!("read from {} on for a hint", not_before.0),
        Effect::Follow(object) => format!("{object} follows"),
        Effect::Observe { caller, object, observation, begins, .. } => {
            let begins = if begins { ", begins" } else { "" };
            format!("{object} gets {} for {caller}{begins}", number(&observation))
        }
        Effect::Answer(caller, (election, _)) => {
            format!("{caller} gets {}", election.map_or(0, |election| election.transitions))
        }
        Effect::Refuse(caller, Unknown::Away(_)) => format!("{caller} gets away"),
        Effect::Refuse(caller, Unknown::Ledger(why)) => format!("{caller} gets {why:?}"),
        Effect::WaitForRoom => "room".to_owned(),
        Effect::ObserveAll(objects, observation) => format!("{} get {}", objects.len(), number(&observation)),
        Effect::Pause => "pause".to_owned(),
        Effect::GiveUp => "give up".to_owned(),
    }
}

struct Play {
    state: LeaseState<&'static str, ()>,
    ms: u64,
    generation: u64,
}

impl Play {
    fn new() -> Self {
        let name = Arc::new(LeaseName { namespace: "left".to_owned(), name: "users".to_owned() });
        Self { state: LeaseState::new(&name), ms: 1_000, generation: 0 }
    }

    /// With objects that follow the first term, which was read.
    fn with(objects: &[&str]) -> Self {
        let mut play = Self::new();
        let _ = play.asks("first", 1, "first");
        let _ = play.turn(1);
        let _ = (play.reads(seen(1, 0)), play.on(Event::Room));
        for name in objects {
            let _ = play.asks("first", 1, name);
        }
        play.state.unfollow(&object("first"));
        play
    }

    fn now(&self) -> Now {
        Now { wall: WallMs(T0 + self.ms), boot: BootMs(self.ms) }
    }

    fn on(&mut self, event: Event<&'static str, ()>) -> Vec<String> {
        let at = At { now: self.now(), generation: self.generation };
        self.state.on(event, at).into_iter().map(named).collect()
    }

    fn asks(&mut self, caller: &'static str, transitions: u32, of: &str) -> Vec<String> {
        let question = Question { election: Some(term(transitions)), object: Some((object(of), self.generation)) };
        self.on(Event::Asked(question, caller))
    }

    fn asks_for_term(&mut self, caller: &'static str, transitions: u32) -> Vec<String> {
        self.on(Event::Asked(Question { election: Some(term(transitions)), object: None }, caller))
    }

    fn turn(&mut self, id: CallerId) -> Vec<String> {
        self.on(Event::Turn(id, ()))
    }

    /// A read, from its request to its answer.
    fn reads(&mut self, found: Option<Seen>) -> Vec<String> {
        assert!(self.on(Event::ReadBegins).is_empty(), "a request that is sent changes nothing else");
        self.on(Event::ReadEnded(Ok(found)))
    }

    fn fails(&mut self) -> Vec<String> {
        assert!(self.on(Event::ReadBegins).is_empty(), "a request that is sent changes nothing else");
        self.on(Event::ReadEnded(Err(away())))
    }
}

#[test]
fn a_caller_waits_for_its_turn_and_a_read_and_its_object_follows() {
    let mut play = Play::new();
    assert_eq!(play.asks("a", 1, "x"), ["turn 1"]);
    assert_eq!(play.turn(1), ["read from 0 on"]);
    assert_eq!(play.reads(seen(1, 0)), ["x follows", "x gets 1 for a, begins"]);
    assert!(play.state.followers().contains(&object("x")));
}

#[test]
fn a_caller_of_the_present_term_needs_no_read_also_during_one() {
    let mut play = Play::with(&["x"]);
    assert_eq!(play.asks("a", 1, "y"), ["y follows", "y gets 1 for a, begins"]);
    let _ = play.on(Event::Hinted);
    assert_eq!(play.asks("b", 1, "z"), ["z follows", "z gets 1 for b, begins"]);
    let _ = play.on(Event::ReadBegins);
    assert_eq!(play.asks_for_term("c", 1), ["c gets 1"]);
    // Once the term is not held any more, it does.
    let _ = play.on(Event::ReadEnded(Ok(seen(1, 0))));
    play.ms += TTL_MS;
    assert_eq!(play.asks("d", 1, "x"), ["turn 2"]);
}

#[test]
fn callers_that_come_during_a_read_share_the_next_one() {
    let mut play = Play::new();
    let _ = (play.asks("a", 2, "x"), play.turn(1));
    assert!(play.asks("early", 2, "y").is_empty(), "the request was not sent, so this read will do");
    let _ = play.on(Event::ReadBegins);
    assert!(play.asks("b", 2, "y").is_empty() && play.asks("c", 2, "z").is_empty());
    // The result is of the term before.
    let ended = play.on(Event::ReadEnded(Ok(seen(1, 0))));
    assert_eq!(ended, ["x gets 1 for a", "y gets 1 for early", "turn 3", "turn 4"]);
    assert_eq!(play.turn(4), ["read from 1100 on"]);
    assert!(play.turn(3).is_empty());
    let ended = play.reads(seen(2, 0));
    assert_eq!(ended, ["y follows", "y gets 2 for b, begins", "z follows", "z gets 2 for c, begins"]);
}

#[test]
fn they_also_share_a_read_that_fails() {
    let mut play = Play::with(&[]);
    let _ = (play.asks("a", 2, "x"), play.turn(2), play.on(Event::ReadBegins));
    assert!(play.asks("b", 2, "y").is_empty() && play.asks("c", 2, "z").is_empty());
    assert_eq!(play.on(Event::ReadEnded(Err(away()))), ["a gets away", "turn 3", "turn 4"]);
    assert_eq!(play.turn(3).len(), 1);
    assert!(play.turn(4).is_empty());
    assert_eq!(play.fails(), ["b gets away", "c gets away"]);
    // A failed read changes nothing of what is known.
    assert_eq!(play.asks("d", 1, "x"), ["x follows", "x gets 1 for d, begins"]);
}

#[test]
fn the_ledger_has_a_result_for_all_objects_before_a_caller_is_answered_and_before_the_next_read() {
    let mut play = Play::with(&["x", "y"]);
    let _ = (play.asks("a", 2, "x"), play.turn(2), play.on(Event::ReadBegins));
    let _ = (play.asks("b", 3, "y"), play.on(Event::Hinted));
    let ended = play.on(Event::ReadEnded(Ok(seen(2, 1))));
    assert_eq!(ended, ["room", "turn 3"]);
    // A caller of the new term waits, too. One more read is needed, by a caller that has its turn, and for a hint.
    assert!(play.asks("c", 2, "z").is_empty() && play.turn(3).is_empty() && play.on(Event::Hinted).is_empty());
    let answers = ["x follows", "x gets 2 for a, begins", "z follows", "z gets 2 for c, begins"];
    assert_eq!(play.on(Event::Room), [&["2 get 2"], &answers[..], &["read from 1100 on"]].concat());
}

#[test]
fn without_room_in_the_ledger_no_caller_of_the_new_term_is_let_through() {
    let mut play = Play::with(&["x", "y"]);
    let _ = (play.asks("a", 2, "x"), play.turn(2));
    assert_eq!(play.reads(seen(2, 1)), ["room"]);
    assert!(play.asks("b", 2, "z").is_empty());
    let refused = ["a gets Unavailable", "b gets Unavailable", "pause"];
    assert_eq!(play.on(Event::NoRoom(LedgerError::Unavailable)), refused);
    // The next caller has it tried again, before the pause is over.
    assert_eq!(play.asks("c", 2, "x"), ["room"]);
    assert!(play.on(Event::PauseOver).is_empty());
    assert_eq!(play.on(Event::Room), ["2 get 2", "x follows", "x gets 2 for c, begins"]);
    assert_eq!(play.asks("d", 2, "y"), ["y follows", "y gets 2 for d, begins"]);
}

#[test]
fn a_caller_whose_term_runs_out_while_it_waits_for_room_has_the_lease_read() {
    let mut play = Play::with(&["x"]);
    let _ = play.on(Event::Hinted);
    assert_eq!(play.reads(seen(2, 1)), ["room"]);
    assert!(play.asks("a", 2, "z").is_empty());
    play.ms += TTL_MS;
    assert_eq!(play.on(Event::NoRoom(LedgerError::Unavailable)), ["pause", "turn 2"]);
}

#[test]
fn a_holder_that_changes_without_a_transition_shuts_the_term_for_both_at_once() {
    let mut play = Play::with(&["x"]);
    let _ = play.on(Event::Hinted);
    let other = seen(1, 1).map(|seen| Seen { holder: Some("other".to_owned()), ..seen });
    assert_eq!(play.reads(other.clone()), ["room"]);
    assert!(play.state.term_of(term(1)).is_none());
    assert_eq!(play.on(Event::Room), ["1 get 1"]);
    // A renewal by the second holder.
    let renewed = other.map(|seen| Seen { renewed_us: seen.renewed_us + 1, ..seen });
    let now = play.now();
    assert!(!play.state.watch_shows(renewed, now));
    assert!(play.state.term_of(term(1)).is_some_and(|term| !term.is_live(now)));
    // Every write of the term asks, also of an object that is new to it.
    assert_eq!(play.asks("a", 1, "x"), ["turn 2"]);
    assert_eq!(play.asks("b", 1, "y"), ["turn 3"]);
}

#[test]
fn a_hint_that_was_not_read_for_outlasts_a_result_that_is_given_up() {
    let mut play = Play::with(&["x"]);
    let _ = play.on(Event::Hinted);
    assert_eq!(play.reads(seen(2, 1)), ["room"]);
    for _ in 1..TRIES {
        assert_eq!(play.on(Event::NoRoom(LedgerError::Unavailable)), ["pause"]);
        assert_eq!(play.on(Event::PauseOver), ["room"]);
    }
    assert!(play.on(Event::Hinted).is_empty());
    let given_up = play.on(Event::NoRoom(LedgerError::Unavailable));
    assert_eq!(given_up, ["give up", "read from 1100 on for a hint"]);
}

#[test]
fn many_objects_get_a_result_by_several_messages() {
    let names: Vec<String> = (0..600).map(|n| format!("x{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut play = Play::with(&names);
    let _ = play.on(Event::Hinted);
    assert_eq!(play.reads(seen(2, 1)), ["room"]);
    let _ = play.on(Event::Hinted);
    assert_eq!(play.on(Event::Room), ["256 get 2", "room"]);
    assert_eq!(play.on(Event::Room), ["256 get 2", "room"]);
    assert_eq!(play.on(Event::Room), ["88 get 2", "read from 1100 on for a hint"]);
}

#[test]
fn a_result_that_changes_no_term_is_not_passed_on() {
    let mut play = Play::with(&["x"]);
    let _ = play.on(Event::Hinted);
    assert!(play.reads(seen(1, 500)).is_empty());
    // A Lease that is gone is a change.
    let _ = play.on(Event::Hinted);
    assert_eq!(play.reads(None), ["room"]);
    assert_eq!(play.on(Event::Room), ["1 get 0"]);
}

#[test]
fn a_hint_that_comes_during_a_read_causes_one_more() {
    let mut play = Play::with(&["x"]);
    assert_eq!(play.on(Event::Hinted), ["read from 1100 on for a hint"]);
    assert!(play.on(Event::Hinted).is_empty(), "the request was not sent, so this read will do");
    let _ = play.on(Event::ReadBegins);
    assert!(play.on(Event::Hinted).is_empty() && play.on(Event::Hinted).is_empty());
    assert_eq!(play.on(Event::ReadEnded(Ok(seen(1, 0)))), ["read from 1100 on for a hint"]);
    assert!(play.reads(seen(1, 0)).is_empty(), "one is enough for both");
}

#[test]
fn a_hint_is_tried_again_but_not_for_ever() {
    let mut play = Play::with(&["x"]);
    assert_eq!(play.on(Event::Hinted).len(), 1);
    for _ in 1..TRIES {
        assert_eq!(play.fails(), ["pause"]);
        assert!(play.on(Event::Hinted).is_empty(), "a hint does not shorten the pause");
        assert_eq!(play.on(Event::PauseOver), ["read from 1100 on for a hint"]);
    }
    assert_eq!(play.fails(), ["give up"]);
    // A new hint begins anew, and a success ends the count.
    assert_eq!(play.on(Event::Hinted).len(), 1);
    assert_eq!(play.fails(), ["pause"]);
    assert_eq!(play.on(Event::PauseOver).len(), 1);
    assert!(play.reads(seen(1, 0)).is_empty());
    assert_eq!(play.state.tries, 0);
}

#[test]
fn a_read_for_a_caller_confirms_a_hint_too() {
    let mut play = Play::with(&["x"]);
    let _ = (play.on(Event::Hinted), play.fails());
    let _ = (play.asks("a", 2, "x"), play.turn(2));
    assert_eq!(play.reads(seen(2, 1)), ["room"]);
    assert_eq!(play.on(Event::Room), ["1 get 2", "x follows", "x gets 2 for a, begins"]);
    assert!(play.on(Event::PauseOver).is_empty());
}

#[test]
fn a_turn_that_comes_after_a_read_for_a_hint_needs_no_more_read() {
    let mut play = Play::with(&["x"]);
    assert_eq!(play.asks("a", 3, "x"), ["turn 2"]);
    let _ = play.on(Event::Hinted);
    assert_eq!(play.reads(seen(2, 1)), ["room"], "the caller still waits for its turn");
    assert_eq!(play.on(Event::Room), ["1 get 2"]);
    assert_eq!(play.turn(2), ["x gets 2 for a"]);
}

#[test]
fn a_turn_that_does_not_come_refuses_that_caller_only() {
    let mut play = Play::with(&[]);
    let _ = (play.asks("a", 2, "x"), play.asks("b", 2, "x"));
    assert_eq!(play.on(Event::NoTurn(2, away())), ["a gets away"]);
    assert!(play.turn(2).is_empty(), "nor is anything read for it");
    assert_eq!(play.turn(3), ["read from 1100 on"]);
}

#[test]
fn a_token_of_another_term_leaves_nothing_behind() {
    let mut play = Play::with(&[]);
    let _ = (play.asks("a", 2, "x"), play.turn(2));
    assert_eq!(play.reads(seen(1, 0)), ["x gets 1 for a"]);
    assert!(play.state.followers().is_empty() && play.state.is_unused());
    // An object that is asked about without a token follows.
    let question = Question { election: None, object: Some((object("x"), 0)) };
    assert_eq!(play.on(Event::Asked(question, "b")), ["turn 3"]);
    let _ = play.turn(3);
    assert_eq!(play.reads(seen(1, 0)), ["x follows", "x gets 1 for b, begins"]);
}

#[test]
fn a_question_by_older_routes_is_refused_and_objects_that_followed_by_them_get_nothing() {
    let mut play = Play::with(&["x", "y"]);
    let _ = (play.asks("a", 2, "x"), play.turn(2), play.on(Event::ReadBegins));
    play.generation = 1;
    play.state.unfollow_all();
    assert_eq!(play.on(Event::ReadEnded(Ok(seen(2, 1)))), ["a gets Overloaded"]);
    assert_eq!(play.asks("b", 2, "x"), ["x follows", "x gets 2 for b, begins"]);
    // The same once there is a change.
    let _ = play.on(Event::Hinted);
    assert_eq!(play.reads(seen(3, 2)), ["room"]);
    play.state.unfollow_all();
    assert!(play.on(Event::Room).is_empty());
}

#[test]
fn who_asks_for_the_term_gets_it_after_the_objects() {
    let mut play = Play::with(&["x"]);
    let _ = (play.asks_for_term("a", 2), play.turn(2));
    assert_eq!(play.reads(seen(2, 1)), ["room"]);
    assert!(play.state.term_of(term(2)).is_none(), "no write is judged by what the objects do not have");
    assert_eq!(play.on(Event::Room), ["1 get 2", "a gets 2"]);
    assert!(play.state.term_of(term(2)).is_some() && play.state.term_of(term(1)).is_none());
    let _ = (play.asks_for_term("b", 3), play.turn(3), play.reads(seen(3, 2)));
    assert_eq!(play.on(Event::NoRoom(LedgerError::Unavailable)), ["b gets Unavailable", "pause"]);
    // The ledger gets the result later, without another read.
    assert_eq!(play.on(Event::PauseOver), ["room"]);
    assert_eq!(play.on(Event::Room), ["1 get 3"]);
    assert_eq!(play.state.tries, 0);
}

#[test]
fn a_lease_that_no_object_can_be_given_is_passed_to_none() {
    let mut play = Play::with(&["x"]);
    let _ = (play.asks("a", 2, "x"), play.turn(2));
    let odd = seen(2, 1).map(|seen| Seen { holder: Some("\u{7}".to_owned()), ..seen });
    assert_eq!(play.reads(odd), ["a gets away"]);
    assert!(play.on(Event::PauseOver).is_empty());
    assert!(play.state.term_of(term(2)).is_none(), "nor may its holder, or the one before, write");
}

#[test]
fn a_watch_hints_at_what_is_not_known() {
    let mut play = Play::new();
    assert!(play.state.watch_shows(seen(1, 0), play.now()) && !play.state.was_there());
    let mut play = Play::with(&["x"]);
    let now = play.now();
    assert!(!play.state.watch_shows(seen(1, 500), now), "a renewal");
    assert!(play.state.watch_shows(seen(2, 500), now) && play.state.watch_shows(None, now) && play.state.was_there());
    let _ = play.on(Event::Hinted);
    assert_eq!(play.reads(seen(2, 500)), ["room"]);
    assert!(play.state.watch_shows(seen(2, 500), now), "it was not passed on");
    let _ = play.on(Event::Room);
    assert!(!play.state.watch_shows(seen(2, 500), now));
}

#[path = "lease_state_drawn_tests.rs"]
mod drawn;
