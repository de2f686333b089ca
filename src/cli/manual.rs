//! `fencegate completions` and `fencegate man`

use std::path::Path;

use clap::CommandFactory;

use super::{Cli, Done, Failed, output};

pub(super) fn completions(shell: clap_complete::Shell) {
    let mut text = vec![];
    clap_complete::generate(shell, &mut Cli::command(), "fencegate", &mut text);
    output::bytes(&text);
}

pub(super) fn pages(out: Option<&Path>) -> Done {
    let written = match out {
        None => {
            let mut text = vec![];
            let rendered = clap_mangen::Man::new(Cli::command()).render(&mut text);
            output::bytes(&text);
            rendered
        }
        Some(folder) => clap_mangen::generate_to(Cli::command(), folder),
    };
    written.map_err(|error| Failed::Said(format!("the manual cannot be written: {error}")))
}
