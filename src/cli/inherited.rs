//! What whoever started this program has decided for it.

use rustix::process::Signal;

/// Signals that are ignored from the start, as nohup(1) and a shell's `&` do: to listen for one would undo that, for
/// this program and for its children. To be looked at before any is listened for.
pub(super) struct Ignored(u64);

impl Ignored {
    pub(super) fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self(mask(&status))
    }

    pub(super) fn has(&self, signal: Signal) -> bool {
        (self.0 >> (signal.as_raw() - 1)) & 1 == 1
    }
}

fn mask(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_read_by_signal() {
        let ignored = Ignored(mask("Name:\tx\nSigIgn:\t0000000000000001\nSigCgt:\t00000000000000ff\n"));
        assert!(ignored.has(Signal::HUP) && !ignored.has(Signal::INT));
        assert_eq!(mask("nothing"), 0);
    }
}
