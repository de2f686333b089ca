//! Tests of [`super`], with an API server that is a function.

use std::{
    net::Ipv4Addr,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::sync::Notify;

use super::{super::unverified::tests::token, *};
use crate::config::IdentityKind;

const NOW: WallMs = WallMs(1_800_000_000_000);
const NAME: &str = "system:serviceaccount:shop:api";

fn good() -> Reviewed {
    Reviewed {
        authenticated: true,
        username: NAME.to_owned(),
        audiences: vec!["fencegate".to_owned()],
        ..Reviewed::default()
    }
}

/// A token for the gate that ends a minute after [`NOW`]; `n` tells it from others.
fn of(n: usize) -> String {
    token(&format!("{{\"aud\":[\"fencegate\"],\"exp\":1800000060,\"n\":{n}}}"))
}

/// A source whose API server answers so, and how often it was asked.
fn reviews<F>(cache_ms: u64, answer: impl Fn(&str) -> F + Send + Sync + 'static) -> (Arc<Reviews>, Arc<AtomicUsize>)
where
    F: Future<Output = Result<Reviewed, Away>> + Send + 'static,
{
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let ask: Ask = Box::new(move |token| {
        count.fetch_add(1, Ordering::SeqCst);
        Box::pin(answer(&token))
    });
    (Arc::new(Reviews::asking("fencegate", cache_ms, ask)), asked)
}

async fn by(reviews: &Reviews, bearer: &str) -> Result<Principal, String> {
    from(reviews, bearer, 1, NOW).await
}

async fn from(reviews: &Reviews, bearer: &str, peer: u32, now: WallMs) -> Result<Principal, String> {
    let peer = Some(IpAddr::V4(Ipv4Addr::from(peer)));
    match reviews.identify("cluster", bearer, peer, now).await {
        Verdict::Is(who) => Ok(who),
        Verdict::Refused(what) => Err(format!("refused: {what}")),
        Verdict::Unavailable(what) => Err(format!("unavailable: {what}")),
        Verdict::NotMine => Err("not mine".to_owned()),
    }
}

#[test]
fn the_answer_of_the_server_makes_the_principal() {
    let pod = Reviewed {
        groups: vec!["system:serviceaccounts".to_owned()],
        pod_name: Some("api-0".to_owned()),
        pod_uid: Some("u-1".to_owned()),
        ..good()
    };
    let who = judged(pod, "cluster", "fencegate").unwrap();
    assert_eq!((who.name(), who.source(), who.groups().len()), (NAME, "cluster", 1));
    let captures = ["serviceaccount.namespace", "serviceaccount.name", "pod.name", "pod.uid"];
    assert_eq!(captures.map(|name| who.capture(name)), [Some("shop"), Some("api"), Some("api-0"), Some("u-1")]);
    assert_eq!(judged(good(), "cluster", "fencegate").unwrap().capture("pod.name"), None);
}

#[test]
fn an_answer_that_does_not_say_all_of_it_makes_none() {
    let why = |reviewed: Reviewed| judged(reviewed, "cluster", "fencegate").unwrap_err();
    let error = "lookup of secret-token failed".to_owned();
    let no = why(Reviewed { authenticated: false, error, ..good() });
    assert_eq!(no, "the API server does not accept this token");
    for audiences in [vec![], vec!["https://kubernetes.default.svc".to_owned()], vec!["fencegates".to_owned()]] {
        assert!(why(Reviewed { audiences, ..good() }).contains("audience \"fencegate\""));
    }
    for username in
        ["", "admin", "system:admin", "system:node:n1", "system:serviceaccounts:a:b", "x:serviceaccount:a:b"]
    {
        assert_eq!(why(Reviewed { username: username.to_owned(), ..good() }), "this token is no ServiceAccount's");
    }
    for name in ["system:serviceaccount:shop", "system:serviceaccount:shop:", "system:serviceaccount:a:b:c"] {
        assert_eq!(
            why(Reviewed { username: name.to_owned(), ..good() }),
            "this token is no ServiceAccount's",
            "{name}"
        );
    }
    assert!(why(Reviewed { username: format!("{NAME} x"), ..good() }).contains("a space"));
}

#[tokio::test]
async fn a_token_for_others_or_without_an_end_is_not_sent_anywhere() {
    let (reviews, asked) = reviews(10_000, |_: &str| async { Ok(good()) });
    for payload in ["{}", "{\"aud\":\"other\",\"exp\":1800000060}", "{\"aud\":[\"fencegate2\"],\"exp\":1800000060}"] {
        assert_eq!(by(&reviews, &token(payload)).await, Err("not mine".to_owned()), "{payload}");
    }
    for bearer in ["", "fga1.a.b", "token-of-a-user", "a.b.c"] {
        assert_eq!(by(&reviews, bearer).await, Err("not mine".to_owned()), "{bearer}");
    }
    let why = by(&reviews, &token("{\"aud\":\"fencegate\",\"exp\":\"1800000060\"}")).await.unwrap_err();
    assert!(why.starts_with("refused: this token names no end"), "{why}");
    let expired = Err("refused: this token has expired".to_owned());
    assert_eq!(by(&reviews, &token("{\"aud\":\"fencegate\",\"exp\":1800000000}")).await, expired);
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    // One that was accepted, too.
    let who = by(&reviews, &of(1)).await.unwrap();
    assert!(!who.is_over(WallMs(NOW.0 + 59_999)) && who.is_over(WallMs(NOW.0 + 60_000)));
    assert_eq!(from(&reviews, &of(1), 1, WallMs(NOW.0 + 60_000)).await, expired);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn many_callers_with_one_token_ask_once() {
    let opens = Arc::new(Notify::new());
    let waits = Arc::clone(&opens);
    let (reviews, asked) = reviews(10_000, move |_: &str| {
        let waits = Arc::clone(&waits);
        async move {
            waits.notified().await;
            Ok(good())
        }
    });
    let call = || {
        let reviews = Arc::clone(&reviews);
        tokio::spawn(async move { by(&reviews, &of(1)).await.map(|who| who.name().to_owned()) })
    };
    // The first one hangs up.
    let first = call();
    while asked.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let callers: Vec<_> = (0..100).map(|_| call()).collect();
    first.abort();
    assert!(first.await.is_err());
    opens.notify_one();
    for caller in callers {
        assert_eq!(caller.await.unwrap().as_deref(), Ok(NAME));
    }
    assert_eq!(by(&reviews, &of(1)).await.unwrap().name(), NAME);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

fn bug() -> Result<Reviewed, Away> {
    std::panic::resume_unwind(Box::new("a bug"))
}

#[tokio::test]
async fn a_review_that_panics_answers_its_callers_and_frees_its_place() {
    let (reviews, asked) = reviews(10_000, |_: &str| async { bug() });
    for _ in 0..20 {
        assert_eq!(by(&reviews, &of(1)).await, Err(format!("unavailable: {BROKEN_OFF}")));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 20);
}

#[tokio::test]
async fn a_flood_of_wrong_tokens_asks_little_and_keeps_no_known_caller_out() {
    let (known, wrong) = (of(0), Reviewed { authenticated: false, ..good() });
    let accepts = known.clone();
    let (reviews, asked) = reviews(10_000, move |token: &str| {
        let answer = if token == accepts { good() } else { wrong.clone() };
        async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(answer)
        }
    });
    by(&reviews, &known).await.unwrap();
    let begun = Stopwatch::start();
    let floods = (1..=10_000_usize).map(|n| {
        let reviews = Arc::clone(&reviews);
        let peer = u32::try_from(n % 2).unwrap();
        tokio::spawn(async move { from(&reviews, &of(n), peer, NOW).await.unwrap_err() })
    });
    for (n, flood) in floods.collect::<Vec<_>>().into_iter().enumerate() {
        let why = flood.await.unwrap();
        assert!(why.starts_with("refused: ") || why.starts_with("unavailable: too many"), "{why}");
        if n % 100 == 0 {
            by(&reviews, &known).await.unwrap();
        }
    }
    // Two addresses, four places each, of which each is taken for 100 ms.
    let rounds = 1.0 + begun.seconds() / 0.1;
    let most = 1.0 + 8.0 * rounds;
    let count = asked.load(Ordering::SeqCst);
    assert!(count > 1 && (u32::try_from(count).map(f64::from).unwrap()) <= most, "{count} reviews, not {most}");
}

#[tokio::test]
async fn a_server_that_fails_is_left_alone_for_a_second_and_the_caller_learns_why() {
    let (reviews, asked) = reviews(10_000, |_: &str| async { Err(Away::late(Duration::from_secs(5))) });
    let why = by(&reviews, &of(1)).await.unwrap_err();
    assert!(why.starts_with("unavailable: this token cannot be checked") && why.contains("within 5000 ms"), "{why}");
    for n in 2..100 {
        assert_eq!(by(&reviews, &of(n)).await, Err(why.clone()));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[test]
fn a_refusal_of_the_gate_says_which_right_it_lacks_and_how_long_to_wait() {
    let refused = |status, asked_ms| Away::Refused { status, what: "no".to_owned(), asked_ms };
    assert!(unavailable(&refused(403, None)).contains("right to create tokenreviews"));
    assert!(unavailable(&refused(401, None)).contains("the gate's own token"));
    assert!(!unavailable(&refused(500, None)).contains("right"));
    assert_eq!(pause_ms(&refused(403, None)), 1_000);
    assert_eq!(pause_ms(&refused(429, Some(5_000))), 5_000);
    assert_eq!(pause_ms(&refused(429, Some(500_000))), 30_000);
    assert_eq!((pause_ms(&refused(422, None)), pause_ms(&Away::late(Duration::ZERO))), (0, 1_000));
}

#[test]
fn settings_are_checked_without_a_runtime() {
    let wrong = |settings: &IdentitySettings, server: &GateKubernetes| Reviews::new(settings, server).err();
    let settings = IdentitySettings { kind: IdentityKind::Kubernetes, ..IdentitySettings::default() };
    let server = GateKubernetes { url: "https://127.0.0.1:1".to_owned(), ..GateKubernetes::default() };
    assert_eq!(wrong(&settings, &server), None);
    assert_eq!(wrong(&settings, &GateKubernetes::default()), None, "in a pod");
    let empty = IdentitySettings { audience: String::new(), ..settings.clone() };
    assert_eq!(wrong(&empty, &server).unwrap().0, "audience");
    let cached = |cache_ms| wrong(&IdentitySettings { cache_ms, ..settings.clone() }, &server);
    assert_eq!((cached(0), cached(600_000), cached(600_001).unwrap().0), (None, None, "cache_ms"));
    let odd = GateKubernetes { token_file: Path::new("/nowhere/token").to_owned(), ..server.clone() };
    let (key, what) = wrong(&settings, &odd).unwrap();
    assert!(key == "kind" && what.contains("kubernetes.token_file: /nowhere/token"), "{key}: {what}");
}
