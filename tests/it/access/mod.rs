//! Who may call the api: identity, grants, and what callers see, over real TLS.

mod agent;
mod audit;
mod calls;
mod commands;
mod holder;
mod identity;
mod kubernetes;
mod machines;
mod rights;

use std::path::PathBuf;

use fencegate::{
    access::identity::tokens::{self, Rows},
    config::{GrantSettings, IdentityKind, IdentitySettings, Operation, Settings},
};

use super::support::{
    authority::Authority,
    gate::{TestGate, settings},
    http::Conn,
};

/// A gate whose api has TLS, a file of tokens, and client certificates.
pub struct World {
    pub gate: TestGate,
    pub authority: Authority,
    pub settings: Settings,
    pub rows: Rows,
}

/// A grant of every operation to a principal.
pub fn grant(name: &str, principal: &str, objects: &[&str]) -> GrantSettings {
    GrantSettings {
        name: name.to_owned(),
        principals: vec![principal.to_owned()],
        operations: Operation::ALL.to_vec(),
        objects: objects.iter().map(|text| (*text).to_owned()).collect(),
        ..GrantSettings::default()
    }
}

impl World {
    /// With these grants. Principals are made by [`Self::token`] and [`Authority::sign`].
    pub fn with(grants: Vec<GrantSettings>, change: impl FnOnce(&mut Settings)) -> Self {
        let (authority, mut settings) = (Authority::new(), settings());
        let file = authority.folder.path().join("tokens.toml");
        tokens::write(&file, &Rows::default()).unwrap();
        let (cert, key) = authority.sign("gate.test");
        (settings.api.tls_cert_file, settings.api.tls_key_file) = (cert, key);
        settings.api.tls_client_ca_file = authority.ca();
        settings.identity = vec![
            IdentitySettings { name: "files".to_owned(), file, ..IdentitySettings::default() },
            IdentitySettings { name: "certs".to_owned(), kind: IdentityKind::Mtls, ..IdentitySettings::default() },
        ];
        settings.grant = grants;
        change(&mut settings);
        assert_eq!(settings.all_faults(), vec![]);
        Self { gate: TestGate::with(&settings), authority, settings, rows: Rows::default() }
    }

    pub fn new(grants: Vec<GrantSettings>) -> Self {
        Self::with(grants, |_| {})
    }

    /// A bearer token that names this principal.
    pub fn token(&mut self, name: &str) -> String {
        let token = self.rows.add(name, vec![], None).unwrap();
        self.write_tokens();
        token
    }

    pub fn write_tokens(&self) {
        tokens::write(&self.settings.identity[0].file, &self.rows).unwrap();
    }

    /// A connection that shows a token, if there is one.
    pub fn bearing(&self, token: &str) -> Conn {
        self.shows(None).bearing(token)
    }

    /// A connection that shows a certificate, if there is one.
    pub fn shows(&self, certificate: Option<&(PathBuf, PathBuf)>) -> Conn {
        Conn::tls(self.gate.running().api, "gate.test", &self.authority.ca(), certificate).unwrap()
    }

    /// A connection that names this principal, by a new token.
    pub fn as_(&mut self, name: &str) -> Conn {
        let token = self.token(name);
        self.bearing(&token)
    }

    /// Other grants, as by SIGHUP.
    pub fn reload(&mut self, grants: Vec<GrantSettings>) {
        self.settings.grant = grants;
        self.gate.reload(&self.settings);
    }
}
