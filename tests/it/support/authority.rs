//! Certificates, made when a test starts.

use std::{fs, path::PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};

/// An authority and certificates that it has signed, as PEM files.
pub struct Authority {
    pub folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "the authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A certificate for `name`, and its key.
    pub fn sign(&self, name: &str) -> (PathBuf, PathBuf) {
        self.sign_until(name, 4096)
    }

    /// The same with a URI too, such as a SPIFFE ID.
    pub fn sign_uri(&self, name: &str, uri: &str) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
        self.sign_params(name, params)
    }

    /// The same, for a certificate that is valid until the first day of a year.
    pub fn sign_until(&self, name: &str, year: i32) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        self.sign_params(name, params)
    }

    fn sign_params(&self, name: &str, mut params: CertificateParams) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let at = |kind: &str| self.folder.path().join(format!("{name}-{kind}.pem"));
        fs::write(at("cert"), certificate.pem()).unwrap();
        fs::write(at("key"), key.serialize_pem()).unwrap();
        (at("cert"), at("key"))
    }
}
