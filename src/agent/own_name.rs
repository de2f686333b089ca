//! The name by which this agent holds leases of the gate. An agent that proves who it is may only use names that the
//! gate allows it. Without a name of its own it asks the gate when the first lease is wanted, until the gate says one.

use std::{
    convert::Infallible,
    sync::{Mutex as Cell, OnceLock, PoisonError},
    time::Duration,
};

use tokio::sync::{Mutex, watch};

use super::slot::Standing;
use crate::{
    client::{Failed, LeaseApi, backoff::Backoff},
    fence::HolderId,
};

/// How long one call may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// First and longest wait between tries.
const BACKOFF_MS: (u64, u64) = (100, 5_000);

/// This agent's name as a holder.
pub struct OwnName {
    api: LeaseApi,
    /// The agent's part of the name.
    own: HolderId,
    known: OnceLock<HolderId>,
    /// Only one object's keeper asks at a time.
    turn: Mutex<()>,
    /// Why the name is not known; none before the first answer.
    unknown: watch::Sender<Option<Standing>>,
    /// The reason that was logged last.
    logged: Cell<Option<String>>,
}

impl OwnName {
    /// The agent has this name.
    #[must_use]
    pub fn given(api: LeaseApi, name: HolderId) -> Self {
        let known = OnceLock::from(name.clone());
        Self { known, ..Self::asked(api, name) }
    }

    /// The gate says the name, with `own` as its part.
    #[must_use]
    pub fn asked(api: LeaseApi, own: HolderId) -> Self {
        let (known, turn, unknown) = (OnceLock::new(), Mutex::default(), watch::Sender::new(None));
        Self { api, own, known, turn, unknown, logged: Cell::default() }
    }

    /// Returns the name once it is known. Until then, `note` gets each reason why it is not.
    pub(super) async fn known(&self, note: impl FnMut(Standing)) -> HolderId {
        if let Some(name) = self.known.get() {
            return name.clone();
        }
        tokio::select! {
            name = self.ask() => name,
            never = self.follow(note) => match never {},
        }
    }

    /// Asks the gate until it says the name. Asks again after every failure: rights and files are often there later
    /// than the agent.
    async fn ask(&self) -> HolderId {
        let _turn = self.turn.lock().await;
        let mut backoff = Backoff::new(BACKOFF_MS.0, BACKOFF_MS.1);
        loop {
            if let Some(name) = self.known.get() {
                return name.clone();
            }
            match self.api.own_holder(&self.own, PATIENCE).await {
                Ok(name) => {
                    tracing::info!(holder = %name, "the gate has said by which name this agent holds leases");
                    return self.known.get_or_init(|| name).clone();
                }
                Err(failed) => {
                    self.note(&failed);
                    tokio::time::sleep(backoff.next(failed.asked_ms())).await;
                }
            }
        }
    }

    async fn follow(&self, mut note: impl FnMut(Standing)) -> Infallible {
        let mut unknown = self.unknown.subscribe();
        loop {
            let why = unknown.borrow_and_update().clone();
            why.into_iter().for_each(&mut note);
            // The sender lives in this struct, so this cannot fail.
            let _ = unknown.changed().await;
        }
    }

    fn note(&self, failed: &Failed) {
        let why = failed.to_string();
        self.unknown.send_replace(Some(match failed {
            Failed::Refused(refusal) if !refusal.retryable => Standing::Refused(why.clone()),
            Failed::Refused(_) | Failed::Unreachable(_) | Failed::Unanswered(_) => Standing::Cut(why.clone()),
        }));
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.as_ref() != Some(&why) {
            tracing::warn!(why, "the gate does not say by which name this agent may hold leases; it is asked again");
            *logged = Some(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::{
        io::{AsyncBufReadExt, AsyncWriteExt, BufStream},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    async fn answer(stream: TcpStream, status: &str, body: &Value) -> std::io::Result<()> {
        let (mut stream, mut line, body) = (BufStream::new(stream), String::new(), body.to_string());
        while stream.read_line(&mut line).await? > 2 {}
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(head.as_bytes()).await?;
        stream.flush().await
    }

    /// A gate that is away first, then does not know the caller, and then does.
    async fn serve(listener: TcpListener) {
        drop(listener.accept().await.unwrap());
        let unknown = json!({ "code": "IDENTITY_REQUIRED", "detail": "not known", "retryable": false });
        for _ in 0..2 {
            answer(listener.accept().await.unwrap().0, "401 Unauthorized", &unknown).await.unwrap();
        }
        let who = json!({ "principal": "red", "source": "files", "groups": [], "expires_at": null, "operations": [],
            "holders": ["red"], "holder_separator": "/" });
        answer(listener.accept().await.unwrap().0, "200 OK", &who).await.unwrap();
    }

    #[tokio::test]
    async fn the_gate_is_asked_until_it_says_the_name_and_by_one_keeper_only() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = LeaseApi::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let gate = tokio::spawn(serve(listener));
        let name = OwnName::asked(api, HolderId::new("pod-a").unwrap());
        let (mut first, mut second) = (vec![], vec![]);
        let known = async { tokio::join!(name.known(|why| first.push(why)), name.known(|why| second.push(why))) };
        let known = tokio::time::timeout(Duration::from_secs(30), known).await.expect("the gate is asked again");
        assert_eq!((known.0.as_str(), known.1.as_str()), ("red/pod-a", "red/pod-a"));
        gate.await.unwrap();
        for notes in [first, second] {
            assert!(matches!(&notes[..], [Standing::Cut(_), .., Standing::Refused(_)]), "{notes:?}");
        }
        let again = name.known(|why| panic!("{why:?}")).await;
        assert_eq!(again.as_str(), "red/pod-a");
        assert_eq!(*name.logged.lock().unwrap(), Some("IDENTITY_REQUIRED: not known".to_owned()));
    }
}
