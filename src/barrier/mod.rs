//! The in-flight barrier. It has the records that writes are judged against, in memory. Under the same locks it counts
//! the writes of each record that are on their way to the store. An advance reads the counts in the critical section
//! that closes its object, so no write can slip between the two.
//!
//! - [`stripes`]: the records, under a fixed array of locks. [`flight`]: the counts of one object.
//! - [`generation`]: versions of a route, and the writes that were admitted by each.
//! - [`in_flight`]: one admitted write. It runs the life of a write (`fence::write`) on the counts.
//!
//! Not here: rules (`fence/`), anything durable (`table/`), sockets (`write_path/`).

pub mod flight;
pub mod generation;
pub mod in_flight;
pub mod stripes;
