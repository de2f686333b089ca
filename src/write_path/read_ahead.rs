//! The part of an answer that is read before its client takes it.

use std::{
    collections::VecDeque,
    future::poll_fn,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http_body::Frame;

use super::{Worker, alarms::Alarm, headers::strip_fence};
use crate::upstream::pool::PooledConn;

/// How much of a write's answer is read before its client takes it.
pub const AHEAD_BYTES: usize = 65_536;

/// An answer that was read ahead.
pub enum Ahead {
    Whole(Frames),
    /// Part of the answer; more is to come.
    Part(Frames),
    Broken(String),
}

/// What has been read of an answer: most answers have one part.
#[derive(Default)]
pub struct Frames {
    first: Option<Bytes>,
    more: VecDeque<Frame<Bytes>>,
}

impl Frames {
    fn push(&mut self, frame: Frame<Bytes>) {
        let is_first = self.first.is_none() && self.more.is_empty();
        match frame.into_data() {
            Ok(data) if is_first => self.first = Some(data),
            Ok(data) => self.more.push_back(Frame::data(data)),
            Err(frame) => self.more.push_back(frame),
        }
    }

    /// The only part, if there is at most one and it is data.
    ///
    /// # Errors
    /// With all frames, where there are more.
    pub fn into_only(self) -> Result<Option<Bytes>, Self> {
        if self.more.is_empty() { Ok(self.first.filter(|data| !data.is_empty())) } else { Err(self) }
    }

    pub(super) fn pop(&mut self) -> Option<Frame<Bytes>> {
        self.first.take().map(Frame::data).or_else(|| self.more.pop_front())
    }

    /// Puts back the data that was popped last.
    pub(super) fn put_back(&mut self, data: Bytes) {
        if let Some(first) = self.first.replace(data) {
            self.more.push_front(Frame::data(first));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none() && self.more.is_empty()
    }

    pub(super) fn has_trailers(&self) -> bool {
        self.more.iter().any(Frame::is_trailers)
    }

    /// All of its data; `None` if it has trailers.
    #[must_use]
    pub fn data(&self) -> Option<Bytes> {
        match (&self.first, self.more.len()) {
            (None, 0) => Some(Bytes::new()),
            (Some(only), 0) => Some(only.clone()),
            _ if self.has_trailers() => None,
            _ => {
                let parts: Vec<&[u8]> = self.parts().map(|part| &part[..]).collect();
                Some(parts.concat().into())
            }
        }
    }

    /// The data, part by part.
    fn parts(&self) -> impl Iterator<Item = &Bytes> {
        self.first.iter().chain(self.more.iter().filter_map(Frame::data_ref))
    }

    /// How many bytes of data there are.
    pub(super) fn size(&self) -> u64 {
        self.parts().map(|data| data.len() as u64).sum()
    }
}

/// Reads an answer before its client takes it, up to a bound.
pub async fn read_ahead(conn: &mut PooledConn, worker: &Worker, patience: impl Fn() -> Duration) -> Ahead {
    let (mut frames, mut size) = (Frames::default(), 0);
    // Most answers are here already, so most need no alarm.
    let mut alarm: Option<Alarm> = None;
    let read = poll_fn(|context| {
        while !conn.http1().is_over() {
            match conn.http1().poll_frame(context) {
                Poll::Pending => {
                    let alarm = alarm.get_or_insert_with(|| worker.alarms.set(patience()));
                    return alarm.poll(context).map(|()| Err("it did not come to its end in time".to_owned()));
                }
                Poll::Ready(None) => break,
                Poll::Ready(Some(Err(failed))) => return Poll::Ready(Err(failed.to_string())),
                Poll::Ready(Some(Ok(mut frame))) => {
                    frame.trailers_mut().into_iter().for_each(strip_fence);
                    size += frame.data_ref().map_or(0, Bytes::len);
                    frames.push(frame);
                    if size > AHEAD_BYTES {
                        break;
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    });
    match read.await {
        Ok(()) if conn.http1().is_over() => Ahead::Whole(frames),
        Ok(()) => Ahead::Part(frames),
        Err(why) => Ahead::Broken(why),
    }
}

/// Takes what has come of a read's answer, within the same bound, without waiting for more. So a client that is slow to
/// take a short answer does not hold a connection to the store.
///
/// # Errors
/// With the reason why the answer broke off.
pub fn take_ready(conn: &mut PooledConn) -> Result<Frames, String> {
    let (mut frames, mut size) = (Frames::default(), 0);
    // The task waits for the rest with another waker.
    let mut context = Context::from_waker(Waker::noop());
    while size <= AHEAD_BYTES && !conn.http1().is_over() {
        match conn.http1().poll_frame(&mut context) {
            Poll::Pending | Poll::Ready(None) => break,
            Poll::Ready(Some(Err(failed))) => return Err(failed.to_string()),
            Poll::Ready(Some(Ok(mut frame))) => {
                frame.trailers_mut().into_iter().for_each(strip_fence);
                size += frame.data_ref().map_or(0, Bytes::len);
                frames.push(frame);
            }
        }
    }
    Ok(frames)
}
