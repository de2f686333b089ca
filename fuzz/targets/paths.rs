//! The path of a write: what is read is plain ASCII, and each segment is one name in every reading.
#![no_main]

use fencegate::{
    config::Settings,
    route::{Routes, canonical},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(path) = std::str::from_utf8(bytes) else { return };
    let Ok(segments) = canonical::segments(path) else { return };
    assert!(path.is_ascii() && path.starts_with('/') && !path.contains("//"));
    for segment in &segments {
        assert!(!segment.contains(['/', '\\', ';']) && !segment.chars().any(char::is_control), "{segment:?}");
        assert!(!matches!(&**segment, "." | ".."), "{segment:?}");
        // Decoded once more, it is the same.
        assert_eq!(canonical::segments(&format!("/{}", encode(segment))).map(|again| again[0].clone()).as_ref(), Ok(segment));
    }
    // As many segments as the raw path has slashes.
    assert_eq!(segments.len(), path.bytes().filter(|byte| *byte == b'/').count());
    let routes = Routes::new(&Settings::default()).expect("the defaults are sound");
    let _ = routes.find(&segments).and_then(|(route, captures)| route.object(&captures).map(|object| object.into_owned()));
});

/// Every byte percent-encoded.
fn encode(segment: &str) -> String {
    segment.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
