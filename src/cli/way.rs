//! The way to a running gate's api: its address, and how the command proves who it is.

use std::path::PathBuf;

use crate::client::{CallFault, Client, Credentials, LeaseApi};

/// The gate's api.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Way {
    /// The gate's api: http on this machine, https elsewhere.
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8081",
        env = "FENCEGATE_API",
        hide_env_values = true
    )]
    pub(super) api: String,
    #[command(flatten)]
    pub(super) credentials: Shown,
}

/// What to show to the gate.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Shown {
    /// A file with a bearer token for the gate's api, read again for each call.
    #[arg(long, value_name = "FILE", env = "FENCEGATE_TOKEN_FILE", hide_env_values = true)]
    token_file: Option<PathBuf>,
    /// The authorities of the gate's certificate, as PEM. Left out: those that the system trusts.
    #[arg(long, value_name = "FILE", env = "FENCEGATE_CA_FILE", hide_env_values = true)]
    ca: Option<PathBuf>,
    /// The certificate to show to the gate, as PEM.
    #[arg(long, value_name = "FILE", env = "FENCEGATE_CERT_FILE", hide_env_values = true, requires = "key")]
    cert: Option<PathBuf>,
    /// The certificate's key, as PEM.
    #[arg(long, value_name = "FILE", env = "FENCEGATE_KEY_FILE", hide_env_values = true, requires = "cert")]
    key: Option<PathBuf>,
}

/// The same for commands whose `--key` is another one.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct ShownBesideKey {
    /// A file with a bearer token for the gate's api, read again for each call.
    #[arg(long, value_name = "FILE", env = "FENCEGATE_TOKEN_FILE", hide_env_values = true)]
    token_file: Option<PathBuf>,
    /// The authorities of the gate's certificate, as PEM. Left out: those that the system trusts.
    #[arg(long, value_name = "FILE", env = "FENCEGATE_CA_FILE", hide_env_values = true)]
    ca: Option<PathBuf>,
    /// The certificate to show to the gate, as PEM.
    #[arg(long, value_name = "FILE", env = "FENCEGATE_CERT_FILE", hide_env_values = true, requires = "cert_key")]
    cert: Option<PathBuf>,
    /// The certificate's key, as PEM.
    #[arg(long, value_name = "FILE", env = "FENCEGATE_KEY_FILE", hide_env_values = true, requires = "cert")]
    cert_key: Option<PathBuf>,
}

impl From<ShownBesideKey> for Shown {
    fn from(ShownBesideKey { token_file, ca, cert, cert_key }: ShownBesideKey) -> Self {
        Self { token_file, ca, cert, key: cert_key }
    }
}

impl Shown {
    fn credentials(&self) -> Credentials {
        Credentials {
            token_file: self.token_file.clone(),
            ca_file: self.ca.clone(),
            certificate: self.cert.clone().zip(self.key.clone()),
            server_name: None,
        }
    }

    /// A client of the api at this URL.
    pub(super) fn client(&self, api: &str) -> Result<Client, CallFault> {
        Client::with(api, &self.credentials())
    }

    /// Whether there is anything to show.
    pub(super) fn is_some(&self) -> bool {
        self.token_file.is_some() || self.cert.is_some()
    }
}

impl Way {
    pub(super) fn client(&self) -> Result<Client, CallFault> {
        self.credentials.client(&self.api)
    }

    pub(super) fn lease_api(&self) -> Result<LeaseApi, CallFault> {
        LeaseApi::with(&self.api, &self.credentials.credentials())
    }
}
