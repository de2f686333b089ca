//! Signed tokens of an OIDC issuer (JWT), checked by the issuer's public keys.
//!
//! The checks of time, audience and form are here and in `token`. Of the crate `jsonwebtoken` only the check of a
//! signature is used: its checks of claims read a clock. It is imported below this module only.
//!
//! - `token`: a token's form and claims. `keys`: a JWK set, and signatures by its keys. `remote`: a set that is fetched
//!   from the issuer.
//!
//! What a token says is believed only after its signature was checked. Texts of refusals never quote a token.

mod keys;
mod remote;
mod token;

use std::{fs::File, io::Read, path::Path, sync::Arc, time::Duration};

use self::{
    keys::{Algorithm, Found, Keys},
    remote::{Pace, Remote},
    token::Token,
};
use super::Verdict;
use crate::{
    access::principal::{Kind, Principal},
    config::IdentitySettings,
    fence::WallMs,
    tls::renewed::{Renewed, Wrong},
};

/// The longest JWK set, in bytes.
const SET_BYTES_MAX: usize = 1 << 20;
/// The most claims of one token that templates can use, and the longest of them in bytes.
const CAPTURES_MAX: usize = 64;
const CAPTURE_BYTES_MAX: usize = 256;
/// How long a fetch of keys may take, and how far apart two are.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
const FETCH_GAP: Duration = Duration::from_secs(10);

/// One issuer, and its keys.
pub struct Issuer {
    /// As tokens have it in `iss`.
    name: String,
    audience: String,
    algorithms: Vec<Algorithm>,
    principal_claim: String,
    groups_claim: String,
    keys: Source,
}

/// Where the keys come from.
enum Source {
    File(Renewed<Keys>),
    Url(Arc<Remote>),
}

impl Issuer {
    /// The issuer of these settings. A file of keys is read; a URL is fetched when the first token comes.
    ///
    /// # Errors
    /// The wrong key of the settings, and what is wrong with it.
    pub fn new(settings: &IdentitySettings) -> Result<Self, Wrong> {
        let refresh = Duration::from_millis(settings.refresh_ms);
        if refresh < FETCH_GAP {
            return Err((
                "refresh_ms",
                format!("must be at least {}: keys are not fetched more often", FETCH_GAP.as_millis()),
            ));
        }
        Self::with(settings, Pace { refresh, gap: FETCH_GAP, timeout: FETCH_TIMEOUT })
    }

    fn with(settings: &IdentitySettings, pace: Pace) -> Result<Self, Wrong> {
        let named = [
            ("issuer", &settings.issuer, "must be the issuer's name, as tokens have it in the claim iss"),
            ("audience", &settings.audience, "must be what tokens for this gate have in the claim aud"),
            ("principal_claim", &settings.principal_claim, "must name the claim that has the principal's name"),
        ];
        if let Some((key, _, what)) = named.into_iter().find(|(_, value, _)| value.is_empty()) {
            return Err((key, what.to_owned()));
        }
        Ok(Self {
            name: settings.issuer.clone(),
            audience: settings.audience.clone(),
            algorithms: keys::algorithms(&settings.algorithms).map_err(|what| ("algorithms", what))?,
            principal_claim: settings.principal_claim.clone(),
            groups_claim: settings.groups_claim.clone(),
            keys: source(settings, pace)?,
        })
    }

    pub(super) async fn identify(&self, source: &str, bearer: &str, now: WallMs) -> Verdict {
        match Token::read(bearer) {
            Some(token) if token.issuer() == Some(&self.name) => {
                self.check(source, &token, now).await.map_or_else(|not| not, Verdict::Is)
            }
            _ => Verdict::NotMine,
        }
    }

    /// The principal that a token names. The checks that need no key come first, so that a token that cannot be right
    /// causes no fetch.
    async fn check(&self, source: &str, token: &Token<'_>, now: WallMs) -> Result<Principal, Verdict> {
        token.check_form().map_err(refused)?;
        let algorithm = self.algorithms.iter().find(|algorithm| algorithm.name() == token.algorithm());
        let algorithm =
            *algorithm.ok_or_else(|| refused("is signed by an algorithm that is not in the source's `algorithms`"))?;
        let until = token.check_times(now).map_err(refused)?;
        token.check_audience(&self.audience).map_err(refused)?;
        let key = token.key().map_err(refused)?;
        self.check_signature(token, key, algorithm).await?;
        Ok(self.principal(source, token)?.until(until))
    }

    async fn check_signature(&self, token: &Token<'_>, key: Option<&str>, by: Algorithm) -> Result<(), Verdict> {
        let mut keys = self.keys.present().await?;
        if matches!(keys.find(key, by), Found::Unknown) {
            keys = self.keys.newer(keys).await;
        }
        match keys.find(key, by) {
            Found::Key(key) if key.has_signed(token.signature(), token.message(), by) => Ok(()),
            Found::Key(_) => Err(refused("has a signature that its issuer's key did not make")),
            Found::Unknown => Err(refused("names a key that is not among its issuer's keys")),
            Found::Unfit => Err(refused("names a key of its issuer that is not for its algorithm")),
            Found::Unnamed => Err(refused("names no key (kid), and its issuer has more than one")),
        }
    }

    /// The principal of a token that has passed every check.
    fn principal(&self, source: &str, token: &Token<'_>) -> Result<Principal, Verdict> {
        let claim = &self.principal_claim;
        let name = token.text(claim);
        let name =
            name.ok_or_else(|| refused(format!("has no text in the claim {claim:?}, which names its principal")))?;
        let who = Principal::new(Kind::Jwt, source, name)
            .map_err(|fault| refused(format!("names no usable principal: the claim {claim:?} {fault}")))?;
        let claims = token.texts().filter(|(_, value)| value.len() <= CAPTURE_BYTES_MAX).take(CAPTURES_MAX);
        let who = claims.fold(who, |who, (claim, value)| who.with(&format!("jwt.{claim}"), value));
        if self.groups_claim.is_empty() {
            return Ok(who);
        }
        Ok(who.in_groups(token.list(&self.groups_claim).map_err(refused)?))
    }
}

/// A refusal of a token of this issuer.
fn refused(what: impl std::fmt::Display) -> Verdict {
    Verdict::Refused(format!("this JWT {what}"))
}

impl Source {
    /// The issuer's keys.
    async fn present(&self) -> Result<Arc<Keys>, Verdict> {
        match self {
            Self::File(keys) => Ok(keys.get()),
            Self::Url(remote) => remote.present().await.map_err(|what| {
                Verdict::Unavailable(format!("the keys of this JWT's issuer cannot be fetched: {what}"))
            }),
        }
    }

    /// The keys, for a token whose key is not among `keys`. A file was read a moment ago.
    async fn newer(&self, keys: Arc<Keys>) -> Arc<Keys> {
        match self {
            Self::File(_) => keys,
            Self::Url(remote) => remote.newer(keys).await,
        }
    }
}

fn source(settings: &IdentitySettings, pace: Pace) -> Result<Source, Wrong> {
    let has_file = !settings.file.as_os_str().is_empty();
    let has_ca = !settings.ca_file.as_os_str().is_empty();
    match (has_file, settings.url.is_empty()) {
        (true, true) if has_ca => Err(("ca_file", "is for the server of `url`; a file of keys needs none".to_owned())),
        (true, true) => {
            let path = settings.file.clone();
            let read = move || read(&path).map_err(|what| ("file", what));
            Renewed::new("an issuer's keys", vec![settings.file.clone()], read).map(Source::File)
        }
        (false, false) => Remote::new(settings, pace).map(|remote| Source::Url(Arc::new(remote))),
        (true, false) => Err(("url", "and `file` say both where the issuer's keys are: leave one out".to_owned())),
        (false, true) => Err(("url", "must say where the issuer's keys (its jwks_uri) are, or `file` must".to_owned())),
    }
}

/// Reads a file with a JWK set.
fn read(path: &Path) -> Result<Keys, String> {
    let wrong = |what: String| format!("{}: {what}", path.display());
    let mut bytes = vec![];
    let limit = SET_BYTES_MAX as u64 + 1;
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    file.take(limit).read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
    if bytes.len() > SET_BYTES_MAX {
        return Err(wrong(format!("is longer than {SET_BYTES_MAX} bytes")));
    }
    Keys::read(&bytes).map_err(wrong)
}

#[cfg(test)]
mod remote_tests;
#[cfg(test)]
mod signer_tests;
#[cfg(test)]
mod tests;
