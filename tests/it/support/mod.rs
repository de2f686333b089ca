//! What the tests stand on.

pub mod gate;
pub mod http;
pub mod process;
