//! All integration tests in one program: real sockets, real processes, real RocksDB.
//!
//! - `support`: an HTTP client on plain sockets, gates in this process and in their own.
//! - `leases`, `waiting`, `watch`, `api`: the lease api, call by call.
//! - `described`: the description of the api, compared with it. `documents`: docs/reference, the contract's codes and CONTRIBUTING.md, compared with the code.
//! - `floods`: more callers than a port has room for, which ask half or read nothing.
//! - `expiry`: races at the instant of expiry, with a driven clock and a disk that hangs.
//! - `contract`: one suite for every table, RocksDB and the one in memory that fails on purpose.
//! - `recovery`: damaged, lost and foreign tables. `restores`: tables that a backup came back as. `flips`: one bit of a log. `restart`: what a crash leaves.
//! - `crash`: kill -9 in a loop, also with what was not synced thrown away.
//! - `crash_points`: restore, backup, init and a start, killed at each step of theirs.
//! - `modes`: who may read the table's files.
//! - `rounds`: what the ledger says leaves behind its commit.
//! - `stalls`: a disk that stands still.
//! - `process`: starting, stopping, configuration faults, full disks, failing syncs.
//! - `cli`: the commands. `client`: the library for writers, on a wire that goes wrong. `lock`: a command under a lease.
//! - `agent`: the writer-side sidecar, in front of applications that know nothing of it.
//! - `write_path`: writes and reads through the gate, against a recording store in its own process.
//! - `tls`: on both sides. `reload`: SIGHUP. `secrets`: none leaks. `demo`, `readme`, `examples`: what they print works.
//! - `conformance`: every refusal and every bad input, and what the store saw of it.
//! - `adversarial`: attacks as bytes on a socket. `starvation`: clients that take what others need.
//! - `drain`: leases that change hands while writes are on their way. `several`: writes to two objects.
//! - `external`: tokens of lock services that others run.
//! - `kubernetes`: tokens of Leases, on an API server in this process, or on a real one.
//! - `idempotency`: writes with a key: each runs once, also when the gate is killed.
//! - `simulation`: the whole gate but its sockets, by seed, with an adversary; and with faults that it must find.
//! - `transparency`: large, many and odd requests on both protocols, with clients that others wrote.

#![allow(unreachable_pub, reason = "a test program exports nothing; pub says what support offers")]
#![allow(clippy::pedantic, reason = "tests are read, not called")]

mod adversarial;
mod agent;
mod api;
mod authority;
mod cli;
mod client;
mod conformance;
mod contract;
mod crash;
mod crash_points;
mod demo;
mod described;
mod documents;
mod drain;
mod examples;
mod expiry;
mod external;
mod flips;
mod floods;
mod idempotency;
mod kubernetes;
mod leases;
mod lock;
mod modes;
mod process;
mod readme;
mod recovery;
mod reload;
mod restart;
mod restores;
mod rounds;
mod secrets;
mod several;
mod simulation;
mod stalls;
mod starvation;
mod support;
mod tls;
mod transparency;
mod waiting;
mod watch;
mod write_path;
