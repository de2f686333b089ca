//! A wire between two sockets with faults: answers get lost or late, or no bytes come through at all.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// How the wire treats bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Pass,
    /// Requests get through; their answers do not.
    LosesAnswers,
    /// Requests get through; their answers come this much later.
    Late(Duration),
    /// Connections are taken, and no bytes get through.
    Dark,
    /// Connections are taken, and no bytes get through until the mode changes.
    Held,
    /// Connections are closed at once.
    Cut,
}

pub struct Wire {
    pub address: SocketAddr,
    mode: Arc<Mutex<Mode>>,
    /// The number of connections so far.
    calls: Arc<AtomicUsize>,
}

impl Wire {
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, calls) = (Arc::new(Mutex::new(Mode::Pass)), Arc::<AtomicUsize>::default());
        let (shared, count) = (Arc::clone(&mode), Arc::clone(&calls));
        thread::spawn(move || {
            let mut kept = vec![];
            for client in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                let mode = *shared.lock().unwrap();
                match mode {
                    Mode::Dark => kept.push(client),
                    Mode::Held => {
                        let shared = Arc::clone(&shared);
                        thread::spawn(move || {
                            while *shared.lock().unwrap() == Mode::Held {
                                thread::yield_now();
                            }
                            carry(client, target, shared);
                        });
                    }
                    Mode::Cut => drop(client),
                    Mode::Pass | Mode::LosesAnswers | Mode::Late(_) => carry(client, target, Arc::clone(&shared)),
                }
            }
        });
        Self { address, mode, calls }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

fn carry(client: TcpStream, target: SocketAddr, mode: Arc<Mutex<Mode>>) {
    let Ok(server) = TcpStream::connect(target) else { return };
    let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let (mut from_server, mut to_client) = (server, client);
    thread::spawn(move || {
        let mut room = [0; 16 << 10];
        while let Ok(read @ 1..) = from_server.read(&mut room) {
            let mode = *mode.lock().unwrap();
            match mode {
                Mode::Late(by) => {
                    let (_kept, never) = mpsc::sync_channel::<()>(0);
                    let _ = never.recv_timeout(by);
                }
                Mode::LosesAnswers | Mode::Dark | Mode::Cut => break,
                Mode::Pass | Mode::Held => {}
            }
            if to_client.write_all(&room[..read]).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(Shutdown::Both);
        let _ = from_server.shutdown(Shutdown::Both);
    });
}
