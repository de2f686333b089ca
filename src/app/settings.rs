//! Faults in a gate's settings that no single value shows: bounds, values that contradict each other, and what each
//! part finds in its own settings.

use std::net::SocketAddr;

use toml::Table;

use crate::{
    access::Access,
    authority::Authority,
    config::{
        Fault, GrantSettings, IdentitySettings, Loadable, PartySettings, RouteSettings, Settings, StoreOverride,
        StoreSettings,
    },
    route::{
        Routes,
        source::{Risk, risk},
    },
    write_path::read_ahead::AHEAD_BYTES,
};

impl Loadable for Settings {
    const PREFIX: &'static str = "FENCEGATE__";

    fn lists() -> Vec<(&'static str, Table)> {
        let route = Table::try_from(RouteSettings::all_keys()).expect("the defaults are TOML");
        let party = Table::try_from(PartySettings::default()).expect("the defaults are TOML");
        let identity = Table::try_from(IdentitySettings::default()).expect("the defaults are TOML");
        let grant = Table::try_from(GrantSettings::default()).expect("the defaults are TOML");
        vec![
            ("route", route),
            ("issuer", party.clone()),
            ("requester", party),
            ("identity", identity),
            ("grant", grant),
        ]
    }

    fn faults(&self) -> Vec<Fault> {
        self.all_faults()
    }
}

impl Settings {
    /// All faults that no single value shows: bounds, and values that contradict each other.
    #[must_use]
    pub fn all_faults(&self) -> Vec<Fault> {
        let mut faults = vec![];
        let mut check = |ok: bool, key: &str, what: &str| {
            if !ok {
                faults.push(Fault::new(key, what));
            }
        };
        let lease = &self.lease;
        check(
            self.api.listen != self.ops.listen || self.api.listen.port() == 0,
            "ops.listen",
            "must differ from api.listen",
        );
        check(!self.table.path.as_os_str().is_empty(), "table.path", "must not be empty");
        check(self.table.cache_objects >= 1, "table.cache_objects", "must be at least 1");
        check(
            (100..=600_000).contains(&self.table.stall_timeout_ms),
            "table.stall_timeout_ms",
            "must be from 100 to 600000",
        );
        check(lease.ttl_ms_min >= 1, "lease.ttl_ms_min", "must be at least 1");
        check(lease.ttl_ms_max <= 86_400_000, "lease.ttl_ms_max", "must be at most 86400000 (a day)");
        check(lease.ttl_ms_min <= lease.ttl_ms_max, "lease.ttl_ms_min", "must not be above lease.ttl_ms_max");
        check(
            (lease.ttl_ms_min..=lease.ttl_ms_max).contains(&lease.ttl_ms_default),
            "lease.ttl_ms_default",
            "must lie between lease.ttl_ms_min and lease.ttl_ms_max",
        );
        check(lease.batch_max >= 1, "lease.batch_max", "must be at least 1");
        check(lease.batch_max <= 1_024, "lease.batch_max", "must be at most 1024");
        faults.extend(self.plane_faults());
        let mut check = |ok: bool, key: &str, what: &str| {
            if !ok {
                faults.push(Fault::new(key, what));
            }
        };
        check(self.watch.history >= 1, "watch.history", "must be at least 1");
        check(self.journal.keep >= 1, "journal.keep", "must be at least 1");
        check(self.authority.max_jump >= 1, "authority.max_jump", "must be at least 1");
        check(
            self.authority.max_jump <= 1 << 31,
            "authority.max_jump",
            "must be at most 2147483648: a lost tail of the table's log must not make up for it",
        );
        faults.extend(self.kubernetes.way().faults());
        faults.extend(Authority::new(self).err().unwrap_or_default());
        faults.extend(Access::new(self, None).err().unwrap_or_default());
        faults.extend(self.audit.faults());
        faults
    }

    /// What routes whose tokens have no secret need in the other settings.
    fn outside_faults(&self) -> Vec<Fault> {
        let mut faults = vec![];
        for (place, route) in self.route.iter().enumerate() {
            let Some(Risk { name, lost, open }) = risk(route.lease_source) else { continue };
            let mut fault = |what: String| faults.push(Fault::new(format!("route[{place}].lease_source"), what));
            if self.table.create {
                fault(format!(
                    "\"{name}\" does not go with table.create: after a lost volume {lost}. Make the table with `fencegate table init`"
                ));
            }
            if !self.gate.listen.ip().is_loopback() && self.gate.tls_client_ca_file.as_os_str().is_empty() {
                fault(format!(
                    "\"{name}\" tokens have no secret, so every client that can reach gate.listen {open}: listen on loopback, or ask clients for certificates with gate.tls_client_ca_file"
                ));
            }
        }
        faults
    }

    /// The fault in the settings of the way to a store, if there is one.
    fn store_fault(&self, section: &str, store: &StoreSettings) -> Option<Fault> {
        let (key, what) = match store.way() {
            Err(wrong) => wrong,
            Ok(way) if way.address.is_at(self.gate.listen) => {
                ("url", "is the gate's own port (gate.listen): name the store's".to_owned())
            }
            Ok(_) => return None,
        };
        Some(Fault::new(format!("{section}.{key}"), what))
    }

    /// The faults in the data plane's settings.
    fn plane_faults(&self) -> Vec<Fault> {
        let mut faults = vec![];
        let mut check = |ok: bool, key: &str, what: &str| {
            if !ok {
                faults.push(Fault::new(key, what));
            }
        };
        let (gate, store) = (&self.gate, &self.store);
        let taken = |address: SocketAddr| address == gate.listen && address.port() != 0;
        check(!taken(self.api.listen), "gate.listen", "must differ from api.listen");
        check(!taken(self.ops.listen), "gate.listen", "must differ from ops.listen");
        check(gate.workers <= 1_024, "gate.workers", "must be at most 1024; 0 is one per core");
        check(gate.connections_max >= 1, "gate.connections_max", "must be at least 1");
        check(gate.head_timeout_ms >= 1, "gate.head_timeout_ms", "must be at least 1");
        check(gate.body_timeout_ms >= 1, "gate.body_timeout_ms", "must be at least 1");
        check(gate.idle_timeout_ms >= 1, "gate.idle_timeout_ms", "must be at least 1");
        check(
            (1_024..=1 << 20).contains(&gate.header_bytes_max),
            "gate.header_bytes_max",
            "must be from 1024 to 1048576",
        );
        check((64..=65_534).contains(&gate.uri_bytes_max), "gate.uri_bytes_max", "must be from 64 to 65534");
        check(gate.hold_bytes <= gate.hold_total_bytes, "gate.hold_bytes", "must not be above gate.hold_total_bytes");
        check(gate.streams_max >= 1, "gate.streams_max", "must be at least 1");
        check(store.connections_max >= 1, "store.connections_max", "must be at least 1");
        check(store.response_timeout_ms >= 1, "store.response_timeout_ms", "must be at least 1");
        check(store.connect_timeout_ms >= 1, "store.connect_timeout_ms", "must be at least 1");
        check(
            self.idempotency.keep_ms > store.response_timeout_ms.saturating_add(store.bound_ms()),
            "idempotency.keep_ms",
            "must be longer than a write may take: store.response_timeout_ms and its bounds",
        );
        check(
            self.idempotency.response_bytes_max <= AHEAD_BYTES,
            "idempotency.response_bytes_max",
            "must be at most 65536: what is longer streams",
        );
        if let Err(what) = gate.trailer_names() {
            faults.push(Fault::new("gate.trailers", what));
        }
        if let Err((key, what)) = gate.tls() {
            faults.push(Fault::new(format!("gate.{key}"), what));
        }
        faults.extend(self.store_fault("store", store));
        let routes = self.route.iter().enumerate().filter(|(_, route)| route.store != StoreOverride::default());
        faults.extend(
            routes.filter_map(|(place, route)| {
                self.store_fault(&format!("route[{place}].store"), &route.store.over(store))
            }),
        );
        faults.extend(self.outside_faults());
        faults.extend(Routes::new(self).err().unwrap_or_default());
        faults
    }
}
