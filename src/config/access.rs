//! Settings of who may call the api: how callers prove who they are, and what each may do.

use std::{fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

/// What holds for every caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessSettings {
    pub loopback: Loopback,
    /// Calls of one principal per second, on average; renewals and releases are counted apart.
    pub calls_per_second: u32,
    /// How many of these at once.
    pub calls_burst: u32,
    /// Calls of one principal in progress, those that wait and watch included.
    pub calls_at_once: usize,
}

/// A caller on the gate's own machine that shows no proof of who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loopback {
    /// It may do everything.
    Trusted,
    /// It is asked for one like any other.
    Authenticate,
}

/// One source of identities.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IdentitySettings {
    pub name: String,
    pub kind: IdentityKind,
    /// tokens: the file that `fencegate access token new` writes. jwt: the issuer's keys, as a JWK set.
    pub file: PathBuf,
    /// kubernetes, jwt: the audience that a token must be for.
    pub audience: String,
    /// kubernetes: how long the API server's answer about a token counts.
    pub cache_ms: u64,
    /// jwt: the issuer that a token must name.
    pub issuer: String,
    /// jwt: where the issuer's keys are, instead of `file`.
    pub url: String,
    /// jwt: the authorities of that server's certificate; empty: those that the system trusts.
    pub ca_file: PathBuf,
    /// jwt: how often the keys are fetched again.
    pub refresh_ms: u64,
    /// jwt: the signature algorithms that are taken.
    pub algorithms: Vec<String>,
    /// jwt: the claim that names the principal.
    pub principal_claim: String,
    /// jwt: the claim that lists its groups; empty: none.
    pub groups_claim: String,
}

/// How callers of a source prove who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdentityKind {
    /// A bearer token of a file.
    Tokens,
    /// A certificate from an authority in `api.tls_client_ca_file`.
    Mtls,
    /// A projected token of a Kubernetes ServiceAccount, checked by the API server in `[kubernetes]`.
    Kubernetes,
    /// A signed token of an OIDC issuer.
    Jwt,
}

/// Who may do what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GrantSettings {
    pub name: String,
    pub principals: Vec<String>,
    pub groups: Vec<String>,
    /// Only principals of these identity sources; empty: of all.
    pub sources: Vec<String>,
    pub operations: Vec<Operation>,
    pub objects: Vec<String>,
    /// The holder of the leases that are acquired by it.
    pub holder: String,
}

/// A kind of calls. Each call of the api belongs to exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Take leases in its own name, renew them, release them, take them over.
    Acquire,
    /// List, get and watch leases, look at objects and receipts, check tokens.
    Read,
    /// Move fences, confirm objects, copy the table.
    Operate,
    /// Send signed certificates and grants, ask for fences and migrations.
    Issue,
    /// Tell the gate a newer number of an outside lock service.
    Advance,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Acquire, Self::Read, Self::Operate, Self::Issue, Self::Advance];

    /// Its name in settings, in the audit log and in refusals.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Issue => "issue",
            Self::Advance => "advance",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Default for AccessSettings {
    fn default() -> Self {
        Self { loopback: Loopback::Trusted, calls_per_second: 100, calls_burst: 200, calls_at_once: 256 }
    }
}

impl Default for IdentitySettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            kind: IdentityKind::Tokens,
            file: PathBuf::new(),
            audience: "fencegate".to_owned(),
            cache_ms: 10_000,
            issuer: String::new(),
            url: String::new(),
            ca_file: PathBuf::new(),
            refresh_ms: 300_000,
            algorithms: vec![],
            principal_claim: "sub".to_owned(),
            groups_claim: String::new(),
        }
    }
}

impl Default for GrantSettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            principals: vec![],
            groups: vec![],
            sources: vec![],
            operations: vec![],
            objects: vec![],
            holder: "{principal}".to_owned(),
        }
    }
}
