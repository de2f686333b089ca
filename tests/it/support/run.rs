//! Programs that a test runs. Each wait for one has a deadline, and a panic names what it has waited for.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// More time than any program needs to end, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// What [`Command::output`] does, with a deadline.
pub trait Ends {
    /// Runs a command to its end. Returns its status and output; panics with the command if it does not end.
    fn ends(&mut self) -> Output;
}

impl Ends for Command {
    #[track_caller]
    fn ends(&mut self) -> Output {
        finish(&format!("{self:?}"), self)
    }
}

/// The same; `what` names the program in a panic.
#[track_caller]
pub fn finish(what: &str, command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
    output_of(what, &mut child)
}

/// What [`Child::wait_with_output`] does, with a deadline. What is not piped is empty.
#[track_caller]
pub fn output_of(what: &str, child: &mut Child) -> Output {
    drop(child.stdin.take());
    let (out, err) = (child.stdout.take().map(PipeOutput::of), child.stderr.take().map(PipeOutput::of));
    let so_far = || [&out, &err].map(|output| output.as_ref().map_or(vec![], PipeOutput::so_far));
    let is_over = [&out, &err].into_iter().flatten().all(|output| output.over.recv_timeout(PATIENCE).is_ok());
    if !is_over {
        let _ = child.kill();
        let said = so_far().map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        panic!("waited in vain for the end of {what}; it said:\n{said}");
    }
    let status = end_of(what, child);
    let [stdout, stderr] = so_far();
    Output { status, stdout, stderr }
}

/// What [`Child::wait`] does, with a deadline.
#[track_caller]
pub fn end_of(what: &str, child: &mut Child) -> ExitStatus {
    let pid = Pid::from_child(child);
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        // NOWAIT leaves the child to `child.wait`. An error means that the child was waited for already, so it has
        // ended, too.
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let _ = sender.send(());
    });
    if receiver.recv_timeout(PATIENCE).is_err() {
        let _ = child.kill();
        panic!("waited in vain for the end of {what}");
    }
    child.wait().unwrap()
}

/// The output of a pipe, read by a separate thread.
struct PipeOutput {
    bytes: Arc<Mutex<Vec<u8>>>,
    over: mpsc::Receiver<()>,
}

impl PipeOutput {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(vec![]));
        let (sender, over) = mpsc::sync_channel(1);
        let into = Arc::clone(&bytes);
        thread::spawn(move || {
            let mut piece = vec![0; 1 << 16];
            while let Ok(length @ 1..) = pipe.read(&mut piece) {
                into.lock().unwrap().extend_from_slice(&piece[..length]);
            }
            let _ = sender.send(());
        });
        Self { bytes, over }
    }

    fn so_far(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }
}

/// The lines that a program says, one by one.
pub struct Lines {
    what: String,
    lines: mpsc::Receiver<String>,
}

impl Lines {
    /// Reads this pipe of the program `what`.
    pub fn of(what: &str, pipe: impl Read + Send + 'static) -> Self {
        let (sender, lines) = mpsc::sync_channel(1 << 10);
        thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = String::new();
            // The pipe is read to its end even if the test takes no more lines: a full pipe would stop the program.
            while pipe.read_line(&mut line).is_ok_and(|length| length > 0) {
                let _ = sender.send(std::mem::take(&mut line));
            }
        });
        Self { what: what.to_owned(), lines }
    }

    /// The next line, with its line end; `None` if the pipe is closed.
    #[track_caller]
    pub fn next(&self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("waited in vain for a line of {}", self.what),
        }
    }

    /// The next line that is as wanted; skips others. Panics with the others if none comes.
    #[track_caller]
    pub fn find(&self, wanted: &str, is_it: impl Fn(&str) -> bool) -> String {
        let mut others = String::new();
        while let Some(line) = self.next() {
            if is_it(line.trim_end()) {
                return line;
            }
            others.push_str(&line);
        }
        panic!("{} has ended without {wanted}; it said:\n{others}", self.what)
    }
}
