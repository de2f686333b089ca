//! `fencegate check`

use super::{ConfigArgs, Done, load, output};

pub(super) fn run(args: &ConfigArgs) -> Done {
    load(args)?;
    output::line("the configuration is sound");
    Ok(())
}
