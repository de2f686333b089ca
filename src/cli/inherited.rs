//! The signals that this process has inherited as ignored or blocked.

use rustix::process::Signal;

/// The signals of this process: ignored, blocked and pending.
///
/// A signal that is ignored from the start, as by nohup(1) and a shell's `&`, must stay ignored. Listening for one
/// would end that, for this program and its children. So read this before listening for any. A signal that is blocked
/// from the start is never delivered, but it can be seen as pending.
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

    /// Whether this signal has come, and is blocked.
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
