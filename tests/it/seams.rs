//! A lease source, and a store profile, is named only in the modules of its seam. What another module says of one
//! source is a place that the next source would be missing from, and the compiler does not find it.

use std::collections::BTreeSet;

use super::layers::{sources, tokens, without_tests};

/// How code names a lease source.
const SOURCES: [&str; 10] = [
    "LeaseSource::Gate",
    "LeaseSource::Authority",
    "LeaseSource::External",
    "LeaseSource::Kubernetes",
    "Source::External",
    "Source::Kubernetes",
    "Claim::Number",
    "Claim::Term",
    "Update::Number",
    "Update::Lease",
];

/// The modules that may.
const BY_SOURCE: [&str; 13] = [
    // The agent gets leases from its gate or from a Kubernetes Lease, and has settings of its own.
    "agent::settings",
    "config::plane",
    "fence::elected",
    "fence::external",
    "fence::outside",
    "kubernetes::lease_observer",
    "route::source",
    "route::source::external",
    "route::source::kubernetes",
    "sources",
    "sources::external",
    "sources::kubernetes",
    "wire",
];

/// The same for store profiles.
const PROFILES: [&str; 2] = ["Profile::Http", "Self::Http"];
const BY_PROFILE: [&str; 1] = ["route::profile"];

/// Whether a source outside tests has one of these paths.
fn names(text: &str, paths: &[&str]) -> bool {
    let found = without_tests(tokens(text));
    paths.iter().any(|path| {
        let path = tokens(path);
        found.windows(path.len()).any(|part| part == path)
    })
}

fn strangers(paths: &[&str], may: &[&str]) -> (Vec<String>, BTreeSet<String>) {
    let all = sources().into_iter().map(|(module, text)| (module.join("::"), text));
    let found: BTreeSet<String> = all.filter(|(_, text)| names(text, paths)).map(|(module, _)| module).collect();
    (found.iter().filter(|module| !may.contains(&module.as_str())).cloned().collect(), found)
}

#[test]
fn sources_and_profiles_are_named_in_their_seams_only() {
    let (strange, found) = strangers(&SOURCES, &BY_SOURCE);
    assert!(strange.is_empty(), "a lease source is named outside its seam (tests/it/seams.rs): {strange:?}");
    assert_eq!(found.len(), BY_SOURCE.len(), "a module in the list names no source any more: {found:?}");
    let (strange, found) = strangers(&PROFILES, &BY_PROFILE);
    assert!(strange.is_empty(), "a store profile is named outside its seam (tests/it/seams.rs): {strange:?}");
    assert_eq!(found.len(), BY_PROFILE.len(), "a module in the list names no profile any more: {found:?}");
}

#[test]
fn a_name_is_found_however_it_is_written() {
    for text in [
        "if route.source == LeaseSource::Kubernetes {}",
        "matches!(claim, crate::fence::outside::Claim::Term(_))",
        "use outside::Update; let update = Update :: Lease { observation, begins };",
    ] {
        assert!(names(text, &SOURCES), "{text}");
    }
    for text in
        ["// Source::External", "let text = \"Source::External\";", "#[cfg(test)]\nmod tests { use Source::External; }"]
    {
        assert!(!names(text, &SOURCES), "{text}");
    }
}
