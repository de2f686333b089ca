//! An agent whose routes differ from the gate's.

use super::{super::support::until, Bench, Okay};

/// The gate has other routes than this agent, which takes a path's first segment for the object.
#[test]
fn routes_that_the_gate_does_not_have_are_logged() {
    let bench =
        Bench::with("[[route]]\nname = 'data'\nmatch = '/data/{domain}/{rest...}'\nobject = '/data/{domain}/'\n");
    let agent = bench.agent("a");
    until("the routes were compared", || agent.log().contains("the gate has no route with this match and object"));
    assert!(agent.log().contains("/data/{domain}/{rest...} -> /data/{domain}/"), "{}", agent.log());
    agent.put("/data/users/1").refusal(409, "LEASE_OBJECT_MISMATCH");
    assert!(agent.log().contains("no route of this gate makes the object data"), "{}", agent.log());
    // The same routes: no warning.
    let same = bench.agent_with("b", "[[route]]\nname = 'x'\nmatch = '/data/{d}/{more...}'\nobject = '/data/{d}/'\n");
    same.put("/data/users/1").expect_ok();
    assert!(!same.log().contains("no route"), "{}", same.log());
}

/// The gate has the agent's route, and a more specific one that takes paths of it.
#[test]
fn a_route_of_the_gates_that_the_agent_lacks_is_logged() {
    let all = "[[route]]\nname = 'all'\nmatch = '/{object}/{rest...}'\nobject = '{object}'\n";
    let data = "[[route]]\nname = 'data'\nmatch = '/data/{d}/{rest...}'\nobject = '/data/{d}/'\n";
    let bench = Bench::with(&format!("{all}{data}"));
    let agent = bench.agent_with("a", all);
    let warning = "the gate has a more specific route that this agent does not have";
    until("the routes were compared", || agent.log().contains(warning));
    for part in
        ["\"gate_route\":\"data\"", "/data/{d}/{rest...}", "\"route\":\"all\"", "Give this agent the same route"]
    {
        assert!(agent.log().contains(part), "{part} is not in {}", agent.log());
    }
    agent.put("/data/users/1").refusal(409, "LEASE_OBJECT_MISMATCH");
    agent.put("/users/1").expect_ok();
    // The same routes: no warning.
    let same = bench.agent_with("b", &format!("{data}{all}"));
    same.put("/data/users/1").expect_ok();
    assert!(!same.log().contains("the gate has"), "{}", same.log());
}
