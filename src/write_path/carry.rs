//! What goes on when the client is gone, or slow: a write that was begun, and the store's answer to it.
//!
//! A write is settled by its whole answer. The gate reads a write's answer ahead of its client, so that a
//! slow one does not keep the object from being handed over; beyond [`AHEAD_BYTES`] it is passed on as it
//! comes, and the write stays in flight until its end.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::{Worker, inflight::InFlight};
use crate::{
    store::{body::Cut, pool::Lane},
    table::generation::Entered,
};

/// How much of a write's answer is read ahead of its client.
pub const AHEAD_BYTES: usize = 65_536;

/// Counts what is carried on: a worker does not stop before it is done.
struct Carrying(Rc<Worker>);

impl Carrying {
    fn new(worker: &Rc<Worker>) -> Self {
        worker.carried.set(worker.carried.get() + 1);
        Self(Rc::clone(worker))
    }
}

impl Drop for Carrying {
    fn drop(&mut self) {
        self.0.carried.set(self.0.carried.get() - 1);
    }
}

/// An answer that was read ahead.
pub enum Ahead {
    Whole(VecDeque<Frame<Bytes>>),
    /// There is more of it.
    Part(VecDeque<Frame<Bytes>>, Incoming),
    Broken(String),
}

/// Reads an answer ahead of its client.
pub async fn read_ahead(mut incoming: Incoming, patience: Duration) -> Ahead {
    let mut frames = VecDeque::new();
    let mut size = 0;
    let read = async {
        while !incoming.is_end_stream() {
            match poll_fn(|context| Pin::new(&mut incoming).poll_frame(context)).await {
                None => break,
                Some(Err(error)) => return Err(error.to_string()),
                Some(Ok(frame)) => {
                    size += frame.data_ref().map_or(0, Bytes::len);
                    frames.push_back(frame);
                    if size > AHEAD_BYTES {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    };
    match tokio::time::timeout(patience, read).await {
        Ok(Ok(true)) => Ahead::Whole(frames),
        Ok(Ok(false)) => Ahead::Part(frames, incoming),
        Ok(Err(why)) => Ahead::Broken(why),
        Err(_) => Ahead::Broken("it did not come to its end in time".to_owned()),
    }
}

/// What is kept while an answer is being passed on.
pub struct Carried {
    pub worker: Rc<Worker>,
    pub lane: Lane,
    pub is_write: bool,
    /// The connection can carry another request behind this one, and the write is settled by its answer.
    pub settles: bool,
    pub in_flight: Option<Rc<InFlight>>,
    /// The version of the route that it goes by.
    pub entered: Option<Rc<Entered>>,
}

impl Carried {
    /// The answer has come to its end.
    fn finish(self) {
        if !self.settles {
            return self.lose();
        }
        if let Some(in_flight) = &self.in_flight {
            in_flight.settle();
        }
        self.entered.inspect(|entered| entered.settle());
        self.lane.give_back(self.worker.now.get());
    }

    /// The answer will not come to its end: the write is unknown from when its connection is closed.
    fn lose(self) {
        if !self.is_write {
            return;
        }
        let Self { worker, lane, in_flight, entered, .. } = self;
        worker.plane.metrics().unknown();
        if worker.stopping.get() {
            return;
        }
        let carrying = Carrying::new(&worker);
        tokio::task::spawn_local(async move {
            lane.close().await;
            entered.inspect(|entered| entered.lose());
            in_flight.inspect(|in_flight| in_flight.lose());
            drop(carrying);
        });
    }
}

/// A store's answer, on its way to the client: what was read ahead, then the rest as it comes. If the
/// client goes away first, a write's answer is read on without it.
pub struct StoreReply {
    ahead: VecDeque<Frame<Bytes>>,
    incoming: Option<Incoming>,
    /// Shared with the deadline of a write's answer, which runs whether or not the client reads.
    carried: Rc<RefCell<Option<Carried>>>,
    patience: Duration,
    /// A read's answer must be over by then, a read's must have gone on; set when it is waited for.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl StoreReply {
    /// An answer that is here already.
    #[must_use]
    pub fn whole(ahead: VecDeque<Frame<Bytes>>) -> Self {
        Self { ahead, incoming: None, carried: Rc::default(), patience: Duration::ZERO, alarm: None }
    }

    /// An answer of which the rest, or all, is still to come.
    #[must_use]
    pub fn coming(ahead: VecDeque<Frame<Bytes>>, incoming: Incoming, carried: Carried, patience: Duration) -> Self {
        let is_write = carried.is_write;
        let carried = Rc::new(RefCell::new(Some(carried)));
        if is_write {
            let shared = Rc::downgrade(&carried);
            tokio::task::spawn_local(async move {
                tokio::time::sleep(patience).await;
                if let Some(late) = shared.upgrade().and_then(|shared| shared.borrow_mut().take()) {
                    late.lose();
                }
            });
        }
        let mut reply = Self { ahead, incoming: Some(incoming), carried, patience, alarm: None };
        reply.finish_if_over();
        reply
    }

    /// Whether all of it is here.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.incoming.is_none()
    }

    fn finish_if_over(&mut self) {
        if self.incoming.as_ref().is_some_and(Body::is_end_stream) {
            self.finish();
        }
    }

    fn finish(&mut self) {
        let carried = self.carried.borrow_mut().take();
        if let Some(carried) = carried {
            carried.finish();
        }
    }

    fn lose(&mut self) {
        let carried = self.carried.borrow_mut().take();
        if let Some(carried) = carried {
            carried.lose();
        }
    }

    fn poll_alarm(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let patience = self.patience;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        alarm.as_mut().poll(context)
    }
}

impl Body for StoreReply {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(frame) = self.ahead.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = Pin::new(incoming).poll_frame(context);
        match &frame {
            Poll::Ready(None) => self.finish(),
            // Nothing comes behind trailers.
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() => self.finish(),
            Poll::Ready(Some(Ok(_))) => {
                // A read may take as long as it likes, as long as something comes.
                self.alarm = None;
                self.finish_if_over();
            }
            // The connection is of no more use.
            Poll::Ready(Some(Err(_))) => self.lose(),
            Poll::Pending => {
                let is_read = self.carried.borrow().as_ref().is_some_and(|carried| !carried.is_write);
                if is_read && self.poll_alarm(context).is_ready() {
                    self.lose();
                    return Poll::Ready(Some(Err("the store's answer did not come to its end in time".into())));
                }
            }
        }
        frame.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.ahead.is_empty() && self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let ahead: u64 = self.ahead.iter().filter_map(Frame::data_ref).map(|bytes| bytes.len() as u64).sum();
        let rest = match &self.incoming {
            None if self.ahead.iter().any(Frame::is_trailers) => SizeHint::default(),
            None => SizeHint::with_exact(0),
            Some(incoming) => incoming.size_hint(),
        };
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + ahead);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + ahead);
        }
        hint
    }
}

impl Drop for StoreReply {
    fn drop(&mut self) {
        let carrying = match &*self.carried.borrow() {
            Some(carried) if carried.is_write && !carried.worker.stopping.get() => Carrying::new(&carried.worker),
            Some(_) | None => return,
        };
        let (incoming, carried) = (self.incoming.take(), Rc::clone(&self.carried));
        let mut rest = Self { ahead: VecDeque::new(), incoming, carried, patience: self.patience, alarm: None };
        tokio::task::spawn_local(async move {
            while let Some(Ok(_)) = poll_fn(|context| Pin::new(&mut rest).poll_frame(context)).await {}
            drop(carrying);
        });
    }
}

/// Work that goes on when nobody waits for it any more.
pub struct CarryOn<F: Future + 'static> {
    work: Option<Pin<Box<F>>>,
    worker: Rc<Worker>,
    /// Something may have been sent: before that, there is nothing to carry on.
    begun: Rc<Cell<bool>>,
}

impl<F: Future + 'static> CarryOn<F> {
    pub fn new(worker: Rc<Worker>, begun: Rc<Cell<bool>>, work: F) -> Self {
        Self { work: Some(Box::pin(work)), worker, begun }
    }
}

impl<F: Future + 'static> Future for CarryOn<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let done = work.as_mut().poll(context);
        if done.is_ready() {
            self.work = None;
        }
        done
    }
}

impl<F: Future + 'static> Drop for CarryOn<F> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take().filter(|_| self.begun.get() && !self.worker.stopping.get()) {
            let carrying = Carrying::new(&self.worker);
            tokio::task::spawn_local(async move {
                // What comes of it is for nobody; the write is settled by it.
                drop(work.await);
                drop(carrying);
            });
        }
    }
}
