//! Tokens against one issuer's keys in a file: each check by a token that only this check refuses.

use std::{fs, path::PathBuf};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use jsonwebtoken::{Algorithm as Signing, EncodingKey};
use serde_json::{Value, json};

use super::{
    signer_tests::{ISSUER, NOW, Signer, claims, with},
    *,
};
use crate::access::identity::BEARER_BYTES_MAX;

pub(super) fn settings() -> IdentitySettings {
    IdentitySettings {
        name: "idp".to_owned(),
        kind: crate::config::IdentityKind::Jwt,
        issuer: ISSUER.to_owned(),
        algorithms: ["ES256", "ES384", "RS256", "EdDSA"].map(str::to_owned).to_vec(),
        ..IdentitySettings::default()
    }
}

/// A folder with a set of keys.
struct Folder(tempfile::TempDir);

impl Folder {
    fn of(keys: &[&Value]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.put(&json!({"keys": keys}).to_string());
        folder
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("jwks.json")
    }

    /// Another file each time: two writes to one file in the same moment leave the same marks.
    fn put(&self, text: &str) {
        let next = self.0.path().join("next");
        fs::write(&next, text).unwrap();
        fs::rename(next, self.path()).unwrap();
    }

    fn issuer(&self, settings: IdentitySettings) -> Issuer {
        Issuer::new(&IdentitySettings { file: self.path(), ..settings }).map_err(|wrong| panic!("{wrong:?}")).unwrap()
    }
}

pub(super) async fn identify(issuer: &Issuer, token: &str) -> Verdict {
    issuer.identify("idp", token, WallMs(NOW * 1_000)).await
}

/// The principal's name, or what the verdict is.
pub(super) async fn told(issuer: &Issuer, token: &str) -> String {
    let told = match identify(issuer, token).await {
        Verdict::Is(who) => return who.name().to_owned(),
        Verdict::NotMine => "not mine".to_owned(),
        Verdict::Refused(why) => format!("refused: {why}"),
        Verdict::Unavailable(why) => format!("unavailable: {why}"),
    };
    assert!(!told.contains("hush") && !told.contains("eyJ"), "it quotes the token: {told}");
    told
}

/// One key, and an issuer that has only this.
fn one() -> (Signer, Folder, Issuer) {
    let signer = Signer::es256("a");
    let folder = Folder::of(&[&signer.jwk]);
    let issuer = folder.issuer(settings());
    (signer, folder, issuer)
}

/// Whether the verdict on a token with these claims has these words in it.
async fn check(claims: &Value, words: &str) {
    let (signer, _folder, issuer) = one();
    let told = told(&issuer, &signer.sign(claims)).await;
    assert!(told.contains(words), "{claims}: {told}");
}

#[tokio::test]
async fn a_right_token_of_each_kind_of_key_names_its_principal() {
    let signers = [
        Signer::es256("a"),
        Signer::es384("b"),
        Signer::rsa("c").with_alg("RS256"),
        Signer::eddsa("d").with_alg("EdDSA"),
    ];
    let folder = Folder::of(&signers.each_ref().map(|signer| &signer.jwk));
    let issuer = folder.issuer(settings());
    for signer in &signers {
        let Verdict::Is(who) = identify(&issuer, &signer.sign(&claims())).await else { panic!("{}", signer.kid) };
        assert_eq!((who.name(), who.source(), who.kind()), ("hush|7", "idp", Kind::Jwt));
        assert_eq!((who.capture("jwt.email"), who.capture("jwt.exp")), (Some("hush@x.example"), None));
        let ends = (NOW + 600) * 1_000;
        assert!(!who.is_over(WallMs(ends - 1)) && who.is_over(WallMs(ends)));
        assert!(who.groups().is_empty());
    }
}

#[tokio::test]
async fn a_token_holds_from_its_begin_to_its_end() {
    for (claim, value, words) in [
        ("exp", json!(NOW), "has expired"),
        ("exp", json!(NOW - 1), "has expired"),
        ("exp", json!(0), "has expired"),
        ("exp", json!(NOW + 1), "hush|7"),
        ("exp", json!(1_800_000_000.5), "hush|7"),
        ("exp", json!(1_799_999_999.5), "has expired"),
        ("exp", json!(null), "has no exp"),
        ("exp", json!("1900000000"), "exp that is no time"),
        ("exp", json!([1_900_000_000]), "exp that is no time"),
        ("exp", json!(true), "exp that is no time"),
        ("exp", json!(-1), "exp that is no time"),
        ("exp", json!(1e300), "exp that is no time"),
        ("exp", json!(u64::MAX), "exp that is no time"),
        ("nbf", json!(NOW + 60), "hush|7"),
        ("nbf", json!(NOW + 61), "not valid yet"),
        ("nbf", json!("0"), "nbf that is no time"),
        ("iat", json!(NOW + 60), "hush|7"),
        ("iat", json!(NOW + 61), "in the future (iat)"),
        ("iat", json!("0"), "iat that is no time"),
        ("iat", json!(null), "hush|7"),
    ] {
        check(&with(claim, value), words).await;
    }
}

#[tokio::test]
async fn a_token_for_another_audience_is_refused() {
    for (aud, words) in [
        (json!(["other", "fencegate"]), "hush|7"),
        (json!("fencegate"), "hush|7"),
        (json!("fencegate2"), "not for this gate"),
        (json!("Fencegate"), "not for this gate"),
        (json!(["other"]), "not for this gate"),
        (json!([]), "not for this gate"),
        (json!(null), "not for this gate"),
        (json!({"fencegate": 1}), "\"aud\" that is neither"),
        (json!(["fencegate", 7]), "\"aud\" that is neither"),
    ] {
        check(&with("aud", aud), words).await;
    }
}

#[tokio::test]
async fn tokens_of_other_issuers_and_of_other_forms_are_for_other_sources() {
    for iss in [json!("https://issuer.example"), json!(format!("{ISSUER}/")), json!(7), json!(null), json!([ISSUER])] {
        check(&with("iss", iss), "not mine").await;
    }
    let (signer, _folder, issuer) = one();
    let token = signer.sign(&claims());
    assert_eq!(told(&issuer, &token).await, "hush|7");
    let no_alg = signer.sign_text(r#"{"kid":"a"}"#, &claims().to_string());
    let alg_number = signer.sign_text(r#"{"alg":256,"kid":"a"}"#, &claims().to_string());
    let no_object = signer.sign_text("[]", &claims().to_string());
    let no_claims = signer.sign_text(&signer.header().to_string(), "x");
    let parts: Vec<&str> = token.split('.').collect();
    for text in [
        "",
        "..",
        "fga1.AAAA.AAAA",
        parts[0],
        &format!("{}.{}", parts[0], parts[1]),
        &format!("{token}.AAAA.AAAA"),
        &format!("{token}="),
        &format!("{}=.{}.{}", parts[0], parts[1], parts[2]),
        &format!("{}.{}.+/+/", parts[0], parts[1]),
        &no_alg,
        &alg_number,
        &no_object,
        &no_claims,
    ] {
        assert_eq!(told(&issuer, text).await, "not mine", "{text}");
    }
}

#[tokio::test]
async fn a_signature_by_another_key_or_of_another_text_is_refused() {
    let (signer, _folder, issuer) = one();
    let token = signer.sign(&claims());
    let (message, signature) = token.rsplit_once('.').unwrap();
    let other = signer.sign(&with("sub", json!("hush|8")));
    let of_other = other.rsplit_once('.').unwrap().1;
    let (_, short) = signature.split_at(4);
    for text in [
        Signer::es256("a").sign(&claims()),
        format!("{message}.{of_other}"),
        format!("{message}."),
        format!("{message}.{short}"),
        format!("{message}.{}", BASE64.encode([0; 64])),
    ] {
        assert!(told(&issuer, &text).await.contains("signature"), "{text}");
    }
}

#[tokio::test]
async fn no_token_has_its_algorithm_believed() {
    let rsa = Signer::rsa("r").with_alg("RS256");
    let ec = Signer::es256("e");
    let secret = json!({"kty": "oct", "kid": "s", "k": BASE64.encode("shared")});
    let folder = Folder::of(&[&rsa.jwk, &ec.jwk, &secret]);
    let mut settings = settings();
    settings.algorithms = ["RS256", "PS256", "ES256", "EdDSA"].map(str::to_owned).to_vec();
    let issuer = folder.issuer(settings);
    let claims = claims();
    for signer in [&rsa, &ec] {
        assert_eq!(told(&issuer, &signer.sign(&claims)).await, "hush|7");
    }
    for none in ["none", "None", "NONE", ""] {
        let header = json!({"alg": none, "kid": "e"}).to_string();
        let message = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims.to_string()));
        for text in [format!("{message}."), format!("{message}.AAAA")] {
            assert!(told(&issuer, &text).await.contains("algorithm that is not in"), "{none}");
        }
    }
    let (x, n) = (ec.jwk["x"].as_str().unwrap(), rsa.jwk["n"].as_str().unwrap());
    let secrets = [x.into(), n.into(), BASE64.decode(x).unwrap(), BASE64.decode(n).unwrap(), b"shared".to_vec()];
    for secret in secrets {
        for kid in ["e", "r", "s"] {
            let private = EncodingKey::from_secret(&secret);
            let forger = Signer { kid, by: Signing::HS256, private, jwk: Value::Null };
            assert!(told(&issuer, &forger.sign(&claims)).await.contains("algorithm that is not in"), "{kid}");
        }
    }
    let es384 = Signer::es384("e");
    assert!(told(&issuer, &es384.sign(&claims)).await.contains("algorithm that is not in"), "not listed");
    let shared = ec.sign_text(r#"{"alg":"ES256","kid":"s"}"#, &claims.to_string());
    assert!(told(&issuer, &shared).await.contains("not among"), "a shared secret is no key");
}

#[tokio::test]
async fn a_key_is_used_for_its_own_algorithm_only() {
    let (rsa, ec) = (Signer::rsa("r").with_alg("RS256"), Signer::es256("e"));
    let folder = Folder::of(&[&rsa.jwk, &ec.jwk]);
    let mut settings = settings();
    settings.algorithms.push("PS256".to_owned());
    let issuer = folder.issuer(settings);
    let claims = claims().to_string();
    for (signer, header) in [(&rsa, r#"{"alg":"RS256","kid":"e"}"#), (&ec, r#"{"alg":"ES256","kid":"r"}"#)] {
        assert!(told(&issuer, &signer.sign_text(header, &claims)).await.contains("not for its algorithm"), "{header}");
    }
    let pss = rsa.by(Signing::PS256);
    let token = pss.sign_text(r#"{"alg":"PS256","kid":"r"}"#, &claims);
    assert!(told(&issuer, &token).await.contains("not for its algorithm"), "the key is for RS256");
    let mut open = pss.jwk.clone();
    open.as_object_mut().unwrap().remove("alg");
    folder.put(&json!({"keys": [open]}).to_string());
    assert_eq!(told(&issuer, &token).await, "hush|7");
}

#[tokio::test]
async fn keys_that_are_not_for_signatures_are_left_out() {
    let (signer, other) = (Signer::es256("a"), Signer::es256("b"));
    let folder = Folder::of(&[&signer.jwk]);
    let issuer = folder.issuer(settings());
    let token = signer.sign(&claims());
    for (member, value, is_taken) in [
        ("use", json!("sig"), true),
        ("use", json!("enc"), false),
        ("use", json!(7), false),
        ("key_ops", json!(["verify"]), true),
        ("key_ops", json!(["encrypt"]), false),
        ("alg", json!("ES256"), true),
        ("alg", json!("ES384"), false),
        ("alg", json!("HS256"), false),
        ("alg", json!("RSA-OAEP"), false),
        ("kty", json!("oct"), false),
        ("kty", json!("RSA"), false),
        ("crv", json!("P-384"), false),
        ("crv", json!("secp256k1"), false),
        ("x", json!("!"), false),
    ] {
        let mut jwk = signer.jwk.clone();
        jwk[member] = value;
        folder.put(&json!({"keys": [jwk, other.jwk]}).to_string());
        assert_eq!(told(&issuer, &token).await == "hush|7", is_taken, "{member} {jwk}");
        assert_eq!(told(&issuer, &other.sign(&claims())).await, "hush|7", "one bad key does no harm to others");
    }
}

#[tokio::test]
async fn the_key_is_the_one_that_the_token_names() {
    let (a, b) = (Signer::es256("a"), Signer::es256("b"));
    let folder = Folder::of(&[&a.jwk]);
    let issuer = folder.issuer(settings());
    let by = |signer: &Signer, header: Value| signer.sign_text(&header.to_string(), &claims().to_string());
    let unnamed = by(&a, json!({"alg": "ES256"}));
    assert_eq!(told(&issuer, &unnamed).await, "hush|7", "there is only one key");
    folder.put(&json!({"keys": [a.jwk, b.jwk]}).to_string());
    assert!(told(&issuer, &unnamed).await.contains("names no key"), "there are two");
    for (header, words) in [
        (json!({"alg": "ES256", "kid": "b"}), "signature"),
        (json!({"alg": "ES256", "kid": "c"}), "not among"),
        (json!({"alg": "ES256", "kid": ""}), "not among"),
        (json!({"alg": "ES256", "kid": 1}), "kid that is no text"),
        (json!({"alg": "ES256", "kid": null}), "kid that is no text"),
        (json!({"alg": "ES256", "kid": "a", "crit": ["x"], "x": 1}), "crit"),
        (json!({"alg": "ES256", "kid": "a", "crit": []}), "crit"),
        (json!({"alg": "ES256", "kid": "a", "jku": "https://elsewhere.example", "extra": 1}), "hush|7"),
    ] {
        let told = told(&issuer, &by(&a, header.clone())).await;
        assert!(told.contains(words), "{header}: {told}");
    }
    let own = Signer::es256("own");
    let with_key = by(&own, json!({"alg": "ES256", "kid": "own", "jwk": own.jwk}));
    assert!(told(&issuer, &with_key).await.contains("not among"), "a key in the token is not used");
}

#[tokio::test]
async fn a_key_that_stands_twice_is_refused() {
    let (signer, _folder, issuer) = one();
    let (header, claims) = (signer.header().to_string(), claims().to_string());
    let more = |text: &str, member: &str| format!("{{{member},{}", &text[1..]);
    for (header, claims) in [
        (header.clone(), more(&claims, r#""sub":"admin""#)),
        (header.clone(), more(&claims, r#""s\u0075b":"admin""#)),
        (header.clone(), more(&claims, r#""deep":[{"x":1,"x":2}]"#)),
        (more(&header, r#""kid":"b""#), claims.clone()),
    ] {
        assert!(told(&issuer, &signer.sign_text(&header, &claims)).await.contains("twice"), "{header} {claims}");
    }
    assert_eq!(told(&issuer, &signer.sign_text(&header, &more(&claims, r#""x":1"#))).await, "hush|7");
}

#[tokio::test]
async fn a_principals_name_is_checked() {
    for (sub, words) in [
        (json!(null), "no text in the claim \"sub\""),
        (json!(7), "no text in the claim"),
        (json!(["hush"]), "no text in the claim"),
        (json!(""), "is empty"),
        (json!("hush hush"), "control character or a space"),
        (json!("hush\u{7}"), "control character or a space"),
        (json!("hush\u{2028}"), "control character or a space"),
        (json!("hush//7"), "slash"),
        (json!("/hush"), "slash"),
        (json!("system:serviceaccount:hush:x"), "begins with system:"),
        (json!("System:hush"), "begins with system:"),
        (json!("spiffe://hush/x"), "begins with spiffe:"),
        (json!("h".repeat(257)), "longer than 256"),
        (json!("rep\u{f6}/hush:ref|x"), "rep\u{f6}/hush:ref|x"),
    ] {
        check(&with("sub", sub), words).await;
    }
    let (signer, folder, _) = one();
    let issuer = folder.issuer(IdentitySettings { principal_claim: "email".to_owned(), ..settings() });
    assert_eq!(told(&issuer, &signer.sign(&claims())).await, "hush@x.example");
}

#[tokio::test]
async fn groups_are_those_of_the_claim() {
    let (signer, folder, _) = one();
    let issuer = folder.issuer(IdentitySettings { groups_claim: "roles".to_owned(), ..settings() });
    for (roles, wanted) in [
        (json!(["ops", "/team/a"]), &["ops", "/team/a"][..]),
        (json!("ops"), &["ops"]),
        (json!([]), &[]),
        (json!(null), &[]),
        (json!(["ops", "", "two words", "system:masters", "Spiffe:x"]), &["ops"]),
    ] {
        let Verdict::Is(who) = identify(&issuer, &signer.sign(&with("roles", roles.clone()))).await else {
            panic!("{roles}")
        };
        assert_eq!(who.groups(), wanted, "{roles}");
    }
    for roles in [json!(7), json!({"ops": true}), json!(["ops", 7])] {
        let told = told(&issuer, &signer.sign(&with("roles", roles.clone()))).await;
        assert!(told.contains("\"roles\" that is neither"), "{roles}: {told}");
    }
}

#[tokio::test]
async fn templates_get_a_bounded_number_of_short_claims() {
    let (signer, _folder, issuer) = one();
    let Verdict::Is(who) = identify(&issuer, &signer.sign(&with("long", json!("x".repeat(257))))).await else {
        panic!("right")
    };
    assert_eq!(who.capture("jwt.long"), None);
    let mut many = with("long", json!("x".repeat(256)));
    for n in 0..100 {
        many[format!("n{n}")] = json!("x");
    }
    let Verdict::Is(who) = identify(&issuer, &signer.sign(&many)).await else { panic!("right") };
    let count = many.as_object().unwrap().keys().filter(|name| who.capture(&format!("jwt.{name}")).is_some()).count();
    assert_eq!((count, who.capture("jwt.long").map(str::len)), (CAPTURES_MAX, Some(256)));
}

#[tokio::test]
async fn the_longest_token_is_read_like_a_short_one() {
    let (signer, _folder, issuer) = one();
    let fill = |bytes: usize| signer.sign(&with("fill", json!("x".repeat(bytes))));
    let rest = BEARER_BYTES_MAX - fill(0).len();
    let token = fill(rest / 4 * 3);
    assert!(token.len() > BEARER_BYTES_MAX - 8 && token.len() <= BEARER_BYTES_MAX, "{}", token.len());
    assert_eq!(told(&issuer, &token).await, "hush|7");
    let deep = signer.sign_text(&signer.header().to_string(), &format!("{}{}", "[".repeat(6_000), "]".repeat(6_000)));
    assert_eq!(told(&issuer, &deep).await, "not mine");
}

#[tokio::test]
async fn keys_of_a_file_come_and_go_with_the_file() {
    let (a, b) = (Signer::es256("a"), Signer::es256("b"));
    let folder = Folder::of(&[&a.jwk]);
    let issuer = folder.issuer(settings());
    let (by_a, by_b) = (a.sign(&claims()), b.sign(&claims()));
    assert_eq!(told(&issuer, &by_a).await, "hush|7");
    assert!(told(&issuer, &by_b).await.contains("not among"));
    folder.put(&json!({"keys": [a.jwk, b.jwk]}).to_string());
    assert_eq!((told(&issuer, &by_a).await, told(&issuer, &by_b).await), ("hush|7".into(), "hush|7".into()));
    folder.put(&json!({"keys": [b.jwk]}).to_string());
    assert!(told(&issuer, &by_a).await.contains("not among"), "the key is gone");
    for bad in ["", "{}", r#"{"keys":[]}"#, r#"{"keys":7}"#, r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#] {
        folder.put(bad);
        assert_eq!(told(&issuer, &by_b).await, "hush|7", "the last good set stays: {bad}");
    }
    fs::remove_file(folder.path()).unwrap();
    assert_eq!(told(&issuer, &by_b).await, "hush|7");
}

#[test]
fn settings_that_cannot_be_meant_are_faults_of_their_key() {
    let folder = Folder::of(&[&Signer::es256("a").jwk]);
    let good = IdentitySettings { file: folder.path(), ..settings() };
    let by_url = |url: &str| IdentitySettings { url: url.to_owned(), ..settings() };
    let fault = |settings: IdentitySettings| Issuer::new(&settings).err().map(|(key, _)| key);
    assert_eq!(fault(good.clone()), None);
    for names in [&[][..], &["none"], &["HS256"], &["RS256", "HS512"], &["rs256"], &["ES512"], &[""]] {
        let algorithms = names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(fault(IdentitySettings { algorithms, ..good.clone() }), Some("algorithms"), "{names:?}");
    }
    let empty = String::new;
    for (key, settings) in [
        ("issuer", IdentitySettings { issuer: empty(), ..good.clone() }),
        ("audience", IdentitySettings { audience: empty(), ..good.clone() }),
        ("principal_claim", IdentitySettings { principal_claim: empty(), ..good.clone() }),
        ("refresh_ms", IdentitySettings { refresh_ms: 9_999, ..good.clone() }),
        ("ca_file", IdentitySettings { ca_file: folder.path(), ..good.clone() }),
        ("url", IdentitySettings { url: "https://issuer.example/jwks".to_owned(), ..good.clone() }),
        ("file", IdentitySettings { file: folder.path().join("none"), ..good.clone() }),
        ("url", by_url("")),
        ("url", by_url("issuer.example/jwks")),
        ("url", by_url("/jwks")),
        ("url", by_url("ftp://issuer.example/jwks")),
        ("url", by_url("http://issuer.example/jwks")),
        ("url", by_url("http://127.0.0.1.example/jwks")),
        ("url", by_url("https://me:hush@issuer.example/jwks")),
        ("ca_file", IdentitySettings { ca_file: folder.path(), ..by_url("http://127.0.0.1:1/jwks") }),
        ("ca_file", IdentitySettings { ca_file: folder.path(), ..by_url("https://issuer.example/jwks") }),
    ] {
        assert_eq!(fault(settings.clone()), Some(key), "{settings:?}");
    }
    for url in ["http://127.0.0.1:1/jwks?v=1", "http://[::1]:1/jwks"] {
        assert_eq!(fault(by_url(url)), None, "{url}");
    }
    for text in
        ["", "[]", "{}", r#"{"keys":[]}"#, r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#, &"x".repeat(SET_BYTES_MAX + 1)]
    {
        folder.put(text);
        assert_eq!(fault(good.clone()), Some("file"), "{text:.40}");
    }
}
