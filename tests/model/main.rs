//! The in-flight barrier, model-checked: every order in which writers, the ledger's steps, the store, the
//! clock and crashes can follow each other, for one object and two holders, with the product's own
//! `Record::step` and `judge` deciding.
//!
//! - `state`: the states. `actions`: which steps are possible. `model`, `ledger`, `writes`: what the steps do.
//! - `product`: calls the product's rules.
//! - `promises`: what must always hold, and what must be reached.
//! - `mutants`: gates with one thing wrong. The promise that each one breaks must catch it by name.
//!
//! Time is abstract. A lost write may land until `BoundPasses`, which the gate waits for; leases expire by ticks
//! that may come at any time. There is one object, always in memory. The simulation covers loads, `force`, reloads
//! and steps of the wall clock.

#![allow(unreachable_pub, reason = "a test program exports nothing; pub says what a module offers")]
#![allow(clippy::pedantic, reason = "tests are read, not called")]

mod actions;
mod ledger;
mod model;
mod mutants;
mod product;
mod promises;
mod state;
mod writes;

use std::{collections::BTreeSet, io::Write};

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

use actions::Action;
use model::{GateModel, Scope};
use mutants::Mutant;
use promises::Promise;
use state::World;

/// Leases that change hands again and again, with crashes in between.
const HANDOVERS: Scope =
    Scope { writes: 2, streams: false, renewals: false, ttl: 1, last_tick: 3, restarts: 2, revokes: 1 };
/// Leases that are renewed, also under a new number.
const RENEWALS: Scope = Scope { writes: 1, renewals: true, ttl: 2, last_tick: 4, ..HANDOVERS };
/// Bodies of which part is sent before the whole write is judged again.
const STREAMS: Scope = Scope { writes: 1, streams: true, ..HANDOVERS };

type Way = Path<World, Action>;

/// Prints the steps that change something, for people.
fn describe(way: Way) -> String {
    let (worlds, actions): (Vec<World>, Vec<Option<Action>>) = way.into_vec().into_iter().unzip();
    let steps = actions.iter().flatten().zip(&worlds[1..]);
    let line = |(place, (action, world)): (usize, (&Action, &World))| {
        format!("{:3}. {:56} | {world}\n", place + 1, action.to_string())
    };
    steps.enumerate().map(line).collect()
}

fn say(line: &str) {
    // Written to standard output directly, so that the test harness does not capture it.
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
}

/// The shortest path that breaks a promise, if one does, and how many states were checked to find it. The checker
/// keeps the last path that it finds before it stops, so it is run again for shorter ones.
fn broken(scope: Scope, wrong: Option<(Mutant, Promise)>, name: &'static str) -> (Option<Way>, usize) {
    let look = |deepest: usize| {
        let wanted = HasDiscoveries::AnyOf(BTreeSet::from([name]));
        GateModel::new(scope, wrong).checker().finish_when(wanted).target_max_depth(deepest).spawn_bfs().join()
    };
    let checker = look(usize::MAX);
    let mut way = checker.discovery(name);
    while let Some(shorter) = way.as_ref().and_then(|way| look(way.clone().into_states().len()).discovery(name)) {
        way = Some(shorter);
    }
    (way, checker.unique_state_count())
}

/// Checks every state: no promise is broken, and all goals are reached. `least`: the number of states must be at
/// least this, so that a change cannot make the model trivial unnoticed.
fn keeps_every_promise(what: &str, scope: Scope, least: usize) {
    let model = GateModel::new(scope, None);
    // Two threads find the same states; only the paths to them differ.
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).threads(2).spawn_bfs().join();
    let (unique, all, depth) = (checker.unique_state_count(), checker.state_count(), checker.max_depth());
    say(&format!("model: {what}: {unique} unique states of {all} generated, depth {depth}"));
    let found = checker.discoveries();
    for property in checker.model().properties() {
        match (property.expectation, found.contains_key(property.name)) {
            (Expectation::Always | Expectation::Eventually, true) => {
                let way = broken(scope, None, property.name).0.map(describe);
                panic!("{} is broken:\n{}", property.name, way.unwrap_or_default());
            }
            (Expectation::Sometimes, false) => panic!("never reached: {}", property.name),
            (Expectation::Always | Expectation::Eventually, false) | (Expectation::Sometimes, true) => {}
        }
    }
    assert!(unique >= least, "{what}: only {unique} states");
}

#[test]
fn no_order_of_events_breaks_a_promise_while_leases_change_hands() {
    keeps_every_promise("handovers", HANDOVERS, 2_000_000);
}

#[test]
fn no_order_of_events_breaks_a_promise_while_leases_are_renewed() {
    keeps_every_promise("renewals", RENEWALS, 400_000);
}

#[test]
fn no_order_of_events_breaks_a_promise_while_bodies_are_streamed() {
    keeps_every_promise("streams", STREAMS, 300_000);
}

/// Checks that the gate with this mutant breaks this promise.
fn is_caught(scope: Scope, mutant: Mutant, promise: Promise) {
    let name = promise.name();
    let (way, states) = broken(scope, Some((mutant, promise)), name);
    let steps = describe(way.unwrap_or_else(|| panic!("{mutant:?} does not break {name} in any of {states} states")));
    println!("{mutant:?} breaks {name}:\n{steps}");
    say(&format!("model: {mutant:?} breaks {name} in {} steps, found in {states} states", steps.lines().count()));
}

macro_rules! caught {
    ($($name:ident: $mutant:ident breaks $promise:ident in $scope:ident;)*) => {
        $(#[test]
        fn $name() {
            is_caught($scope, Mutant::$mutant, Promise::$promise);
        })*
    };
}

caught! {
    an_advance_that_does_not_drain_is_caught: NoDrain breaks Drain in HANDOVERS;
    an_advance_that_does_not_seal_is_caught: NoSeal breaks Drain in HANDOVERS;
    an_advance_without_the_draining_state_is_caught: NoDrainingState breaks Drain in HANDOVERS;
    an_advance_that_opens_what_another_has_overtaken_is_caught: NoStep4Check breaks Monotonic in HANDOVERS;
    a_clean_flag_set_too_early_is_caught: EarlyCleanFlag breaks Drain in HANDOVERS;
    a_write_that_is_not_judged_again_is_caught: NoCommitCheck breaks Stale in HANDOVERS;
    a_write_that_is_not_judged_again_lands_and_is_caught: NoCommitCheck breaks Drain in HANDOVERS;
    an_unknown_write_that_no_drain_waits_for_is_caught: NoUnknownWait breaks Drain in HANDOVERS;
    a_partial_write_taken_for_none_is_caught: PartialIsNone breaks Drain in STREAMS;
    an_operator_told_too_soon_is_caught: NoDrain breaks DrainForOperators in HANDOVERS;
    a_grant_that_was_not_synced_is_caught: Unsynced breaks DurableBeforeVisible in HANDOVERS;
    an_end_that_was_not_synced_is_caught: UnsyncedEnd breaks NoRevival in HANDOVERS;
    a_ledger_that_decides_on_what_is_published_is_caught: DecidesOnPublished breaks Unique in HANDOVERS;
    a_write_that_is_sent_again_is_caught: Retry breaks OneAttempt in HANDOVERS;
    a_judge_whose_clock_stands_still_is_caught: StoppedClock breaks Expiry in HANDOVERS;
}
