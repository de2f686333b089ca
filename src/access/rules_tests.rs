//! Grants: each part alone, holders, and that no order or overlap of grants allows what none of them allows.

use proptest::{prelude::*, sample::select};

use super::*;
use crate::access::principal::Kind;

fn grant(name: &str) -> GrantSettings {
    GrantSettings {
        name: name.to_owned(),
        principals: vec!["a".to_owned()],
        operations: vec![Operation::Acquire],
        objects: vec!["/data".to_owned()],
        ..GrantSettings::default()
    }
}

fn rules(grants: &[GrantSettings]) -> Rules {
    Rules::new(grants, &["cluster", "s"]).unwrap()
}

fn who(name: &str) -> Principal {
    Principal::new(Kind::Jwt, "s", name).unwrap()
}

fn account(name: &str) -> Principal {
    Principal::new(Kind::Kubernetes, "cluster", &format!("system:serviceaccount:{name}")).unwrap()
}

fn object(text: &str) -> ObjectId {
    ObjectId::new(text).unwrap()
}

fn holder(text: &str) -> HolderId {
    HolderId::new(text).unwrap()
}

#[test]
fn without_a_grant_everything_is_denied() {
    for operation in Operation::ALL {
        assert_eq!(Rules::default().decide(&who("a"), operation, &object("/data"), None), Err(Denied::Operation));
        assert!(!Rules::default().allow_some(&who("a"), operation));
    }
}

#[test]
fn a_grant_allows_its_principals_operations_and_objects_and_no_more() {
    let rules = rules(&[grant("one")]);
    let decide = |name, operation, on| rules.decide(&who(name), operation, &object(on), None);
    assert_eq!(decide("a", Operation::Acquire, "/data/users"), Ok("one"));
    assert_eq!(decide("a", Operation::Read, "/data/users"), Err(Denied::Operation));
    assert_eq!(decide("b", Operation::Acquire, "/data/users"), Err(Denied::Operation));
    assert_eq!(decide("A", Operation::Acquire, "/data/users"), Err(Denied::Operation));
    for outside in ["/database", "data", "/", "/data/../x"] {
        assert_eq!(decide("a", Operation::Acquire, outside), Err(Denied::Object), "{outside}");
    }
}

#[test]
fn a_star_ends_a_pattern_at_a_separator_only() {
    let of = |pattern: &str| GrantSettings { principals: vec![pattern.to_owned()], ..grant("one") };
    let matches = |pattern, who: &Principal| rules(&[of(pattern)]).allow_some(who, Operation::Acquire);
    assert!(matches("*", &who("anyone")) && matches("*", &account("shop:api")));
    assert!(matches("system:serviceaccount:shop:*", &account("shop:api")));
    assert!(!matches("system:serviceaccount:shop:*", &account("shopping:api")));
    for bad in ["", "a*", "sh*p", "**", "*a", "system:*:api"] {
        let faults = Rules::new(&[of(bad)], &[]).unwrap_err();
        assert_eq!(faults[0].key, "grant[0].principals", "{bad}");
    }
}

#[test]
fn groups_and_sources_are_looked_at() {
    let by_group = GrantSettings { principals: vec![], groups: vec!["ops".to_owned()], ..grant("one") };
    assert!(
        rules(std::slice::from_ref(&by_group)).allow_some(&who("x").in_groups(["ops".to_owned()]), Operation::Acquire)
    );
    assert!(!rules(&[by_group]).allow_some(&who("ops"), Operation::Acquire));
    let by_source =
        GrantSettings { sources: vec!["cluster".to_owned()], principals: vec!["*".to_owned()], ..grant("one") };
    assert!(rules(std::slice::from_ref(&by_source)).allow_some(&account("shop:api"), Operation::Acquire));
    assert!(!rules(&[by_source]).allow_some(&who("a"), Operation::Acquire));
}

#[test]
fn objects_by_captures_are_the_principals_own() {
    let tenants = GrantSettings {
        principals: vec!["*".to_owned()],
        objects: vec!["/tenants/{serviceaccount.namespace}/".to_owned()],
        ..grant("tenants")
    };
    let rules = rules(&[tenants]);
    let decide = |who: &Principal, on| rules.decide(who, Operation::Acquire, &object(on), None);
    assert_eq!(decide(&account("shop:api"), "/tenants/shop/orders"), Ok("tenants"));
    assert_eq!(decide(&account("shop:api"), "/tenants/bank/orders"), Err(Denied::Object));
    assert_eq!(decide(&account("shop:api"), "/tenants/shop2"), Err(Denied::Object));
    assert_eq!(decide(&who("shop"), "/tenants/shop/orders"), Err(Denied::Object), "it has no namespace");
}

#[test]
fn a_star_among_objects_is_every_object_and_a_slash_is_not() {
    let of = |text: &str| rules(&[GrantSettings { objects: vec![text.to_owned()], ..grant("one") }]);
    for on in ["users", "/data", "a b"] {
        assert!(of("*").decide(&who("a"), Operation::Acquire, &object(on), None).is_ok());
    }
    assert!(of("*").view(&who("a"), Operation::Acquire).is_all());
    assert!(!of("/").view(&who("a"), Operation::Acquire).is_all());
    assert_eq!(of("/").decide(&who("a"), Operation::Acquire, &object("users"), None), Err(Denied::Object));
    for bad in ["/data/*", "", "/a/../b", "/{x}", "/{"] {
        let faulty = GrantSettings { objects: vec![bad.to_owned()], ..grant("one") };
        assert_eq!(Rules::new(&[faulty], &[]).unwrap_err()[0].key, "grant[0].objects", "{bad}");
    }
}

#[test]
fn a_principal_holds_leases_in_its_own_name_only() {
    let rules = rules(&[GrantSettings { principals: vec!["*".to_owned()], ..grant("one") }]);
    let decide = |who: &Principal, name| rules.decide(who, Operation::Acquire, &object("/data"), Some(&holder(name)));
    let api = account("shop:api");
    for own in
        ["system:serviceaccount:shop:api", "system:serviceaccount:shop:api/api-0", "system:serviceaccount:shop:api/a/b"]
    {
        assert_eq!(decide(&api, own), Ok("one"), "{own}");
    }
    let wanted = Denied::Holder(vec![("system:serviceaccount:shop:api".to_owned(), "/")]);
    for other in [
        "system:serviceaccount:shop:api2",
        "system:serviceaccount:shop:api/",
        "system:serviceaccount:shop:api//x",
        "system:serviceaccount:shop",
        "x/system:serviceaccount:shop:api",
        "System:serviceaccount:shop:api",
    ] {
        assert_eq!(decide(&api, other), Err(wanted.clone()), "{other}");
    }
}

#[test]
fn holders_of_a_principal_with_slashes_are_never_another_principals() {
    let rules = rules(&[GrantSettings { principals: vec!["*".to_owned()], ..grant("one") }]);
    let binds =
        |name: &str, as_| rules.decide(&who(name), Operation::Acquire, &object("/data"), Some(&holder(as_))).is_ok();
    assert!(binds("repo/a", "repo/a//pod-1"));
    assert!(!binds("repo/a", "repo/a/b") && !binds("repo/a", "repo/a///b"));
    assert!(!binds("repo/a", "repo/a"), "the principal repo may be that holder");
}

#[test]
fn no_two_principals_may_be_one_holder() {
    let rules = rules(&[GrantSettings { principals: vec!["*".to_owned()], ..grant("one") }]);
    let spiffe = |path: &str| Principal::new(Kind::Mtls, "s", &format!("spiffe://td{path}")).unwrap();
    let mut all: Vec<_> = ["a", "a/b", "a/b/c", "ab", "b"].map(who).into();
    all.extend(["/a", "/a/b", "/ab"].map(spiffe));
    let names = all.iter().map(|who| who.name().to_owned()).collect::<Vec<_>>();
    let parts = ["", "/b", "/b/c", "//b", "//b/c", "/b//c", "//b//c", "/", "//", "b"];
    for name in names.iter().flat_map(|name| parts.map(|part| format!("{name}{part}"))) {
        let on = object("/data");
        let may = |who: &&Principal| rules.decide(who, Operation::Acquire, &on, Some(&holder(&name))).is_ok();
        let who: Vec<_> = all.iter().filter(may).map(Principal::name).collect();
        assert!(who.len() <= 1, "{name}: {who:?}");
    }
}

#[test]
fn a_claim_makes_no_holder_of_another_kind_or_of_several_parts() {
    let by_team = GrantSettings { principals: vec!["*".to_owned()], holder: "{jwt.team}".to_owned(), ..grant("one") };
    let rules = rules(&[by_team]);
    let may = |team: &str| {
        let who = who("c").with("jwt.team", team);
        rules.decide(&who, Operation::Acquire, &object("/data"), Some(&holder(team))).is_ok()
    };
    assert!(may("red"));
    for team in ["a/b", "system:serviceaccount:shop:api", "spiffe:x", "System:x"] {
        assert!(!may(team), "{team}");
    }
}

#[test]
fn a_template_for_the_holder_binds_the_pod_too() {
    let by_pod =
        GrantSettings { principals: vec!["*".to_owned()], holder: "{principal}/{pod.name}".to_owned(), ..grant("one") };
    let rules = rules(&[by_pod]);
    let decide =
        |who: &Principal, name| rules.decide(who, Operation::Acquire, &object("/data"), Some(&holder(name))).is_ok();
    let pod = account("shop:api").with("pod.name", "api-0");
    assert!(decide(&pod, "system:serviceaccount:shop:api/api-0"));
    assert!(!decide(&pod, "system:serviceaccount:shop:api/api-1") && !decide(&pod, "system:serviceaccount:shop:api"));
    assert!(!decide(&account("shop:api"), "system:serviceaccount:shop:api/"), "without a pod there is no such holder");
    assert_eq!(rules.holders(&pod), [("system:serviceaccount:shop:api/api-0".to_owned(), "/")]);
}

#[test]
fn every_fault_of_a_grant_is_listed_under_its_key() {
    let empty = GrantSettings { name: String::new(), holder: String::new(), ..GrantSettings::default() };
    let unknown = GrantSettings { sources: vec!["lost".to_owned()], holder: "{x}".to_owned(), ..grant("one") };
    let faults = Rules::new(&[empty, unknown, grant("one")], &["s"]).unwrap_err();
    let keys: Vec<_> = faults.iter().map(|fault| fault.key.as_str()).collect();
    let wanted = [
        "grant[0].name",
        "grant[0].principals",
        "grant[0].operations",
        "grant[0].objects",
        "grant[0].holder",
        "grant[1].sources",
        "grant[1].holder",
        "grant[2].name",
    ];
    assert_eq!(keys, wanted);
}

fn some<T: Clone + std::fmt::Debug + 'static>(of: &'static [T]) -> impl Strategy<Value = Vec<T>> {
    prop::collection::vec(select(of), 1..3)
}

fn any_grant() -> impl Strategy<Value = GrantSettings> {
    const NAMES: &[&str] = &["a", "b", "team:a", "team:b", "*", "team:*"];
    const OBJECTS: &[&str] = &["/data", "/data/users/", "/tenants/{principal}", "*", "users", "/{jwt.team}/x"];
    let parts =
        (some(NAMES), some(&Operation::ALL), some(OBJECTS), select(&["{principal}", "fixed", "{jwt.team}"][..]));
    parts.prop_map(|(principals, operations, objects, holder)| GrantSettings {
        name: String::new(),
        principals: principals.into_iter().map(str::to_owned).collect(),
        operations,
        objects: objects.into_iter().map(str::to_owned).collect(),
        holder: holder.to_owned(),
        ..GrantSettings::default()
    })
}

/// Rules of grants that are named by their place.
fn named(grants: &[GrantSettings]) -> Rules {
    let named = grants.iter().enumerate().map(|(n, grant)| GrantSettings { name: n.to_string(), ..grant.clone() });
    rules(&named.collect::<Vec<_>>())
}

proptest! {
    /// What a set of grants allows is what one of them allows alone, in every order.
    #[test]
    fn no_order_or_overlap_grants_what_no_rule_names(
        grants in prop::collection::vec(any_grant(), 0..6),
        name in select(&["a", "b", "team:a", "team", "c"][..]),
        team in select(&["", "red", "/", ".."][..]),
        operation in select(&Operation::ALL[..]),
        on in select(&["/data", "/data/users/1", "/database", "/tenants/a/x", "/tenants/team:a", "users", "usersX", "/red/x"][..]),
        as_ in select(&["a", "a/1", "b", "fixed", "fixed/1", "fixedX", "team:a", "red"][..]),
    ) {
        let who = who(name).with("jwt.team", team);
        let (on, as_) = (object(on), holder(as_));
        let alone = |grant: &GrantSettings| named(std::slice::from_ref(grant)).decide(&who, operation, &on, Some(&as_)).is_ok();
        let expected = grants.iter().any(alone);
        let all = named(&grants);
        prop_assert_eq!(all.decide(&who, operation, &on, Some(&as_)).is_ok(), expected);
        let backwards: Vec<_> = grants.iter().rev().cloned().collect();
        prop_assert_eq!(named(&backwards).decide(&who, operation, &on, Some(&as_)).is_ok(), expected);
        // The three questions agree with each other.
        let without_holder = all.decide(&who, operation, &on, None).is_ok();
        prop_assert!(!expected || without_holder);
        prop_assert_eq!(all.view(&who, operation).covers(on.as_str()), without_holder);
        prop_assert!(!without_holder || all.allow_some(&who, operation));
    }
}
