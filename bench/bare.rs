//! The plainest proxy that hyper gives: one `LocalRuntime`, a pool of `client::conn`, no check, no metrics, no
//! timeouts, headers unchanged. The gate is measured against it: the difference is the cost of the gate's own work.
//!
//! Usage: bare --listen 127.0.0.1:0 --store 127.0.0.1:9000      prints `ready PORT`

use std::{cell::RefCell, convert::Infallible, error::Error, net::SocketAddr, rc::Rc};

use http::{Request, Response, StatusCode};
use http_body_util::{Either, Empty};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1::{SendRequest, handshake},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Builder, LocalOptions},
    task::spawn_local,
};

/// The gate's own allocator, so that allocators make no difference.
#[global_allocator]
static MEMORY: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

type Reply = Response<Either<Incoming, Empty<Bytes>>>;

struct Pool {
    store: SocketAddr,
    idle: RefCell<Vec<SendRequest<Incoming>>>,
}

impl Pool {
    async fn sender(&self) -> Result<SendRequest<Incoming>, Box<dyn Error>> {
        loop {
            let Some(mut idle) = self.idle.borrow_mut().pop() else { break };
            if idle.ready().await.is_ok() {
                return Ok(idle);
            }
        }
        let stream = TcpStream::connect(self.store).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        spawn_local(connection);
        Ok(sender)
    }

    async fn forward(&self, request: Request<Incoming>) -> Result<Response<Incoming>, Box<dyn Error>> {
        let mut sender = self.sender().await?;
        let response = sender.send_request(request).await?;
        self.idle.borrow_mut().push(sender);
        Ok(response)
    }
}

async fn answer(pool: Rc<Pool>, request: Request<Incoming>) -> Result<Reply, Infallible> {
    Ok(match pool.forward(request).await {
        Ok(response) => response.map(Either::Left),
        Err(_) => {
            let mut failed = Response::new(Either::Right(Empty::new()));
            *failed.status_mut() = StatusCode::BAD_GATEWAY;
            failed
        }
    })
}

fn argument(name: &str) -> SocketAddr {
    let mut arguments = std::env::args().skip_while(|each| each != name);
    let given = arguments.nth(1).and_then(|address| address.parse().ok());
    given.unwrap_or_else(|| panic!("usage: bare --listen ADDRESS --store ADDRESS"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let (listen, store) = (argument("--listen"), argument("--store"));
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await?;
        println!("ready {}", listener.local_addr()?.port());
        let pool = Rc::new(Pool { store, idle: RefCell::default() });
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let pool = Rc::clone(&pool);
            let service = service_fn(move |request| answer(Rc::clone(&pool), request));
            // A broken connection concerns the peer only.
            spawn_local(
                async move { drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await) },
            );
        }
    })
}
