//! Client certificates: the principal is the certificate's SPIFFE ID, else its first DNS name.
//!
//! The handshake has checked where the certificate comes from. A certificate with several SPIFFE IDs names no one
//! (the SPIFFE standard allows one), and neither does one with another kind of URI only.

use super::Verdict;
use crate::{
    access::principal::{Kind, Principal},
    fence::WallMs,
    tls::Certificate,
};

const SPIFFE: &str = "spiffe://";

pub(super) fn identify(source: &str, shown: Option<&Certificate>, now: WallMs) -> Verdict {
    let Some(certificate) = shown else { return Verdict::NotMine };
    let until = WallMs(u64::try_from(certificate.not_after).unwrap_or(0).saturating_mul(1_000).saturating_add(1_000));
    let name = match name(certificate) {
        Ok(name) => name,
        Err(what) => return Verdict::Refused(what.to_owned()),
    };
    match Principal::new(Kind::Mtls, source, name) {
        Ok(who) if !who.clone().until(until).is_over(now) => Verdict::Is(who.until(until)),
        Ok(_) => Verdict::Refused("the client certificate is no longer valid".to_owned()),
        Err(fault) => Verdict::Refused(format!("the name in the client certificate {fault}")),
    }
}

fn name(certificate: &Certificate) -> Result<&str, &'static str> {
    let is_spiffe = |uri: &&String| uri.get(..SPIFFE.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(SPIFFE));
    let mut ids = certificate.uris.iter().filter(is_spiffe);
    match (ids.next(), ids.next()) {
        (Some(_), Some(_)) => Err("the client certificate has more than one SPIFFE ID"),
        (Some(id), None) => Ok(id),
        (None, _) => match certificate.dns.first() {
            // A text such as spiffe:x is no DNS name, and could be taken for another kind of name.
            Some(name) if name.contains([':', '/']) => Err("the first DNS name in the client certificate is none"),
            Some(name) => Ok(name),
            None => Err("the client certificate has neither a SPIFFE ID nor a DNS name among its alternative names"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: WallMs = WallMs(1_800_000_000_000);

    fn certificate(uris: &[&str], dns: &[&str]) -> Certificate {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Certificate { uris: owned(uris), dns: owned(dns), not_after: 1_900_000_000 }
    }

    fn name_of(certificate: &Certificate) -> Result<String, String> {
        match identify("mesh", Some(certificate), NOW) {
            Verdict::Is(who) => Ok(who.name().to_owned()),
            Verdict::Refused(why) => Err(why),
            Verdict::NotMine | Verdict::Unavailable(_) => panic!("a certificate was shown"),
        }
    }

    #[test]
    fn the_spiffe_id_goes_before_the_dns_names() {
        let id = "spiffe://cluster.local/ns/shop/sa/api";
        assert_eq!(name_of(&certificate(&[id], &["api.shop"])).as_deref(), Ok(id));
        assert_eq!(name_of(&certificate(&["https://x/y", id], &[])).as_deref(), Ok(id));
        assert_eq!(name_of(&certificate(&["https://x/y"], &["api.shop", "api"])).as_deref(), Ok("api.shop"));
        for without in [certificate(&[], &[]), certificate(&["https://x/y"], &[])] {
            assert!(name_of(&without).unwrap_err().contains("neither"));
        }
        assert!(name_of(&certificate(&[id, "spiffe://other/x"], &["a"])).unwrap_err().contains("more than one"));
        assert!(matches!(identify("mesh", None, NOW), Verdict::NotMine));
    }

    #[test]
    fn odd_names_are_no_principals() {
        for dns in ["system:admin", "spiffe:x", "a b", "a\nb", ""] {
            assert!(name_of(&certificate(&[], &[dns])).is_err(), "{dns:?}");
        }
        for id in ["spiffe://td//x", "spiffe://td/x/", "spiffe://", "spiffe:///x"] {
            assert!(name_of(&certificate(&[id], &["a"])).is_err(), "{id}");
        }
    }

    #[test]
    fn a_certificate_whose_time_has_passed_names_no_one() {
        let ends = Certificate { not_after: 1_799_999_999, ..certificate(&[], &["a"]) };
        let at = |ms| matches!(identify("mesh", Some(&ends), WallMs(ms)), Verdict::Is(_));
        assert!(at(1_799_999_999_999) && !at(1_800_000_000_000), "its last second is valid");
    }
}
