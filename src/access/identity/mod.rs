//! How callers prove who they are. Each `[[identity]]` of the settings is a source; they are tried in their order.
//!
//! A proof that no source takes is never ignored: such a caller is refused, whatever else it shows.
//!
//! - [`tokens`]: bearer tokens of a file. [`certificates`]: client certificates. [`jwt`]: tokens of OIDC issuers.
//! - [`kubernetes`]: tokens of ServiceAccounts. `review_cache`: which of them the API server is asked about.
//!   `unverified`: what a token says of itself.

pub mod certificates;
pub mod jwt;
pub mod kubernetes;
mod review_cache;
pub mod tokens;
mod unverified;

use std::{net::IpAddr, sync::Arc};

use http::{HeaderMap, HeaderName};
use thiserror::Error;

use super::principal::Principal;
use crate::{
    config::{Fault, IdentityKind, IdentitySettings, Settings},
    fence::WallMs,
    tls::{Certificate, renewed::Wrong},
};

/// The longest bearer token, in bytes.
pub const BEARER_BYTES_MAX: usize = 16_384;

/// The bearer token in a header, if the header is there. `called`: the header's name, for people.
///
/// # Errors
/// What is wrong with the header; the text never quotes it.
pub fn bearer<'a>(headers: &'a HeaderMap, name: &HeaderName, called: &str) -> Result<Option<&'a str>, String> {
    let mut given = headers.get_all(name).iter();
    let value = match (given.next(), given.next()) {
        (None, _) => return Ok(None),
        (Some(_), Some(_)) => return Err(format!("{called} was sent twice")),
        (Some(value), None) => value.to_str().map_err(|_| format!("{called} is not ASCII"))?,
    };
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    let token = token.trim_matches(' ');
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(format!("{called} is not of the form Bearer TOKEN"));
    }
    if token.len() > BEARER_BYTES_MAX {
        return Err(format!("the bearer token is longer than {BEARER_BYTES_MAX} bytes"));
    }
    Ok(Some(token))
}

/// What a caller shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown<'a> {
    pub bearer: Option<&'a str>,
    pub certificate: Option<&'a Certificate>,
    /// Where the caller is, for limits on what is asked of other servers.
    pub peer: Option<IpAddr>,
}

/// Why it is not known who a caller is.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Unidentified {
    #[error("the caller shows nothing that says who it is")]
    NothingShown,
    /// The text never quotes what was shown.
    #[error("{0}")]
    Refused(String),
    /// A server that knows does not answer, and was not asked about this caller lately.
    #[error("{0}")]
    Unavailable(String),
}

/// The sources, each with its settings.
pub struct Identities(Vec<(IdentitySettings, IdentitySource)>);

#[derive(Clone)]
enum IdentitySource {
    Tokens(Arc<tokens::Tokens>),
    Certificates,
    Kubernetes(Arc<kubernetes::Reviews>),
    Jwt(Arc<jwt::Issuer>),
}

/// What a source says of a caller.
enum Verdict {
    /// It looks at nothing that was shown.
    NotMine,
    Is(Principal),
    Refused(String),
    /// Only a server knows, and it does not answer.
    Unavailable(String),
}

impl Identities {
    /// The sources of these settings. Those whose settings are as `before` keep what they know, such as fetched keys.
    ///
    /// # Errors
    /// With every fault.
    pub fn new(all: &Settings, before: Option<&Self>) -> Result<Self, Vec<Fault>> {
        let (mut sources, mut faults) = (vec![], vec![]);
        let given = &all.identity;
        for (place, settings) in given.iter().enumerate() {
            let mut fault = |key: &str, what: String| faults.push(Fault::new(format!("identity[{place}].{key}"), what));
            if settings.name.is_empty() || settings.name == LOOPBACK {
                fault("name", "must not be empty, and not \"loopback\": grants and the audit log name it".to_owned());
            }
            if given[..place].iter().any(|each| each.name == settings.name) {
                fault("name", "another identity source has this name".to_owned());
            }
            let kept = before.and_then(|before| before.0.iter().find(|(as_before, _)| as_before == settings));
            match kept.map_or_else(|| source(settings, all), |(_, source)| Ok(source.clone())) {
                Ok(source) => sources.push((settings.clone(), source)),
                Err((key, what)) => fault(key, what),
            }
        }
        if faults.is_empty() { Ok(Self(sources)) } else { Err(faults) }
    }

    /// Whether there is no source.
    #[must_use]
    pub fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Who a caller is, by the first source that takes what it shows.
    ///
    /// # Errors
    /// When that is not known.
    pub async fn identify(&self, shown: Shown<'_>, now: WallMs) -> Result<Principal, Unidentified> {
        let by_bearer = match shown.bearer {
            Some(bearer) => Some(self.by_bearer(bearer, shown.peer, now).await?),
            None => None,
        };
        match (by_bearer, self.by_certificate(shown.certificate, now)) {
            (Some((place, _)), Ok((earlier, who))) if earlier < place => Ok(who),
            (Some((_, who)), _) | (None, Ok((_, who))) => Ok(who),
            (None, Err(why)) => Err(why),
        }
    }

    fn by_certificate(&self, shown: Option<&Certificate>, now: WallMs) -> Result<(usize, Principal), Unidentified> {
        let mut why = Unidentified::NothingShown;
        for (place, (settings, source)) in self.0.iter().enumerate() {
            let IdentitySource::Certificates = source else { continue };
            match certificates::identify(&settings.name, shown, now) {
                Verdict::Is(who) => return Ok((place, who)),
                Verdict::Refused(what) => why = Unidentified::Refused(what),
                Verdict::NotMine | Verdict::Unavailable(_) => {}
            }
        }
        Err(why)
    }

    async fn by_bearer(
        &self,
        bearer: &str,
        peer: Option<IpAddr>,
        now: WallMs,
    ) -> Result<(usize, Principal), Unidentified> {
        let mut why = None;
        for (place, (settings, source)) in self.0.iter().enumerate() {
            let verdict = match source {
                IdentitySource::Certificates => Verdict::NotMine,
                IdentitySource::Tokens(tokens) => tokens.identify(&settings.name, bearer, now),
                IdentitySource::Kubernetes(reviews) => reviews.identify(&settings.name, bearer, peer, now).await,
                IdentitySource::Jwt(issuer) => issuer.identify(&settings.name, bearer, now).await,
            };
            match verdict {
                Verdict::NotMine => {}
                Verdict::Is(who) => return Ok((place, who)),
                // A source that cannot say may be the one that would take it.
                Verdict::Unavailable(what) => why = Some(Unidentified::Unavailable(what)),
                Verdict::Refused(what) => why = why.or(Some(Unidentified::Refused(what))),
            }
        }
        Err(why.unwrap_or_else(|| {
            Unidentified::Refused("no identity source of this gate takes this kind of bearer token".to_owned())
        }))
    }
}

/// The source of callers that need no proof.
const LOOPBACK: &str = "loopback";

fn source(settings: &IdentitySettings, all: &Settings) -> Result<IdentitySource, Wrong> {
    let binds = all.route.iter().any(|route| route.bind_holder);
    let authorities = [Some(&all.api.tls_client_ca_file), Some(&all.gate.tls_client_ca_file).filter(|_| binds)];
    let asks_for_certificates = authorities.into_iter().flatten().any(|path| !path.as_os_str().is_empty());
    match settings.kind {
        IdentityKind::Tokens => {
            tokens::Tokens::new(&settings.file).map(|tokens| IdentitySource::Tokens(Arc::new(tokens)))
        }
        IdentityKind::Mtls if !asks_for_certificates => {
            Err(("kind", "\"mtls\" needs api.tls_client_ca_file: the authorities of callers' certificates".to_owned()))
        }
        IdentityKind::Mtls => Ok(IdentitySource::Certificates),
        IdentityKind::Kubernetes => kubernetes::Reviews::new(settings, &all.kubernetes)
            .map(|reviews| IdentitySource::Kubernetes(Arc::new(reviews))),
        IdentityKind::Jwt => jwt::Issuer::new(settings).map(|issuer| IdentitySource::Jwt(Arc::new(issuer))),
    }
}
