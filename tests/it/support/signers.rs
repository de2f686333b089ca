//! Issuers and requesters with their own keys, and the messages that they sign.

use fencegate::{
    authority::{
        bls::SecretKey,
        json::{ActiveMessage, CertificateMessage, FenceRequestMessage, GrantMessage, Message},
        sign,
    },
    config::{PartySettings, Settings},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

pub const CLUSTER: &str = "test";

/// A party with a key.
pub struct Signer {
    pub name: &'static str,
    pub key: SecretKey,
}

impl Signer {
    pub fn new(name: &'static str) -> Self {
        Self::with_seed(name, name.len() as u8 ^ name.as_bytes()[0])
    }

    pub fn with_seed(name: &'static str, seed: u8) -> Self {
        Self { name, key: SecretKey::from_seed(&[seed; 32]) }
    }

    pub fn party(&self, domains: &[&str]) -> PartySettings {
        PartySettings {
            name: self.name.to_owned(),
            public_key: self.key.public().to_string(),
            proof_of_possession: self.key.prove_possession().to_string(),
            domains: domains.iter().map(|domain| (*domain).to_owned()).collect(),
            ..PartySettings::default()
        }
    }

    fn sign<M: Message + Serialize + DeserializeOwned>(&self, unsigned: Value) -> Value {
        let message: M = serde_json::from_value(unsigned).unwrap();
        serde_json::to_value(M::of(&sign(&self.key, message.statement().unwrap()))).unwrap()
    }

    /// FENCE_CERTIFICATE for the lease with this number; `over` replaces fields.
    pub fn certificate(&self, domain: &str, lease: &str, seq: u64, time: &str, over: Value) -> Value {
        let mut message = json!({
            "type": "FENCE_CERTIFICATE", "domain": domain, "fenced_lease_id": lease, "lease_seq": seq,
            "lease_start_ms": 1_700_000_000_000_u64, "fence_time": time, "issuer": self.name,
            "cluster_id": CLUSTER, "key_epoch": 1,
        });
        merge(&mut message, over);
        self.sign::<CertificateMessage>(message)
    }

    /// LEASE_GRANT; `over` replaces fields.
    pub fn grant(&self, domain: &str, lease: &str, seq: u64, holder: &str, times: (u64, u64), over: Value) -> Value {
        let mut message = json!({
            "type": "LEASE_GRANT", "domain": domain, "lease_id": lease, "lease_seq": seq, "holder": holder,
            "start_ms": times.0, "expiry_ms": times.1, "issuer": self.name, "cluster_id": CLUSTER, "key_epoch": 1,
        });
        merge(&mut message, over);
        self.sign::<GrantMessage>(message)
    }

    /// FENCE_REQUEST; `over` replaces fields.
    pub fn request(&self, domain: &str, time: &str, over: Value) -> Value {
        let mut message = json!({
            "type": "FENCE_REQUEST", "domain": domain, "reason": "migration_to_perth", "requester": self.name,
            "timestamp": time, "cluster_id": CLUSTER, "key_epoch": 1,
        });
        merge(&mut message, over);
        self.sign::<FenceRequestMessage>(message)
    }

    /// LEASE_ACTIVE for a migration's grant.
    pub fn active(&self, grant: &Value, hash: &str, time: &str) -> Value {
        self.sign::<ActiveMessage>(json!({
            "type": "LEASE_ACTIVE", "domain": grant["domain"], "lease_id": grant["lease_id"],
            "lease_seq": grant["lease_seq"], "holder": self.name, "state_hash": hash, "timestamp": time,
            "cluster_id": CLUSTER, "key_epoch": 1,
        }))
    }
}

pub fn merge(message: &mut Value, over: Value) {
    for (name, value) in over.as_object().into_iter().flatten() {
        message[name] = value.clone();
    }
}

/// An issuer for `/data` in a gate's settings.
pub fn with_issuer(settings: &mut Settings, issuer: &Signer) {
    settings.authority.cluster_id = CLUSTER.to_owned();
    settings.issuer.push(issuer.party(&["/data"]));
}
