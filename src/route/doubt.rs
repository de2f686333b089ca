//! Why a request could be read in two ways.

/// Why a head could be read in two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// A line ends in LF alone.
    BareLineFeed,
    /// The target has a `#`.
    Fragment,
    /// Content-Length comes more than once, or with Transfer-Encoding; or Transfer-Encoding comes more than once.
    TwoLengths,
    /// Where the head begins or ends is not clear.
    Bounds,
}

impl Doubt {
    /// The part of the request that is in doubt, and why.
    #[must_use]
    pub const fn what(self) -> (&'static str, &'static str) {
        match self {
            Self::BareLineFeed => ("head", "a line of the head ends in LF alone; it must end in CRLF"),
            Self::Fragment => {
                ("target", "the target has a '#': a fragment is never sent, and some stores would not cut it off")
            }
            Self::TwoLengths => (
                "Content-Length",
                "the length of the body is said more than once: send one Content-Length, or one Transfer-Encoding: chunked",
            ),
            Self::Bounds => ("head", "the head does not begin or end where its lines say"),
        }
    }
}
