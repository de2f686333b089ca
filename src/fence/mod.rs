//! The fence domain: who may write which object, and since when.
//!
//! Everything here is pure. A value goes in, a decision comes out; time, keys and randomness are arguments. Nothing
//! here knows tokio, hyper, RocksDB, files, sockets or clocks, and nothing here logs, counts or has a test fault.
//! The same functions therefore serve the ledger, the data plane, the model checker and the simulation.
//!
//! - [`ids`]: object, holder, lease and request ids. Each has one constructor, which checks it.
//! - [`seq`]: `lease_seq`, the fence (an object's floor) and the table's incarnation.
//! - [`time`]: instants, lifetimes and the hybrid logical clock.
//! - [`token`]: the `fg1.` fence token and the key that makes its secret.
//! - [`lease`], [`record`]: an object's row and the lease in it.
//! - [`verdict`]: [`judge`], the only function that makes a [`Permit`].
//! - [`step`]: lease changes, as `record.step(event, now) -> (Outcome, Vec<Effect>)`.
//! - [`authority`]: what signed certificates and grants do to a record. [`external`]: what tokens of an outside
//!   lock service do. [`election`], [`elected`]: what terms of leadership by a Kubernetes Lease do. [`outside`]: what
//!   every such source of leases has to say.
//! - [`idempotency`]: what is remembered of a keyed write, and what a repeated write with the same key gets.
//! - [`mod@write`]: the life of a write, as `write.on(event) -> effect`.
//! - [`order`]: in which order the ledger takes the steps of a round and of an advance.
//! - [`domain`]: parts of all objects, by the beginning of their ids.
//! - [`code`]: every answer code with its status and what it means for the caller.

pub mod authority;
pub mod code;
pub mod domain;
pub mod elected;
pub mod election;
pub mod external;
pub mod idempotency;
pub mod ids;
pub mod lease;
pub mod order;
pub mod outside;
pub mod record;
pub mod seq;
pub mod step;
pub mod time;
pub mod token;
pub mod verdict;
pub mod write;

pub use authority::Certified;
pub use code::Code;
pub use ids::{HolderId, IssuerId, LeaseId, MigrationId, ObjectId, RequestId};
pub use lease::{Ended, How, Lease, LeaseRow};
pub use record::{Record, State};
pub use seq::{Fence, Incarnation, LeaseSeq};
pub use step::{Effect, Event, Outcome};
pub use time::{BootMs, Hlc, Now, Ttl, WallMs};
pub use token::{FenceToken, Proof, Secret, TableKey};
pub use verdict::{Denial, Permit, Refusal, judge};
