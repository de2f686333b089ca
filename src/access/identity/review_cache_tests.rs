//! Tests of [`super`]: what is kept, what is asked, and what is not.

use super::*;
use crate::access::principal::Kind;

const CACHE_MS: u64 = 60_000;
const T0: BootMs = BootMs(1_000_000);

fn at(ms: u64) -> BootMs {
    BootMs(T0.0 + ms)
}

fn hash(n: u64) -> Hash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&n.to_be_bytes());
    hash
}

#[allow(clippy::unnecessary_wraps, reason = "as callers give it")]
fn peer(n: u32) -> Option<IpAddr> {
    Some(IpAddr::V4(n.into()))
}

fn accepted() -> Answer {
    Answer::Is(Principal::new(Kind::Kubernetes, "cluster", "system:serviceaccount:shop:api").unwrap())
}

fn refused() -> Answer {
    Answer::Refused("no".to_owned())
}

fn answered(answer: Answer) -> Ended {
    Ended::Answered { answer, left_ms: u64::MAX }
}

fn failed(pause_ms: u64) -> Ended {
    Ended::Failed { what: "away".to_owned(), pause_ms }
}

impl Cache<u64> {
    /// What is done about this token: waiters hold its number.
    fn on(&mut self, n: u64, peer: Option<IpAddr>, now: BootMs) -> Next<u64> {
        self.look(&hash(n), peer, now, || n)
    }

    /// A review from beginning to end.
    #[track_caller]
    fn review(&mut self, n: u64, answer: Answer, now: BootMs) {
        assert_eq!(self.on(n, peer(u32::try_from(n).unwrap()), now), Next::Ask(n));
        self.end(&hash(n), answered(answer), now);
    }

    fn knows(&mut self, n: u64, now: BootMs) -> bool {
        self.answers.get(&hash(n)).is_some_and(|kept| now < kept.until)
    }
}

fn not_now<W: std::fmt::Debug>(next: Next<W>) -> String {
    match next {
        Next::NotNow(what) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_counts_for_its_time_and_no_longer() {
    let mut cache = Cache::new(CACHE_MS);
    cache.review(1, accepted(), at(0));
    cache.review(2, refused(), at(0));
    assert_eq!(cache.on(1, peer(9), at(CACHE_MS - 1)), Next::Known(accepted()));
    assert_eq!(cache.on(1, peer(9), at(CACHE_MS)), Next::Ask(1));
    assert_eq!(cache.on(2, peer(9), at(9_999)), Next::Known(refused()), "a refusal counts for 10 s at most");
    assert_eq!(cache.on(2, peer(9), at(10_000)), Next::Ask(2));
    // A short time is for both.
    let mut cache = Cache::new(500);
    cache.review(1, accepted(), at(0));
    cache.review(2, refused(), at(0));
    assert_eq!((cache.knows(1, at(499)), cache.knows(2, at(499))), (true, true));
    assert_eq!((cache.knows(1, at(500)), cache.knows(2, at(500))), (false, false));
}

#[test]
fn an_acceptance_ends_with_the_token_and_counts_from_the_question() {
    let mut cache = Cache::new(CACHE_MS);
    assert_eq!(cache.on(1, peer(1), at(0)), Next::Ask(1));
    cache.end(&hash(1), Ended::Answered { answer: accepted(), left_ms: 5_000 }, at(4_000));
    assert!(cache.knows(1, at(4_999)) && !cache.knows(1, at(5_000)));
    assert_eq!(cache.on(2, peer(1), at(0)), Next::Ask(2));
    cache.end(&hash(2), answered(accepted()), at(4_000));
    assert!(cache.knows(2, at(CACHE_MS - 1)) && !cache.knows(2, at(CACHE_MS)));
}

#[test]
fn without_a_cache_every_call_asks() {
    let mut cache = Cache::new(0);
    cache.review(1, accepted(), at(0));
    cache.review(2, refused(), at(0));
    assert_eq!((cache.on(1, peer(1), at(0)), cache.on(2, peer(2), at(0))), (Next::Ask(1), Next::Ask(2)));
}

#[test]
fn a_later_refusal_takes_the_place_of_the_acceptance() {
    let mut cache = Cache::new(CACHE_MS);
    cache.review(1, accepted(), at(0));
    cache.review(1, refused(), at(CACHE_MS));
    assert_eq!(cache.on(1, peer(1), at(CACHE_MS)), Next::Known(refused()));
    let mut cache = Cache::new(0);
    cache.review(1, accepted(), at(0));
    cache.review(1, refused(), at(1));
    assert!(cache.answers.is_empty(), "it does not go first any more");
}

#[test]
fn one_token_is_reviewed_once_at_a_time() {
    let mut cache = Cache::new(CACHE_MS);
    assert_eq!(cache.on(1, peer(1), at(0)), Next::Ask(1));
    for n in 0..100 {
        assert_eq!(cache.on(1, peer(n), at(1)), Next::Join(1));
    }
    cache.end(&hash(1), failed(0), at(2));
    assert_eq!(cache.on(1, peer(1), at(2)), Next::Ask(1), "a failed review is no answer");
}

#[test]
fn an_address_has_four_reviews_in_progress_and_all_have_twelve() {
    let mut cache = Cache::new(CACHE_MS);
    for n in 0..4 {
        assert_eq!(cache.on(n, peer(1), at(0)), Next::Ask(n));
    }
    assert!(not_now(cache.on(4, peer(1), at(0))).contains("from this address"));
    for n in 5..13 {
        assert_eq!(cache.on(n, peer(u32::try_from(n).unwrap()), at(0)), Next::Ask(n));
    }
    assert!(not_now(cache.on(13, peer(13), at(0))).starts_with("too many tokens are"));
    cache.end(&hash(0), answered(accepted()), at(1));
    assert_eq!(cache.on(4, peer(1), at(1)), Next::Ask(4));
}

#[test]
fn a_network_of_ipv6_is_one_address_and_a_mapped_one_is_its_ipv4() {
    let of = |text: &str| network(Some(text.parse().unwrap()));
    assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
    assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
}

#[test]
fn a_token_that_was_accepted_before_goes_first() {
    let mut cache = Cache::new(1_000);
    for n in 100..105 {
        cache.review(n, accepted(), at(0));
    }
    for n in 0..12 {
        assert_eq!(cache.on(n, peer(u32::try_from(n / 4).unwrap()), at(2_000)), Next::Ask(n));
    }
    not_now(cache.on(12, peer(12), at(2_000)));
    for n in 100..104 {
        assert_eq!(cache.on(n, peer(0), at(2_000)), Next::Ask(n), "a place was free for it");
    }
    not_now(cache.on(104, peer(0), at(2_000)));
}

#[test]
fn a_token_that_was_accepted_before_takes_no_place_of_its_address() {
    let mut cache = Cache::new(1_000);
    for n in 100..104 {
        cache.review(n, accepted(), at(0));
        assert_eq!(cache.on(n, peer(1), at(2_000)), Next::Ask(n));
    }
    for n in 0..3 {
        assert_eq!(cache.on(n, peer(1), at(2_000)), Next::Ask(n));
    }
    (100..104).for_each(|n| cache.end(&hash(n), answered(refused()), at(2_000)));
    assert_eq!(cache.on(3, peer(1), at(2_000)), Next::Ask(3), "nor when it is refused now");
    not_now(cache.on(4, peer(1), at(2_000)));
}

#[test]
fn refused_tokens_hold_the_places_of_their_address_for_a_moment() {
    let mut cache = Cache::new(CACHE_MS);
    cache.review(100, accepted(), at(0));
    let mut asked = 0;
    for n in 0..10_000 {
        // 10,000 in one second, each answered at once.
        let now = at(CACHE_MS + n / 10);
        if cache.on(1_000 + n, peer(1), now) == Next::Ask(1_000 + n) {
            asked += 1;
            cache.end(&hash(1_000 + n), answered(refused()), now);
        }
    }
    assert_eq!(asked, 40);
    let now = at(CACHE_MS + 999);
    assert_eq!(cache.on(100, peer(1), now), Next::Ask(100), "one that was accepted does not wait for them");
    assert_eq!(cache.on(2, peer(2), now), Next::Ask(2), "other addresses do not either");
}

#[test]
fn a_full_cache_drops_refusals_before_acceptances_and_old_before_new() {
    let max = u64::try_from(ANSWERS_MAX).unwrap();
    let mut cache = Cache::new(CACHE_MS);
    cache.review(0, accepted(), at(0));
    cache.review(1, accepted(), at(1));
    for n in 2..max {
        cache.review(n, refused(), at(n));
    }
    for n in max..2 * max {
        cache.review(n, refused(), at(n));
        assert_eq!(cache.answers.len(), ANSWERS_MAX);
    }
    let now = at(2 * max);
    assert!(cache.knows(0, now) && cache.knows(1, now));
    assert!(!cache.answers.contains_key(&hash(max + 1)) && cache.knows(max + 2, now), "the oldest refusal went");
    for n in 2 * max..3 * max - 1 {
        cache.review(n, accepted(), at(n));
    }
    assert!(!cache.answers.contains_key(&hash(0)) && cache.answers.contains_key(&hash(1)));
    // An acceptance that has ended goes before one that counts.
    let mut cache = Cache::new(CACHE_MS);
    for n in 0..max - 1 {
        cache.review(n, accepted(), at(n));
    }
    assert_eq!(cache.on(max, None, at(max)), Next::Ask(max));
    cache.end(&hash(max), Ended::Answered { answer: accepted(), left_ms: 1 }, at(max));
    cache.review(max + 1, accepted(), at(max + 2));
    assert!(!cache.answers.contains_key(&hash(max)) && cache.knows(0, at(max + 2)));
}

#[test]
fn a_server_that_is_away_is_tried_again_by_one_review_after_a_pause() {
    let mut cache = Cache::new(CACHE_MS);
    cache.review(1, accepted(), at(0));
    assert_eq!((cache.on(2, peer(2), at(10)), cache.on(3, peer(3), at(10))), (Next::Ask(2), Next::Ask(3)));
    cache.end(&hash(2), failed(1_000), at(20));
    assert_eq!(not_now(cache.on(4, peer(4), at(1_019))), "away");
    assert_eq!(cache.on(1, peer(4), at(1_019)), Next::Known(accepted()), "known ones go on");
    assert_eq!(not_now(cache.on(4, peer(4), at(1_020))), "away", "a review is still in progress");
    cache.end(&hash(3), failed(1_000), at(1_021));
    assert_eq!(not_now(cache.on(4, peer(4), at(2_020))), "away");
    assert_eq!(cache.on(4, peer(4), at(2_021)), Next::Ask(4));
    assert_eq!(not_now(cache.on(5, peer(5), at(9_000))), "away", "one tries, the others do not wait for it");
    cache.end(&hash(4), answered(refused()), at(9_001));
    assert_eq!(cache.on(5, peer(5), at(9_001)), Next::Ask(5));
    assert_eq!(cache.on(6, peer(6), at(9_001)), Next::Ask(6), "it is back for all");
}

#[test]
fn a_failure_of_one_token_among_answers_is_no_outage() {
    let mut cache = Cache::new(CACHE_MS);
    assert_eq!(cache.on(1, peer(1), at(0)), Next::Ask(1));
    cache.review(2, accepted(), at(100));
    cache.end(&hash(1), failed(1_000), at(5_000));
    assert_eq!(cache.on(3, peer(3), at(5_000)), Next::Ask(3));
    cache.end(&hash(3), failed(0), at(6_000));
    for n in [4, 5] {
        assert_eq!(cache.on(n, peer(4), at(6_000)), Next::Ask(n), "this failure says nothing about others");
    }
    cache.end(&hash(4), failed(1_000), at(7_000));
    assert_eq!(not_now(cache.on(6, peer(6), at(7_000))), "away", "no answer came since it began");
}
