//! The streams that a connection to the store uses, and what is known of them.

use std::{
    cell::Cell,
    io,
    mem::MaybeUninit,
    rc::Rc,
    task::{Context, Poll},
};

use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream},
    net::{TcpStream, UnixStream},
};

use super::observed::Observer;
use crate::tls::StoreStream;

/// A stream to the store.
pub trait Io: AsyncRead + AsyncWrite + Unpin {
    /// Whether something has come that the runtime may not have noticed yet. `false` where that cannot be known.
    fn has_come(&self) -> bool {
        false
    }
}

impl Io for TcpStream {
    fn has_come(&self) -> bool {
        is_readable(&SockRef::from(self))
    }
}

impl Io for UnixStream {
    fn has_come(&self) -> bool {
        is_readable(&SockRef::from(self))
    }
}

/// What has come below TLS need not be part of an answer. It is read before anything more is sent, so that it cannot
/// seem to be the answer to that.
impl<S: Io> Io for StoreStream<S> {
    fn has_come(&self) -> bool {
        self.get_ref().0.has_come()
    }
}

impl Io for DuplexStream {}

/// Whether the socket has bytes to read, or has ended. The socket does not block.
fn is_readable(socket: &SockRef<'_>) -> bool {
    socket.peek(&mut [MaybeUninit::uninit()]).is_ok()
}

/// What was sent and received on a connection, for the tasks that watch it.
#[derive(Debug, Default)]
pub struct Wire {
    /// How many bytes have ever left. Counted below TLS.
    pub sent: Cell<u64>,
    /// Whether something has come from the store since the last request was begun.
    pub has_received: Cell<bool>,
}

/// Counts the bytes that leave.
impl<S> Observer<S> for Rc<Wire> {
    #[inline]
    fn written(&mut self, _context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.sent.set(self.sent.get() + *bytes as u64);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::tls::{Acceptor, Clients, Connector, Files};

    #[tokio::test]
    async fn bytes_are_seen_before_the_runtime_reports_them() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        assert!(!ours.has_come());
        theirs.write_all(b"x").await.unwrap();
        assert!(ours.has_come());
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(ours.has_come(), "the end is news, too");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut theirs, _) = listener.accept().await.unwrap();
        assert!(!ours.has_come());
        theirs.write_all(b"x").await.unwrap();
        while !ours.has_come() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_has_come_is_seen_below_tls() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
        let own = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["store.test".to_owned()]).unwrap();
        fs::write(&certificate, params.self_signed(&own).unwrap().pem()).unwrap();
        fs::write(&key, own.serialize_pem()).unwrap();
        let acceptor = Acceptor::new(&certificate, &key, Clients::NotAsked).unwrap();
        let connector = Connector::new(Files { roots: Some(certificate), shown: None }, "store.test").unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        let (ours, theirs) = tokio::join!(connector.connect(near), acceptor.accept(far));
        let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap());
        theirs.write_all(b"x").await.unwrap();
        theirs.flush().await.unwrap();
        assert!(ours.has_come());
        let mut read = [0];
        ours.read_exact(&mut read).await.unwrap();
        assert!(!ours.has_come());
    }
}
