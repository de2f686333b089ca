//! The same by drawn orders of events: whatever happens, the ledger gets each result in order and before any caller, and
//! each caller gets one answer.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A Lease that changes, callers, and all that the state waits for.
#[derive(Default)]
struct Drawn {
    /// The term at the API server.
    server: u32,
    /// What each caller has to see at least; gone once the caller is answered.
    asked: BTreeMap<u32, u32>,
    last_caller: u32,
    turns: Vec<CallerId>,
    has_room_to_come: bool,
    is_pausing: bool,
    read: Option<Reading>,
    /// The result of the last read.
    found: u32,
    /// What the ledger has, by object.
    ledger: BTreeMap<ObjectId, u32>,
    /// The ledger had no room for the last result, so that objects may lack it.
    had_no_room: bool,
}

#[derive(Clone, Copy)]
enum Reading {
    Due,
    Sent(u32),
}

type DrawnState = LeaseState<u32, ()>;

impl Drawn {
    fn report(&mut self, state: &mut DrawnState, event: Event<u32, ()>) {
        let now = Now { wall: WallMs(T0), boot: BootMs(1_000) };
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
            assert_eq!(self.ledger[follower], self.found, "{follower} lacks the result");
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
                self.take(&object, number(&observation));
            }
            Effect::ObserveAll(objects, observation) => {
                for object in &objects {
                    self.take(object, number(&observation));
                }
            }
            Effect::Answer(caller, (election, _)) => {
                self.all_have_it(state, new);
                self.answer(caller, election.map_or(0, |election| election.transitions));
            }
            Effect::Refuse(caller, _) => self.answer(caller, u32::MAX),
            Effect::Follow(_) | Effect::GiveUp => {}
        }
    }

    fn take(&mut self, object: &ObjectId, term: u32) {
        let before = self.ledger.insert(object.clone(), term);
        assert!(before.is_none_or(|before| before <= term), "{object} goes back from {before:?} to {term}");
    }

    fn answer(&mut self, caller: u32, term: u32) {
        let least = self.asked.remove(&caller).expect("each caller is answered once");
        assert!(term >= least, "caller {caller} gets {term}, and {least} was there when it came");
    }

    fn ask(&mut self, state: &mut DrawnState, of: u8) {
        self.last_caller += 1;
        let object = Some((object(&format!("x{}", of % 4)), 0)).filter(|_| of % 8 != 7);
        // Every other caller brings the term that it has seen, and gets no older one; the others get what is new.
        let election = of.is_multiple_of(2).then(|| term(self.found.max(1)));
        let least = if election.is_some() { 0 } else { self.server };
        self.asked.insert(self.last_caller, least);
        self.report(state, Event::Asked(Question { election, object }, self.last_caller));
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
                self.read = Some(Reading::Sent(self.server));
                Event::ReadBegins
            }
            (_, Some(Reading::Sent(_)), _) if fails => {
                self.read = None;
                Event::ReadEnded(Err(away()))
            }
            (_, Some(Reading::Sent(found)), _) => {
                (self.read, self.found) = (None, found);
                Event::ReadEnded(Ok(seen(found, 0)))
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
        steps in proptest::collection::vec((0..10_u8, any::<u8>()), 1..200)
    ) {
        let name = Arc::new(LeaseName { namespace: "left".to_owned(), name: "users".to_owned() });
        let (mut state, mut drawn) = (LeaseState::new(&name), Drawn { server: 1, ..Drawn::default() });
        for (step, choice) in steps {
            match step {
                0 => drawn.server += 1,
                1 => drawn.report(&mut state, Event::Hinted),
                2 | 3 => drawn.ask(&mut state, choice),
                _ => {
                    drawn.go_on(&mut state, choice);
                }
            }
        }
        // Odd choices do not fail.
        let is_quiet = (0..10_000).any(|_| !drawn.go_on(&mut state, 1));
        prop_assert!(is_quiet && drawn.asked.is_empty(), "{:?} got no answer", drawn.asked);
        state.unfollow_all();
        prop_assert!(state.is_unused());
    }
}
