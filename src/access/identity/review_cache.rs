//! Which tokens the API server has judged lately, and whether it may be asked about another one. Without I/O.
//!
//! Anyone can send tokens, so all of this has bounds: the answers that are kept, the reviews in progress, and those of
//! one address. A token that was accepted before goes first: new tokens leave some places free for it, and its address
//! does not count. So a flood of wrong tokens keeps no known caller out. Time is an argument, on the boot clock.

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, Ipv6Addr},
};

use crate::{access::principal::Principal, fence::BootMs};

/// The most answers that are kept.
const ANSWERS_MAX: usize = 4_096;
/// The most reviews in progress.
const REVIEWS_MAX: usize = 16;
/// Of these, those that tokens which were never accepted leave free.
const PLACES_KEPT: usize = 4;
/// The most reviews in progress of one address, for tokens that were never accepted.
const ADDRESS_MAX: usize = 4;
/// How long a refused token keeps its address's place: so one address causes at most 40 such reviews a second.
const REFUSED_HOLDS_MS: u64 = 100;
/// The longest that a refusal counts.
const REFUSAL_MS_MAX: u64 = 10_000;

/// The SHA-256 of a token.
pub(super) type Hash = [u8; 32];

/// What the API server has said of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Is(Principal),
    Refused(String),
}

/// How a review has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// `left_ms`: until the end of the token itself, counted from the beginning of the review.
    Answered { answer: Answer, left_ms: u64 },
    /// `pause_ms`: how long the API server is not asked again; 0 if this says nothing about other tokens.
    Failed { what: String, pause_ms: u64 },
}

/// What is to be done about a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next<W> {
    Known(Answer),
    /// A review of this token is in progress.
    Join(W),
    /// Its review begins now: the caller makes it, and then calls [`Cache::end`].
    Ask(W),
    /// The API server must not be asked now, for this reason.
    NotNow(String),
}

/// `W`: what callers that wait for a review have.
pub(super) struct Cache<W> {
    /// How long an acceptance counts.
    counts_ms: u64,
    answers: HashMap<Hash, Kept>,
    reviews: HashMap<Hash, Review<W>>,
    /// Addresses with a token that was refused lately, and until when that counts, the oldest first.
    refused: VecDeque<(Address, BootMs)>,
    failing: Option<Failing>,
    /// When the API server last answered.
    answered: Option<BootMs>,
}

struct Kept {
    answer: Answer,
    at: BootMs,
    /// An acceptance that has ended stays, without effect, to say that this token goes first.
    until: BootMs,
}

struct Review<W> {
    waits: W,
    at: BootMs,
    address: Address,
    goes_first: bool,
}

/// The API server is away.
struct Failing {
    what: String,
    /// Then one review may try again.
    until: BootMs,
}

type Address = Option<IpAddr>;

/// The network that counts as one address: a caller can have a whole /64 of IPv6.
fn network(peer: Option<IpAddr>) -> Address {
    peer.map(|peer| match peer.to_canonical() {
        IpAddr::V6(each) => IpAddr::V6(Ipv6Addr::from_bits(each.to_bits() & !u128::from(u64::MAX))),
        each @ IpAddr::V4(_) => each,
    })
}

impl<W: Clone> Cache<W> {
    /// Keeps an acceptance for so long, and a refusal for no longer.
    pub(super) fn new(counts_ms: u64) -> Self {
        let (answers, reviews) = (HashMap::new(), HashMap::new());
        Self { counts_ms, answers, reviews, refused: VecDeque::new(), failing: None, answered: None }
    }

    /// What is to be done about a token that this peer shows.
    pub(super) fn look(
        &mut self,
        hash: &Hash,
        peer: Option<IpAddr>,
        now: BootMs,
        waits: impl FnOnce() -> W,
    ) -> Next<W> {
        let kept = self.answers.get(hash);
        if let Some(kept) = kept.filter(|kept| now < kept.until) {
            return Next::Known(kept.answer.clone());
        }
        if let Some(review) = self.reviews.get(hash) {
            return Next::Join(review.waits.clone());
        }
        let goes_first = kept.is_some_and(|kept| matches!(kept.answer, Answer::Is(_)));
        let address = network(peer);
        if let Some(why) = self.hindrance(address, goes_first, now) {
            return Next::NotNow(why);
        }
        let waits = waits();
        self.reviews.insert(*hash, Review { waits: waits.clone(), at: now, address, goes_first });
        Next::Ask(waits)
    }

    /// Why no other review may begin now.
    fn hindrance(&mut self, address: Address, goes_first: bool, now: BootMs) -> Option<String> {
        if let Some(failing) = self.failing.as_ref().filter(|each| now < each.until || !self.reviews.is_empty()) {
            return Some(failing.what.clone());
        }
        let places = if goes_first { REVIEWS_MAX } else { REVIEWS_MAX - PLACES_KEPT };
        if self.reviews.len() >= places {
            return Some("too many tokens are being checked by the API server".to_owned());
        }
        if !goes_first && self.of_address(address, now) >= ADDRESS_MAX {
            return Some("too many tokens from this address are being checked by the API server".to_owned());
        }
        None
    }

    fn of_address(&mut self, address: Address, now: BootMs) -> usize {
        while self.refused.front().is_some_and(|(_, until)| *until <= now) {
            self.refused.pop_front();
        }
        let in_progress = self.reviews.values().filter(|each| !each.goes_first && each.address == address).count();
        in_progress + self.refused.iter().filter(|(each, _)| *each == address).count()
    }

    /// A review has ended.
    pub(super) fn end(&mut self, hash: &Hash, ended: Ended, now: BootMs) {
        let Some(review) = self.reviews.remove(hash) else { return };
        match ended {
            Ended::Answered { answer, left_ms } => {
                (self.failing, self.answered) = (None, Some(now));
                if !review.goes_first && matches!(answer, Answer::Refused(_)) && self.refused.len() < ANSWERS_MAX {
                    self.refused.push_back((review.address, BootMs(now.0.saturating_add(REFUSED_HOLDS_MS))));
                }
                self.keep(hash, answer, review.at, left_ms);
            }
            // Other tokens were answered meanwhile: the API server is not away.
            Ended::Failed { .. } if self.answered.is_some_and(|answered| answered >= review.at) => {}
            Ended::Failed { pause_ms: 0, .. } => {}
            Ended::Failed { what, pause_ms } => {
                self.failing = Some(Failing { what, until: BootMs(now.0.saturating_add(pause_ms)) });
            }
        }
    }

    fn keep(&mut self, hash: &Hash, answer: Answer, at: BootMs, left_ms: u64) {
        self.answers.remove(hash);
        let counts_ms = match answer {
            Answer::Is(_) => self.counts_ms.min(left_ms),
            Answer::Refused(_) if self.counts_ms == 0 => return,
            Answer::Refused(_) => self.counts_ms.min(REFUSAL_MS_MAX),
        };
        if self.answers.len() >= ANSWERS_MAX {
            self.make_room(at);
        }
        self.answers.insert(*hash, Kept { answer, at, until: BootMs(at.0.saturating_add(counts_ms)) });
    }

    /// Drops one answer: a refusal that has ended, else the oldest refusal, else an acceptance that has ended, else the
    /// oldest.
    fn make_room(&mut self, now: BootMs) {
        let rank = |kept: &Kept| (matches!(kept.answer, Answer::Is(_)), now < kept.until, kept.at);
        let last = self.answers.iter().min_by_key(|(_, kept)| rank(kept)).map(|(hash, _)| *hash);
        last.map(|hash| self.answers.remove(&hash));
    }
}

#[cfg(test)]
#[path = "review_cache_tests.rs"]
mod tests;
