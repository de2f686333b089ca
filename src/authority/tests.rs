//! Which issuers the settings allow.

use super::*;
use crate::config::PartySettings;

fn party(name: &str, seed: u8) -> PartySettings {
    let key = SecretKey::from_seed(&[seed; 32]);
    PartySettings {
        name: name.to_owned(),
        public_key: key.public().to_string(),
        proof_of_possession: key.prove_possession().to_string(),
        domains: vec!["/data".to_owned()],
        ..PartySettings::default()
    }
}

fn settings(issuers: Vec<PartySettings>) -> Settings {
    let mut settings = Settings { issuer: issuers, ..Settings::default() };
    settings.authority.cluster_id = "test".to_owned();
    settings
}

fn faults(settings: &Settings) -> Vec<(String, String)> {
    let faults = Authority::new(settings).err().unwrap_or_default();
    faults.into_iter().map(|fault| (fault.key, fault.what)).collect()
}

fn keys(settings: &Settings) -> Vec<String> {
    faults(settings).into_iter().map(|(key, _)| key).collect()
}

#[test]
fn an_issuer_needs_a_key_its_proof_and_a_domain() {
    assert!(faults(&settings(vec![party("a", 1), party("b", 2)])).is_empty());
    let good = || party("a", 1);
    let cases = [
        ("name", PartySettings { name: String::new(), ..good() }),
        ("public_key", PartySettings { public_key: "0x12".to_owned(), ..good() }),
        ("public_key", PartySettings { public_key: format!("0xc0{}", "00".repeat(47)), ..good() }),
        ("proof_of_possession", PartySettings { proof_of_possession: String::new(), ..good() }),
        ("proof_of_possession", PartySettings { proof_of_possession: party("b", 2).proof_of_possession, ..good() }),
        ("domains", PartySettings { domains: vec![], ..good() }),
        ("domains", PartySettings { domains: vec!["/a/../b".to_owned()], ..good() }),
    ];
    for (key, bad) in cases {
        assert_eq!(keys(&settings(vec![party("z", 9), bad.clone()])), [format!("issuer[1].{key}")], "{bad:?}");
    }
    assert_eq!(keys(&settings(vec![good(), good()])), ["issuer[1].key_epoch"]);
    let rotated = PartySettings { key_epoch: 2, ..party("a", 3) };
    assert!(faults(&settings(vec![good(), rotated])).is_empty(), "a new epoch beside the old");
    let mut nameless = settings(vec![good()]);
    nameless.authority.cluster_id.clear();
    assert_eq!(keys(&nameless), ["authority.cluster_id"]);
}

#[test]
fn the_gates_own_key_is_one_of_the_issuers_and_no_other_user_can_read_it() {
    use std::{fs, os::unix::fs::PermissionsExt};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    key_file::create(&path, &SecretKey::from_seed(&[1; 32])).unwrap();
    let own = |issuer: &str, issuers| {
        let mut settings = settings(issuers);
        (settings.authority.issuer, settings.authority.key_file) = (issuer.to_owned(), path.clone());
        settings
    };
    let authority = Authority::new(&own("a", vec![party("a", 1)])).unwrap();
    let domain = |text: &str| ObjectId::new(text).unwrap();
    assert!(authority.own_for(&domain("/data/x")).is_some() && authority.own_for(&domain("/other")).is_none());
    assert!(!format!("{authority:?}").contains(&SecretKey::from_seed(&[1; 32]).expose()[2..]));
    assert_eq!(keys(&own("a", vec![party("a", 2)])), ["authority.issuer"], "another's key");
    assert_eq!(keys(&own("b", vec![party("a", 1)])), ["authority.issuer"], "another's name");
    assert_eq!(keys(&own("", vec![party("a", 1)])), ["authority.key_file"], "they go together");
    let retired = PartySettings { retired: true, ..party("a", 1) };
    assert_eq!(keys(&own("a", vec![retired])), ["authority.key_file"]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let found = faults(&own("a", vec![party("a", 1)]));
    assert_eq!(found[0].0, "authority.key_file");
    assert!(found[0].1.contains("mode 644"), "{found:?}");
}
