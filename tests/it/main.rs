//! All integration tests in one program: real sockets, real processes, real RocksDB.
//!
//! - `support`: an HTTP client on plain sockets, gates in this process and in their own.
//! - `leases`, `waiting`, `watch`, `api`: the lease api, call by call.
//! - `access`: who may call the api, and what.
//! - `described`: the description of the api, compared with the api.
//! - `layers`: modules under `src/` import downwards only. `seams`: who may name a lease source or a store profile.
//! - `floods`: more callers than a port has room for; they send half requests or read nothing.
//! - `expiry`: races at the instant of expiry, with a driven clock and a disk that hangs.
//! - `contract`: one suite for every table, RocksDB and the one in memory that fails on purpose.
//! - `recovery`: damaged, lost and foreign tables. `restores`: restored backups. `flips`: one flipped bit of a log.
//! - `restart`: the run after a crash. `crash`: kill -9 in a loop, also with unsynced data thrown away.
//! - `crash_points`: restore, backup, init and a start, each killed at each of its steps.
//! - `modes`: who may read the table's files.
//! - `rounds`: the ledger's answers come after its commit.
//! - `stalls`: a disk that hangs.
//! - `process`: starting, stopping, configuration faults, full disks, failing syncs.
//! - `cli`: the commands. `client`: the library for writers, on a wire with faults. `lock`: a command under a lease.
//! - `agent`: the writer-side sidecar, in front of applications without leases.
//! - `write_path`: writes and reads through the gate, against a recording store in its own process.
//! - `tls`: on both sides. `reload`: SIGHUP. `secrets`: none leaks. `demo`, `readme`, `examples`: their commands work.
//! - `conformance`: every refusal and every bad input, and what the store saw of each.
//! - `adversarial`: attacks as bytes on a socket. `starvation`: clients that take more than their share.
//! - `drain`: leases that change hands while writes are on their way. `several`: writes to two objects.
//! - `external`: tokens of outside lock services.
//! - `kubernetes`: tokens of Leases, on an API server in this process, or on a real one.
//! - `idempotency`: writes with a key: each runs once, also if the gate is killed.
//! - `simulation`: the whole gate except its sockets, by seed, with an adversary; and with faults that it must find.
//! - `transparency`: large, many and unusual requests on both protocols, with independent clients.

#![allow(unreachable_pub, reason = "a test program exports nothing; pub says what support offers")]
#![allow(clippy::pedantic, reason = "tests are read, not called")]

mod access;
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
mod layers;
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
mod seams;
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
