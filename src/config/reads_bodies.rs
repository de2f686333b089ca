//! Which bodies a store reads. If it leaves a body unread, it takes that for its next request, which was never
//! judged.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Unexpected, Visitor},
};

/// Which bodies a store certainly reads to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadsBodies {
    /// All bodies, for every method and every answer.
    All,
    /// The bodies of PUT, POST and PATCH requests that it answers with 2xx.
    Accepted,
    /// It may leave any body unread.
    None,
}

impl<'de> Deserialize<'de> for ReadsBodies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Spelled)
    }
}

/// The setting was once a boolean.
struct Spelled;

impl Visitor<'_> for Spelled {
    type Value = ReadsBodies;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"all\", \"accepted\" or \"none\"")
    }

    fn visit_bool<E: serde::de::Error>(self, reads: bool) -> Result<ReadsBodies, E> {
        Ok(if reads { ReadsBodies::All } else { ReadsBodies::Accepted })
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ReadsBodies, E> {
        match text {
            // An environment variable has no type.
            "all" | "true" => Ok(ReadsBodies::All),
            "accepted" | "false" => Ok(ReadsBodies::Accepted),
            "none" => Ok(ReadsBodies::None),
            other => Err(E::invalid_value(Unexpected::Str(other), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Settings, load::read};

    #[test]
    fn it_is_spelled_in_three_words_and_two_old_ones() {
        let read = |value: &str, environment: Option<&str>| {
            let text = format!("[store]\nreads_bodies = {value}").parse().unwrap();
            let variable = environment.map(|value| ("FENCEGATE__STORE__READS_BODIES".to_owned(), value.to_owned()));
            let (settings, faults): (Settings, _) = read(text, variable.into_iter().collect());
            faults.is_empty().then_some(settings.store.reads_bodies).ok_or(faults)
        };
        for (value, wanted) in [
            ("'all'", ReadsBodies::All),
            ("'accepted'", ReadsBodies::Accepted),
            ("'none'", ReadsBodies::None),
            ("true", ReadsBodies::All),
            ("false", ReadsBodies::Accepted),
        ] {
            assert_eq!(read(value, None), Ok(wanted), "{value}");
            assert_eq!(read("'accepted'", Some(value.trim_matches('\''))), Ok(wanted), "{value}");
        }
        for wrong in ["'some'", "'ALL'", "''", "1"] {
            let faults = read(wrong, None).unwrap_err();
            assert_eq!(faults[0].key, "store.reads_bodies");
            assert!(faults[0].what.contains("\"all\", \"accepted\" or \"none\""), "{faults:?}");
        }
    }

    #[test]
    fn a_route_has_its_own_word_on_it() {
        let text = "
            [store]
            reads_bodies = 'none'
            [[route]]
            name = 'own'
            match = '/own/{object}/{rest...}'
            object = '{object}'
            store = { reads_bodies = 'all' }
            [[route]]
            name = 'others'";
        let (settings, faults): (Settings, _) = read(text.parse().unwrap(), vec![]);
        assert_eq!(faults, vec![]);
        let of = |place: usize| settings.route[place].store.over(&settings.store).reads_bodies;
        assert_eq!((of(0), of(1)), (ReadsBodies::All, ReadsBodies::None));
    }
}
