//! A request that is being answered: its connection counts it, and knows what it waits for.

use std::rc::Rc;

use http::{Method, Request};

use super::{
    super::{evict::At, taking::Reply},
    Client, Connection,
};
use crate::fence::BootMs;

/// A request that is being answered.
pub struct Busy {
    connection: Rc<Connection>,
    at: At,
    /// The request is a HEAD.
    pub to_head: bool,
    /// How the client takes this HTTP/2 answer. On HTTP/1.1 the socket shows that.
    reply: Option<Rc<Reply>>,
}

impl Busy {
    /// Whose request it is.
    pub fn client(&self) -> &Rc<Client> {
        &self.connection.client
    }

    pub(super) fn new<B>(connection: &Rc<Connection>, request: &Request<B>) -> Self {
        let at = At::of(request.method());
        connection.client.requests.begin(at);
        connection.active.set(connection.active.get() + 1);
        connection.had_request.set(true);
        let reply = connection.is_h2.get().then(Rc::<Reply>::default);
        if reply.is_some() {
            connection.begun.replace(reply.clone());
        }
        Self { connection: Rc::clone(connection), at, to_head: request.method() == Method::HEAD, reply }
    }

    /// Notes that from now on only the client's taking of its answer is waited for.
    pub fn waits(&mut self) {
        if self.at != At::Client {
            self.connection.client.requests.turn(self.at, At::Client, self.connection.clock.get());
            self.at = At::Client;
        }
    }

    /// The answer is ready to be taken. `is_whole` says whether all of it is. Only HTTP/2 needs this: an HTTP/1.1
    /// client can delay an answer only through the socket, which shows it.
    pub fn answered(&mut self, is_whole: impl FnOnce() -> bool) {
        if self.reply.is_some() && is_whole() {
            self.waits();
        }
        if let Some(reply) = &self.reply {
            reply.is_there(self.connection.clock.get());
            self.connection.replies.borrow_mut().push(Rc::downgrade(reply));
        }
    }

    /// How the client takes an HTTP/2 answer, and the present time.
    pub fn taking(&self) -> Option<(&Reply, BootMs)> {
        self.reply.as_deref().map(|reply| (reply, self.connection.clock.get()))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.connection.client.requests.end(self.at);
        let active = self.connection.active.get() - 1;
        self.connection.active.set(active);
        if active == 0 {
            self.connection.taken.set(0);
            self.connection.waited_ms.set(0);
        }
        self.connection.head_begun.set(false);
        self.connection.since.set(self.connection.clock.get());
    }
}
