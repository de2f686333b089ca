//! The `fencegate` program: see [`fencegate::cli`].

/// A write takes and gives back some twenty pieces of memory, some of them large.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    fencegate::cli::run()
}
