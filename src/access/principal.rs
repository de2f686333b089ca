//! A principal: who a caller is, as an identity source found out.
//!
//! Two sources must not make the same name of two callers. So names that begin with `system:` are Kubernetes' alone,
//! and names that begin with `spiffe:` are those of certificates.

use std::{collections::BTreeMap, fmt};

use thiserror::Error;

use crate::fence::WallMs;

/// The longest name of a principal or a group, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// The beginning of a ServiceAccount's name.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// What a source of identities is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No proof: the caller is on the gate's own machine.
    Loopback,
    Kubernetes,
    Jwt,
    Mtls,
    Tokens,
}

impl Kind {
    /// The beginnings of names that only this kind may give.
    const fn owns(self) -> &'static [&'static str] {
        match self {
            Self::Kubernetes => &["system:"],
            Self::Mtls => &["spiffe:"],
            Self::Loopback | Self::Jwt | Self::Tokens => &[],
        }
    }

    const OWNERS: [Self; 2] = [Self::Kubernetes, Self::Mtls];
}

/// Why a text is no principal's name.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NameFault {
    #[error("is empty")]
    Empty,
    #[error("is longer than {NAME_BYTES_MAX} bytes")]
    TooLong,
    #[error("has a control character or a space")]
    Character,
    #[error("begins with {0}, which only another kind of identity source may give")]
    Reserved(&'static str),
    #[error("begins or ends with a slash, or has two in a row")]
    Slash,
}

/// Who a caller is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    name: String,
    groups: Vec<String>,
    source: String,
    kind: Kind,
    captures: BTreeMap<String, String>,
    /// When the proof ends, if it has an end.
    until: Option<WallMs>,
}

impl Principal {
    /// A principal with this name, from a source of this kind. `source` is the source's name in the settings.
    ///
    /// # Errors
    /// When the name could be taken for another principal's, or cannot be shown.
    pub fn new(kind: Kind, source: &str, name: &str) -> Result<Self, NameFault> {
        check(kind, name)?;
        let mut captures = BTreeMap::from([("principal".to_owned(), name.to_owned())]);
        if let Some((namespace, account)) = service_account(kind, name) {
            captures.insert("serviceaccount.namespace".to_owned(), namespace.to_owned());
            captures.insert("serviceaccount.name".to_owned(), account.to_owned());
        }
        Ok(Self { name: name.to_owned(), groups: vec![], source: source.to_owned(), kind, captures, until: None })
    }

    /// A caller on the gate's own machine, which needs no proof.
    #[must_use]
    pub fn loopback() -> Self {
        let name = "loopback".to_owned();
        let captures = BTreeMap::from([("principal".to_owned(), name.clone())]);
        Self { name: name.clone(), groups: vec![], source: name, kind: Kind::Loopback, captures, until: None }
    }

    /// With these groups. Groups that cannot be shown, or that only another kind of source may give, are left out.
    #[must_use]
    pub fn in_groups(mut self, groups: impl IntoIterator<Item = String>) -> Self {
        let is_own = |group: &String| check_text(group).and_then(|()| check_owner(self.kind, group)).is_ok();
        self.groups = groups.into_iter().filter(is_own).collect();
        self
    }

    /// With one more part of its identity that templates may use.
    #[must_use]
    pub fn with(mut self, capture: &str, value: &str) -> Self {
        if check_text(value).is_ok() {
            self.captures.insert(capture.to_owned(), value.to_owned());
        }
        self
    }

    /// Its proof ends then.
    #[must_use]
    pub fn until(mut self, until: WallMs) -> Self {
        self.until = Some(until);
        self
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    /// The name of its identity source in the settings.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// A part of its identity that templates may use.
    #[must_use]
    pub fn capture(&self, name: &str) -> Option<&str> {
        self.captures.get(name).map(String::as_str)
    }

    /// Whether its kind of source may give this name.
    #[must_use]
    pub fn may_be_called(&self, name: &str) -> bool {
        check(self.kind, name).is_ok()
    }

    /// Whether its proof has ended.
    #[must_use]
    pub fn is_over(&self, now: WallMs) -> bool {
        self.until.is_some_and(|until| now >= until)
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

fn check_text(text: &str) -> Result<(), NameFault> {
    match text {
        "" => Err(NameFault::Empty),
        _ if text.len() > NAME_BYTES_MAX => Err(NameFault::TooLong),
        _ if text.chars().any(|c| c.is_control() || c.is_whitespace()) => Err(NameFault::Character),
        _ => Ok(()),
    }
}

fn check_owner(kind: Kind, name: &str) -> Result<(), NameFault> {
    let mut owned = Kind::OWNERS.into_iter().filter(|owner| *owner != kind).flat_map(Kind::owns);
    owned.find(|begin| begins(name, begin)).map_or(Ok(()), |begin| Err(NameFault::Reserved(begin)))
}

fn check(kind: Kind, name: &str) -> Result<(), NameFault> {
    check_text(name)?;
    check_owner(kind, name)?;
    let path = name.strip_prefix("spiffe://").unwrap_or(name);
    if path.is_empty() {
        return Err(NameFault::Empty);
    }
    if path.starts_with('/') || path.ends_with('/') || path.contains("//") {
        return Err(NameFault::Slash);
    }
    Ok(())
}

/// Whether a name begins so, in upper or lower case: people read both alike.
fn begins(name: &str, with: &str) -> bool {
    name.get(..with.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(with))
}

/// The namespace and the name in a ServiceAccount's name.
fn service_account(kind: Kind, name: &str) -> Option<(&str, &str)> {
    let parts = name.strip_prefix(SERVICE_ACCOUNT).filter(|_| kind == Kind::Kubernetes)?;
    parts.split_once(':').filter(|(namespace, account)| !namespace.is_empty() && !account.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_source_makes_a_name_that_belongs_to_another_kind() {
        let by = |kind, name| Principal::new(kind, "s", name).map(|made| made.name().to_owned());
        let account = "system:serviceaccount:shop:api";
        assert_eq!(by(Kind::Kubernetes, account).as_deref(), Ok(account));
        let id = "spiffe://cluster.local/ns/shop/sa/api";
        assert_eq!(by(Kind::Mtls, id).as_deref(), Ok(id));
        for kind in [Kind::Jwt, Kind::Tokens] {
            for name in [account, "system:admin", "System:admin", "SYSTEM:x"] {
                assert_eq!(by(kind, name), Err(NameFault::Reserved("system:")), "{kind:?} {name}");
            }
            for name in [id, "spiffe:x", "SPIFFE://a/b"] {
                assert_eq!(by(kind, name), Err(NameFault::Reserved("spiffe:")), "{kind:?} {name}");
            }
        }
        assert_eq!(by(Kind::Mtls, account), Err(NameFault::Reserved("system:")));
        assert_eq!(by(Kind::Kubernetes, id), Err(NameFault::Reserved("spiffe:")));
    }

    #[test]
    fn names_that_cannot_be_shown_or_split_are_refused() {
        let by = |name: &str| Principal::new(Kind::Jwt, "s", name).err();
        assert_eq!(by(""), Some(NameFault::Empty));
        assert_eq!(by(&"x".repeat(257)), Some(NameFault::TooLong));
        for name in ["a b", "a\nb", "a\u{0}", "a\u{a0}b", "\u{85}"] {
            assert_eq!(by(name), Some(NameFault::Character), "{name:?}");
        }
        for name in ["/a", "a/", "a//b", "/"] {
            assert_eq!(by(name), Some(NameFault::Slash), "{name}");
        }
        for name in ["a", "auth0|12", "repo:o/r:ref:refs/heads/main", "ä@x", &"x".repeat(256)] {
            assert_eq!(by(name), None, "{name}");
        }
    }

    #[test]
    fn a_service_account_has_a_namespace_and_a_name() {
        let made = Principal::new(Kind::Kubernetes, "cluster", "system:serviceaccount:shop:api").unwrap();
        assert_eq!(
            (made.capture("serviceaccount.namespace"), made.capture("serviceaccount.name")),
            (Some("shop"), Some("api"))
        );
        for name in ["system:serviceaccount::api", "system:serviceaccount:shop:a:b", "system:admin"] {
            let made = Principal::new(Kind::Kubernetes, "cluster", name).unwrap();
            assert_eq!(made.capture("serviceaccount.namespace"), None, "{name}");
        }
    }

    #[test]
    fn a_proof_is_over_at_its_end() {
        let made = Principal::new(Kind::Jwt, "s", "a").unwrap().until(WallMs(1_000));
        assert!(!made.is_over(WallMs(999)) && made.is_over(WallMs(1_000)));
        assert!(!Principal::loopback().is_over(WallMs(u64::MAX)));
    }
}
