//! Certificates and keys in PEM files. Errors say what is wrong, and never quote a file.

use std::path::Path;

use rustls::pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject},
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

/// The end of a certificate's validity. rustls has no function for it, since the side that shows a certificate does
/// not need it.
pub(super) fn not_after(certificate: &CertificateDer<'_>) -> Result<i64, String> {
    let (_, read) = X509Certificate::from_der(certificate)
        .map_err(|fault| format!("until when the certificate holds cannot be read: {fault}"))?;
    Ok(read.validity().not_after.timestamp())
}

/// Reads at least one certificate.
pub(super) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unreadable = |fault| format!("no certificate can be read from {}: {}", path.display(), in_words(&fault));
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(unreadable)?.collect::<Result<_, _>>().map_err(unreadable)?;
    if certificates.is_empty() {
        return Err(format!("{} holds no certificate", path.display()));
    }
    Ok(certificates)
}

pub(super) fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path)
        .map_err(|fault| format!("no private key can be read from {}: {}", path.display(), in_words(&fault)))
}

/// What is wrong with a PEM file. The error's own text may quote a whole line, and a key may be one line.
fn in_words(fault: &pem::Error) -> String {
    match fault {
        pem::Error::MissingSectionEnd { .. } | pem::Error::IllegalSectionStart { .. } => {
            "a section has no end, or its first line has more in it; were line breaks lost?".to_owned()
        }
        pem::Error::Base64Decode(_) => "what is in a section is not base64".to_owned(),
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => "there is none".to_owned(),
        _ => "it is not PEM".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let fault = not_after(&CertificateDer::from(&b"nothing"[..])).unwrap_err();
        assert!(fault.starts_with("until when the certificate holds cannot be read"), "{fault}");
    }
}
