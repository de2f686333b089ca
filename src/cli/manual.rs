//! `fencegate completions` and `fencegate man`

use std::{io::stdout, path::Path};

use clap::CommandFactory;

use super::{Cli, Done, Failed};

pub(super) fn completions(shell: clap_complete::Shell) {
    clap_complete::generate(shell, &mut Cli::command(), "fencegate", &mut stdout().lock());
}

pub(super) fn pages(out: Option<&Path>) -> Done {
    let written = match out {
        None => clap_mangen::Man::new(Cli::command()).render(&mut stdout().lock()),
        Some(folder) => clap_mangen::generate_to(Cli::command(), folder),
    };
    written.map_err(|error| Failed::Said(format!("the manual cannot be written: {error}")))
}
