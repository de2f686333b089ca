//! The simulation: all of the gate except its sockets, by seed, with an adversary that must lose; and, with a fault in
//! the gate, an adversary that must win.

use std::process::{Command, Output};

use super::support::{process::simulation_binary, run::Ends};

fn simulate(fault: Option<&str>, arguments: &[&str]) -> (Output, String) {
    let mut command = Command::new(simulation_binary());
    command.args(arguments);
    fault.map(|fault| command.env("FENCEGATE_TEST_FAULT", fault));
    let output = command.ends();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, said)
}

/// A number in the last line of a simulation's output.
fn count(said: &str, name: &str) -> u64 {
    let mut words = said.split_whitespace().skip_while(|word| *word != name);
    words.nth(1).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {name} in {said}"))
}

#[test]
fn no_seed_shows_a_broken_promise_and_all_that_can_go_wrong_was_seen() {
    let (output, said) = simulate(None, &["--seeds", "500"]);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!((count(&said, "seeds"), count(&said, "violations")), (500, 0));
    assert!(said.contains("played twice: the same"), "{said}");
    let seen = [
        ("grants", 1_000),
        ("tainted", 1),
        ("applied", 1_000),
        ("partial", 100),
        ("overtakes", 100),
        ("late", 30),
        ("cancelled", 100),
        ("unknown", 100),
        ("during_syncs", 1_000),
        ("overtaken_advances", 10),
        ("crashes", 100),
        ("clean_stops", 50),
        ("evictions", 100),
        ("wall_steps", 100),
        ("disk_faults", 10),
    ];
    for (name, least) in seen {
        assert!(count(&said, name) >= least, "{name}: {said}");
    }
}

#[test]
fn the_same_seed_gives_the_same_log_in_another_process() {
    let log = || simulate(None, &["--seeds", "20", "--first", "77", "--log"]).1;
    let (one, two) = (log(), log());
    assert!(one.lines().count() > 1_000, "{one}");
    assert_eq!(one, two);
}

#[test]
fn nor_does_any_where_leases_of_a_cluster_lead() {
    let (output, said) = simulate(None, &["--led", "--seeds", "500"]);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("played twice: the same"), "{said}");
    let seen = [
        ("terms", 1_000),
        ("lease_reads", 1_000),
        ("passed_on", 100),
        ("reroutes", 500),
        ("applied", 1_000),
        ("partial", 100),
        ("cancelled", 30),
        ("unknown", 100),
        ("crashes", 100),
        ("evictions", 100),
    ];
    for (name, least) in seen {
        assert!(count(&said, name) >= least, "{name}: {said}");
    }
}

/// Checks that the gate with this fault breaks this promise, and that the log of the run is printed.
fn is_caught(fault: &str, promise: &str, more: &[&str]) {
    let (output, said) = simulate(Some(fault), &[&["--seeds", "3000", "--promise", promise], more].concat());
    assert_eq!(output.status.code(), Some(1), "{fault} was not caught: {said}");
    let (first, history) = said.split_once('\n').unwrap();
    assert!(first.starts_with(&format!("VIOLATION {promise} seed=")), "{fault}: {said}");
    assert!(history.lines().count() > 10 && history.contains(&format!("VIOLATION {promise}: ")), "{fault}: {said}");
}

macro_rules! caught {
    ($($name:ident: $fault:literal breaks $promise:literal $(with $more:literal)?;)*) => {
        $(#[test]
        fn $name() {
            is_caught($fault, $promise, &[$($more)?]);
        })*
    };
}

caught! {
    an_advance_that_does_not_drain_is_caught: "no-drain" breaks "DRAIN";
    an_advance_that_does_not_seal_is_caught: "no-seal" breaks "DRAIN";
    a_write_that_is_not_judged_again_is_caught: "no-commit-check" breaks "DRAIN";
    an_advance_without_the_draining_state_is_caught: "no-draining-state" breaks "DRAIN";
    an_advance_that_opens_what_another_has_overtaken_is_caught: "no-step4-check" breaks "MONOTONIC";
    a_slow_load_that_puts_an_old_fence_back_is_caught: "stale-load" breaks "MONOTONIC";
    a_clean_flag_set_too_early_is_caught: "early-clean-flag" breaks "DRAIN";
    a_head_that_settles_is_caught: "head-settles" breaks "DRAIN";
    an_unknown_write_that_no_drain_waits_for_is_caught: "no-unknown-wait" breaks "DRAIN";
    a_bound_that_is_counted_from_the_commit_is_caught: "bound-from-commit" breaks "DRAIN";
    a_partial_write_taken_for_none_is_caught: "partial-is-none" breaks "DRAIN";
    a_lease_that_lives_again_is_caught: "revive" breaks "NO REVIVAL";
    a_term_whose_advance_does_not_drain_is_caught: "no-drain" breaks "DRAIN" with "--led";
    a_term_whose_advance_does_not_seal_is_caught: "no-seal" breaks "DRAIN" with "--led";
    a_write_by_a_term_that_is_not_judged_again_is_caught: "no-commit-check" breaks "DRAIN" with "--led";
    a_term_that_opens_while_it_drains_is_caught: "no-draining-state" breaks "DRAIN" with "--led";
    a_term_whose_unknown_writes_no_drain_waits_for_is_caught: "no-unknown-wait" breaks "DRAIN" with "--led";
    a_bound_of_a_term_that_is_counted_from_the_commit_is_caught: "bound-from-commit" breaks "DRAIN" with "--led";
    a_slow_load_that_puts_an_old_term_back_is_caught: "stale-load" breaks "MONOTONIC" with "--led";
    a_term_whose_lease_was_not_renewed_is_caught: "dead-terms" breaks "EXPIRY" with "--led";
    a_term_that_the_gate_has_read_to_be_over_is_caught: "dead-terms" breaks "STALE" with "--led";
    a_change_of_a_lease_that_is_not_passed_on_is_caught: "no-pass-on" breaks "PASSED ON" with "--led";
    a_lease_that_is_forgotten_when_its_route_changes_is_caught: "no-floors" breaks "NO REVIVAL" with "--led";
}
