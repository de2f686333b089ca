//! The notes of `fencegate check`: valid settings that rely on a promise that only the operator can keep.

use super::{Fault, ReadsBodies, Settings};

impl Settings {
    /// Each setting that relies on such a promise, and the promise.
    #[must_use]
    pub fn risks(&self) -> Vec<Fault> {
        let unread = "the store must read the body of every request to its end, also of a DELETE and of one that it refuses. What it leaves unread it takes for its next request, which was never judged, and the next client gets its answer. If you do not know that it does, say \"accepted\"";
        let mut risks = vec![];
        if self.store.reads_bodies == ReadsBodies::All {
            risks.push(Fault::new("store.reads_bodies", unread));
        }
        for (place, route) in self.route.iter().enumerate() {
            if route.store.reads_bodies == Some(ReadsBodies::All) {
                risks.push(Fault::new(format!("route[{place}].store.reads_bodies"), unread));
            }
            if route.bodies_on_reads {
                let what = "a read needs no token: if the store does not read a GET's body to its end, anyone who may read can write through it";
                risks.push(Fault::new(format!("route[{place}].bodies_on_reads"), what));
            }
        }
        if !self.gate.strict {
            let what = "requests that two parsers could read in two ways are forwarded as the gate reads them (docs/strict.md)";
            risks.push(Fault::new("gate.strict", what));
        }
        risks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::read;

    /// The keys that get a note.
    fn noted(text: &str) -> Vec<String> {
        let (settings, faults): (Settings, _) = read(text.parse().unwrap(), vec![]);
        assert_eq!(faults, vec![], "{text}");
        settings.risks().into_iter().map(|risk| risk.key).collect()
    }

    #[test]
    fn what_rests_on_a_promise_is_noted_under_its_key() {
        assert_eq!(noted(""), Vec::<String>::new());
        assert_eq!(noted("[store]\nreads_bodies = 'accepted'"), Vec::<String>::new());
        assert_eq!(noted("[store]\nreads_bodies = 'none'"), Vec::<String>::new());
        assert_eq!(noted("[store]\nreads_bodies = 'all'"), ["store.reads_bodies"]);
        assert_eq!(noted("[gate]\nstrict = false"), ["gate.strict"]);
        let routes = "
            [[route]]
            name = 'a'
            bodies_on_reads = true
            [[route]]
            name = 'b'
            match = '/b/{object}/{rest...}'
            object = 'b/{object}'
            store = { reads_bodies = true }";
        assert_eq!(noted(routes), ["route[0].bodies_on_reads", "route[1].store.reads_bodies"]);
    }
}
