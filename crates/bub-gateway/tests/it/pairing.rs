//! Pairing: who gets a code, and whose code stays valid.

use std::time::SystemTime;

use bub_gateway::pairing::Pairings;

// Strangers neither take the place of a user who waits nor keep the next user from getting a code.
#[test]
fn a_crowd_of_strangers_does_not_affect_other_users() {
    let home = tempfile::tempdir().unwrap();
    let pairings = Pairings::new(home.path());
    let request = |channel: &str, id: &str| pairings.request_code(channel, id, "name").unwrap();
    let code = request("lab", "ada").unwrap();
    for stranger in 0..200 {
        request("lab", &format!("stranger-{stranger}")).unwrap();
        // Each has one code only, however many messages it sends.
        assert_eq!(request("lab", &format!("stranger-{stranger}")), None);
    }
    let late = request("lab", "grace").unwrap();
    assert_eq!(pairings.accept_code(&code, false).unwrap().id, "ada");
    assert_eq!(pairings.accept_code(&late, false).unwrap().id, "grace");
}

#[test]
fn requests_are_bounded_per_channel() {
    let home = tempfile::tempdir().unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let at = u64::try_from(now.unwrap().as_millis()).unwrap();
    let requests: Vec<_> = (0..1000)
        .map(|id| serde_json::json!({"code": id.to_string(), "channel": "lab", "id": id.to_string(), "name": "", "at": at}))
        .collect();
    let file = serde_json::json!({"people": [], "requests": requests});
    std::fs::write(home.path().join("pairings.json"), file.to_string()).unwrap();
    let pairings = Pairings::new(home.path());
    assert_eq!(pairings.request_code("lab", "more", "").unwrap(), None);
    // The crowd of one channel does not close another.
    assert!(pairings.request_code("other", "ada", "").unwrap().is_some());
    assert_eq!(pairings.users_and_requests().unwrap().1.len(), 1001);
}
