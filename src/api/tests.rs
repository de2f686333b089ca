//! The calls of the api as a whole: what each needs, and when each gets a line in the audit log.

use std::{collections::BTreeSet, sync::Arc};

use axum::http::Method;

use super::{
    admission::Guard,
    calls::Audited::{self, Always, WhenChanged, WhenDenied, WhenRefused},
    describe, needs,
};
use crate::{
    app::{Ports, start_on},
    clock::Clock,
    config::Settings,
    fence::{BootMs, Hlc, Now, TableKey, WallMs},
    route::Routes,
    table::{
        codec::Meta,
        memory::MemoryTable,
        open::{begin_on, write_meta},
        rocks::Recovered,
    },
};

/// What the layers know, of a gate in this process.
pub(super) fn guard() -> Guard {
    let mut settings = Settings::default();
    settings.gate.workers = 1;
    for listen in [&mut settings.gate.listen, &mut settings.api.listen, &mut settings.ops.listen] {
        listen.set_port(0);
    }
    let (clock, _) = Clock::driven(Now { wall: WallMs(1_800_000_000_000), boot: BootMs(1) });
    let (key, table) = (TableKey::from_bytes([1; 32]), Arc::new(MemoryTable::default()));
    write_meta(&*table, &Meta::new(&key, true), Hlc::default()).unwrap();
    let fingerprint = Routes::new(&settings).unwrap().fingerprint;
    let begun = begin_on(table, key, Recovered::Whole, (&clock, fingerprint), "memory").unwrap();
    let running = start_on(&settings, clock, begun, Ports::bind(&settings).unwrap()).unwrap();
    Guard { gate: running.gate, needs: Arc::default() }
}

/// Every call, and when it gets a line.
const CALLS: [(&str, Audited); 25] = [
    ("acquireLease", WhenChanged),
    ("acquireBatch", WhenChanged),
    ("renewLease", WhenRefused),
    ("releaseLease", WhenChanged),
    ("listLeases", WhenDenied),
    ("getLease", WhenDenied),
    ("getObject", WhenDenied),
    ("checkToken", WhenDenied),
    ("listReceipts", WhenDenied),
    ("listRoutes", WhenDenied),
    ("listFences", WhenDenied),
    ("getMigration", WhenDenied),
    ("getJournal", WhenDenied),
    ("watchLeases", WhenDenied),
    ("whoAmI", WhenDenied),
    ("revokeObject", Always),
    ("advanceObject", Always),
    ("confirmObject", Always),
    ("createBackup", Always),
    ("applyFence", Always),
    ("confirmFence", Always),
    ("applyGrant", Always),
    ("requestFence", Always),
    ("beginMigration", Always),
    ("activateMigration", Always),
];

#[test]
fn every_call_has_a_decision_about_the_audit_log() {
    let (needs, mut found) = (needs(), BTreeSet::new());
    for (path, item) in describe().paths.paths {
        let described = [(Method::GET, item.get), (Method::POST, item.post), (Method::DELETE, item.delete)];
        for (method, call) in described.into_iter().filter_map(|(method, call)| Some((method, call?))) {
            let id = call.operation_id.unwrap();
            let need = needs.of(&method, &path).unwrap_or_else(|| panic!("{method} {path} has no need"));
            let row = CALLS.iter().find(|(call, _)| *call == id);
            let (_, audited) = row.unwrap_or_else(|| panic!("{id} has no row in this table"));
            assert_eq!((&*need.call, need.audited), (id.as_str(), *audited));
            let changes = method != Method::GET && id != "checkToken";
            assert_eq!(changes, *audited != WhenDenied, "{id}: what changes something gets a line");
            found.insert(id);
        }
    }
    assert_eq!(found.len(), CALLS.len(), "each row is a call: {found:?}");
}
