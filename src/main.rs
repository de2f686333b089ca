//! The `fencegate` program: see [`fencegate::cli`].

fn main() -> std::process::ExitCode {
    fencegate::cli::run()
}
