//! A term of leadership by a Kubernetes Lease: which Lease object it was (its uid), and how often that Lease had
//! changed hands by then.
//!
//! Controllers that elect a leader with client-go read both from their own Lease, so their token needs no lease
//! api: `k8s.<uid>.<leaseTransitions>`. Within one uid, more transitions are later. Two uids cannot be compared: a
//! Lease that was deleted and made anew counts from 0 again.

use std::fmt;

use super::token::TokenFault;

/// The name of a Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseName {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Lease object's uid. The API server never uses one twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid(pub u128);

/// One term of leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Election {
    pub uid: Uid,
    pub transitions: u32,
}

const PREFIX: &str = "k8s.";
/// A uid's one spelling: 8-4-4-4-12 digits.
const UID_LENGTH: usize = 36;

impl Uid {
    /// Reads a uid in its one spelling.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let uid = uuid::Uuid::try_parse(text).ok().filter(|_| text.len() == UID_LENGTH)?;
        Some(Self(uid.as_u128())).filter(|uid| uid.to_string() == text)
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_u128(self.0).hyphenated().fmt(f)
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The status of a term, by what the API server says of its Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermStatus {
    /// The Lease is in this term.
    Present,
    /// The Lease has not come to this term yet.
    Ahead,
    /// The Lease is past this term, or is another Lease, or is gone.
    Over,
}

impl Election {
    /// Reads a token `k8s.<uid>.<leaseTransitions>`, in its one spelling.
    ///
    /// # Errors
    /// When the text is not such a token.
    pub fn parse(text: &str) -> Result<Self, TokenFault> {
        let (uid, transitions) =
            text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('.')).ok_or(TokenFault::Election)?;
        let uid = Uid::parse(uid).ok_or(TokenFault::Election)?;
        // leaseTransitions is an int32 that is never negative.
        let is_plain = transitions.bytes().all(|byte| byte.is_ascii_digit());
        let is_canonical = is_plain && (transitions == "0" || !transitions.starts_with('0'));
        let transitions = transitions.parse::<i32>().ok().filter(|_| is_canonical);
        let transitions = transitions.and_then(|n| u32::try_from(n).ok()).ok_or(TokenFault::Election)?;
        Ok(Self { uid, transitions })
    }

    /// The status of this term. `present`: the term that its Lease is in; `None`: there is no such Lease.
    #[must_use]
    pub fn status(self, present: Option<Self>) -> TermStatus {
        match present {
            Some(present) if present == self => TermStatus::Present,
            Some(present) if present.is_before(self) => TermStatus::Ahead,
            Some(_) | None => TermStatus::Over,
        }
    }

    /// Whether this term is over because the other one has begun.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        self.uid == other.uid && self.transitions < other.transitions
    }
}

impl fmt::Display for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}.{}", self.uid, self.transitions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "8f2d3c1a-0b4e-4c6d-9a7f-112233445566";

    #[test]
    fn a_token_has_one_spelling() {
        for transitions in ["0", "7", "2147483647"] {
            let text = format!("k8s.{UID}.{transitions}");
            assert_eq!(Election::parse(&text).unwrap().to_string(), text);
        }
        let upper = UID.to_uppercase();
        let simple = UID.replace('-', "");
        for odd in [
            "",
            "k8s.",
            "7",
            &format!("k8s.{UID}"),
            &format!("k8s.{UID}."),
            &format!("k8s.{UID}.07"),
            &format!("k8s.{UID}.+7"),
            &format!("k8s.{UID}.-1"),
            &format!("k8s.{UID}.2147483648"),
            &format!("k8s.{UID}.1.2"),
            &format!("k8s.{UID}.1 "),
            &format!("k8s.{upper}.1"),
            &format!("k8s.{simple}.1"),
            &format!("k8s.{{{UID}}}.1"),
            &format!("K8S.{UID}.1"),
        ] {
            assert_eq!(Election::parse(odd), Err(TokenFault::Election), "{odd:?}");
        }
    }

    #[test]
    fn only_terms_of_one_uid_have_an_order() {
        let first = Election { uid: Uid(1), transitions: 3 };
        assert!(first.is_before(Election { transitions: 4, ..first }));
        assert!(!first.is_before(first) && !Election { transitions: 4, ..first }.is_before(first));
        assert!(!first.is_before(Election { uid: Uid(2), transitions: 4 }));
    }

    #[test]
    fn a_term_is_present_ahead_or_over() {
        let term = Election { uid: Uid(1), transitions: 3 };
        assert_eq!(term.status(Some(term)), TermStatus::Present);
        assert_eq!(term.status(Some(Election { transitions: 2, ..term })), TermStatus::Ahead);
        assert_eq!(term.status(Some(Election { transitions: 4, ..term })), TermStatus::Over);
        assert_eq!(term.status(Some(Election { uid: Uid(2), transitions: 0 })), TermStatus::Over);
        assert_eq!(term.status(None), TermStatus::Over);
    }
}
