//! What the gate owes a writer, over raw sockets, against a recording store in another process: each
//! refusal is the documented one, and the store applied nothing that was not judged.
//!
//! - `invariants`: the four invariants of fencing, one test each.
//! - `order`: the order of the checks, pair by pair.
//! - `tokens`, `paths`, `methods`, `bodies`: bad input, on HTTP/1.1 and HTTP/2.
//! - `streams`: bodies that are too long to be held, and fail before their commit point.
//! - `store_faults`: a store that is unreachable or slow, resets, sends garbage, answers early.
//! - `receipts`: the receipt of every code, compared with `artifacts/fencing_rejection_receipts.json`.

mod bodies;
mod invariants;
mod methods;
mod order;
mod paths;
mod receipts;
mod store_faults;
mod streams;
mod tokens;
