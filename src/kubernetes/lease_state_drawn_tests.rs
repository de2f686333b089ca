//! The same by drawn orders of events: whatever happens, the ledger gets each result in order and before any caller, and
//! each caller gets one answer, which is new enough.
//!
//! The Lease at the API server has versions. Each is a term of its own, or the Lease is deleted.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A Lease that changes, callers, and all that the state waits for.
#[derive(Default)]
struct Drawn {
    ms: u64,
    /// The version at the API server, and when its holder last renewed it.
    server: u32,
    renewed_ms: u64,
    /// The callers without an answer.
    asked: BTreeMap<u32, Asked>,
    last_caller: u32,
    turns: Vec<CallerId>,
    has_room_to_come: bool,
    is_pausing: bool,
    read: Option<Reading>,
    /// The version that the last read has found.
    found: u32,
    /// Which version the ledger has, by object.
    ledger: BTreeMap<ObjectId, u32>,
    /// The ledger had no room for the last result, so that objects may lack it.
    had_no_room: bool,
}

struct Asked {
    /// The version whose term the caller brings, if it brings one.
    own: Option<u32>,
    /// The version at the API server when the caller came.
    server: u32,
}

#[derive(Clone, Copy)]
enum Reading {
    Due,
    /// With the version that it finds, and when that was last renewed.
    Sent(u32, u64),
}

type DrawnState = LeaseState<u32, ()>;

/// The term of a version; 0: the Lease is deleted.
fn term_in(version: u32) -> u32 {
    if version.is_multiple_of(5) { 0 } else { version }
}

impl Drawn {
    fn report(&mut self, state: &mut DrawnState, event: Event<u32, ()>) {
        let now = Now { wall: WallMs(T0 + self.ms), boot: BootMs(1_000 + self.ms) };
        let effects = state.on(event, At { now, generation: 0 });
        // Objects whose callers are answered now follow from now on.
        let asking = |effect: &Effect<u32, ()>| match effect {
            Effect::Observe { object, .. } => Some(object.clone()),
            _ => None,
        };
        let new: Vec<ObjectId> = effects.iter().filter_map(asking).collect();
        for effect in effects {
            self.carry_out(state, effect, &new);
        }
    }

    /// Panics where an object lacks the result of the last read. `new`: objects that get it right now.
    fn all_have_it(&self, state: &DrawnState, new: &[ObjectId]) {
        for follower in state.followers().iter().filter(|follower| !new.contains(follower)) {
            assert_eq!(term_in(self.ledger[follower]), term_in(self.found), "{follower} lacks the result");
        }
    }

    fn carry_out(&mut self, state: &DrawnState, effect: Effect<u32, ()>, new: &[ObjectId]) {
        match effect {
            Effect::WaitForTurn(id) => self.turns.push(id),
            Effect::WaitForRoom => assert!(!std::mem::replace(&mut self.has_room_to_come, true)),
            Effect::Pause => assert!(!std::mem::replace(&mut self.is_pausing, true)),
            Effect::Read { .. } => {
                assert!(self.read.is_none() && !self.has_room_to_come, "reads follow each other");
                if !self.had_no_room {
                    self.all_have_it(state, new);
                }
                self.read = Some(Reading::Due);
            }
            Effect::Observe { caller, object, observation, .. } => {
                self.all_have_it(state, new);
                self.answer(caller, number(&observation));
                self.take(object, number(&observation));
            }
            Effect::ObserveAll(objects, observation) => {
                for object in objects {
                    self.take(object, number(&observation));
                }
            }
            Effect::Answer(caller, (election, _)) => {
                self.all_have_it(state, new);
                self.answer(caller, election.map_or(0, |election| election.transitions));
            }
            Effect::Refuse(caller, _) => {
                self.answered(caller);
            }
            Effect::Follow(_) | Effect::GiveUp => {}
        }
    }

    /// The ledger gets what the last read has found, and nothing else. Reads never find an older version.
    fn take(&mut self, object: ObjectId, term: u32) {
        assert_eq!(term, term_in(self.found), "{object} gets another result than the last one");
        self.ledger.insert(object, self.found);
    }

    fn answered(&mut self, caller: u32) -> Asked {
        self.asked.remove(&caller).expect("each caller is answered once")
    }

    /// A caller gets what was there when it came, or newer. One whose own term was read to be the present one needs no
    /// newer result.
    fn answer(&mut self, caller: u32, term: u32) {
        let Asked { own, server } = self.answered(caller);
        assert_eq!(term, term_in(self.found), "caller {caller} gets another result than the last one");
        assert!(self.found >= server || own == Some(term), "caller {caller} gets {term}, and came at {server}");
    }

    fn ask(&mut self, state: &mut DrawnState, of: u8) {
        self.last_caller += 1;
        let object = Some((object(&format!("x{}", of % 4)), 0)).filter(|_| of % 8 != 7);
        // None, the known term, an older one, one that is not known yet, and one that is not there yet.
        let own = match of % 5 {
            0 => None,
            1 => Some(self.found),
            2 => Some(self.found.saturating_sub(1)),
            3 => Some(self.server),
            _ => Some(self.server + 1),
        };
        let own = own.map(|version| version.max(1));
        self.asked.insert(self.last_caller, Asked { own, server: self.server });
        self.report(state, Event::Asked(Question { election: own.map(term), object }, self.last_caller));
    }

    /// Lets time pass: terms run out. The holder may renew the Lease.
    fn pass_time(&mut self, choice: u8) {
        self.ms += u64::from(choice) * 100;
        if choice.is_multiple_of(2) {
            self.renewed_ms = self.ms;
        }
    }

    /// Lets one thing happen that the state waits for. Returns `false` where it waits for nothing.
    fn go_on(&mut self, state: &mut DrawnState, choice: u8) -> bool {
        let fails = choice.is_multiple_of(16);
        let event = match (choice % 4, self.read, self.turns.is_empty()) {
            (0, _, false) if fails => Event::NoTurn(self.turns.remove(0), away()),
            (0, _, false) | (_, None, false) if !self.has_room_to_come => {
                Event::Turn(self.turns.swap_remove(usize::from(choice) % self.turns.len()), ())
            }
            (_, Some(Reading::Due), _) => {
                self.read = Some(Reading::Sent(self.server, self.renewed_ms));
                Event::ReadBegins
            }
            (_, Some(Reading::Sent(..)), _) if fails => {
                self.read = None;
                Event::ReadEnded(Err(away()))
            }
            (_, Some(Reading::Sent(found, renewed_ms)), _) => {
                (self.read, self.found) = (None, found);
                Event::ReadEnded(Ok(seen(term_in(found), renewed_ms)))
            }
            _ if std::mem::take(&mut self.has_room_to_come) => {
                self.had_no_room = fails;
                if fails { Event::NoRoom(LedgerError::Unavailable) } else { Event::Room }
            }
            _ if std::mem::take(&mut self.is_pausing) => Event::PauseOver,
            _ => return false,
        };
        self.report(state, event);
        true
    }
}

proptest! {
    #[test]
    fn whatever_happens_the_ledger_gets_each_result_in_order_and_each_caller_one_answer(
        steps in proptest::collection::vec((0..12_u8, any::<u8>()), 1..200)
    ) {
        let name = Arc::new(LeaseName { namespace: "left".to_owned(), name: "users".to_owned() });
        let (mut state, mut drawn) = (LeaseState::new(&name), Drawn { server: 1, ..Drawn::default() });
        for (step, choice) in steps {
            match step {
                0 => (drawn.server, drawn.renewed_ms) = (drawn.server + 1, drawn.ms),
                1 => drawn.report(&mut state, Event::Hinted),
                2 | 3 => drawn.ask(&mut state, choice),
                4 => drawn.pass_time(choice),
                _ => {
                    drawn.go_on(&mut state, choice);
                }
            }
        }
        // Odd choices do not fail.
        let is_quiet = (0..10_000).any(|_| !drawn.go_on(&mut state, 1));
        prop_assert!(is_quiet && drawn.asked.is_empty(), "{:?} got no answer", drawn.asked.keys());
        state.unfollow_all();
        prop_assert!(state.is_unused());
    }
}
