//! The product's own ledger, stripes, in-flight counts, loads and generations of routes, on threads whose order
//! shuttle draws at every lock, atomic and channel: at random, and by PCT, which searches for faults that need a
//! few switches at the worst moments. The orders come from a seed, so each run plays the same ones;
//! `SHUTTLE_RANDOM_SEED` draws others. Shuttle does not model weak memory: every atomic acts like SeqCst.
//!
//! - `world`: a gate without sockets, and the steps of a write on it.
//! - `oracle`: what callers were answered and what has landed; the promises.
//! - `handover`, `streams`, `loads`, `reload`, `several`, `external`: the scenarios.
//!
//! A broken promise ends in `VIOLATION` and its name; a thread that waits for ever ends in shuttle's `deadlock!`.
//! The controls below start this program again with a test fault, and it has to fail.

#![allow(unreachable_pub, reason = "a test program exports nothing; pub says what world and oracle offer")]
#![allow(clippy::pedantic, reason = "tests are read, not called")]

mod external;
mod handover;
mod loads;
mod oracle;
mod reload;
mod several;
mod streams;
mod world;

use std::process::Command;

use shuttle::{
    Config, Runner,
    scheduler::{PctScheduler, RandomScheduler, UncontrolledNondeterminismCheckScheduler},
};

const SEED: u64 = 20_260_101;

/// How often each way of drawing plays a scenario.
const TIMES: usize = 6_000;

/// How many switches at the worst moments PCT tries, at most.
const DEPTH: usize = 4;

fn config() -> Config {
    let mut config = Config::new();
    // A round of the ledger does not fit into shuttle's 60 KiB.
    config.stack_size = 0x4_0000;
    config.silence_warnings = true;
    config
}

fn play(scenario: fn()) {
    Runner::new(PctScheduler::new_from_seed(SEED, DEPTH, TIMES), config()).run(scenario);
    Runner::new(RandomScheduler::new_from_seed(SEED, TIMES), config()).run(scenario);
}

#[test]
fn a_handover_waits_for_what_may_land() {
    play(handover::to_the_next);
}

#[test]
fn a_handover_waits_for_what_was_judged_once() {
    play(handover::past_quick_ones);
}

#[test]
fn a_handover_waits_for_nothing_else() {
    play(handover::past_one_that_waits);
}

#[test]
fn one_who_waits_is_served_when_all_has_landed() {
    play(handover::to_one_who_waits);
}

#[test]
fn an_operator_overtakes_a_handover() {
    play(handover::overtaken);
}

#[test]
fn a_forced_handover_taints_what_follows() {
    play(handover::forced);
}

#[test]
fn a_higher_number_from_outside_waits_for_lower_ones() {
    play(external::numbers);
}

#[test]
fn a_write_that_streams_is_stopped() {
    play(streams::stopped);
}

#[test]
fn a_stream_without_an_end_is_stopped() {
    play(streams::endless);
}

#[test]
fn a_load_never_puts_an_old_fence_back() {
    play(loads::among_evictions);
}

#[test]
fn a_write_is_judged_by_what_it_loads() {
    play(loads::by_writers);
}

#[test]
fn a_changed_route_waits_for_the_old_one() {
    play(reload::one_route);
}

#[test]
fn writes_to_two_objects_cross_without_a_circle() {
    play(several::crossing);
}

#[test]
fn the_same_draw_plays_the_same_way() {
    let all = [
        handover::to_the_next,
        handover::past_quick_ones,
        handover::past_one_that_waits,
        handover::to_one_who_waits,
        handover::overtaken,
        handover::forced,
        streams::stopped,
        streams::endless,
        loads::among_evictions,
        loads::by_writers,
        reload::one_route,
        several::crossing,
        external::numbers,
    ];
    for scenario in all {
        let scheduler = UncontrolledNondeterminismCheckScheduler::new(RandomScheduler::new_from_seed(SEED, 50));
        Runner::new(scheduler, config()).run(scenario);
    }
}

/// Checks that a fault is found by the same test that passes without it.
#[track_caller]
fn finds(fault: &str, test: &str, violation: &str) {
    finds_one_of(fault, test, &[violation]);
}

/// The same for a fault that breaks several promises: the draws decide which is broken first.
#[track_caller]
fn finds_one_of(fault: &str, test: &str, violations: &[&str]) {
    let program = std::env::current_exe().unwrap();
    let mut again = Command::new(program);
    again.args(["--exact", test]).env("FENCEGATE_TEST_FAULT", fault).env("RUST_BACKTRACE", "0");
    let run = again.output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    let is_found = violations.iter().any(|violation| said.contains(violation));
    assert!(!run.status.success() && is_found, "{fault}: {}\n{said}", run.status);
}

#[test]
fn without_a_seal_an_old_write_lands() {
    finds("no-seal", "a_handover_waits_for_what_may_land", "VIOLATION DRAIN");
    finds("no-seal", "a_handover_waits_for_what_was_judged_once", "VIOLATION DRAIN");
    finds("no-seal", "a_higher_number_from_outside_waits_for_lower_ones", "VIOLATION DRAIN");
}

#[test]
fn without_a_seal_a_stream_is_never_stopped() {
    finds("no-seal", "a_stream_without_an_end_is_stopped", "deadlock!");
    finds("no-seal", "a_write_that_streams_is_stopped", "VIOLATION DRAIN");
}

#[test]
fn without_a_drain_an_old_write_lands() {
    finds("no-drain", "a_handover_waits_for_what_may_land", "VIOLATION DRAIN");
    finds("no-drain", "a_handover_waits_for_what_was_judged_once", "VIOLATION DRAIN");
}

#[test]
fn without_a_commit_check_an_old_write_lands() {
    finds("no-commit-check", "a_handover_waits_for_what_may_land", "VIOLATION DRAIN");
    finds("no-commit-check", "writes_to_two_objects_cross_without_a_circle", "VIOLATION DRAIN");
}

#[test]
fn without_a_draining_state_an_old_write_lands() {
    finds("no-draining-state", "one_who_waits_is_served_when_all_has_landed", "VIOLATION DRAIN");
}

#[test]
fn without_the_wait_for_unknowns_a_broken_write_lands() {
    finds("no-unknown-wait", "a_write_that_streams_is_stopped", "VIOLATION DRAIN");
    finds("partial-is-none", "a_write_that_streams_is_stopped", "VIOLATION DRAIN");
}

#[test]
fn without_the_check_of_step_4_a_fence_goes_down() {
    // A write of the lease that comes back may land before the fence is read.
    let violations = ["VIOLATION MONOTONIC", "VIOLATION DRAIN"];
    finds_one_of("no-step4-check", "an_operator_overtakes_a_handover", &violations);
}

#[test]
fn with_stale_loads_a_fence_goes_down() {
    finds("stale-load", "a_load_never_puts_an_old_fence_back", "VIOLATION MONOTONIC");
}

#[test]
fn with_stale_loads_an_old_write_lands() {
    finds("stale-load", "a_write_is_judged_by_what_it_loads", "VIOLATION DRAIN");
}

#[test]
fn without_the_wait_for_the_old_route_its_write_lands() {
    finds("reload-no-wait", "a_changed_route_waits_for_the_old_one", "VIOLATION DRAIN");
}
