//! `fencegate check`

use super::{ConfigArgs, Done, load, output};

pub(super) fn run(args: &ConfigArgs) -> Done {
    let settings = load(args)?;
    for risk in settings.risks() {
        output::line(&format!("note: {}: {}", risk.key, risk.what));
    }
    output::line("the configuration is sound");
    Ok(())
}
