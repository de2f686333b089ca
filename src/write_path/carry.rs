//! What goes on when the client is gone: a write that was begun, and the store's answer to it.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::{Worker, decide::Admitted};
use crate::store::{body::Cut, pool::Lane};

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

/// What is kept while an answer is being read.
pub struct Carried {
    pub worker: Rc<Worker>,
    pub lane: Lane,
    pub is_write: bool,
    /// The connection can carry another request behind this one.
    pub reuse: bool,
    pub admitted: Option<Rc<Admitted>>,
}

/// A store's answer, on its way to the client. When it is over, the connection is free again and the
/// write is settled. If the client goes away first, a write's answer is read on without it.
pub struct StoreReply {
    incoming: Option<Incoming>,
    carried: Option<Carried>,
    patience: Duration,
    /// A write's answer must be over by then; set when it is first waited for.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl StoreReply {
    #[must_use]
    pub fn new(incoming: Incoming, carried: Carried, patience: Duration) -> Self {
        let mut reply = Self { incoming: Some(incoming), carried: Some(carried), patience, alarm: None };
        reply.finish_if_over();
        reply
    }

    fn finish_if_over(&mut self) {
        if self.incoming.as_ref().is_some_and(Body::is_end_stream) {
            self.finish();
        }
    }

    fn finish(&mut self) {
        if let Some(Carried { worker, lane, reuse: true, .. }) = self.carried.take() {
            lane.give_back(worker.now.get());
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
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = Pin::new(incoming).poll_frame(context);
        match &frame {
            Poll::Ready(None) => self.finish(),
            // Nothing comes behind trailers.
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() => self.finish(),
            Poll::Ready(Some(Ok(_))) => self.finish_if_over(),
            // The connection is of no more use.
            Poll::Ready(Some(Err(_))) => drop(self.carried.take()),
            Poll::Pending => {
                let is_write = self.carried.as_ref().is_some_and(|carried| carried.is_write);
                if is_write && self.poll_alarm(context).is_ready() {
                    drop(self.carried.take());
                    return Poll::Ready(Some(Err("the store's answer did not come to its end in time".into())));
                }
            }
        }
        frame.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for StoreReply {
    fn drop(&mut self) {
        let Some(carried) = self.carried.take() else { return };
        if !carried.is_write || carried.worker.stopping.get() {
            return;
        }
        let carrying = Carrying::new(&carried.worker);
        let (incoming, alarm) = (self.incoming.take(), self.alarm.take());
        let mut rest = Self { incoming, carried: Some(carried), patience: self.patience, alarm };
        tokio::task::spawn_local(async move {
            while let Some(Ok(_)) = std::future::poll_fn(|context| Pin::new(&mut rest).poll_frame(context)).await {}
            // Over or not, nothing more is waited for.
            drop(rest.carried.take());
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
