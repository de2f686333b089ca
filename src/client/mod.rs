//! A client for writers: takes a lease, keeps it, and reports its loss at once.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use fencegate::{client::{LeaseApi, Wanted}, fence::{HolderId, ObjectId}};
//!
//! let api = LeaseApi::new("http://127.0.0.1:8081")?;
//! let wanted = Wanted::new(ObjectId::new("users")?, HolderId::new("pod-a")?).with_ttl_ms(15_000);
//! let lease = api.acquire(&wanted, |_| {}).await?;     // waits its turn
//! while let Ok(token) = lease.token() {                // checks the clock every time
//!     # let _ = token.expose(); break;
//!     // send a write with the header `Fence-Token: {token.expose()}`
//! }
//! lease.release().await?;                              // or: let why = lease.lost().await;
//! # Ok(()) }
//! ```
//!
//! - [`acquire`]: waits for a lease by long polls. A lost answer is asked for again under the same `request_id`, so
//!   no lease is left behind.
//! - [`lease`]: a lease that is held. Renewed in the background at a third of its ttl; lost at a definite refusal, or
//!   when its deadline passes.
//! - [`tenure`]: what both kinds of leases share: held until a deadline.
//! - [`call`]: the calls themselves, and what their answers mean. [`backoff`]: when to try again. [`http`]: the wire.
//!
//! **A deadline is counted from when a request was sent**, by CLOCK_BOOTTIME, never from when its answer came. The
//! gate's count begins later, so this side stops first. The gate does not rely on this: it refuses a write that still
//! comes too late.

pub mod acquire;
pub mod backoff;
pub mod call;
pub mod http;
pub mod lease;
pub mod tenure;

pub use acquire::{NotHad, Progress, Wanted, default_holder};
pub use call::{Failed, LeaseApi, Refusal, Token};
pub use http::{ApiResponse, CallFault, Client, Credentials, Kept};
pub use lease::{Lease, Lost};
