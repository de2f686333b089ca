//! How many denied calls get a line: callers without rights must not fill the log. Time is an argument.

/// The most lines in one second about denied calls of callers that are not known. Anyone can be one of them.
pub const UNKNOWN_PER_SECOND: u32 = 10;
/// The most lines in one second about denied calls of known callers.
pub const KNOWN_PER_SECOND: u32 = 90;

/// The denied calls of the present second.
#[derive(Debug, Default)]
pub struct Denials {
    second: u64,
    known: u32,
    unknown: u32,
    left_out: u64,
}

impl Denials {
    /// Whether a denied call gets a line. Otherwise it is counted. `is_known`: whether its caller has a principal.
    pub fn admits(&mut self, second: u64, is_known: bool) -> bool {
        if self.second != second {
            (self.second, self.known, self.unknown) = (second, 0, 0);
        }
        let (admitted, most) =
            if is_known { (&mut self.known, KNOWN_PER_SECOND) } else { (&mut self.unknown, UNKNOWN_PER_SECOND) };
        let admits = *admitted < most;
        *admitted += u32::from(admits);
        self.left_out += u64::from(!admits);
        admits
    }

    /// How many calls have got no line since this was last asked, once their second is over.
    pub fn left_out(&mut self, second: u64) -> Option<u64> {
        if self.second == second || self.left_out == 0 {
            return None;
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(denials: &mut Denials, second: u64, is_known: bool) -> usize {
        (0..250).filter(|_| denials.admits(second, is_known)).count()
    }

    #[test]
    fn a_second_has_so_many_lines_and_the_rest_is_counted() {
        let mut denials = Denials::default();
        assert_eq!((admitted(&mut denials, 7, true), denials.left_out(7)), (90, None));
        assert_eq!((denials.left_out(8), denials.left_out(8)), (Some(160), None));
        assert_eq!((admitted(&mut denials, 8, true), admitted(&mut denials, 9, true)), (90, 90));
        assert_eq!(denials.left_out(10), Some(320));
        assert!(denials.admits(10, true) && denials.left_out(11).is_none());
    }

    #[test]
    fn unknown_callers_do_not_use_up_the_lines_of_known_ones() {
        let mut denials = Denials::default();
        assert_eq!((admitted(&mut denials, 7, false), admitted(&mut denials, 7, true)), (10, 90));
        assert_eq!((admitted(&mut denials, 8, true), admitted(&mut denials, 8, false)), (90, 10));
        assert_eq!(denials.left_out(9), Some(800));
    }
}
