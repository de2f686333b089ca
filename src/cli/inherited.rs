//! What whoever started this program has decided for it.

use rustix::process::Signal;

/// How this process stands with signals.
///
/// Those that are ignored from the start, as nohup(1) and a shell's `&` do, are to stay so: to listen for one would undo
/// that, for this program and for its children. To be looked at before any is listened for. Those that are blocked from
/// the start are never heard, but it can be seen that they have come.
pub(super) struct Inherited {
    ignored: u64,
    blocked: u64,
    pending: u64,
}

impl Inherited {
    pub(super) fn now() -> Self {
        Self::read(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    fn read(status: &str) -> Self {
        let pending = mask(status, "ShdPnd:") | mask(status, "SigPnd:");
        Self { ignored: mask(status, "SigIgn:"), blocked: mask(status, "SigBlk:"), pending }
    }

    pub(super) fn ignores(&self, signal: Signal) -> bool {
        has(self.ignored, signal)
    }

    pub(super) fn blocks(&self, signal: Signal) -> bool {
        has(self.blocked, signal)
    }

    /// Whether it has come, and is blocked.
    pub(super) fn has_pending(&self, signal: Signal) -> bool {
        has(self.pending, signal)
    }
}

fn has(mask: u64, signal: Signal) -> bool {
    (mask >> (signal.as_raw() - 1)) & 1 == 1
}

fn mask(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_read_by_signal() {
        let status = "Name:\tx\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\nSigBlk:\t0000000000004002\nSigIgn:\t0000000000000001\n";
        let read = Inherited::read(status);
        assert!(read.ignores(Signal::HUP) && !read.ignores(Signal::INT));
        assert!(read.blocks(Signal::TERM) && read.blocks(Signal::INT) && !read.blocks(Signal::HUP));
        assert!(read.has_pending(Signal::TERM) && !read.has_pending(Signal::INT));
        assert!(!Inherited::read("nothing").ignores(Signal::HUP));
    }
}
